"""Fingerprints and memory against vectors of tools/vectorgen/travelling.py, made without us."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.canonical import canonical_json
from sealtrain.base.fingerprint import Fingerprint, pieces
from sealtrain.base.scrub import fingerprint_of, overwrite, proof_of
from sealtrain.base.secret import Secret
from sealtrain.consortium.receipts import Anchor
from sealtrain.sealing.datakey import DataKey
from sealtrain_together.travelling.capability import WriteCapability
from sealtrain_together.travelling.holder_memory import GivenFile, GivenTrips, GivingBounds
from sealtrain_together.travelling.measurement import fingerprint_of_bytes
from sealtrain_together.travelling.states import STATE_ENTRY

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).resolve().parents[2] / "vectors/travelling/fingerprints.json").read_text()
)["cases"]


@pytest.mark.parametrize("vector", VECTORS["chunks"], ids=lambda vector: vector["name"])
def test_a_chunk_has_the_fingerprint_of_its_vector(vector: dict[str, Any]) -> None:
    data = hashlib.shake_256(vector["shake_256_of"].encode()).digest(vector["size"])
    found = Fingerprint(bytes.fromhex(vector["key"]))
    for start, length in pieces(len(data)):
        found.take(data[start : start + length])
    assert found.size == vector["size"]
    assert found.digest().hex() == vector["fingerprint"]


@pytest.mark.parametrize("vector", VECTORS["wiped"], ids=lambda vector: vector["name"])
def test_an_overwritten_range_has_the_proof_of_its_vector(vector: dict[str, Any]) -> None:
    assert proof_of(vector["seed"], vector["nonce"], vector["size"]) == vector["proof"]
    there = memoryview(bytearray(b"x" * vector["size"]))
    overwrite(there, bytes.fromhex(vector["seed"]))
    assert fingerprint_of(there, bytes.fromhex(vector["nonce"])) == vector["proof"]


@pytest.mark.parametrize("vector", VECTORS["states"], ids=lambda vector: vector["name"])
def test_a_model_state_has_the_fingerprint_of_its_vector(vector: dict[str, Any]) -> None:
    kept = canonical_json({"settings": {}, "step": vector["step"]}).decode()
    header: dict[str, Any] = {"__metadata__": {STATE_ENTRY: kept}}
    body = b""
    for tensor in reversed(vector["tensors"]):  # in a file their order is free
        data = hashlib.shake_256(tensor["shake_256_of"].encode()).digest(tensor["size"])
        offsets = [len(body), len(body) + len(data)]
        header[tensor["name"]] = {
            "dtype": tensor["dtype"], "shape": tensor["shape"], "data_offsets": offsets
        }  # fmt: skip
        body += data
    words = json.dumps(header).encode()
    state = len(words).to_bytes(8, "little") + words + body
    assert fingerprint_of_bytes(state, bytes.fromhex(vector["key"])) == vector["fingerprint"]


def test_keys_of_a_capability_are_those_of_the_vector() -> None:
    (vector,) = VECTORS["capabilities"]
    secret = Secret(bytes.fromhex(vector["secret"]))
    capability = WriteCapability(id="00" * 16, trip=0, start=0, end=1, secret=secret)
    for name in ("write", "receipt", "fingerprint"):
        assert capability.key(name).reveal().hex() == vector[name]


def test_a_holder_remembers_as_the_vector_does(tmp_path: Path) -> None:
    (vector,) = VECTORS["memory"]
    key, path = DataKey(bytes.fromhex(vector["key"])), tmp_path / "given.jsonl"
    anchors: list[dict[str, Any]] = []

    def file() -> GivenFile:
        return GivenFile(
            path,
            key,
            vector["run_id"],
            every=1,
            anchor=lambda counter, _, digest, **_wait: anchors.append(
                {"counter": counter, "digest": digest}
            ),
        )

    bounds = GivingBounds(max_bytes=1 << 20, timeout=1.0, patience=1.0)
    with closing(file()) as first:
        first.read(None)
        first.begin()
        trips = GivenTrips(vector["run_id"], bounds, remember=first.keep)
        trips.begins(vector["run_id"], 0, 0, 512)
        trips.begins(vector["run_id"], 3, 512, 1024)
    with closing(file()) as again:
        before = again.read(Anchor(**anchors[-1]))
        again.begin()
        trips = GivenTrips(vector["run_id"], bounds, remember=again.keep, before=before)
        trips.goes_on(vector["run_id"], 2)
        trips.begins(vector["run_id"], 2, 512, 768)
    assert path.read_text().splitlines() == vector["lines"]
    assert anchors[-1] == vector["anchor"]
    with closing(file()) as last:
        before = last.read(Anchor(**vector["anchor"]))
    found = GivenTrips(vector["run_id"], bounds, before=before)
    assert list(found.sizes) == [size for _, size in vector["counts"]]
