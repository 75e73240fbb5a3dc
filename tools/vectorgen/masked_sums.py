"""Vectors of masked sums (spec/masked-sums.md), made without sealtrain and without numpy.

Writes ``ring.json``, ``keys.json`` and ``sums.json`` to ``vectors/masked-sums``. Elements are
integers of Python's. Everything follows from labels, so a second run writes the same bytes. Run:
``python tools/vectorgen/masked_sums.py [FOLDER]``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

OUT = Path(__file__).resolve().parents[2] / "vectors" / "masked-sums"
RING = 1 << 64
STEP = 1 << 24
RUN_ID = "4f" * 16
ROUND = 3
ATTEMPT = "5a" * 16
PLACE = (RUN_ID, str(ROUND), ATTEMPT)
NUMBERS = 6
WEIGHTS = {"clinic-a": 120, "clinic-b": 1, "clinic-c": 1 << 24, "clinic-d": 77}


def seed(label: str) -> bytes:
    """32 bytes that follow from a label."""
    return hashlib.sha256(f"sealtrain masked sums {label}".encode()).digest()


def canonical(value: Any) -> bytes:
    """RFC 8785, for texts and small integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def derived(secret: bytes, purpose: str, *parts: str) -> bytes:
    """HKDF-SHA256 without a salt, one block."""
    texts = [text.encode() for text in (f"sealtrain/{purpose}/v1", *parts)]
    info = b"".join(struct.pack(">I", len(text)) + text for text in texts)
    key = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(key, info + b"\x01", "sha256")


def half_even(value: Fraction) -> int:
    """Nearest integer, the even one of two."""
    return round(value)


def encoded(change: list[float], weight: int) -> list[int]:
    """Elements of an update."""
    whole = [half_even(Fraction(number) * STEP) * weight for number in change]
    return [number % RING for number in [*whole, weight]]


def words(key: bytes, count: int) -> list[int]:
    """The mask of a seed."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return list(struct.unpack(f"<{count}Q", stream.update(bytes(8 * count))))


def hexed(elements: list[int]) -> str:
    """As elements travel."""
    return struct.pack(f"<{len(elements)}Q", *elements).hex()


def drawn(label: str, count: int = NUMBERS) -> list[float]:
    """Changes in [-0.5, 0.5) that lie on no step of the fixed point."""
    data = hashlib.shake_256(f"change {label}".encode()).digest(8 * count)
    return [number / 2.0**64 for number in struct.unpack(f">{count}q", data)]


def ring_cases() -> list[dict[str, Any]]:
    """Encoding and its bounds."""
    half = 0.5 / STEP
    good: dict[str, tuple[list[float], int]] = {
        "zeros": ([0.0, -0.0], 1),
        "halves go to the even step": ([half, 3 * half, -half, -3 * half], 1),
        "the largest": ([1024.0, -1024.0], 1 << 24),
        "numbers between": (drawn("ring"), 120),
    }
    cases: list[dict[str, Any]] = [
        {
            "name": name,
            "change": change,
            "weight": weight,
            "elements": hexed(encoded(change, weight)),
            "outcome": "ok",
        }
        for name, (change, weight) in good.items()
    ]
    bad: dict[str, tuple[list[float], int]] = {
        "a number above the bound": ([0.0, 1024.0 + 2**-40], 1),
        "a number below the bound": ([-1025.0], 1),
        "no records": ([0.0], 0),
        "too many records": ([0.0], (1 << 24) + 1),
    }
    cases += [
        {
            "name": name,
            "change": change,
            "weight": weight,
            "elements": None,
            "outcome": "update-refused",
        }
        for name, (change, weight) in bad.items()
    ]
    return cases


def public(private: bytes) -> bytes:
    """X25519."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared(private: bytes, other: bytes) -> bytes:
    """X25519."""
    theirs = X25519PublicKey.from_public_bytes(other)
    return X25519PrivateKey.from_private_bytes(private).exchange(theirs)


def pair_key(first: str, second: str) -> bytes:
    """Seed of the mask of two parties, the smaller name first."""
    one, two = seed(f"private {first}"), seed(f"private {second}")
    names = (first, second, public(one).hex(), public(two).hex())
    return derived(shared(one, public(two)), "masked-pair", *PLACE, *names)


def keys_cases() -> dict[str, Any]:
    """Everything between two parties."""
    members = seed("members").hex()
    me, peer = "clinic-b", "clinic-a"
    halves = {me: seed("half of b"), peer: seed("half of a")}
    secret = halves["clinic-a"] + halves["clinic-b"]
    survivors = ["clinic-a", "clinic-b", "clinic-d"]
    cases = []
    for sender, receiver in ((me, peer), (peer, me)):
        parts = (*PLACE, members, sender, receiver)
        envelope = derived(secret, "masked-envelope", *parts)
        agreement = derived(secret, "masked-agreement", *parts)
        plain = canonical({"from": sender, "note": "any plaintext"})
        info = {
            "purpose": "sealtrain/masked-sums/v1", "run_id": RUN_ID, "round": ROUND,
            "attempt": ATTEMPT, "members": members, "from": sender, "to": receiver,
        }  # fmt: skip
        cases.append({
            "name": f"{sender} to {receiver}",
            "from": sender,
            "to": receiver,
            "half_info": canonical(info).decode(),
            "plaintext": plain.hex(),
            "envelope": AESGCM(envelope).encrypt(bytes(12), plain, b"").hex(),
            "tag": hmac.digest(agreement, canonical(survivors), "sha256").hex(),
        })  # fmt: skip
    return {
        "run_id": RUN_ID, "round": ROUND, "attempt": ATTEMPT, "members": members,
        "secret": secret.hex(), "survivors": survivors, "cases": cases,
    }  # fmt: skip


def sums_cases() -> dict[str, Any]:
    """Masked vectors of four parties, and their sum with and without one that did not survive."""
    parties = sorted(WEIGHTS)
    changes = {party: drawn(party) for party in parties}
    masked, seeds = {}, {}
    for party in parties:
        own = derived(seed(f"own {party}"), "masked-self", *PLACE, party)
        vector = [
            a + b
            for a, b in zip(
                encoded(changes[party], WEIGHTS[party]), words(own, NUMBERS + 1), strict=True
            )
        ]
        seeds[party] = own.hex()
        for other in parties:
            if other == party:
                continue
            stream = words(pair_key(*sorted((party, other))), NUMBERS + 1)
            sign = 1 if party < other else -1
            vector = [a + sign * b for a, b in zip(vector, stream, strict=True)]
        masked[party] = [element % RING for element in vector]
    cases = []
    for survivors in (parties, parties[1:], [parties[0], parties[3]]):
        total = [
            sum(encoded(changes[party], WEIGHTS[party])[place] for party in survivors) % RING
            for place in range(NUMBERS + 1)
        ]
        weight = sum(WEIGHTS[party] for party in survivors)
        signed = [one - RING if one >= RING // 2 else one for one in total]
        cases.append({
            "survivors": survivors,
            "sum": hexed(total),
            "weight": weight,
            "mean": [float(Fraction(one, weight * STEP)) for one in signed[:-1]],
        })  # fmt: skip
    return {
        "run_id": RUN_ID,
        "round": ROUND,
        "attempt": ATTEMPT,
        "parties": [
            {
                "party": party,
                "weight": WEIGHTS[party],
                "change": changes[party],
                "own_secret": seed(f"own {party}").hex(),
                "own_seed": seeds[party],
                "private_key": seed(f"private {party}").hex(),
                "public_key": public(seed(f"private {party}")).hex(),
                "pair_seeds": {
                    other: pair_key(*sorted((party, other))).hex()
                    for other in parties
                    if other != party
                },
                "masked": hexed(masked[party]),
            }
            for party in parties
        ],
        "cases": cases,
    }


def main() -> None:
    """Write all files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Any]] = {
        "ring": {"cases": ring_cases()},
        "keys": keys_cases(),
        "sums": sums_cases(),
    }
    for name, content in files.items():
        text = json.dumps({"version": 1} | content, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
