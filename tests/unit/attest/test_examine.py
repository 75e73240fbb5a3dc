"""Decisions about single files: a policy holds in every line, for the nonce and document named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import nvidia_world as vendor
import pytest
from carrying import carries
from exhibit_world import (
    Real,
    accepted,
    exhibit_of,
    gpu_rules,
    nitro_rules,
    tdx_rules,
)
from policies import intel

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.errors import (
    ComposeHashMismatch,
    EventLogMismatch,
    GpuSetRefused,
    MeasurementMismatch,
    ReferenceValueInvalid,
    RemoteVerdictRefused,
    ReportDataMismatch,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import examine
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.nitro.collect import attestation, measure_compose
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.nitro import SimulatedNitroPki, SimulatedNsm
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

NOW = 1_800_000_000
DOCUMENT = b'{"name":"bare"}'


@pytest.fixture(scope="module")
def real(shared: Path) -> dict[str, Real]:
    return {real.file: real for real in accepted(shared)}


@pytest.mark.parametrize(
    ("name", "policy", "code"),
    [
        ("tdx/tdx_quote", intel(), "platform-mismatch"),
        ("dstack/verifier-fixtures/quote-report.json", tdx_rules(), "platform-mismatch"),
        ("nitro/prod_2025_pubkey.cose", tdx_rules(), "platform-mismatch"),
        ("sev-snp/genoa_azure_v3.report.bin", nitro_rules(), "platform-mismatch"),
        ("nvidia/hopper_cert_hold.json", nitro_rules(), "gpu-set-refused"),
        ("nvidia/hopper_cert_hold.json", {**gpu_rules(), "gpu": "any"}, "gpu-set-refused"),
        ("nvidia/hopper_535.report.bin", nitro_rules(), "gpu-set-refused"),
        ("nvidia/hopper_535.report.bin", gpu_rules(gpu_count=8), "gpu-set-refused"),
        ("nvidia/hopper_535.report.bin", gpu_rules(nras="require"), "remote-verdict-refused"),
        ("nvidia/hopper_535.report.bin", gpu_rules(switch_count=4), "gpu-set-refused"),
        ("nvidia/hopper_535.report.bin", gpu_rules(mode=["mpt"]), "gpu-mode-refused"),
        ("nvidia/hopper_580_mpt.report.bin", gpu_rules(mode=["mpt"]), "gpu-mode-refused"),
        ("nvidia/hopper_cert_hold.json", gpu_rules(gpu_count=2), "gpu-set-refused"),
        ("nvidia/hopper_cert_hold.json", gpu_rules(nras="require"), "remote-verdict-refused"),
    ],
)
def test_a_policy_for_something_else_accepts_nothing(
    shared: Path, real: dict[str, Real], name: str, policy: dict[str, Any], code: str
) -> None:
    one, rules = real[name], policy_from_dict(policy)
    with pytest.raises(EvidenceRefused) as refused:
        examine(exhibit_of(shared, name), one.beside(shared), rules, one.at)
    assert refused.value.code == code
    found = explain(exhibit_of(shared, name), one.beside(shared), rules, one.at)
    assert found.signatures_verified  # it is what it is, and not what the policy asks for
    assert code in {line.code for line in found.lines}


def test_a_deployment_document_that_was_not_measured_is_refused_on_every_platform(
    shared: Path, real: dict[str, Real]
) -> None:
    for name, item in real.items():
        if not name.startswith("nvidia"):
            exhibit, beside = exhibit_of(shared, name), item.beside(shared, app_compose=b"{}")
            with pytest.raises(ComposeHashMismatch):
                examine(exhibit, beside, item.rules(), item.at)


def _bare(tee: str) -> tuple[bytes, bytes, Attachments]:
    """What a simulated platform signs for a document, by itself; its root; what lies beside."""
    said, digest = bytes(range(64)), sha256_hex(DOCUMENT)
    if tee == "nitro":
        nsm = SimulatedNsm(SimulatedNitroPki(b"a bare enclave!!"), clock=lambda: NOW)
        measure_compose(nsm, DOCUMENT)
        raw = attestation(nsm, nonce=said)
        return raw, SimulatedNitroPki(b"a bare enclave!!").root_der, Attachments(nonce=said)
    if tee == "snp":
        snp = SimulatedSnp(b"a bare SNP guest")
        beside = Attachments(nonce=said, certificates=snp.certificates())
        return snp.report(said, DOCUMENT), snp.root_der, beside
    pki = SimulatedPki(b"a bare TDX guest")
    config = bytes.fromhex(f"01{digest}{'00' * 15}")
    quote = pki.quote(said, mrtd=b"\1" * 48, mr_config_id=config)
    return quote, pki.root_der, Attachments(nonce=said, collateral=pki.collateral(NOW))


@pytest.mark.parametrize("tee", ["tdx", "nitro", "snp"])
def test_the_measured_document_and_the_nonce_bind_a_bare_statement(tee: str) -> None:
    raw, root, beside = _bare(tee)
    policy = insecure_simulator_policy(root, tee=tee)
    exhibit = recognise(raw)
    found = examine(exhibit, replace(beside, app_compose=DOCUMENT), policy, NOW + 1)
    assert (found.bound, found.simulated) == (True, True)
    compared = {claim.name: claim.outcome for claim in found.submods["cpu0"].claims}
    assert compared["compose hash"] == "equal"
    assert compared["nonce" if tee == "nitro" else "report data"] == "equal"
    with pytest.raises(ComposeHashMismatch):
        examine(exhibit, replace(beside, app_compose=DOCUMENT + b" "), policy, NOW + 1)
    for other in (bytes(64), bytes(range(63)), bytes(range(64)) + b"\0"):
        with pytest.raises(ReportDataMismatch):
            examine(exhibit, replace(beside, nonce=other), policy, NOW + 1)


def test_a_log_that_does_not_replay_is_refused_and_is_one_broken_line(
    shared: Path, real: dict[str, Real]
) -> None:
    one = real["dstack/verifier-fixtures/quote-report.json"]
    answer = json.loads((shared / "vectors" / one.file).read_text())
    log = json.loads(answer["event_log"])
    exhibit = recognise(json.dumps({**answer, "event_log": json.dumps(log[:-1])}).encode())
    with pytest.raises(EventLogMismatch):
        examine(exhibit, one.beside(shared), one.rules(), one.at)
    found = explain(exhibit, one.beside(shared), one.rules(), one.at)
    assert found.signatures_verified  # of the quote; nothing signs the log
    assert [line.code for line in found.lines if line.standing == "broken"] == [
        "event-log-mismatch"
    ]


def test_an_enclave_that_measured_another_parent_than_it_names_is_refused() -> None:
    pki = SimulatedNitroPki(b"a bare enclave!!")
    nsm = SimulatedNsm(pki, clock=lambda: NOW, fault="wrong-parent")
    measure_compose(nsm, DOCUMENT)
    exhibit = recognise(attestation(nsm, nonce=bytes(32)))
    policy = insecure_simulator_policy(pki.root_der, tee="nitro")
    with pytest.raises(MeasurementMismatch, check=carries(check="parent instance")):
        examine(exhibit, Attachments(), policy, NOW + 1)


def test_a_verdict_under_a_policy_without_accelerators_is_refused() -> None:
    verdict = vendor.Service().verdict({"GPU-0": vendor.device_claims()})
    exhibit = recognise(verdict.token.encode())
    archived = GpuCollateral.build(rims={}, ocsp=(), nras=verdict)
    beside = Attachments(nonce=vendor.NONCE, gpu_collateral=archived)
    examine(exhibit, beside, None, vendor.NOW)
    examine(exhibit, beside, policy_from_dict(gpu_rules()), vendor.NOW)
    with pytest.raises(GpuSetRefused):
        examine(exhibit, beside, policy_from_dict(nitro_rules()), vendor.NOW)
    with pytest.raises(RemoteVerdictRefused):
        examine(exhibit, beside, policy_from_dict(gpu_rules(gpu_count=2)), vendor.NOW)


def test_own_evidence_of_an_enclave_is_explained_for_its_conversation_and_document() -> None:
    pki, asked = SimulatedNitroPki(b"a bare enclave!!"), Binding("attest", {"nonce": "07" * 16})
    nsm = SimulatedNsm(pki, clock=lambda: NOW)
    measure_compose(nsm, DOCUMENT)
    document = attestation(nsm, user_data=asked.report_data())
    policy = insecure_simulator_policy(pki.root_der, tee="nitro")

    def codes(beside: Attachments, app_compose: bytes = DOCUMENT) -> set[str | None]:
        evidence = Evidence.build(
            "simulator", app_compose=app_compose, tee="nitro", document=to_base64(document)
        )
        exhibit = recognise(evidence.to_bytes())
        found = explain(exhibit, beside, policy, NOW + 1)
        broken = {line.code for line in found.lines if line.standing == "broken"}
        if broken:
            with pytest.raises(EvidenceRefused) as refused:
                examine(exhibit, beside, policy, NOW + 1)
            assert refused.value.code in broken
        else:
            examine(exhibit, beside, policy, NOW + 1)
        return broken

    assert codes(Attachments()) == codes(Attachments(binding=asked)) == set()
    other = Attachments(binding=Binding("attest", {"nonce": "08" * 16}))
    assert codes(other) == {"report-data-mismatch"}
    # The document inside the evidence is compared even where nobody names one.
    assert codes(Attachments(), DOCUMENT + b" ") == {"compose-hash-mismatch"}
    assert codes(Attachments(app_compose=b"{}")) == {"compose-hash-mismatch"}


def test_reference_values_that_the_policy_does_not_pin_are_refused(shared: Path) -> None:
    exhibit = exhibit_of(shared, "nvidia/rim/driver_GH100_550.144.03.xml")
    pinned = sha256_hex(exhibit.raw)
    at = 1_780_000_000
    for digest, late in ((pinned, 0), (pinned, 1 << 31), ("00" * 32, 0)):
        policy = policy_from_dict(gpu_rules(reference_values={"NV_GPU_DRIVER": [digest]}))
        if digest == pinned:
            examine(exhibit, Attachments(), policy, at + late)
            continue
        with pytest.raises(ReferenceValueInvalid, check=carries(check="reference values")):
            examine(exhibit, Attachments(), policy, at)
    with pytest.raises(GpuSetRefused):
        examine(exhibit, Attachments(), policy_from_dict(nitro_rules()), at)
    with pytest.raises(ReferenceValueInvalid):
        examine(exhibit, Attachments(), policy_from_dict(gpu_rules()), at + (1 << 31))
