"""Parties whose products are made under pads, as real processes: each role dies, or lies, once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from federated_stage import WITHIN_S, Stage, stage
from federated_world import Relay
from manifest_world import FEDERATED
from polling import wait_until
from world import OWNERS

from sealtrain.base.clock import system_clock
from sealtrain.cli.programs import SideProgram
from sealtrain.errors import AcceleratorUnreachable, SealtrainError, UsageError
from sealtrain.manifest import form
from sealtrain.manifest.verify import verify_manifest
from sealtrain_together.errors import DealerUnreachable, ProductAltered

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.claim("C600", "C603"),
    pytest.mark.timeout(600),
]

ROUNDS = 8
HOW = FEDERATED | {
    "rounds": ROUNDS,
    "local_steps": 2,
    "aggregation": "fedavg",
    "min_parties": len(OWNERS),  # a round waits for a party that comes again
}
TRAINER = {"max_steps": 2 * ROUNDS, "per_device_train_batch_size": 4, "max_length": 32}


def served(made: Stage, name: str, *words: str) -> str:
    """Start a server; where it listens."""
    part = SideProgram(name, made.at.folder, ["split", *words], answers=False, start=made.starts)
    made.parts[name] = made.stack.enter_context(part)
    return part.place(f"{words[0]} ready", within=WITHIN_S)


def dealing(made: Stage, name: str) -> str:
    made.start(name, role="dealer")
    return made.parts[name].place("dealer ready", within=WITHIN_S)


def begun(made: Stage) -> str:
    made.lead()
    return made.said("lead", "federation ready").rsplit(" ", 1)[-1]


def carry(made: Stage, lead: str) -> None:
    relay = Relay(made.relay(lead), [made.relay(owner) for owner in OWNERS])
    made.stack.callback(relay.close)


def verified(made: Stage, pads: str) -> list[Mapping[str, Any]]:
    """Entries of the run log of the lead's manifest, which verifies."""
    manifest = made.at.settings("lead").out / "manifest.json"
    report = verify_manifest(
        manifest.read_bytes(), made.at.trust(), artefacts=manifest.parent, now=system_clock()
    )
    details = {check.name: check.detail for check in report.checks}
    assert f"under {pads} pads" in details["collaboration"]
    return list(form.read(manifest.read_bytes()).predicate.run_log.entries)


def merges(entries: list[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    fields = [entry["fields"] for entry in entries if entry["event"] == "round.merged"]
    return [(field["state"], field["parties"]) for field in fields]


def ends_with(made: Stage, name: str, error: type[SealtrainError]) -> None:
    with pytest.raises(error):
        made.ended(name)


@pytest.mark.flower
@pytest.mark.nightly
@pytest.mark.claim("C601")
def test_the_story_of_an_example_ends_in_the_bits_of_the_rounds_in_the_clear(
    repository: Path, tmp_path: Path
) -> None:
    pytest.importorskip("flwr", reason="needs sealtrain[federated]")
    script = repository / "examples" / "rounds_under_pads.py"
    done = subprocess.run(
        [sys.executable, str(script), "--json", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["refused"]["code"] == "product-altered"
    assert len(told["losses"]) == len(told["int8"])
    # Three hospitals, one of which began anew after its first rounds.
    assert len(told["sessions"]) == 4


@pytest.mark.nightly
def test_each_role_dies_or_lies_and_rounds_end_in_the_same_bits(tmp_path: Path) -> None:
    a, b, c = OWNERS
    states = {}
    with stage(
        tmp_path, collaboration=HOW | {"products": {"pads": "own"}}, trainer=TRAINER
    ) as made:
        honest, run_id = served(made, "honest", "accelerator"), begun(made)
        made.join(a, run_id)
        ends_with(made, a, UsageError)  # before it asks for a key
        for owner in OWNERS:
            made.join(owner, run_id, peers={"accelerator": honest})
        carry(made, "lead")
        made.ended("lead")
        states["whole"] = merges(verified(made, "own"))
    (tmp_path / "again").mkdir()
    how = HOW | {"products": {"pads": "dealer", "checks": 1}}
    with stage(tmp_path / "again", collaboration=how, trainer=TRAINER) as made:
        honest = served(made, "honest", "accelerator")
        places = {b: served(made, "liar", "accelerator", "--alter", "40")}
        places[c] = served(made, "dies", "accelerator")
        dealer = dealing(made, "dealer")
        run_id = begun(made)

        def join(owner: str) -> None:
            peers = {"accelerator": places.get(owner, honest), "dealer": dealer}
            made.join(owner, run_id, peers=peers)

        for owner in OWNERS:
            join(owner)
        carry(made, "lead")
        ends_with(made, b, ProductAltered)
        made.parts["dies"].kill()
        places.clear()
        join(b)
        ends_with(made, c, AcceleratorUnreachable)
        join(c)
        made.said("lead", "round 4 of")
        made.parts["dealer"].kill()
        wait_until(lambda: any(made.parts[owner].gone for owner in OWNERS), WITHIN_S)
        for owner in OWNERS:  # those that gave their update wait for the others
            if made.parts[owner].gone:
                ends_with(made, owner, DealerUnreachable)
            made.parts[owner].kill()
        made.parts["lead"].kill()
        dealer = dealing(made, "other dealer")
        for owner in OWNERS:
            join(owner)
        made.parts[a].kill()
        made.lead("again")
        made.said("again", "federation ready")
        join(a)
        carry(made, "again")
        made.ended("again")
        entries = verified(made, "dealer")
        states["killed"] = merges(entries)
        codes = {entry["fields"]["code"] for entry in entries if entry["event"] == "party.left"}
        assert {"product-altered", "accelerator-unreachable"} <= codes
        given = [entry["fields"] for entry in entries if entry["event"] == "update.taken"]
        sessions = {(argument["party"], argument["products"]["session"]) for argument in given}
        assert len({session for _party, session in sessions}) == len(sessions) >= 2 * len(OWNERS)
    assert states["killed"] == states["whole"]
    assert [parties for _state, parties in states["whole"]] == [list(OWNERS)] * ROUNDS
