"""No altered evidence is accepted: whatever is changed of it, when, and for whom.

A decision stops at the first check that fails. An explanation, which goes on, never shows a file as
holding that a decision refuses. ``test_simulated_lies`` has every lie of a simulated machine.
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
from machines_world import (
    ASKED,
    BARE,
    COMPOSE_HASH,
    ELSEWHERE,
    MACHINES,
    NOW,
    MachinePark,
    broken_lines,
    judge,
    refusal,
)
from variants import variants

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import examine
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.forms import Exhibit
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import PRESETS, preset
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verifier import verifier_of
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import DataInvalid, EvidenceRefused, SealtrainError

pytestmark = [pytest.mark.long, pytest.mark.claim("C14")]

DAY = 24 * 3600
VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "evidence" / "documents.json"
SMALL = [name for name, machine in MACHINES.items() if machine.gpus <= 2]
"""Machines whose evidence is short enough to alter it in every field."""
SIGNED = {
    "certificate-chain-invalid",
    "certificate-revoked",
    "collateral-mismatch",
    "compose-hash-mismatch",
    "event-log-mismatch",
    "evidence-malformed",
    "gpu-mode-refused",
    "gpu-report-invalid",
    "gpu-set-refused",
    "platform-mismatch",
    "quote-invalid",
    "quote-root-untrusted",
    "reference-value-mismatch",
    "report-data-mismatch",
    "revocation-unknown",
    "simulated-evidence",
}
"""How altered evidence ends: never in a refusal of the policy's, which trusts what was signed."""


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("park"))


@pytest.mark.parametrize("name", SMALL)
def test_evidence_counts_here_now_and_under_its_own_policy(park: MachinePark, name: str) -> None:
    evidence, policy = park.evidence(MACHINES[name]), park.trust(MACHINES[name])
    here = Attachments(binding=ASKED)
    assert refusal(evidence, policy, NOW, here) is None
    assert refusal(evidence, policy, NOW, Attachments(binding=ELSEWHERE)) in (
        "report-data-mismatch",
        "gpu-nonce-mismatch",
    )
    other = Attachments(binding=ASKED, compose_hash="ab" * 32)
    assert refusal(evidence, policy, NOW, other) == "compose-hash-mismatch"
    for moment in (0, NOW + 20_000 * DAY):
        assert refusal(evidence, policy, moment, here) in (
            "certificate-chain-invalid",
            "collateral-expired",
        )
    for moment in (NOW - 400 * DAY, NOW + 2 * DAY, NOW + 40 * DAY):
        refusal(evidence, policy, moment, here)
    for trusted in MACHINES.values():
        if trusted.tee != MACHINES[name].tee:
            expected = "platform-mismatch"
            assert refusal(evidence, park.trust(trusted), NOW, here) == expected
    for preset_name in PRESETS:
        assert refusal(evidence, preset(preset_name), NOW, here) == "simulated-evidence"


@pytest.mark.parametrize("name", BARE)
def test_every_rule_of_a_tee_is_compared_in_its_order(park: MachinePark, name: str) -> None:
    """A verdict has a claim for each rule of the table, and then for what the engine compares."""
    machine = MACHINES[name]
    verdict = judge(park.evidence(machine), park.pin(machine))
    rules = [rule.name for rule in verifier_of(machine.tee).rules if rule.name != "unknown fields"]
    ending = ["compose hash", "app id", "report data"]
    assert [claim.name for claim in verdict.claims] == ["platform", "tier", *rules, *ending]


def test_of_two_breaches_a_rule_of_the_tee_is_named_before_the_document(park: MachinePark) -> None:
    machine = MACHINES["dstack-amd-sev-snp"]
    document: Any = park.pin(machine).to_dict()
    rules = {**document["cpu"], "key_provider": "11" * 32}
    policy = policy_from_dict({**document, "cpu": rules})
    beside = Attachments(binding=ASKED, compose_hash="ab" * 32)
    assert refusal(park.evidence(machine), policy, NOW, beside) == "key-provider-mismatch"


@pytest.mark.parametrize(
    ("name", "places"),
    variants(
        product(SMALL, [20, 60]),
        each_time=[(name, 60 if name in ("tdx", "test-vtpm") else 20) for name in SMALL],  # short
    ),
)
def test_altered_evidence_is_refused(park: MachinePark, name: str, places: int) -> None:
    policy, ended = park.pin(MACHINES[name]), set()
    beside = Attachments(binding=ASKED, compose_hash=COMPOSE_HASH)
    for document in _altered(park.evidence(MACHINES[name]).to_dict(), places):
        try:
            evidence = Evidence.from_bytes(canonical_json(document))
        except SealtrainError:
            continue  # no evidence at all
        ended.add(refusal(evidence, policy, NOW, beside))
    assert len(ended) > 2
    assert ended <= SIGNED


def _altered(document: dict[str, Any], places: int) -> Iterator[dict[str, Any]]:
    """One character of one text, or one field of accelerators' claims, at a time.

    What the host says of the machine is left: nobody signed it, and nothing is decided by it.

    Args:
        document: The evidence.
        places: In how many places each text is altered.
    """
    cpu = document["cpu"]
    for field, text in cpu.items():
        if isinstance(text, str) and field not in ("tee", "vm_config"):
            for at in range(0, len(text), max(1, len(text) // places)):
                letter = "A" if text[at] != "A" else "B"
                changed = text[:at] + letter + text[at + 1 :]
                yield {**document, "cpu": {**cpu, field: changed}}
    tpm = cpu["tpm"] if isinstance(cpu.get("tpm"), dict) else {}
    for field, text in tpm.items():
        if isinstance(text, str):
            for at in range(0, len(text), max(1, len(text) // places)):
                letter = "A" if text[at] != "A" else "B"
                changed = text[:at] + letter + text[at + 1 :]
                yield {**document, "cpu": {**cpu, "tpm": {**tpm, field: changed}}}
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
        told = document["gpu"]["claims"]
        for field, value in (("cc_feature", False), ("dev_tools", True), ("gpu_count", 7)):
            if told[field] != value:
                yield {
                    **document,
                    "gpu": {**document["gpu"], "claims": {**told, field: value}},
                }


def test_every_vector_ends_as_it_says() -> None:
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
        assert (refusal(evidence, policy, case["now"], beside) or "ok") == case["outcome"]
        judged += 1
    assert judged > 5


def _examined(
    exhibit: Exhibit, policy: AppraisalPolicy, now: int, beside: Attachments
) -> str | None:
    """The refusal of a third party's file; an explanation shows none where there is none."""
    try:
        examine(exhibit, beside, policy, now)
    except EvidenceRefused as error:
        refused = error
    except DataInvalid:  # no evidence by itself
        assert not explain(exhibit, beside, policy, now).lines
        return None
    else:
        assert not broken_lines(exhibit, policy, now, beside)
        return None
    assert refused.code in broken_lines(exhibit, policy, now, beside)
    return refused.code


@pytest.mark.parametrize("whole", variants([False, True], each_time=[False]))
def test_a_third_partys_file_holds_only_for_what_it_was_made_for(shared: Path, whole: bool) -> None:
    """Under its own policy, and with ``whole`` under every preset, when it holds, a second outside,
    and years later; otherwise under every preset when it holds."""
    policies = [preset(name) for name in PRESETS]
    ended = set()
    for real in (*accepted(shared), *(real for real, _ in REFUSED)):
        exhibit, beside = exhibit_of(shared, real.file), real.beside(shared)
        always = (real.at, *real.outside, NOW)
        for policy, moments in (
            (real.rules(), always),
            *((policy, always if whole else (real.at,)) for policy in policies),
        ):
            for moment in moments:
                ended.add(_examined(exhibit, policy, moment, beside))
                asked = replace(beside, nonce=b"\x5a" * 64, compose_hash="ab" * 32)
                ended.add(_examined(exhibit, policy, moment, asked))
    assert len(ended) > 10


@pytest.mark.parametrize(
    "file", ["nitro/prod_2025_pubkey.cose", "sev-snp/genoa_azure_v3.report.bin", "tdx/tdx_quote"]
)
def test_an_altered_file_is_refused(shared: Path, file: str) -> None:
    one = next(real for real in accepted(shared) if real.file == file)
    data = (shared / "vectors" / file).read_bytes()
    ended = set()
    for at in range(0, len(data), max(1, len(data) // 120)):
        altered = bytearray(data)
        altered[at] ^= 0x01
        try:
            exhibit = recognise(bytes(altered))
        except SealtrainError:
            continue
        ended.add(_examined(exhibit, one.rules(), one.at, one.beside(shared)))
    assert None not in ended
