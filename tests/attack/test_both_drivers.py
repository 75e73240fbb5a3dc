"""The driver that decides and the one that explains check the same: each forgery ends in one way.

``test_simulated_lies`` has every lie of a simulated machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from exhibit_world import REFUSED, accepted, exhibit_of
from machines_world import ASKED, ELSEWHERE, MACHINES, NOW, MachinePark
from two_drivers import both_examine, both_judge
from variants import variants

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import PRESETS, preset
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import SealtrainError

pytestmark = [pytest.mark.long, pytest.mark.claim("C14")]

DAY = 24 * 3600
VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "evidence" / "documents.json"
SMALL = [name for name, machine in MACHINES.items() if machine.gpus <= 2]
"""Machines whose evidence is short enough to alter it in every field."""


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("park"))


@pytest.mark.parametrize("name", SMALL)
def test_both_accept_the_truth_and_refuse_it_elsewhere_and_at_other_times(
    park: MachinePark, name: str
) -> None:
    evidence, policy = park.evidence(MACHINES[name]), park.trust(MACHINES[name])
    here = Attachments(binding=ASKED)
    assert both_judge(evidence, policy, NOW, here) is None
    assert both_judge(evidence, policy, NOW, Attachments(binding=ELSEWHERE)) is not None
    other = Attachments(binding=ASKED, compose_hash="ab" * 32)
    assert both_judge(evidence, policy, NOW, other) == "compose-hash-mismatch"
    for moment in (0, NOW - 400 * DAY, NOW + 2 * DAY, NOW + 40 * DAY, NOW + 20_000 * DAY):
        both_judge(evidence, policy, moment, here)
    for trusted in MACHINES.values():
        both_judge(evidence, park.trust(trusted), NOW, here)
    for preset_name in PRESETS:
        assert both_judge(evidence, preset(preset_name), NOW, here) == "simulated-evidence"


@pytest.mark.parametrize(
    ("name", "places"),
    variants(
        product(SMALL, [20, 60]),
        each_time=[(name, 20 if MACHINES[name].gpus else 60) for name in SMALL],
    ),
)
def test_both_end_altered_evidence_alike(park: MachinePark, name: str, places: int) -> None:
    policy, ended = park.trust(MACHINES[name]), set()
    for document in _altered(park.evidence(MACHINES[name]).to_dict(), places):
        try:
            evidence = Evidence.from_bytes(canonical_json(document))
        except SealtrainError:
            continue  # no evidence at all: neither driver sees it
        ended.add(both_judge(evidence, policy, NOW, Attachments(binding=ASKED)))
    assert len(ended) > 2


def _altered(document: dict[str, Any], places: int) -> Iterator[dict[str, Any]]:
    """One character of one text, or one field of accelerators' claims, at a time.

    Args:
        document: The evidence.
        places: In how many places each text is altered.
    """
    cpu = document["cpu"]
    for field, text in cpu.items():
        if isinstance(text, str) and field != "tee":
            for at in range(0, len(text), max(1, len(text) // places)):
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
    beside = Attachments(
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


@pytest.mark.parametrize("whole", variants([False, True], each_time=[False]))
def test_both_end_every_third_partys_file_alike(shared: Path, whole: bool) -> None:
    """Under its own policy, and with ``whole`` under every preset, when it holds, a second outside,
    and years later; otherwise under every preset when it holds."""
    policies = [preset(name) for name in PRESETS]
    ended = set()
    for one in (*accepted(shared), *(real for real, _ in REFUSED)):
        exhibit, beside = exhibit_of(shared, one.file), one.beside(shared)
        always = (one.at, *one.outside, NOW)
        for policy, moments in (
            (one.rules(), always),
            *((policy, always if whole else (one.at,)) for policy in policies),
        ):
            for moment in moments:
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
