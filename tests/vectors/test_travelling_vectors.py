"""Fingerprints against vectors of an independent generator (tools/vectorgen/travelling.py)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.fingerprint import Fingerprint, pieces
from sealtrain.base.secret import Secret
from sealtrain_collab.travelling.capability import WriteCapability
from sealtrain_collab.travelling.check import zeros_proof

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).resolve().parents[2] / "vectors/travelling/fingerprints.json").read_text()
)["vectors"]


@pytest.mark.parametrize("vector", VECTORS["chunks"], ids=lambda vector: vector["comment"])
def test_a_chunk_has_the_fingerprint_of_its_vector(vector: dict[str, Any]) -> None:
    data = hashlib.shake_256(vector["shake_256_of"].encode()).digest(vector["size"])
    found = Fingerprint(bytes.fromhex(vector["key"]))
    for start, length in pieces(len(data)):
        found.take(data[start : start + length])
    assert found.size == vector["size"]
    assert found.digest().hex() == vector["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["wiped"], ids=lambda vector: vector["comment"])
def test_a_wiped_range_has_the_proof_of_its_vector(vector: dict[str, Any]) -> None:
    assert zeros_proof(vector["nonce"], vector["size"]) == vector["proof"]


def test_keys_of_a_capability_are_those_of_the_vector() -> None:
    (vector,) = VECTORS["capabilities"]
    secret = Secret(bytes.fromhex(vector["secret"]))
    capability = WriteCapability(id="00" * 16, trip=0, start=0, end=1, secret=secret)
    for name in ("write", "receipt", "fingerprint"):
        assert capability.key(name).reveal().hex() == vector[name]
