"""A federated run of processes whose lead is killed: it is resumed, and ends in the same bits."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from federated_stage import RECIPE, WITHIN_S, Stage, stage
from federated_world import Relay
from manifest_world import FEDERATED
from polling import wait_until
from world import OWNERS

from sealtrain.base.clock import system_clock
from sealtrain.manifest import form
from sealtrain.manifest.verify import verify_manifest
from sealtrain.sealing.errors import CheckpointRefused

pytestmark = [
    pytest.mark.long,
    pytest.mark.nightly,  # every moment of a kill in one process: test_federated_survives.py
    pytest.mark.slow,
    pytest.mark.claim("C224", "C225"),
    pytest.mark.timeout(280),
]

HOW = FEDERATED | {"rounds": 6, "local_steps": 2, "aggregation": "exact", "min_parties": 2}
LATE_S = 4.0

ADAM = HOW | {
    "aggregation": "flower",
    "strategy": {"name": "FedAdam", "eta": 0.02, "fraction_train": 0.99, "min_train_nodes": 2},
}
"""A strategy that remembers, and that asks two of the three parties in each round."""


def resumed(made: Stage, name: str) -> None:
    """Have the lead's folder resumed behind another socket."""
    made.lead(name)
    made.said(name, "federation ready")


def relay_to(made: Stage, lead: str, *, late: int = 0) -> Relay:
    """Carry messages; those to node ``late`` only once the others had time to begin a round."""
    first = time.monotonic()

    def there(node: int, data: bytes) -> bytes:
        if node == late:
            time.sleep(max(0.0, first + LATE_S - time.monotonic()))
        return data

    relay = Relay(made.relay(lead), [made.relay(owner) for owner in OWNERS], there=there)
    made.stack.callback(relay.close)
    return relay


def begun(made: Stage) -> str:
    made.lead()
    run_id = made.said("lead", "federation ready").rsplit(" ", 1)[-1]
    for owner in OWNERS:
        made.join(owner, run_id)
    return run_id


def verified(made: Stage, outcome: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Entries of the run log of a manifest that verifies."""
    manifest = Path(outcome["manifest"])
    verify_manifest(
        manifest.read_bytes(), made.at.trust(), artefacts=manifest.parent, now=system_clock()
    )
    return list(form.read(manifest.read_bytes()).predicate.run_log.entries)


@pytest.mark.claim("C242")
@pytest.mark.parametrize(
    ("how", "asked"),
    [
        pytest.param(HOW, 3, marks=pytest.mark.nightly, id="exact"),
        pytest.param(ADAM, 2, id="FedAdam"),
    ],
)
def test_a_killed_lead_is_resumed_at_another_address_and_ends_in_the_same_bits(
    tmp_path: Path, how: dict[str, Any], asked: int
) -> None:
    states = {}
    for name, killed in (("whole", ()), ("killed", ("before", "round 2 of 6"))):
        (tmp_path / name).mkdir()
        with stage(tmp_path / name, collaboration=how) as made:
            run_id = begun(made)
            lead = "lead"
            for number, moment in enumerate(killed):
                if moment == "before":  # every party waits for its lead
                    for owner in OWNERS:
                        made.said(owner, "party ready")
                else:
                    relay_to(made, lead)
                    made.said(lead, moment)
                made.parts[lead].kill()
                lead = f"lead-{number}"
                resumed(made, lead)
            # The party that no round before the kill chose is the last that a resumed lead hears.
            relay_to(made, lead, late=3 if killed else 0)
            outcome = made.ended(lead)
            assert outcome["run_id"] == run_id
            entries = verified(made, outcome)
            merges = [entry["fields"] for entry in entries if entry["event"] == "round.merged"]
            assert [len(merge["parties"]) for merge in merges] == [asked] * 6
            states[name] = [(merge["state"], merge["parties"]) for merge in merges]
            resumes = [entry for entry in entries if entry["event"] == "run.resumed"]
            assert len(resumes) == len(killed[1:])
            for owner in OWNERS:
                made.ended(owner)
    assert states["killed"] == states["whole"]


@pytest.mark.claim("C655")
def test_states_that_an_operator_put_back_are_refused_by_parties_that_began_again(
    tmp_path: Path,
) -> None:
    with stage(tmp_path, collaboration=HOW) as made:
        run_id = begun(made)
        relay = relay_to(made, "lead")
        made.said("lead", "round 1 of 6")
        states = made.at.settings("lead").out / "states"
        wait_until(lambda: any(states.glob("state-*")), WITHIN_S)  # sealed after the round is told
        shutil.copytree(states, tmp_path / "kept", ignore=shutil.ignore_patterns(".*"))
        made.said("lead", "round 4 of 6")
        for part in made.parts.values():
            part.kill()
        relay.close()
        shutil.rmtree(states)
        shutil.copytree(tmp_path / "kept", states)
        # No party remembers anything: their brokers do.
        for owner in OWNERS:
            shutil.rmtree(made.at.settings(owner).out)
            made.join(owner, run_id, rejoins=True)
        resumed(made, "lead-again")
        relay_to(made, "lead-again")
        with pytest.raises(CheckpointRefused):
            made.ended("lead-again")


@pytest.mark.nightly
@pytest.mark.claim("C226")
def test_a_party_that_hangs_for_longer_than_a_round_is_waited_for_once_and_comes_back(
    tmp_path: Path,
) -> None:
    """Its process is stopped, as on a machine that sleeps; the others go on."""
    how = HOW | {"rounds": 12, "round_seconds": 6, "joining_days": 1}
    with stage(tmp_path, collaboration=how, trainer=RECIPE["trainer"] | {"max_steps": 24}) as made:
        begun(made)
        relay_to(made, "lead")
        made.said("lead", "round 1 of 12")
        hanging = made.parts[OWNERS[-1]]
        hanging.send(signal.SIGSTOP)
        try:
            made.said("lead", "round 4 of 12")
        finally:
            hanging.send(signal.SIGCONT)
        entries = verified(made, made.ended("lead"))
        for owner in OWNERS:
            made.ended(owner)
    merges = [entry["fields"] for entry in entries if entry["event"] == "round.merged"]
    assert len(merges) == 12
    counts = [len(merge["parties"]) for merge in merges]
    assert counts[:4].count(2) >= 2
    assert counts[-1] == 3
    lost = [entry["fields"] for entry in entries if entry["event"] == "party.left"]
    assert {(loss["party"], loss["code"]) for loss in lost} <= {(OWNERS[-1], "peer-unreachable")}


@pytest.mark.nightly
@pytest.mark.claim("C224")
def test_a_lead_killed_in_the_middle_of_sealing_goes_on_from_the_state_before(
    tmp_path: Path,
) -> None:
    """Half of a state, shares without a state, and a state whose end is torn."""
    with stage(tmp_path, collaboration=HOW) as made:
        begun(made)
        relay = relay_to(made, "lead")
        states = made.at.settings("lead").out / "states"
        made.said("lead", "round 2 of 6")
        wait_until((states / "state-00000002.sealed").exists, WITHIN_S)
        made.parts["lead"].kill()
        relay.close()
        newest = max(states.glob("state-*.sealed"))
        torn = newest.with_name(newest.name.replace(newest.name[6:14], "00000009"))
        torn.write_bytes(newest.read_bytes()[:-100])
        for share in list(states.glob(f"share-{newest.name[6:14]}-*")):
            shutil.copy(share, share.with_name(share.name.replace(newest.name[6:14], "00000009")))
        (states / ".state-00000010.sealed.0123456789abcdef.tmp").write_bytes(b"half")
        resumed(made, "lead-again")
        relay_to(made, "lead-again")
        entries = verified(made, made.ended("lead-again"))
        for owner in OWNERS:
            made.ended(owner)
    merges = [entry["fields"]["round"] for entry in entries if entry["event"] == "round.merged"]
    assert merges == [1, 2, 3, 4, 5, 6]
    assert len([entry for entry in entries if entry["event"] == "run.resumed"]) == 1
