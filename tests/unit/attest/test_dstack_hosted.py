"""dstack's attestations of SEV-SNP guests and Nitro enclaves: as strict as the bare statements."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from exhibit_world import ders_of, nitro_rules, snp_rules
from nitro_world import COMPOSE, HOUR, NOW, PKI, enclave
from public_evidence import published

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.dstack.parse import AgentStatement, parse_attestation
from sealtrain.attest.dstack_platforms import DstackEnclave
from sealtrain.attest.dstacksnp.exhibit import DstackSnp
from sealtrain.attest.dstacksnp.launch import launch_commitment
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    CollateralMismatch,
    CollateralUnreachable,
    ComposeHashMismatch,
    DebugGuest,
    EvidenceMalformed,
    PlatformMismatch,
    QuoteInvalid,
    ReportDataMismatch,
    TcbStatusRefused,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import Examined, examine, make_bundle, unwrap_bundle
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.forms import Certificates
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.snp.collect import CERTIFICATE_GUIDS
from sealtrain.attest.verifier import verifier_of
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json
from sealtrain.errors import KeyProviderMismatch, SealtrainError
from sealtrain_rehearsal.simulator.dstack_platforms import (
    HOSTED_FAULT_MEANINGS,
    enclave_attestation,
    launch_config,
    snp_attestation,
)
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.nitro import FAULTS
from sealtrain_rehearsal.simulator.server import running
from sealtrain_rehearsal.simulator.snp import SNP_FAULTS, SNP_TCB, SimulatedSnp
from sealtrain_rehearsal.simulator.state import ensure

pytestmark = pytest.mark.claim("C420")

ASKED = bytes(range(64))
GUEST = SimulatedSnp(b"tests of dstack on SEV-SNP")
DIGEST = hashlib.sha256(COMPOSE).hexdigest()
VERSIONS = (0, 1)


_TEES = {"snp": "dstack-amd-sev-snp", "nitro": "nitro", "bare": "snp"}


@cache
def policy(kind: str) -> AppraisalPolicy:
    root = PKI.root_der if kind == "nitro" else GUEST.root_der
    return insecure_simulator_policy(root, tee=_TEES[kind])


def judged(blob: bytes, tee: str, now: int = NOW, **beside: Any) -> Examined:
    """Verify a blob in its conversation and with its deployment document."""
    exhibit = recognise(blob)
    named = {"nonce": ASKED, **({"app_compose": COMPOSE} if tee == "snp" else {}), **beside}
    return examine(exhibit, Attachments(**named), policy(tee), now)


def snp(**options: Any) -> bytes:
    return snp_attestation(GUEST, ASKED, COMPOSE, **options)


def hardware(product: str, floor: tuple[int, int, int, int], **changed: Any) -> AppraisalPolicy:
    """Rules for a real guest of dstack."""
    found = snp_rules(product, floor, **changed)
    cpu = {**found["cpu"], "tee": "dstack-amd-sev-snp", "key_provider": "any"} | {
        name: changed[name] for name in ("key_provider",) if name in changed
    }
    return policy_from_dict({**found, "platform": "dstack", "cpu": cpu})


def table(*names: str) -> bytes:
    """The kernel's table of certificates, as configfs-tsm hands it out in ``auxblob``."""
    ders = dict(zip(("vcek", "ask", "ark"), GUEST.certificates(), strict=True))
    at = 24 * (len(names) + 1)
    head, body = b"", b""
    for name in names:
        place = (at + len(body)).to_bytes(4, "little") + len(ders[name]).to_bytes(4, "little")
        head += CERTIFICATE_GUIDS[name].bytes + place
        body += ders[name]
    return head + bytes(24) + body


@pytest.mark.parametrize("version", VERSIONS)
def test_a_guest_that_tells_the_truth_is_accepted(version: Any) -> None:
    blob = snp(version=version)
    found = judged(blob, "snp")
    assert (found.kind, found.bound, found.missing) == ("dstack-snp-report", True, ())
    claims = {claim.name: claim for claim in found.submods["cpu0"].claims}
    assert claims["compose hash"].got == DIGEST
    assert claims["launch configuration"].got == launch_commitment(launch_config(COMPOSE)).hex()
    assert claims["app id"].got == DIGEST[:40]
    assert claims["key provider"].outcome == "any"
    assert isinstance(recognise(blob), DstackSnp)
    told = judged(enclave_attestation(enclave(), ASKED, version=version), "nitro")
    assert (told.kind, told.bound, told.missing) == ("nitro-document", True, ("document",))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fault", [name for name in SNP_FAULTS if name != "revoked-issuer"])
def test_each_lie_of_a_platform_is_refused_as_without_dstack(version: Any, fault: str) -> None:
    """Under rules that look at image and chip, with the code of the bare report."""
    rules: dict[str, Any] = {"chip_ids": [GUEST.chip_id], "measurements": [measured()]}
    rules |= {"minimum_tcb": {"Genoa": {**SNP_TCB, "fmc": None}}}
    strict, alike = (
        policy_from_dict({**found, "cpu": {**found["cpu"], **rules}})
        for found in (policy("snp").to_dict(), policy("bare").to_dict())
    )
    bare = recognise(GUEST.report(ASKED, COMPOSE, fault=fault))
    with pytest.raises(SealtrainError) as alone:
        examine(bare, Attachments(certificates=GUEST.certificates(fault=fault)), alike, NOW)
    with pytest.raises(SealtrainError) as wrapped:
        examine(recognise(snp(version=version, fault=fault)), Attachments(), strict, NOW)
    assert wrapped.value.code == alone.value.code


def measured() -> str:
    shown = recognise(snp())
    assert isinstance(shown, DstackSnp)
    return shown.report.measurement


@pytest.mark.negative(26)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_lie_of_a_module_is_refused_as_without_dstack(fault: str) -> None:
    rules = policy("nitro").to_dict()
    image = recognise(enclave_attestation(enclave(), ASKED))
    assert isinstance(image, DstackEnclave)
    rules["cpu"]["images"] = [{f"pcr{at}": image.document.pcr(at) for at in (0, 1, 2)}]
    strict = policy_from_dict(rules)
    blob = enclave_attestation(enclave(fault), ASKED)
    shown = recognise(blob)
    assert isinstance(shown, DstackEnclave)
    with pytest.raises(SealtrainError) as alone:
        examine(recognise(shown.hosted.statement), Attachments(), strict, NOW)
    with pytest.raises(SealtrainError) as wrapped:
        examine(shown, Attachments(), strict, NOW)
    assert wrapped.value.code == alone.value.code


@pytest.mark.negative(23)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fault", HOSTED_FAULT_MEANINGS)
def test_what_the_wrapper_lies_about_is_refused(version: Any, fault: str) -> None:
    with pytest.raises(SealtrainError) as refused:
        judged(snp(version=version, fault=fault), "snp")
    assert refused.value.code in HOSTED_FAULT_MEANINGS[fault]
    if fault == "other-report-data":
        with pytest.raises(ReportDataMismatch):
            judged(enclave_attestation(enclave(), ASKED, version=version, fault=fault), "nitro")


@pytest.mark.negative(5)
def test_another_conversation_or_document_is_refused() -> None:
    with pytest.raises(ReportDataMismatch):
        judged(snp(), "snp", nonce=bytes(64))
    with pytest.raises(ReportDataMismatch):
        judged(snp(), "snp", nonce=ASKED[:32] + bytes(32))
    with pytest.raises(ComposeHashMismatch):
        judged(snp(), "snp", app_compose=COMPOSE + b" ")
    with pytest.raises(ReportDataMismatch):
        judged(enclave_attestation(enclave(), ASKED), "nitro", nonce=bytes(64))
    bare = snp_attestation(GUEST, ASKED, COMPOSE, fault="other-compose")
    assert judged(bare, "snp", app_compose=COMPOSE + b"\n").bound


def test_a_policy_of_another_tee_or_of_hardware_is_no_way_in() -> None:
    blob = snp()
    with pytest.raises(PlatformMismatch):
        examine(
            recognise(blob),
            Attachments(),
            insecure_simulator_policy(GUEST.root_der, tee="nitro"),
            NOW,
        )
    with pytest.raises(SealtrainError) as refused:
        examine(recognise(blob), Attachments(), hardware("Genoa", (0, 0, 0, 0)), NOW)
    assert refused.value.code == "simulated-evidence"
    document = recognise(enclave_attestation(enclave(), ASKED))
    with pytest.raises(SealtrainError) as refused:
        examine(document, Attachments(), policy_from_dict(nitro_rules()), NOW)
    assert refused.value.code == "simulated-evidence"


@pytest.mark.negative(23)
def test_another_key_provider_is_refused(shared: Path) -> None:
    document = policy("snp").to_dict()
    document["cpu"]["key_provider"] = "ab" * 32
    with pytest.raises(KeyProviderMismatch):
        examine(recognise(snp()), Attachments(), policy_from_dict(document), NOW)


def test_a_guest_of_this_kind_shows_what_its_agent_says(tmp_path: Path) -> None:
    """By the agent's own answer, as on a rented machine, and by the simulated driver."""
    agent = AgentStatement(
        kind="amd-sev-snp",
        statement=GUEST.report(ASKED, COMPOSE, host_data=launch_commitment(launch_config(COMPOSE))),
        log=(),
        config="{}",
        report_data=ASKED,
        tpm_quote=None,
        certificates=(table("vcek", "ask", "ark"),),
        mr_config=launch_config(COMPOSE),
    )
    of_agent = verifier_of("dstack-amd-sev-snp").of_agent
    assert of_agent is not None
    evidence = Evidence.build("simulator", app_compose=COMPOSE, **of_agent(agent))
    found = verify(evidence, policy("snp"), NOW, binding=Binding("unit", {}))
    assert found.compose_hash == DIGEST
    assert found.app_id == DIGEST[:40]
    with pytest.raises(CollateralUnreachable):
        of_agent(replace(agent, certificates=()))


def test_agents_of_simulated_machines_answer_with_their_own_kind(tmp_path: Path) -> None:
    compose = tmp_path / "app-compose.json"
    compose.write_bytes(COMPOSE)
    ask = verifier_of("dstack").ask_agent
    assert ask is not None
    for tee in ("dstack-amd-sev-snp", "nitro"):
        machine, state = Machine(tee=tee), tmp_path / tee  # type: ignore[arg-type]
        with running(tmp_path / "s", compose, state, clock=lambda: NOW, machine=machine) as socket:
            client = DstackClient(str(socket))
            if tee == "nitro":
                found = client.get_statement(ASKED)
                assert found is not None
                assert found.kind == "nitro-enclave"
                with pytest.raises(PlatformMismatch):
                    ask(client, ASKED)
                continue
            shown = ask(client, ASKED)
        evidence = Evidence.build("simulator", app_compose=COMPOSE, **shown)
        rules = ensure(state, NOW).policy(machine)
        assert verify(evidence, rules, NOW, binding=Binding("unit", {})).compose_hash == DIGEST


def test_certificates_come_from_the_attestation_its_table_or_beside_it() -> None:
    leaf, issuer, root = GUEST.certificates()
    for chain, beside in (
        ((table("vcek", "ask", "ark"),), ()),
        ((table("ask", "vcek"),), (root,)),
        ((issuer, leaf), (root,)),  # as dstack's verifier orders them
        ((), (leaf, issuer, root)),
    ):
        assert judged(snp(chain=chain), "snp", certificates=beside).bound
    for chain in ((), (issuer, leaf), (table("ask", "vcek"),)):
        with pytest.raises(CertificateChainInvalid):
            judged(snp(chain=chain), "snp")
    with pytest.raises(EvidenceMalformed):
        judged(snp(chain=(table("ask", "vcek")[:40],)), "snp", certificates=(root,))


CONFIGS: dict[str, Any] = {
    "another version": {"version": 2},
    "an unknown field": {"more": 1},
    "no document": {"compose_hash": None},
    "a short document": {"compose_hash": "00" * 20},
    "upper case": {"compose_hash": DIGEST.upper()},
    "an unknown provider": {"key_provider": "owner"},
    "a short app id": {"app_id": "00"},
}


@pytest.mark.parametrize("changed", CONFIGS.values(), ids=CONFIGS)
def test_a_launch_configuration_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    """HOST_DATA commits to it, so the form alone is what is wrong."""
    text = canonical_json({**json.loads(launch_config(COMPOSE)), **changed}).decode()
    refused_as_malformed(text)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version":3}', '{"version":3,"version":3}'])
def test_a_launch_configuration_that_is_no_object_is_refused(text: str) -> None:
    refused_as_malformed(text)


def refused_as_malformed(text: str) -> None:
    report = GUEST.report(ASKED, COMPOSE, host_data=launch_commitment(text))
    shown = recognise(snp())
    assert isinstance(shown, DstackSnp)
    blob = b"\0\3" + vector(report) + b"\0" + vector(text.encode()) + b"\0" + ASKED + b"\0"
    beside = Attachments(certificates=GUEST.certificates())
    with pytest.raises(EvidenceMalformed):
        examine(recognise(blob), beside, policy("snp"), NOW)


def vector(data: bytes) -> bytes:
    """SCALE: the length in its shortest form, and the bytes."""
    if len(data) < 64:
        return bytes([len(data) << 2]) + data
    return (len(data) << 2 | 1).to_bytes(2, "little") + data


def test_cut_or_prolonged_anywhere_it_is_no_attestation() -> None:
    for whole, step in ((snp(version=0), 97), (enclave_attestation(enclave(), ASKED), 997)):
        for data in (*(whole[:cut] for cut in range(2, len(whole), step)), whole + b"\0"):
            with pytest.raises(SealtrainError) as refused:
                recognise(data)
            assert refused.value.code in ("format-unknown", "quote-invalid", "evidence-malformed")
    with pytest.raises(PlatformMismatch):
        parse_attestation(snp(version=0))


def test_no_signed_byte_of_a_wrapped_report_can_be_changed() -> None:
    whole = snp(version=0)
    start = 4  # version, variant, length of the report
    for at in range(start, start + 0x2A0, 13):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(SealtrainError):
            judged(changed, "snp")


def test_it_comes_as_json_as_text_and_in_a_bundle() -> None:
    blob = snp(version=0)
    answer = json.dumps({"attestation": blob.hex()}).encode()
    assert recognise(answer).kind == recognise(blob.hex().encode()).kind == "dstack-snp-report"
    beside = Attachments(nonce=ASKED, app_compose=COMPOSE)
    kept = make_bundle(recognise(answer), beside, policy("snp"), NOW)
    inner, with_it = unwrap_bundle(recognise(kept.to_bytes()), Attachments())
    assert examine(inner, with_it, policy("snp"), kept.time).bound


def test_an_explanation_shows_every_line_and_what_stands_beside() -> None:
    told = explain(recognise(snp(fault="other-launch-config")), Attachments(), policy("snp"), NOW)
    names = {field.name for field in told.fields}
    assert {"launch configuration", "host's statement", "HOST_DATA"} <= names
    broken = {line.name: line.code for line in told.lines if line.code}
    assert broken == {"launch configuration": "compose-hash-mismatch"}
    beside = Attachments(nonce=ASKED)
    told = explain(recognise(enclave_attestation(enclave(), ASKED)), beside, policy("nitro"), NOW)
    assert not [line for line in told.lines if line.code]


# --- Published ---------------------------------------------------------------------------------

_JUNE = 1_781_700_000


def real_snp(shared: Path, floor: tuple[int, int, int, int], **changed: Any) -> Examined:
    leaf, issuer = (published(f"the {what}") for what in _KEYS)
    ask, ark = ders_of(shared, ("sev-snp/roots/ask_ark_milan.pem",))
    more = tuple(der for pem in (leaf, issuer) for der in pems(pem))
    assert more[1] == ask
    beside = Attachments(
        certificates=(*more, ark), nonce=b"attest-test-fixture-2026".ljust(64, b"\0")
    )
    exhibit = recognise(published("a dstack guest on SEV-SNP"))
    return examine(exhibit, beside, hardware("InsecureMilan", floor, **changed), _JUNE)


_KEYS = ("key of that guest's chip", "issuer of that guest's key")


def pems(data: bytes) -> tuple[bytes, ...]:
    found = recognise(data)
    assert isinstance(found, Certificates)
    return found.certificates


def test_the_published_snp_guest_verifies_under_a_policy_that_accepts_milan(shared: Path) -> None:
    found = real_snp(shared, (0, 0, 0, 0))
    claims = {claim.name: claim.got for claim in found.submods["cpu0"].claims}
    assert claims["guest image"].startswith("7f51e17f72a04d5422cb2c0099816653")
    assert claims["app id"] == "86e59625be93207bc2351c4d1bba20037cec8e16"
    host_data = "783f0057820acb99249af56cc3b07b4e8d80f65183167cba9cf437bb680f742f"
    assert claims["launch configuration"] == host_data
    assert (found.bound, found.missing) == (True, ("document",))


@pytest.mark.negative(41)
def test_the_published_snp_guest_is_refused_for_its_product_and_its_firmware(shared: Path) -> None:
    with pytest.raises(TcbStatusRefused):
        real_snp(shared, (255, 0, 0, 0))
    with pytest.raises(PlatformMismatch):
        real_snp(shared, (0, 0, 0, 0), products=["Genoa"], minimum_tcb=genoa())


def genoa() -> dict[str, Any]:
    names = ("bootloader", "tee", "snp", "microcode")
    return {"Genoa": {**dict.fromkeys(names, 0), "fmc": None}}


@pytest.mark.negative(38)
def test_no_byte_of_the_published_report_can_be_changed(shared: Path) -> None:
    data = published("a dstack guest on SEV-SNP")
    ask, ark = ders_of(shared, ("sev-snp/roots/ask_ark_milan.pem",))
    beside = Attachments(certificates=(*pems(published("the key of that guest's chip")), ask, ark))
    rules = hardware("InsecureMilan", (0, 0, 0, 0))
    # Report data, measurement, host data, signature; then TCB and chip, which the key names too.
    signed, named = (0x50, 0x90, 0xC0, 0x2A0), (0x180, 0x1A0)
    for at in (*signed, *named):
        changed = data[: 4 + at] + bytes([data[4 + at] ^ 1]) + data[5 + at :]
        with pytest.raises(QuoteInvalid if at in signed else CollateralMismatch):
            examine(recognise(changed), beside, rules, _JUNE)


def test_the_published_enclave_verifies_at_its_own_time() -> None:
    exhibit = recognise(published("a dstack guest in a Nitro enclave"))
    assert isinstance(exhibit, DstackEnclave)
    at = exhibit.document.timestamp_ms // 1000
    rules = policy_from_dict(nitro_rules())
    found = examine(exhibit, Attachments(), rules, at)
    claims = {claim.name: claim.got for claim in found.submods["cpu0"].claims}
    # As dstack's own test has it, snapshots/nitro_verify__app_info.snap.
    image = "1894b0b29e94a9db16e88a2914f0923e52bb16c08bf3bb484df786a147e2eb79"
    assert claims["OS image"] == image
    with pytest.raises(SealtrainError) as late:
        examine(exhibit, Attachments(), rules, at + 4 * HOUR)
    assert late.value.code in ("certificate-chain-invalid", "evidence-stale")


@pytest.mark.negative(26)
def test_the_published_enclave_in_debug_mode_is_refused() -> None:
    exhibit = recognise(published("a dstack guest in a Nitro enclave in debug mode"))
    assert isinstance(exhibit, DstackEnclave)
    at = exhibit.document.timestamp_ms // 1000
    with pytest.raises(DebugGuest):
        examine(exhibit, Attachments(), policy_from_dict(nitro_rules()), at)
