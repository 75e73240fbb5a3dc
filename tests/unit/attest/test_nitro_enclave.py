"""Inside the enclave and about it: the module's requests, the policy's claims, named faults."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from pathlib import Path
from typing import Any

import cbor2
import pytest
from carrying import carries
from nitro_world import (
    ASKED,
    COMPOSE,
    IMAGE,
    NOW,
    PKI,
    claims_of,
    enclave,
    genuine,
    policy,
    verified,
)
from pydantic import ValidationError

from sealtrain.attest.errors import (
    EvidenceMalformed,
    GuestApiUnreachable,
    MeasurementMismatch,
    PlatformMismatch,
)
from sealtrain.attest.nitro.appraise import eat
from sealtrain.attest.nitro.collect import (
    attestation,
    describe_pcr,
    device_nsm,
    extend_pcr,
    lock_pcr,
    measure_compose,
)
from sealtrain.attest.nitro.verify import compose_register, extend
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid, EvidenceRefused
from sealtrain_rehearsal.simulator.nitro import FAULTS, SimulatedNitroPki, SimulatedNsm

OTHER = "ab" * 48
PARENT = "i-00000000000000001"


def test_an_enclave_meets_a_policy_that_pins_everything() -> None:
    facts = verified(genuine())
    pinned = policy(
        images=({"pcr0": OTHER, "pcr1": OTHER, "pcr2": OTHER}, IMAGE),
        parents=("i-0fffffffffffffff0", PARENT),
        iam_roles=(facts.signed.pcrs[3],),
    )
    claims = {claim.name: claim for claim in claims_of(facts, pinned, NOW)}
    assert {name: claim.outcome for name, claim in claims.items()} == {
        "debug mode": "equal",
        "document age": "allowed",
        "guest image": "equal",
        "image signer": "any",
        "parent instance": "allowed",
        "IAM role": "allowed",
    }
    assert {claim.source for claim in claims.values()} == {"NSM document"}
    assert claims["guest image"].got.startswith(f"pcr0 {IMAGE['pcr0']} pcr1 ")
    assert facts.compose_hash == sha256_hex(COMPOSE)
    assert facts.app_id == facts.compose_hash[:40]
    assert (facts.signed.parent_id, facts.instance_id) == (PARENT, "0000000000000001")
    assert facts.report_data == ASKED


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"images": ()}, 0),  # what a preset says until its owner lists images
        ({"images": ({"pcr0": OTHER, "pcr1": IMAGE["pcr1"], "pcr2": IMAGE["pcr2"]},)}, 0),
        ({"images": ({"pcr0": IMAGE["pcr0"], "pcr1": OTHER, "pcr2": IMAGE["pcr2"]},)}, 0),
        ({"images": ({"pcr0": IMAGE["pcr0"], "pcr1": IMAGE["pcr1"], "pcr2": OTHER},)}, 0),
        ({"signers": (OTHER,)}, 0),
        ({"signers": ()}, 0),
        ({"parents": ()}, 1),
        ({"iam_roles": ()}, 1),
        ({"parents": ("i-0fffffffffffffff0",)}, 1),
        ({"iam_roles": (OTHER,)}, 1),
    ],
)
def test_each_line_of_a_policy_refuses_alone(changes: dict[str, Any], error: int) -> None:
    facts = verified(genuine())
    with pytest.raises((MeasurementMismatch, PlatformMismatch)[error]):
        claims_of(facts, policy(**changes), NOW)


def test_a_parent_that_is_named_and_not_measured_does_not_meet_a_pin() -> None:
    from nitro_world import fields, forge

    pcrs = fields(genuine())["pcrs"]
    for changed in (pcrs | {4: bytes(48)}, {n: v for n, v in pcrs.items() if n != 4}):
        forged = forge(pcrs=changed)
        facts = verified(forged.document, simulator_root=forged.root)
        claims_of(facts, policy(), NOW)
        with pytest.raises(PlatformMismatch, check=carries(check="parent instance")):
            claims_of(facts, policy(parents=(PARENT,)), NOW)


@pytest.mark.parametrize(
    "changes",
    [
        {"images": "all"},
        {"signers": ("AB" * 48,)},
        {"signers": ("ab" * 32,)},
        {"parents": ("i-0123456789abcdef0-enc0123456789abcdef",)},
        {"parents": ("0123456789abcdef0",)},
        {"max_age_s": 0},
        {"max_age_s": "300"},
        {"max_age_s": 86400},
        {"debug": "accept"},
        {"tee": "tdx"},
        {"colour": "blue"},
    ],
)
def test_a_policy_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        policy(**changes)


@pytest.mark.parametrize("name", sorted(policy().to_dict()))
def test_a_policy_without_a_field_is_refused(name: str) -> None:
    fields = policy().to_dict()
    del fields[name]
    with pytest.raises(ValidationError, match="type=missing"):
        type(policy()).model_validate(fields)


def test_claims_have_the_names_of_rfc_9711() -> None:
    assert eat(verified(genuine()).signed) == {
        "ueid": f"{PARENT}-enc0000000000000001",
        "hwmodel": "AWS Nitro Enclaves",
        "dbgstat": "disabled-since-boot",
    }


CODES = (
    "debug-guest",
    "evidence-stale",
    "evidence-stale",
    "quote-root-untrusted",
    "quote-invalid",
    "certificate-chain-invalid",
    "measurement-mismatch",
    "measurement-mismatch",
)


@pytest.mark.parametrize(("fault", "code"), [*zip(FAULTS, CODES, strict=True)])
def test_each_fault_is_refused_by_its_name(fault: str, code: str) -> None:
    pinned = policy(images=(IMAGE,))
    with pytest.raises(EvidenceRefused) as refusal:
        claims_of(verified(attestation(enclave(fault), user_data=ASKED)), pinned, NOW)
    assert refusal.value.code == code
    assert claims_of(verified(genuine()), pinned, NOW)


def test_a_simulator_follows_from_its_seed_and_says_what_it_is() -> None:
    from cryptography import x509

    seed = b"tests of simulated Nitro enclaves"
    assert SimulatedNitroPki(seed).root_der == PKI.root_der
    assert attestation(enclave(), user_data=ASKED) == genuine()
    assert SimulatedNitroPki(seed + b"!").root_der != PKI.root_der
    from nitro_world import fields

    document = fields(genuine())
    for der in (*document["cabundle"], document["certificate"]):
        subject = x509.load_der_x509_certificate(der).subject.rfc4514_string()
        assert subject.startswith("CN=SIMULATED ")
    with pytest.raises(DataInvalid):
        SimulatedNitroPki(b"short")
    with pytest.raises(DataInvalid, check=carries(got="unheard-of")):
        enclave("unheard-of")


def test_registers_extend_lock_and_show() -> None:
    nsm = SimulatedNsm(PKI, clock=lambda: NOW)
    assert describe_pcr(nsm, 17).value == bytes(48)
    value = extend_pcr(nsm, 17, b"data")
    assert value == extend(bytes(48), b"data") == describe_pcr(nsm, 17).value
    assert not describe_pcr(nsm, 17).locked
    lock_pcr(nsm, 17)
    assert describe_pcr(nsm, 17).locked
    for index in (0, 17):
        with pytest.raises(
            GuestApiUnreachable, check=carries(check="guest API", got="ReadOnlyIndex")
        ):
            extend_pcr(nsm, index, b"data")
    with pytest.raises(GuestApiUnreachable, check=carries(check="guest API", got="InvalidIndex")):
        describe_pcr(nsm, 32)
    with pytest.raises(GuestApiUnreachable, check=carries(check="guest API", got="InputTooLarge")):
        attestation(nsm, user_data=bytes(1025))


def test_the_deployment_document_is_measured_once() -> None:
    nsm = SimulatedNsm(PKI, clock=lambda: NOW)
    expected = compose_register(sha256_hex(COMPOSE))
    assert measure_compose(nsm, COMPOSE) == expected == describe_pcr(nsm, 16).value
    with pytest.raises(GuestApiUnreachable, check=carries(check="guest API", got="ReadOnlyIndex")):
        measure_compose(nsm, COMPOSE)
    late = SimulatedNsm(PKI, clock=lambda: NOW)
    extend_pcr(late, 16, b"something before")
    with pytest.raises(GuestApiUnreachable, check=carries(check="compose hash")):
        measure_compose(late, COMPOSE)
    assert describe_pcr(late, 16).locked


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"\x81" * 9000,
        bytes(0x3001),
        cbor2.dumps("Attestation"),
        cbor2.dumps({}),
        cbor2.dumps([1]),
        cbor2.dumps({"DescribePCR": {}}),
        cbor2.dumps({"Attestation": []}),
        cbor2.dumps({"Attestation": {}}),
        cbor2.dumps({"Attestation": {"document": "text"}}),
        cbor2.dumps({"Attestation": {"document": b""}, "Error": "x"}),
        cbor2.dumps({"Attestation": {"document": b"x"}}) + b"\0",
    ],
    ids=repr,
)
def test_an_answer_of_another_form_is_refused(answer: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        attestation(lambda _: answer)


@pytest.mark.parametrize(
    "answer",
    [{"lock": 1, "data": bytes(48)}, {"lock": True, "data": bytes(32)}, {"data": bytes(48)}],
)
def test_a_register_of_another_form_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(EvidenceMalformed):
        describe_pcr(lambda _: cbor2.dumps({"DescribePCR": answer}), 0)


@pytest.mark.parametrize(
    "request_bytes",
    [
        *(b"", b"\xff", *map(cbor2.dumps, ([1], {1: {}}, {"DescribePCR": 7}))),
        *map(cbor2.dumps, ({"DescribePCR": {"index": []}}, {"ExtendPCR": {"index": 17}})),
        *map(cbor2.dumps, ({"SelfDestruct": {"index": 17}}, {"A": {}, "B": {}})),
    ],
    ids=repr,
)
def test_a_simulated_module_answers_nonsense_with_an_error(request_bytes: bytes) -> None:
    answer = cbor2.loads(enclave()(request_bytes))
    assert set(answer) == {"Error"}


def test_the_device_speaks_through_two_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver in software behind the system call: it reads and writes the very addresses."""
    device = tmp_path / "nsm"
    device.touch()
    module, calls = enclave(), []

    def ioctl(descriptor: int, request: int, message: bytearray) -> int:
        calls.append((descriptor, request, len(message)))
        given, length, answer, capacity = struct.unpack("=QQQQ", message)
        reply = module(ctypes.string_at(given, length))
        assert capacity == 0x3000 >= len(reply)
        ctypes.memmove(answer, reply, len(reply))
        message[24:] = struct.pack("=Q", len(reply))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    nsm = device_nsm(device)
    assert attestation(nsm, user_data=ASKED) == genuine()
    assert describe_pcr(nsm, 16).locked
    assert {call[1:] for call in calls} == {(3 << 30 | 32 << 16 | 0x0A << 8 | 0, 32)}
    before = len(calls)
    with pytest.raises(EvidenceMalformed, check=carries(got="4142 bytes")):
        attestation(nsm, user_data=bytes(0x1000))
    assert len(calls) == before


def test_no_device_is_said_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path / "file", tmp_path):
        with pytest.raises(GuestApiUnreachable, check=carries(check="guest API")):
            attestation(device_nsm(path))
