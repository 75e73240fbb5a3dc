"""Whoever decides and whoever explains make the same checks: no forgery ends in two ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from exhibit_world import REFUSED, accepted, exhibit_of

from sealtrain.attest.appraise import appraise
from sealtrain.attest.bundle import Beside
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import examine
from sealtrain.attest.explain.explanation import Line, explain, line_of
from sealtrain.attest.forms import Exhibit, OwnEvidence
from sealtrain.attest.guest import open_guest
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import PRESETS, preset
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid, EvidenceRefused, SealtrainError
from sealtrain_simulator.machine import Machine, fault_meanings
from sealtrain_simulator.server import running
from sealtrain_simulator.state import ensure


def both_judge(evidence: Evidence, policy: AppraisalPolicy, now: int, beside: Beside) -> str | None:
    """Evidence in its conversation: ``verify`` and ``appraise``, then ``explain``.

    Returns:
        The code both end in; ``None`` where everything holds.
    """
    binding = beside.binding
    assert binding is not None

    def decide() -> None:
        verified = verify(
            evidence,
            policy,
            now,
            binding=binding,
            collateral=beside.collateral,
            gpu_collateral=beside.gpu_collateral,
            crl=beside.crl,
        )
        expected = beside.compose_hash
        appraise(verified, policy, binding=binding, compose_hash=expected, app_id=None)

    try:
        decide()
    except EvidenceRefused as error:
        refused: EvidenceRefused | None = error
    else:
        refused = None
    exhibit = OwnEvidence(raw=evidence.to_bytes(), evidence=evidence)
    return _agreed(refused, exhibit, beside, policy, now)


def both_examine(exhibit: Exhibit, policy: AppraisalPolicy, now: int, beside: Beside) -> str | None:
    """A third party's file: ``examine``, then ``explain``. Returns as ``both_judge``."""
    try:
        examine(exhibit, beside, policy, now)
    except EvidenceRefused as error:
        return _agreed(error, exhibit, beside, policy, now)
    except DataInvalid:  # no evidence by itself
        assert not explain(exhibit, beside, policy, now).lines
        return None
    return _agreed(None, exhibit, beside, policy, now)


def _agreed(
    refused: EvidenceRefused | None,
    exhibit: Exhibit,
    beside: Beside,
    policy: AppraisalPolicy,
    now: int,
) -> str | None:
    lines: tuple[Line, ...] = ()
    malformed: EvidenceRefused | None = None
    try:
        lines = explain(exhibit, beside, policy, now).lines
    except EvidenceRefused as error:  # not even its form holds: there is nothing to show
        malformed = error
    if malformed is not None:
        assert refused is not None
        assert (malformed.code, malformed.check) == (refused.code, refused.check)
        return refused.code
    broken = [line for line in lines if line.standing == "broken"]
    if refused is None:
        assert not broken, broken
        return None
    assert broken, refused
    first = broken[0]
    assert first.code == refused.code, (first, refused)
    assert _same_check(first, refused, policy.cpu.tee), (first, refused)
    return refused.code


def _same_check(line: Line, refused: EvidenceRefused, tee: str) -> bool:
    """By its name or, where one is known under two, by the policy's field."""
    check = refused.check or refused.code
    if line.name in (check, "signature and root"):
        return True
    return line.policy != "" and line.policy == line_of(tee, line.part, check)


pytestmark = pytest.mark.claim("C14")

NOW = 1_800_000_000
DAY = 24 * 3600
ASKED = Binding("release", {"challenge": "fresh"})
ELSEWHERE = Binding("release", {"challenge": "an older one"})
VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "evidence" / "documents.json"
MACHINES = {
    "dstack": Machine(),
    "dstack-2-gpus": Machine(gpus=2),
    "dstack-2-gpus-1-switch": Machine(gpus=2, switches=1),
    "tdx": Machine(tee="tdx"),
    "nitro": Machine(tee="nitro"),
    "snp": Machine(tee="snp"),
}
LIES = [
    (name, fault)
    for name, machine in MACHINES.items()
    for fault in fault_meanings(machine.tee, gpus=machine.gpus, switches=machine.switches)
]


class Park:
    """One simulator, whose machines are started when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app-compose.json").write_bytes(b'{"name": "judged twice"}\n')

    def evidence(self, machine: Machine) -> Evidence:
        state, socket = self.folder / "state", self.folder / "guest.sock"
        compose = self.folder / "app-compose.json"
        with running(socket, compose, state, clock=lambda: NOW, machine=machine):
            guest = open_guest(
                "simulator",
                str(socket),
                collateral=f"file:{state / 'collateral.json'}",
                gpu_collateral=f"file:{state / 'gpu-collateral.json'}",
            )
            return guest.evidence(ASKED)

    def trusting(self, machine: Machine) -> AppraisalPolicy:
        return ensure(self.folder / "state", NOW).policy(machine)


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> Park:
    return Park(tmp_path_factory.mktemp("park"))


@pytest.fixture(scope="module")
def honest(park: Park) -> Callable[[str], Evidence]:
    return cache(lambda name: park.evidence(MACHINES[name]))


@pytest.mark.parametrize(("name", "fault"), LIES)
def test_both_end_every_lie_of_a_machine_alike(park: Park, name: str, fault: str) -> None:
    machine = MACHINES[name]
    try:
        evidence = park.evidence(replace(machine, fault=fault))
    except SealtrainError:
        pytest.skip("the guest itself refuses to show this")
    # Not every lie is one under a policy that accepts any image: what matters is one ending.
    both_judge(evidence, park.trusting(machine), NOW, Beside(binding=ASKED))


@pytest.mark.parametrize("name", MACHINES)
def test_both_accept_the_truth_and_refuse_it_elsewhere_and_at_other_times(
    park: Park, honest: Callable[[str], Evidence], name: str
) -> None:
    evidence, policy = honest(name), park.trusting(MACHINES[name])
    here = Beside(binding=ASKED)
    assert both_judge(evidence, policy, NOW, here) is None
    assert both_judge(evidence, policy, NOW, Beside(binding=ELSEWHERE)) is not None
    other = Beside(binding=ASKED, compose_hash="ab" * 32)
    assert both_judge(evidence, policy, NOW, other) == "compose-hash-mismatch"
    for moment in (0, NOW - 400 * DAY, NOW + 2 * DAY, NOW + 40 * DAY, NOW + 20_000 * DAY):
        both_judge(evidence, policy, moment, here)
    for trusted in MACHINES.values():
        both_judge(evidence, park.trusting(trusted), NOW, here)
    for preset_name in PRESETS:
        assert both_judge(evidence, preset(preset_name), NOW, here) == "simulated-evidence"


@pytest.mark.parametrize("name", MACHINES)
def test_both_end_altered_evidence_alike(
    park: Park, honest: Callable[[str], Evidence], name: str
) -> None:
    policy, ended = park.trusting(MACHINES[name]), set()
    for document in _altered(honest(name).to_dict()):
        try:
            evidence = Evidence.from_bytes(canonical_json(document))
        except SealtrainError:
            continue  # no evidence at all: neither driver sees it
        ended.add(both_judge(evidence, policy, NOW, Beside(binding=ASKED)))
    assert len(ended) > 2


def _altered(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One character of one text, or one field of accelerators' claims, at a time."""
    cpu = document["cpu"]
    for field, text in cpu.items():
        if isinstance(text, str) and field != "tee":
            for at in range(0, len(text), max(1, len(text) // 60)):
                letter = "A" if text[at] != "A" else "B"
                changed = text[:at] + letter + text[at + 1 :]
                yield {**document, "cpu": {**cpu, field: changed}}
    log = cpu.get("event_log", [])
    for index in range(len(log)):
        yield {**document, "cpu": {**cpu, "event_log": log[:index] + log[index + 1 :]}}
        yield {**document, "cpu": {**cpu, "event_log": log[: index + 1] + log[index:]}}
    if document["gpu"] is not None:
        yield {**document, "gpu": None, "gpu_collateral": None}
        yield {**document, "gpu_collateral": None}
        devices = document["gpu"]["devices"]
        for shown in (devices[1:], [*devices, devices[0]], devices[::-1]):
            yield {**document, "gpu": {**document["gpu"], "devices": shown}}
        for field, value in (("cc_feature", False), ("dev_tools", True), ("gpu_count", 7)):
            claims = {**document["gpu"]["claims"], field: value}
            yield {**document, "gpu": {**document["gpu"], "claims": claims}}


def test_both_end_every_vector_alike() -> None:
    vectors = json.loads(VECTORS.read_text())
    policy = policy_from_dict(vectors["policy"])
    beside = Beside(
        binding=Binding(vectors["purpose"], vectors["transcript"]),
        compose_hash=vectors["compose_hash"],
    )
    judged = 0
    for case in vectors["cases"]:
        document = {**vectors["evidence"], **case["changes"]}
        document["cpu"] = {**document["cpu"], **case["cpu"]}
        try:
            evidence = Evidence.from_bytes(canonical_json(document))
        except SealtrainError:
            continue  # no evidence at all
        assert (both_judge(evidence, policy, case["now"], beside) or "ok") == case["outcome"]
        judged += 1
    assert judged > 5


def test_both_end_every_third_partys_file_alike(shared: Path) -> None:
    """Under its own policy and every preset, when it holds, a second outside, and years later."""
    policies = [preset(name) for name in PRESETS]
    ended = set()
    for one in (*accepted(shared), *(real for real, _ in REFUSED)):
        exhibit, beside = exhibit_of(shared, one.file), one.beside(shared)
        for policy in (one.rules(), *policies):
            for moment in (one.at, *one.outside, NOW):
                ended.add(both_examine(exhibit, policy, moment, beside))
                asked = replace(beside, nonce=b"\x5a" * 64, compose_hash="ab" * 32)
                ended.add(both_examine(exhibit, policy, moment, asked))
    assert len(ended) > 10


@pytest.mark.parametrize(
    "file", ["nitro/prod_2025_pubkey.cose", "sev-snp/genoa_azure_v3.report.bin", "tdx/tdx_quote"]
)
def test_both_end_every_altered_file_alike(shared: Path, file: str) -> None:
    one = next(real for real in accepted(shared) if real.file == file)
    data = (shared / "vectors" / file).read_bytes()
    for at in range(0, len(data), max(1, len(data) // 120)):
        altered = bytearray(data)
        altered[at] ^= 0x01
        try:
            exhibit = recognise(bytes(altered))
        except SealtrainError:
            continue
        both_examine(exhibit, one.rules(), one.at, one.beside(shared))
