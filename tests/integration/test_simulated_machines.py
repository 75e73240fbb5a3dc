"""Every machine the simulator plays, from its socket to a verdict, and every lie it can tell.

One moment for all: simulated enclaves' certificates begin when a document is made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sealtrain.attest.appraise import Verdict, appraise
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.guest import Guest, open_guest
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import PRESETS, preset
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import Verified, verify
from sealtrain.errors import (
    GpuModeRefused,
    GpuNonceMismatch,
    GpuSetRefused,
    PlatformMismatch,
    ReportDataMismatch,
    SealtrainError,
    SimulatedEvidence,
)
from sealtrain_simulator.machine import Machine, fault_meanings
from sealtrain_simulator.server import running
from sealtrain_simulator.state import ensure

NOW = 1_800_000_000
ASKED = Binding("release", {"challenge": "first"})
COMPOSE = b'{"name": "machines"}\n'
COMPOSE_HASH = hashlib.sha256(COMPOSE).hexdigest()

MACHINES = {
    "dstack": Machine(),
    "dstack-2-gpus": Machine(gpus=2),
    "dstack-8-gpus-4-switches": Machine(gpus=8, switches=4),
    "tdx": Machine(tee="tdx"),
    "nitro": Machine(tee="nitro"),
    "snp": Machine(tee="snp"),
}
_LARGE = MACHINES["dstack-8-gpus-4-switches"]
_LEVELS = ("bootloader", "tee", "snp", "microcode", "fmc")
_OF_SWITCHES = {"gpu-mixed-modes", "gpu-switch-missing", "gpu-other-switch", "gpu-other-gpu"}
"""Lies that another way of passing data between GPUs makes another matter."""


@dataclass(frozen=True)
class Park:
    """A folder with one simulator; its machines share the state and are started when asked for."""

    folder: Path

    @contextmanager
    def guest(self, machine: Machine) -> Iterator[Guest]:
        state, socket = self.folder / "state", self.folder / "guest.sock"
        with running(
            socket, self.folder / "app-compose.json", state, clock=lambda: NOW, machine=machine
        ):
            yield open_guest(
                "simulator",
                str(socket),
                collateral=f"file:{state / 'collateral.json'}",
                gpu_collateral=f"file:{state / 'gpu-collateral.json'}",
            )

    def evidence(self, machine: Machine, binding: Binding = ASKED) -> Evidence:
        with self.guest(machine) as guest:
            return guest.evidence(binding)

    def trusting(self, machine: Machine) -> AppraisalPolicy:
        return ensure(self.folder / "state", NOW).policy(machine)


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> Park:
    folder = tmp_path_factory.mktemp("park")
    (folder / "app-compose.json").write_bytes(COMPOSE)
    return Park(folder)


@pytest.fixture(scope="module")
def honest(park: Park) -> Callable[[str], Evidence]:
    """Evidence of each machine, told truthfully, collected once."""
    return cache(lambda name: park.evidence(MACHINES[name]))


def judged(evidence: Evidence, policy: AppraisalPolicy, binding: Binding = ASKED) -> Verdict:
    """As a broker does it: over the bytes that were sent."""
    received = Evidence.from_bytes(evidence.to_bytes())
    facts = verify(received, policy, NOW, binding=binding)
    return appraise(
        facts, policy, binding=binding, compose_hash=COMPOSE_HASH, app_id=COMPOSE_HASH[:40]
    )


def facts_of(evidence: Evidence, policy: AppraisalPolicy) -> Verified:
    return verify(evidence, policy, NOW, binding=ASKED)


def pinned(policy: AppraisalPolicy, facts: Verified) -> AppraisalPolicy:
    """The same policy, looking at everything that tells one image and one machine from another."""
    signed: Any = facts.signed
    if policy.cpu.tee in ("dstack", "tdx"):
        quote = signed.quote
        registers = dict(zip(("rtmr0", "rtmr1", "rtmr2"), quote.rtmr[:3], strict=True))
        looked: dict[str, Any] = {
            "measurements": [{"mrtd": quote.mrtd, **registers}],
            "platform_ids": [signed.ppid],
        }
    elif policy.cpu.tee == "nitro":
        looked = {
            "images": [{f"pcr{index}": signed.pcrs[index] for index in (0, 1, 2)}],
            "parents": [signed.parent_id],
        }
    else:
        report, tcb = signed.report, signed.reported_tcb
        looked = {
            "measurements": [report.measurement],
            "revocation": "require",
            "chip_ids": [report.chip_id],
            "minimum_tcb": {"Genoa": {name: getattr(tcb, name) for name in _LEVELS}},
        }
    document: dict[str, Any] = policy.to_dict()  # type: ignore[assignment]  # a model's is an object
    return policy_from_dict({**document, "cpu": {**document["cpu"], **looked}})


# --- Truth --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_an_honest_machine_is_accepted(
    park: Park, honest: Callable[[str], Evidence], name: str
) -> None:
    machine = MACHINES[name]
    policy = park.trusting(machine)
    verdict = judged(honest(name), pinned(policy, facts_of(honest(name), policy)))
    accelerators = ["gpus"] if machine.gpus else []
    accelerators += [f"gpu{number}" for number in range(machine.gpus)]
    accelerators += [f"switch{number}" for number in range(machine.switches)]
    assert list(verdict.submods) == ["cpu0", *accelerators]
    assert all(one.claims for one in verdict.submods.values())
    assert verdict.simulated
    assert "SIMULATED" in verdict.label
    assert all(verdict.submods[one].eat["ueid"] for one in verdict.submods if one != "gpus")


@pytest.mark.parametrize("name", MACHINES)
def test_another_conversation_gets_nothing_from_it(
    park: Park, honest: Callable[[str], Evidence], name: str
) -> None:
    policy = park.trusting(MACHINES[name])
    refusal = GpuNonceMismatch if MACHINES[name].gpus else ReportDataMismatch
    for other in (Binding("renewal", ASKED.transcript), Binding("release", {"challenge": "next"})):
        with pytest.raises(refusal) as caught:
            judged(honest(name), policy, other)
        assert type(caught.value) is refusal


@pytest.mark.parametrize("name", MACHINES)
def test_no_policy_for_hardware_accepts_it(honest: Callable[[str], Evidence], name: str) -> None:
    for hardware in PRESETS:
        with pytest.raises(SimulatedEvidence):
            judged(honest(name), preset(hardware))


def test_a_policy_for_one_simulated_tee_refuses_the_others(
    park: Park, honest: Callable[[str], Evidence]
) -> None:
    bare = ("dstack", "tdx", "nitro", "snp")
    for trusted in bare:
        policy = park.trusting(MACHINES[trusted])
        for shown in bare:
            if shown != trusted:
                with pytest.raises(PlatformMismatch):
                    judged(honest(shown), policy)


# --- Lies ---------------------------------------------------------------------------------------


def lies() -> Iterator[tuple[str, str, str]]:
    """Machine, fault, code: each lie once, on the smallest machine that can tell it."""
    for name, machine in MACHINES.items():
        told = fault_meanings(machine.tee, gpus=machine.gpus, switches=machine.switches)
        for fault, meaning in told.items():
            if fault.startswith("gpu-") == bool(machine.gpus) and (
                not machine.switches or fault in _OF_SWITCHES
            ):
                found = re.search(r"\(([a-z-]+)\)$", meaning)
                assert found, f"{fault} does not say what it must end in"
                yield name, fault, found[1]


@pytest.mark.parametrize(("name", "fault", "code"), list(lies()))
def test_a_lie_ends_in_the_refusal_it_names(
    park: Park, honest: Callable[[str], Evidence], name: str, fault: str, code: str
) -> None:
    machine = MACHINES[name]
    policy = park.trusting(machine)
    policy = pinned(policy, facts_of(honest(name), policy))
    evidence = park.evidence(replace(machine, fault=fault))
    with pytest.raises(SealtrainError) as caught:
        judged(evidence, policy)
    assert caught.value.code == code


def test_every_lie_of_a_machine_is_played_somewhere() -> None:
    played = {(MACHINES[name].tee, fault) for name, fault, _ in lies()}
    for machine in MACHINES.values():
        known = fault_meanings(machine.tee, gpus=machine.gpus, switches=machine.switches)
        assert {(machine.tee, fault) for fault in known} <= played


# --- Accelerators exchanged behind the quote ------------------------------------------------------


def with_gpus(evidence: Evidence, change: Callable[[dict[str, Any]], None]) -> Evidence:
    """The evidence with its accelerators' part changed after the quote was made."""
    document: Any = evidence.to_dict()
    change(document["gpu"])
    return Evidence.from_dict(document)


@pytest.mark.negative(45)
def test_every_device_left_out_is_missed(park: Park, honest: Callable[[str], Evidence]) -> None:
    policy, whole = park.trusting(_LARGE), honest("dstack-8-gpus-4-switches")
    for left_out in range(12):
        shown = with_gpus(whole, lambda gpu, at=left_out: gpu["devices"].pop(at))  # type: ignore[misc]
        with pytest.raises(GpuSetRefused):
            judged(shown, policy)


@pytest.mark.negative(6)
@pytest.mark.negative(45)
def test_a_gpu_left_out_with_a_count_and_policy_to_match_is_missed_by_the_quote(
    park: Park, honest: Callable[[str], Evidence]
) -> None:
    def leave_out(gpu: dict[str, Any]) -> None:
        gpu["devices"].pop()
        gpu["claims"]["gpu_count"] = 1

    document: Any = park.trusting(MACHINES["dstack-2-gpus"]).to_dict()
    document["gpu"]["gpu_count"] = 1
    with pytest.raises(ReportDataMismatch):
        judged(with_gpus(honest("dstack-2-gpus"), leave_out), policy_from_dict(document))


@pytest.mark.negative(44)
def test_accelerators_of_another_conversation_are_refused(
    park: Park, honest: Callable[[str], Evidence]
) -> None:
    machine = MACHINES["dstack-2-gpus"]
    other = park.evidence(machine, Binding("release", {"challenge": "next"}))
    spliced = honest("dstack-2-gpus").model_copy(update={"gpu": other.gpu})
    with pytest.raises(GpuNonceMismatch):
        judged(spliced, park.trusting(machine))


@pytest.mark.negative(44)
def test_accelerators_of_another_machine_are_refused_in_the_same_conversation(
    park: Park, honest: Callable[[str], Evidence], tmp_path: Path
) -> None:
    (tmp_path / "app-compose.json").write_bytes(COMPOSE)
    elsewhere, machine = Park(tmp_path), MACHINES["dstack-2-gpus"]
    other = elsewhere.evidence(machine)
    mine: Any = park.trusting(machine).to_dict()
    theirs: Any = elsewhere.trusting(machine).to_dict()
    both = policy_from_dict({**mine, "gpu": theirs["gpu"]})
    spliced = honest("dstack-2-gpus").model_copy(
        update={"gpu": other.gpu, "gpu_collateral": other.gpu_collateral}
    )
    facts = facts_of(spliced, both)  # each half is genuine, and made for this conversation
    assert facts.gpus is not None
    with pytest.raises(ReportDataMismatch):
        judged(spliced, both)


@pytest.mark.negative(6)
@pytest.mark.negative(47)
@pytest.mark.parametrize(
    ("name", "claim", "value", "refusal"),
    [
        ("dstack-2-gpus", "environment", "SIM", GpuModeRefused),
        ("dstack-2-gpus", "cc_feature", False, GpuModeRefused),
        ("dstack-2-gpus", "dev_tools", True, GpuModeRefused),
        ("dstack-2-gpus", "multi_gpu_mode", "protected_pcie", GpuModeRefused),
        ("dstack-2-gpus", "gpu_count", 3, GpuSetRefused),
        # Nothing else speaks against it: only the quote can tell.
        ("dstack-2-gpus", "multi_gpu_mode", "nvle", ReportDataMismatch),
    ],
)
def test_a_claim_of_the_driver_changed_after_the_quote_is_refused(
    park: Park,
    honest: Callable[[str], Evidence],
    name: str,
    claim: str,
    value: Any,
    refusal: type[SealtrainError],
) -> None:
    shown = with_gpus(honest(name), lambda gpu: gpu["claims"].update({claim: value}))
    assert shown != honest(name)
    with pytest.raises(refusal) as caught:
        judged(shown, park.trusting(MACHINES[name]))
    assert type(caught.value) is refusal


def test_accelerators_taken_away_after_the_quote_are_missed(
    park: Park, honest: Callable[[str], Evidence]
) -> None:
    bare = honest("dstack-2-gpus").model_copy(update={"gpu": None, "gpu_collateral": None})
    with pytest.raises(GpuSetRefused):
        judged(bare, park.trusting(MACHINES["dstack-2-gpus"]))
    with pytest.raises(ReportDataMismatch):
        judged(bare, park.trusting(MACHINES["dstack"]))
