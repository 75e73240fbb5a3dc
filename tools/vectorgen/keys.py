"""Vectors of key derivation and key files, made without sealtrain.

Writes ``vectors/keys/{derive,keypairs,identity,root,shares}.json``. HKDF is written out here with
``hmac`` alone, and sharing with arithmetic of its own; everything follows from the labels below, so
a second run writes the same bytes.
Run: ``python tools/vectorgen/keys.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from shamir_mnemonic import Share

OUT = Path(__file__).resolve().parents[2] / "vectors" / "keys"
APP, OTHER_APP = "a1" * 20, "a2" * 20
COMPOSE, OTHER_COMPOSE = "b1" * 32, "b2" * 32
OWNER, OTHER_OWNER = "c1" * 32, "c2" * 32
RUN = "d1" * 16
DATASETS = ("e2" * 16, "e1" * 16)


def sha(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def seed(label: str) -> bytes:
    """32 bytes that follow from the label."""
    return hashlib.shake_256(b"sealtrain key vectors " + label.encode()).digest(32)


def hkdf(secret: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 with SHA-256 and no salt."""
    key = hmac.digest(b"\0" * 32, secret, "sha256")
    block, okm = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes([counter]), "sha256")
        okm += block
    return okm[:length]


def info_of(purpose: str, parts: list[str]) -> bytes:
    """Length-prefixed purpose and parts."""
    texts = [f"sealtrain/{purpose}/v1".encode(), *(part.encode() for part in parts)]
    return b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def derive(secret: bytes, purpose: str, parts: list[str]) -> bytes:
    """The scheme of spec/keys.md §1."""
    return hkdf(secret, info_of(purpose, parts), 32)


def hpke_public(key_seed: bytes) -> bytes:
    """Public half of the hybrid pair that a 32-byte seed gives."""
    okm = hkdf(key_seed, b"sealtrain/hpke-key/v1", 96)
    mlkem = MLKEM768PrivateKey.from_seed_bytes(okm[:64]).public_key().public_bytes_raw()
    return mlkem + X25519PrivateKey.from_private_bytes(okm[64:]).public_key().public_bytes_raw()


def ed25519_public(key_seed: bytes) -> bytes:
    """Public half of an Ed25519 seed."""
    return Ed25519PrivateKey.from_private_bytes(key_seed).public_key().public_bytes_raw()


def derive_vectors() -> list[dict[str, Any]]:
    """``derive``: purposes, parts, and lists of parts that must not collide."""
    root = seed("root")
    cases = [
        ("no part", "identity-signing", []),
        ("one part", "signing-key", ["broker"]),
        ("three parts", "recipe-key", [APP, COMPOSE, OWNER]),
        ("parts split one way", "run-key", ["ab", "c"]),
        ("parts split the other way", "run-key", ["a", "bc"]),
        ("parts joined", "run-key", ["abc"]),
        ("an empty part", "run-key", ["abc", ""]),
        ("beyond ASCII", "run-key", ["größe"]),
    ]
    return [
        {
            "name": comment,
            "secret": root.hex(),
            "purpose": purpose,
            "parts": parts,
            "info": info_of(purpose, parts).hex(),
            "key": derive(root, purpose, parts).hex(),
        }
        for comment, purpose, parts in cases
    ]


def keypair_vectors() -> list[dict[str, Any]]:
    """Recipe-bound pairs and signers of a root secret, and run keys of data keys."""
    cases: list[dict[str, Any]] = []
    for root_label, app, compose, owner in (
        ("root", APP, COMPOSE, OWNER),
        ("root", OTHER_APP, COMPOSE, OWNER),
        ("root", APP, OTHER_COMPOSE, OWNER),
        ("root", APP, COMPOSE, OTHER_OWNER),
        ("other root", APP, COMPOSE, OWNER),
    ):
        pair_seed = derive(seed(root_label), "recipe-key", [app, compose, owner])
        cases.append(
            {
                "kind": "recipe",
                "root": seed(root_label).hex(),
                "app_id": app,
                "compose_hash": compose,
                "owner_id": owner,
                "public_sha256": sha(hpke_public(pair_seed)),
            }
        )
    for compose, labels in (
        (COMPOSE, "ab"),
        (OTHER_COMPOSE, "ab"),
        (COMPOSE, "ba"),
        (COMPOSE, "a"),
    ):
        # The ids do not come in their order here; the key takes them in it.
        data = {dataset: seed(label) for dataset, label in zip(DATASETS, labels, strict=False)}
        ids = sorted(data)
        together = b"".join(data[dataset] for dataset in ids)
        cases.append(
            {
                "kind": "run",
                "data_keys": {dataset: key.hex() for dataset, key in data.items()},
                "app_id": APP,
                "compose_hash": compose,
                "run_id": RUN,
                "key": derive(together, "run-key", [APP, compose, RUN, *ids]).hex(),
            }
        )
    for purpose in ("broker", "ledger"):
        public = ed25519_public(derive(seed("root"), "signing-key", [purpose]))
        cases.append(
            {
                "kind": "signing",
                "root": seed("root").hex(),
                "purpose": purpose,
                "public": public.hex(),
            }
        )
    return cases


def identity_vectors() -> list[dict[str, Any]]:
    """Identity files: valid ones with what they give, and damaged ones."""
    good = {
        "type": "sealtrain/identity/v1",
        "name": "hospital-a",
        "seed": base64.b64encode(seed("hospital-a")).decode(),
    }
    signing = ed25519_public(derive(seed("hospital-a"), "identity-signing", []))
    sealing = hpke_public(derive(seed("hospital-a"), "identity-sealing", []))
    public = {
        "signing_key": base64.b64encode(signing).decode(),
        "sealing_key_sha256": sha(sealing),
        "owner_id": sha(b"sealtrain/owner/v1:" + signing + sealing),
        "key_id": "ed25519:" + sha(signing),
    }
    text = json.dumps(good)
    witness = MLDSA44PrivateKey.from_seed_bytes(derive(seed("hospital-a"), "identity-witness", []))
    quantum = good | {"witness": "ml-dsa-44"}
    witness_sha256 = sha(witness.public_key().public_bytes_raw())
    invalid: list[tuple[str, str]] = [
        ("another type", json.dumps(good | {"type": "sealtrain/identity/v3"})),
        ("version 2 without scrypt", json.dumps(good | {"type": "sealtrain/identity/v2"})),
        ("version 1 with scrypt", json.dumps(good | {"scrypt": {"log_n": 15, "salt": _SALT}})),
        ("no type", json.dumps({k: v for k, v in good.items() if k != "type"})),
        ("unknown field", json.dumps(good | {"comment": "mine"})),
        ("witness key of another kind", json.dumps(good | {"witness": "ml-dsa-65"})),
        ("witness key null", json.dumps(good | {"witness": None})),
        ("name with upper case", json.dumps(good | {"name": "Hospital"})),
        ("empty name", json.dumps(good | {"name": ""})),
        ("short seed", json.dumps(good | {"seed": base64.b64encode(b"x" * 31).decode()})),
        ("long seed", json.dumps(good | {"seed": base64.b64encode(b"x" * 33).decode()})),
        ("seed without padding", json.dumps(good | {"seed": str(good["seed"]).rstrip("=")})),
        ("seed in hex", json.dumps(good | {"seed": seed("hospital-a").hex()})),
        ("seed twice", text[:-1] + f', "seed": "{good["seed"]}"}}'),
        ("cut off", text[:-1]),
        ("empty", ""),
        ("too long", " " * 5000 + text),
    ]
    return [
        {"name": "canonical", "file": json.dumps(good, sort_keys=True), "public": public},
        {
            "name": "with a witness key",
            "file": json.dumps(quantum, sort_keys=True),
            "public": public | {"witness_key_sha256": witness_sha256},
        },
        *({"name": comment, "file": file, "public": None} for comment, file in invalid),
        *passphrase_vectors(public),
    ]


_SALT = base64.b64encode(bytes(range(16))).decode()


def locked_identity(passphrase: bytes, *, log_n: int, name: str = "hospital-a") -> dict[str, Any]:
    """An identity file of version 2, by hashlib's scrypt."""
    head = {
        "name": name,
        "scrypt": {"log_n": log_n, "salt": _SALT},
        "type": "sealtrain/identity/v2",
    }
    key = hashlib.scrypt(
        passphrase, salt=bytes(range(16)), n=1 << log_n, r=8, p=1, maxmem=1 << 29, dklen=32
    )
    bound = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    data = AESGCM(key).encrypt(bytes(12), seed("hospital-a"), bound)
    return head | {"seed": base64.b64encode(data).decode()}


def passphrase_vectors(public: dict[str, str]) -> list[dict[str, Any]]:
    """Identity files under a passphrase: opened, and refused."""
    word = "zwölf Boxkämpfer"
    good = locked_identity(word.encode(), log_n=15)
    flipped = base64.b64decode(good["seed"])
    flipped = bytes([flipped[0] ^ 1]) + flipped[1:]
    salt = base64.b64encode(bytes(16)).decode()
    invalid: list[tuple[str, dict[str, Any], str]] = [
        ("wrong passphrase", good, "zwolf Boxkampfer"),
        ("empty passphrase", good, ""),
        ("another name", good | {"name": "hospital-b"}, word),
        ("witness added", good | {"witness": "ml-dsa-44"}, word),
        ("another salt", good | {"scrypt": {"log_n": 15, "salt": salt}}, word),
        ("another cost", good | {"scrypt": {"log_n": 16, "salt": _SALT}}, word),
        ("cost too low", locked_identity(word.encode(), log_n=14), word),
        ("cost too high", good | {"scrypt": {"log_n": 19, "salt": _SALT}}, word),
        ("excessive cost", good | {"scrypt": {"log_n": 63, "salt": _SALT}}, word),
        ("negative cost", good | {"scrypt": {"log_n": -1, "salt": _SALT}}, word),
        ("further parameter", good | {"scrypt": {"log_n": 15, "salt": _SALT, "r": 8}}, word),
        ("short salt", good | {"scrypt": {"log_n": 15, "salt": "AAAA"}}, word),
        ("altered seed", good | {"seed": base64.b64encode(flipped).decode()}, word),
        ("seed in the clear", good | {"seed": base64.b64encode(bytes(32)).decode()}, word),
        ("taken for version 1", good | {"type": "sealtrain/identity/v1"}, word),
    ]
    return [
        {
            "name": f"passphrase: {form}",
            "file": json.dumps(good, sort_keys=True),
            "passphrase": unicodedata.normalize(form, word),
            "public": public,
        }
        for form in ("NFC", "NFD")
    ] + [
        {
            "name": f"passphrase: {comment}",
            "file": json.dumps(file, sort_keys=True),
            "passphrase": passphrase,
            "public": None,
        }
        for comment, file, passphrase in invalid
    ]


def root_vectors() -> list[dict[str, Any]]:
    """Contents of a ``file:`` root secret."""
    text = seed("root").hex()
    cases: list[tuple[str, str, str | None]] = [
        ("with newline", text + "\n", text),
        ("without newline", text, text),
        ("upper case", text.upper(), None),
        ("two newlines", text + "\n\n", None),
        ("carriage return", text + "\r\n", None),
        ("leading space", " " + text, None),
        ("one digit short", text[:-1], None),
        ("31 bytes", text[:-2], None),
        ("33 bytes", text + "00", None),
        ("not hex", "g" * 64, None),
        ("empty", "", None),
    ]
    return [{"name": comment, "file": file, "secret": key} for comment, file, key in cases]


def times(a: int, b: int) -> int:
    """Product in GF(256) with the polynomial of AES."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def inverse(a: int) -> int:
    """The one number that times ``a`` is 1."""
    return next(b for b in range(1, 256) if times(a, b) == 1)


def point(known: dict[int, bytes], x: int) -> bytes:
    """Value at ``x`` of the polynomial of least degree through the known points (Lagrange)."""
    size = len(next(iter(known.values())))
    value = bytearray(size)
    for at, data in known.items():
        factor = 1
        for other in known:
            if other != at:
                factor = times(factor, times(x ^ other, inverse(at ^ other)))
        for place, byte in enumerate(data):
            value[place] ^= times(byte, factor)
    return bytes(value)


def split(secret: bytes, threshold: int, count: int, label: str) -> list[str]:
    """SLIP-39 mnemonics of one group without a passphrase: the secret takes the ciphertext's place.

    Point 255 is the secret, point 254 a digest of it; ``threshold - 2`` points are random.
    """
    pad = seed(f"{label} digest")[:28]
    known = {number: seed(f"{label} {number}") for number in range(threshold - 2)}
    known |= {254: hmac.digest(pad, secret, "sha256")[:4] + pad, 255: secret}
    identifier = int.from_bytes(seed(f"{label} identifier")[:2], "big") % (1 << 15)
    return [
        Share(
            identifier, True, 0, 0, 1, 1, x, threshold, known.get(x) or point(known, x)
        ).mnemonic()
        for x in range(count)
    ]


def documents(mnemonics: list[str]) -> list[str]:
    """What each broker is given: its share and the digests of all."""
    digests = [sha(text.encode()) for text in mnemonics]
    return [
        json.dumps({"digests": digests, "mnemonic": text}, separators=(",", ":"))
        for text in mnemonics
    ]


def share_vectors() -> list[dict[str, Any]]:
    """Documents of several brokers: those that give a key, and those that do not."""
    key = seed("shared key")
    two = documents(split(key, 2, 3, "two of three"))
    three = documents(split(key, 3, 5, "three of five"))
    other = documents(split(seed("another key"), 2, 3, "another"))
    swapped = json.dumps(
        {"digests": json.loads(two[1])["digests"], "mnemonic": json.loads(other[1])["mnemonic"]},
        separators=(",", ":"),
    )
    weak = documents(split(key, 2, 4, "two of four"))
    cases: list[tuple[str, dict[str, str], bool, int, list[str]]] = [
        ("two of three", {"a": two[0], "b": two[1]}, True, 2, []),
        ("the other two", {"a": two[0], "c": two[2]}, True, 2, []),
        ("all three", dict(zip("abc", two, strict=True)), True, 2, []),
        ("one of three", {"a": two[0]}, False, 2, []),
        ("one share twice", {"a": two[0], "b": two[0]}, False, 2, []),
        ("three of five", {"a": three[4], "b": three[0], "c": three[2]}, True, 3, []),
        ("two of five", {"a": three[4], "b": three[0]}, False, 3, []),
        ("a share of another sealing", {"a": two[0], "b": other[1], "c": two[2]}, True, 2, ["b"]),
        ("not what its digests name", {"a": two[0], "b": swapped, "c": two[2]}, True, 2, ["b"]),
        ("no document", {"a": two[0], "b": "{}", "c": two[2]}, True, 2, ["b"]),
        ("a mnemonic with another word",
         {"a": two[0], "b": two[1].replace(json.loads(two[1])["mnemonic"].split()[9], "zero", 1),
          "c": two[2]}, True, 2, ["b"]),
        ("not more than half", {"a": weak[0], "b": weak[1], "c": weak[2]}, False, 0,
         ["a", "b", "c"]),
    ]  # fmt: skip
    return [
        {
            "name": comment,
            "documents": shares,
            "key": key.hex() if whole else None,
            "threshold": threshold,
            "wrong": wrong,
        }
        for comment, shares, whole, threshold, wrong in cases
    ]


def main(out: Path) -> None:
    """Write the five files."""
    out.mkdir(parents=True, exist_ok=True)
    families = {
        "derive": derive_vectors(),
        "keypairs": keypair_vectors(),
        "identity": identity_vectors(),
        "root": root_vectors(),
        "shares": share_vectors(),
    }
    for name, vectors in families.items():
        document = {"version": 1, "cases": vectors}
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        (out / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
