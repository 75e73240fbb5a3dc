"""One statement is written down in many ways, and read as the same statement."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from typing import Any

import pytest

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    EvidenceMalformed,
    GpuNonceMismatch,
    PlatformMismatch,
    ReportDataMismatch,
)
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.examine import Examined, examine, make_bundle, unwrap_bundle
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.forms import Certificates, Gpus, QuotedGpus
from sealtrain.attest.nvidia.parse import GpuDevice
from sealtrain.attest.policy import AppraisalPolicy, policy_from_dict
from sealtrain.attest.presets import insecure_simulator_policy
from sealtrain.attest.snp.collect import CERTIFICATE_GUIDS
from sealtrain.base.encoding import to_base64
from sealtrain.errors import FormatUnknown, SealtrainError
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

pytestmark = pytest.mark.claim("C421")

NOW = 1_800_000_000
COMPOSE = b'{"name":"written in many ways"}'
ASKED = bytes(range(64))
GUEST = SimulatedSnp(b"a chip and its certificates")
PKI = SimulatedPki(b"a platform and its quotes")
GPUS = SimulatedGpus(b"accelerators beside it")


# --- Text --------------------------------------------------------------------------------------


def test_base64url_is_read_with_and_without_its_padding() -> None:
    quote, report = PKI.quote(ASKED), GUEST.report(ASKED, COMPOSE)
    for raw in (quote, report):
        for cut in (raw, raw + bytes(1), raw + bytes(2)) if raw is quote else (raw,):
            text = urlsafe_b64encode(cut)
            assert b"-" in text
            assert b"_" in text
            for form in (text, text.rstrip(b"="), b"\n".join((text[:99], text[99:], b""))):
                assert recognise(form).raw == raw
            assert recognise(b64encode(cut).rstrip(b"=")).raw == raw


@pytest.mark.parametrize("spoilt", [b"+A-B", b"/A_B", b"A=B=", b"A", b"===="])
def test_text_of_two_alphabets_or_of_no_length_is_none(spoilt: bytes) -> None:
    text = urlsafe_b64encode(PKI.quote(ASKED)).rstrip(b"=")
    text = text[: len(text) // 4 * 4]
    with pytest.raises(FormatUnknown):
        recognise(text + spoilt)


# --- Certificate tables ------------------------------------------------------------------------


def table(*names: str, crl: bytes | None = None) -> bytes:
    """As a host hands certificates out: entries, zeros, then what the entries name."""
    ders = dict(zip(("vcek", "ask", "ark"), GUEST.certificates(), strict=True))
    values = [(name, ders[name]) for name in names] + ([] if crl is None else [("crl", crl)])
    at = 24 * (len(values) + 1)
    head, body = b"", b""
    for name, der in values:
        head += CERTIFICATE_GUIDS[name].bytes
        head += (at + len(body)).to_bytes(4, "little") + len(der).to_bytes(4, "little")
        body += der
    return head + bytes(24) + body


def judged_report(data: bytes, **rules: Any) -> Examined:
    document = insecure_simulator_policy(GUEST.root_der, tee="snp").to_dict()
    policy = policy_from_dict({**document, "cpu": {**document["cpu"], **rules}})
    return examine(recognise(data), Attachments(nonce=ASKED, app_compose=COMPOSE), policy, NOW)


def test_a_report_with_its_hosts_table_needs_nothing_beside_it() -> None:
    report = GUEST.report(ASKED, COMPOSE)
    whole = report + table("vcek", "ask", "ark", crl=GUEST.revocations(NOW))
    assert judged_report(whole, revocation="require").bound
    assert judged_report(whole + bytes(100)).bound
    assert recognise(whole.hex().encode()).raw == whole
    named = {field.name for field in explain(recognise(whole), Attachments(), None, None).fields}
    assert "MEASUREMENT" in named
    policy = insecure_simulator_policy(GUEST.root_der, tee="snp")
    kept = make_bundle(recognise(whole), Attachments(nonce=ASKED), policy, NOW)
    inner, beside = unwrap_bundle(recognise(kept.to_bytes()), Attachments())
    assert examine(inner, beside, policy, NOW).bound


def test_a_table_that_lacks_something_says_so() -> None:
    report = GUEST.report(ASKED, COMPOSE)
    for names in (("vcek",), ("ask", "ark"), ("vcek", "ark")):
        with pytest.raises(CertificateChainInvalid):
            judged_report(report + table(*names))
    with pytest.raises(SealtrainError) as unknown:
        judged_report(report + table("vcek", "ask", "ark"), revocation="require")
    assert unknown.value.code == "revocation-unknown"
    with pytest.raises(EvidenceMalformed):
        judged_report(report + table("vcek", "ask", "ark")[:100])
    for behind in (b"\1", bytes(24), b"x" * 500):  # no table begins so
        with pytest.raises(FormatUnknown):
            recognise(report + behind)


def test_a_table_by_itself_is_a_file_of_certificates() -> None:
    found = recognise(table("ark", "vcek", "ask"))
    assert isinstance(found, Certificates)
    assert found.certificates == GUEST.certificates()


# --- A quote with accelerators -----------------------------------------------------------------


NONCE = b"\7" * 32
OWN = b"\x0a" * 32
"""What a service puts first into its report data, such as the hash of its key."""


def request_of(devices: tuple[GpuDevice, ...], **changed: Any) -> dict[str, Any]:
    """What NVIDIA's service is asked about accelerators."""
    items = [
        {
            "certificate": b64encode(device.certificate_chain.encode()).decode(),
            "evidence": device.report,
        }
        for device in devices
    ]
    return {"nonce": NONCE.hex(), "arch": "HOPPER", "evidence_list": items} | changed


def answer(quote: bytes, nonce: bytes = NONCE, **changed: Any) -> bytes:
    shown = {
        "signing_address": "0x0a",
        "intel_quote": quote.hex(),
        "nvidia_payload": json.dumps(request_of(GPUS.evidence(nonce).devices)),
    }
    return json.dumps({**shown, **changed}).encode()


def rules() -> AppraisalPolicy:
    """For a bare quote and one accelerator, whose mode no guest vouches for."""
    return rules_of("tdx")


def rules_of(tee: str) -> AppraisalPolicy:
    accelerators = GPUS.policy(reference_values="any", revocation="any")
    return insecure_simulator_policy(PKI.root_der, tee=tee, gpu=accelerators)


def judged(data: bytes, nonce: bytes | None = None) -> Examined:
    beside = Attachments(nonce=nonce, collateral=PKI.collateral(NOW))
    return examine(recognise(data), beside, rules(), NOW)


def test_what_a_service_is_asked_is_evidence_of_accelerators() -> None:
    devices = GPUS.evidence(NONCE).devices
    for form in (request_of(devices), request_of(devices, nonce=None)):
        found = recognise(json.dumps(form).encode())
        assert isinstance(found, Gpus)
        assert [device.report for device in found.devices] == [device.report for device in devices]
        assert found.claims is None
    for broken in ({"evidence_list": []}, {"evidence_list": [1]}, {"evidence_list": {}}):
        with pytest.raises(EvidenceMalformed):
            recognise(json.dumps(request_of(devices) | broken).encode())


def test_a_quote_is_recognised_with_its_accelerators_however_it_is_written() -> None:
    quote = PKI.quote(OWN + NONCE)
    for written in (
        quote.hex(),
        "0x" + quote.hex(),
        to_base64(quote),
        urlsafe_b64encode(quote).decode(),
        quote.hex() + "00" * 40,
    ):
        found = recognise(answer(quote, intel_quote=written))
        assert isinstance(found, QuotedGpus)
        assert (found.report_data, len(found.devices)) == (OWN + NONCE, 1)
    payload = request_of(GPUS.evidence(NONCE).devices)
    assert isinstance(recognise(answer(quote, nvidia_payload=payload)), QuotedGpus)
    for changed in (
        {"intel_quote": "no quote!"},
        {"intel_quote": None},
        {"nvidia_payload": "{"},
        {"nvidia_payload": []},
        {"nvidia_payload": "eyJhbGciOiJSUzI1NiJ9.e30.c2ln"},
    ):
        with pytest.raises(EvidenceMalformed):
            recognise(answer(quote, **changed))
    with pytest.raises(SealtrainError) as refused:
        recognise(answer(quote[:900]))
    assert refused.value.code == "quote-invalid"


def test_it_is_compared_part_by_part() -> None:
    data = answer(PKI.quote(OWN + NONCE))
    found = judged(data, OWN + NONCE)
    assert set(found.submods) == {"cpu0", "gpu0", "gpus"}
    assert (found.kind, found.bound) == ("quote-with-gpus", True)
    assert found.missing == ("document", "guest")
    assert judged(data, NONCE).bound
    assert not judged(data).bound
    kept = make_bundle(recognise(data), Attachments(collateral=PKI.collateral(NOW)), rules(), NOW)
    inner, beside = unwrap_bundle(recognise(kept.to_bytes()), Attachments())
    assert examine(inner, beside, rules(), NOW).kind == "quote-with-gpus"


@pytest.mark.negative(44)
def test_accelerators_of_another_conversation_than_the_quotes_are_refused() -> None:
    quote = PKI.quote(OWN + NONCE)
    with pytest.raises(GpuNonceMismatch):
        judged(answer(quote, b"\x08" * 32))
    with pytest.raises(GpuNonceMismatch):
        judged(answer(PKI.quote(NONCE + OWN)))
    for other in (b"\x08" * 32, OWN, NONCE + OWN, NONCE[:31]):
        with pytest.raises(ReportDataMismatch):
            judged(answer(quote), other)


def test_a_policy_of_another_tee_or_without_such_accelerators_refuses_it() -> None:
    data = recognise(answer(PKI.quote(OWN + NONCE)))
    beside = Attachments(collateral=PKI.collateral(NOW))
    with pytest.raises(PlatformMismatch):
        examine(data, beside, rules_of("dstack"), NOW)
    with pytest.raises(SealtrainError) as refused:
        examine(data, beside, insecure_simulator_policy(PKI.root_der, tee="tdx"), NOW)
    # Without rules for accelerators there is no simulated root for them either.
    assert refused.value.code == "simulated-evidence"
    told = explain(data, beside, rules(), NOW)
    assert {field.part for field in told.fields} >= {"cpu0", "gpu0"}
