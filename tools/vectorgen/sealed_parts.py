"""Vectors of what surrounds a sealed file: keys, padding, roots, commitments, stanzas.

Called by ``sealed_file.py``; independent of sealtrain as everything here.
"""

from __future__ import annotations

import base64
import hmac
from functools import partial
from typing import Any

from cryptography.hazmat.primitives import hashes, hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from sealed_format import (
    DATASET,
    OWNER,
    canonical,
    core_of,
    derive,
    flip,
    hash_of,
    pad_content,
    seed,
    sha,
    top,
)

APP, COMPOSE = "a1" * 20, "b1" * 32


def derive_vectors() -> list[dict[str, Any]]:
    """Key derivation and the keys of a file."""
    key, core = seed("derive"), canonical(core_of())
    file_key = derive(key, "sealed-file", core.decode())
    cases: list[tuple[bytes, str, list[str]]] = [
        (key, "key-check", []),
        (key, "sealed-file", [core.decode()]),
        (file_key, "sealed-file-header", []),
        (file_key, "sealed-file-payload", []),
        (file_key, "sealed-file-trailer", []),
        (key, "store", ["checkpoint"]),
        (key, "record-commitment", [DATASET]),
        (key, "two", ["a", "bc"]),
        (key, "two", ["ab", "c"]),
        (key, "text", ["Zürich"]),
    ]
    return [
        {"key": k.hex(), "purpose": purpose, "parts": parts,
         "derived": derive(k, purpose, *parts).hex()}
        for k, purpose, parts in cases
    ]  # fmt: skip


def root_vectors() -> dict[str, Any]:
    """Tree heads of 1 to 9 leaves, and dataset roots."""
    tops = []
    for suite in (1, 2):
        for count in range(1, 10):
            leaves = [seed(f"leaf {n}") for n in range(count)]
            head = top(partial(hash_of, suite), leaves)
            tops.append(
                {"suite": suite, "leaves": [leaf.hex() for leaf in leaves], "top": head.hex()}
            )
    datasets = []
    for count in (1, 2, 3, 7):
        shards = [
            {"name": f"shard-{n:05d}.sealed", "size": 1000 + n, "root": seed(f"root {n}").hex()}
            for n in range(count)
        ]
        index_root = seed("index root")
        leaves = [hash_of(2, b"\0" + canonical(shard)) for shard in shards]
        root = sha(
            b"\x02sealtrain/dataset-root/v1"
            + bytes.fromhex(DATASET)
            + index_root
            + count.to_bytes(4, "big")
            + top(partial(hash_of, 2), leaves)
        )
        datasets.append(
            {"dataset_id": DATASET, "index_root": index_root.hex(), "shards": shards, "root": root}
        )
    return {"cases": {"tops": tops, "datasets": datasets}}


def padding_vectors() -> list[dict[str, Any]]:
    """Sizes around every kind of step."""
    sizes = [0, 1, 7, 8, 9, 100, 1000, 1016, 1017, 65_528, 65_529, 1_000_000, (1 << 40) - 3]
    return [
        {"policy": policy, "content": size, "plain": pad_content(policy, size)}
        for policy in ("none", "bucket", "fixed:1", "fixed:4096")
        for size in sizes
    ]


def commitment_vectors() -> list[dict[str, Any]]:
    """Records and their commitments."""
    key = seed("commitments")
    mac_key = derive(key, "record-commitment", DATASET)
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("plain", {"b": "x", "a": 1}, {"b": "x", "a": 1}),
        ("null members do not count", {"a": 1, "b": None}, {"a": 1}),
        ("at any depth", {"a": {"b": None, "c": [None, {"d": None}]}}, {"a": {"c": [None, {}]}}),
        ("large integer", {"a": 1 << 53}, {"a": {"$int": str(1 << 53)}}),
        ("largest plain integer", {"a": (1 << 53) - 1}, {"a": (1 << 53) - 1}),
    ]
    return [
        {
            "name": comment, "data_key": key.hex(), "dataset_id": DATASET, "record": record,
            "commitment": hmac.digest(mac_key, canonical(form), "sha256").hex(),
        }
        for comment, record, form in cases
    ]  # fmt: skip


def stanza_vectors() -> list[dict[str, Any]]:
    """Stanzas that unwrap and stanzas that do not; HPKE is randomised, so they differ each time."""
    private_seed, data_key = seed("hpke"), seed("wrapped key")
    okm = HKDFExpand(hashes.SHA256(), 96, b"sealtrain/hpke-key/v1").derive(
        hmac.digest(bytes(32), private_seed, "sha256")
    )
    mlkem = MLKEM768PrivateKey.from_seed_bytes(okm[:64])
    x25519 = X25519PrivateKey.from_private_bytes(okm[64:])
    public = hpke.MLKEM768X25519PublicKey(mlkem.public_key(), x25519.public_key())
    suite = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
    recipe_only = {"app_id": APP, "compose_hash": COMPOSE, "owner_id": OWNER}
    binding = recipe_only | {"broker_id": "e1" * 32}
    recipient = sha(canonical(binding))
    share = seed("what a share stanza holds", 453)
    elsewhere = binding | {"broker_id": "e2" * 32}
    other_broker = sha(canonical(elsewhere))

    def info(kind: str, name: str, more: dict[str, str], dataset: str = DATASET) -> bytes:
        purpose = "sealtrain/stanza/v2"
        return canonical(
            {"purpose": purpose, "kind": kind, "dataset_id": dataset, "recipient": name} | more
        )

    def entry(comment: str, kind: str, name: str, body: bytes, result: str) -> dict[str, Any]:
        content = share if kind == "share" else data_key
        return {
            "name": comment, "seed": private_seed.hex(), "dataset_id": DATASET,
            "binding": None if kind == "owner" else binding, "owner_id": OWNER,
            "stanza": {"kind": kind, "recipient": name, "body": base64.b64encode(body).decode()},
            "outcome": result, "content": content.hex() if result == "ok" else None,
        }  # fmt: skip

    def seal(plaintext: bytes, about: bytes) -> bytes:
        return suite.encrypt(plaintext, public, info=about)

    owner = seal(data_key, info("owner", OWNER, {}))
    recipe = seal(data_key, info("recipe", recipient, binding))
    changed = binding | {"compose_hash": "b2" * 32}
    unnamed = sha(canonical(recipe_only))
    old = canonical(
        {"purpose": "sealtrain/stanza/v1", "kind": "recipe", "dataset_id": DATASET,
         "recipient": recipient} | binding
    )  # fmt: skip
    return [
        entry("owner", "owner", OWNER, owner, "ok"),
        entry("recipe", "recipe", recipient, recipe, "ok"),
        entry("bit of the body", "owner", OWNER, flip(owner, 700), "wrong-key"),
        entry("body cut", "owner", OWNER, owner[:-1], "wrong-key"),
        entry("another dataset", "owner", OWNER,
              seal(data_key, info("owner", OWNER, {}, "d2" * 16)),
              "wrong-key"),
        entry("recipe stanza as owner stanza", "owner", OWNER, recipe, "wrong-key"),
        entry("another recipe under this recipient", "recipe", recipient,
              seal(data_key, info("recipe", recipient, changed)), "wrong-key"),
        entry("another broker's recipe stanza under this recipient", "recipe", recipient,
              seal(data_key, info("recipe", recipient, elsewhere)), "wrong-key"),
        entry("recipe stanza for another broker", "recipe", other_broker,
              seal(data_key, info("recipe", other_broker, elsewhere)), "no-stanza"),
        entry("recipe stanza that names no broker", "recipe", unnamed,
              seal(data_key, info("recipe", unnamed, recipe_only)), "no-stanza"),
        entry("recipe stanza of an older version", "recipe", recipient, seal(data_key, old),
              "wrong-key"),
        entry("share", "share", recipient, seal(share, info("share", recipient, binding)), "ok"),
        entry("another broker's share under this recipient", "share", recipient,
              seal(share, info("share", recipient, elsewhere)), "wrong-key"),
        entry("share for another broker", "share", other_broker,
              seal(share, info("share", other_broker, elsewhere)), "no-stanza"),
        entry("recipe stanza as share stanza", "share", recipient, recipe, "wrong-key"),
        entry("share stanza as recipe stanza", "recipe", recipient,
              seal(share, info("share", recipient, binding)), "wrong-key"),
        entry("for another recipient", "recipe", sha(canonical(changed)), recipe, "no-stanza"),
        entry("wraps 31 bytes", "owner", OWNER, seal(data_key[:31], info("owner", OWNER, {})),
              "wrong-key"),
    ]  # fmt: skip
