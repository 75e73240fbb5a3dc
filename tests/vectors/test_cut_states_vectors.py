"""Sealed states of a cut run against vectors made without sealtrain (tools/vectorgen)."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.errors import DataInvalid
from sealtrain.keys.derive import joint_key, run_key
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.signing.parties import party_run_id
from sealtrain.signing.target import Target
from sealtrain.training.checkpoints.checkpoint import load
from sealtrain_together.cut.states import (
    STATE_PURPOSE,
    Note,
    SealedCutState,
    ServerStates,
    owner_share,
    require_agreement,
)

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "split-cut"
NAMES = ("owner_shares", "states", "notes", "agreements")
OWNER = "clinic-a"


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    assert found["cases"]
    return found


def cases(name: str) -> Any:
    return pytest.mark.parametrize("case", document(name)["cases"], ids=lambda case: case["name"])


def state_of(found: dict[str, Any] | None) -> SealedCutState | None:
    return None if found is None else SealedCutState.model_validate(found)


@cases("owner_shares")
def test_an_owners_share_is_the_vectors(case: dict[str, Any]) -> None:
    keys = {name: DataKey(bytes.fromhex(key)) for name, key in case["data_keys"].items()}
    own = party_run_id(case["run_id"], case["owner"])
    key = run_key(keys, app_id=case["app_id"], compose_hash=case["compose_hash"], run_id=own)
    target = Target(app_id=case["app_id"], compose_hash=case["compose_hash"], recipe_hash="00" * 32)
    share = owner_share(keys, owner=case["owner"], target=target, run_id=case["run_id"])
    assert (own, key.reveal().hex()) == (case["own_run_id"], case["run_key"])
    assert share.hex() == case["share"]


def test_each_owner_run_and_deployment_has_a_share_of_its_own() -> None:
    shares = [case["share"] for case in document("owner_shares")["cases"]]
    assert len(set(shares)) == len(shares)


def written(case: dict[str, Any], out: Path) -> None:
    """Lay out the server's folder of a case."""
    files = {
        path: data
        for path, data in document("states")["files"].items()
        if path not in case["missing"]
    }
    for folder in ("checkpoints", "arrived", "journal"):
        (out / folder).mkdir()
    for path, data in (files | case["replaced"]).items():
        (out / path).write_bytes(base64.b64decode(data))


def key_of(case: dict[str, Any]) -> DataKey:
    return joint_key(
        {owner: bytes.fromhex(share) for owner, share in case["shares"].items()},
        compose_hash=case["compose_hash"],
        run_id=case["run_id"],
        purpose=STATE_PURPOSE,
    )


@cases("states")
def test_a_servers_folder_opens_as_the_vector_says(case: dict[str, Any], tmp_path: Path) -> None:
    written(case, tmp_path)
    if case["outcome"] != "ok":
        assert case["outcome"] == CheckpointRefused.code
        with pytest.raises(CheckpointRefused):
            ServerStates(tmp_path, case["run_id"]).open(key_of(case))
        return
    states = ServerStates(tmp_path, case["run_id"])
    assert states.newest == state_of(case["newest"])
    assert key_of(case).reveal().hex() == document("states")["key"]
    opened = states.open(key_of(case))
    if case["newest"] is None:
        assert opened is None
        return
    assert opened is not None
    assert opened.arrived.to_dict() == case["arrived"]
    assert opened.journal.to_dict() == case["journal"]
    held = load(states.store, case["run_id"], opened.checkpoint)
    assert held["step"] == case["newest"]["step"]
    assert held["trained"]["weight"].flatten().tolist() == case["weights"]


@cases("notes")
def test_an_owners_note_is_read_or_refused(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(case["note"])
    if case["outcome"] != "ok":
        with pytest.raises(DataInvalid) as refused:
            Note.load(tmp_path)
        assert refused.value.code == case["outcome"]
        return
    note = Note.load(tmp_path)
    assert note.run_id is not None
    note.keep(note.run_id, note.sealed)
    assert path.read_text() == case["note"]


@cases("agreements")
def test_two_sides_agree_or_not(case: dict[str, Any]) -> None:
    server, noted = state_of(case["server"]), state_of(case["noted"])
    if case["outcome"] == "ok":
        require_agreement(server, noted, OWNER)
        return
    with pytest.raises(CheckpointRefused) as refused:
        require_agreement(server, noted, OWNER)
    assert (refused.value.code, refused.value.owner) == (case["outcome"], OWNER)


def test_a_second_run_of_the_generator_writes_the_same(repository: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, repository / "tools/vectorgen/cut_states.py", tmp_path],
        check=True,
        timeout=60,
    )
    for name in NAMES:
        assert (tmp_path / f"{name}.json").read_bytes() == (FOLDER / f"{name}.json").read_bytes()
