"""Runs of several parties against vectors of an independent generator (tools/vectorgen)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.errors import UsageError
from sealtrain.keys.derive import joint_key
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.sealing.datakey import DataKey
from sealtrain.signing.parties import party_run_id
from sealtrain_together.parties.party import PartyReport

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "parties"


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["cases"]
    assert found
    return found


@pytest.mark.parametrize("vector", vectors("run_ids"), ids=lambda vector: vector["name"])
def test_a_partys_run_id_is_the_vectors(vector: dict[str, Any]) -> None:
    assert party_run_id(vector["run_id"], vector["party"]) == vector["own"]


def test_no_two_parties_or_runs_share_an_id() -> None:
    ids = [vector["own"] for vector in vectors("run_ids")]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("run_id", "party"),
    [("5A" * 16, "a"), ("5a" * 15, "a"), ("5a" * 16, ""), ("5a" * 16, "a/b"), ("5a" * 16, "A")],
)
def test_what_is_no_run_id_or_no_name_has_none(run_id: str, party: str) -> None:
    with pytest.raises(UsageError):
        party_run_id(run_id, party)


@pytest.mark.parametrize("vector", vectors("joint_keys"), ids=lambda vector: vector["name"])
def test_a_joint_key_is_the_vectors(vector: dict[str, Any]) -> None:
    shares = {
        name: DataKey(bytes.fromhex(key)).derive("lead-share", vector["purpose"]).reveal()
        for name, key in vector["run_keys"].items()
    }
    assert {name: share.hex() for name, share in shares.items()} == vector["shares"]
    key = joint_key(
        shares,
        compose_hash=vector["compose_hash"],
        run_id=vector["run_id"],
        purpose=vector["purpose"],
    )
    assert key.reveal().hex() == vector["key"]


def test_every_input_but_the_order_changes_the_key() -> None:
    keys = {vector["name"]: vector["key"] for vector in vectors("joint_keys")}
    assert keys.pop("in another order") == keys["three parties"]
    assert len(set(keys.values())) == len(keys) == 6


@pytest.mark.parametrize(
    "shares", [{}, {"clinic-a": bytes(31)}, {"clinic-a": bytes(32), "clinic-b": b""}]
)
def test_no_share_or_half_a_share_gives_no_key(shares: dict[str, bytes]) -> None:
    with pytest.raises(UsageError):
        joint_key(shares, compose_hash="b1" * 32, run_id="5a" * 16, purpose="travel-state")


@pytest.mark.parametrize("vector", vectors("reports"), ids=lambda vector: vector["name"])
def test_a_report_is_taken_or_refused_as_the_vector_says(vector: dict[str, Any]) -> None:
    data = vector["report"].encode()
    if vector["outcome"] == "ok":
        assert PartyReport.from_bytes(data).to_bytes() == data
        return
    with pytest.raises(ClaimContradicted):
        PartyReport.from_bytes(data)


def test_a_second_run_of_the_generator_writes_the_same(repository: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, repository / "tools/vectorgen/parties.py", tmp_path],
        check=True,
        timeout=60,
    )
    for path in FOLDER.glob("*.json"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
