"""Whatever arrives as an accelerator's evidence ends in what was signed, or in a typed refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fuzzing import JSON, mutated, put_somewhere
from gpu_world import NONCE, NOW, machine, put_together, take_apart
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.attest.errors import CertificateChainInvalid, EvidenceMalformed, GpuReportInvalid
from sealtrain.attest.nvidia.chain import verify_chain
from sealtrain.attest.nvidia.device import verify_device
from sealtrain.attest.nvidia.fwid import composite_fwid, tcb_info_fwid
from sealtrain.attest.nvidia.parse import GpuEvidence, canonical_chain, from_nvat
from sealtrain.attest.nvidia.policy import driver_key, vbios_key
from sealtrain.attest.nvidia.spdm import canonical_report, parse_report
from sealtrain.attest.nvidia.verify import verify_gpus
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.errors import EvidenceRefused
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus

GPUS = SimulatedGpus(b"property tests of accelerators", count=2, mode="mpt")
POLICY = GPUS.policy(reference_values="any")
EVIDENCE = GPUS.evidence(NONCE)
DOCUMENT = EVIDENCE.to_bytes()
REPORT = EVIDENCE.devices[0].report_bytes
SWITCH = machine().evidence(NONCE).devices[-1].report_bytes
CHAIN = EVIDENCE.devices[0].certificate_chain
FILE = json.dumps(
    [
        {
            "arch": "HOPPER",
            "nonce": NONCE.hex(),
            "evidence": to_base64(REPORT),
            "certificate": to_base64(CHAIN.encode()),
        }
    ]
).encode()

bounded = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


REPORTS = st.binary(max_size=300) | mutated(REPORT) | mutated(SWITCH)


@bounded
@given(data=REPORTS)
def test_a_report_parses_to_all_of_its_bytes_or_is_refused(data: bytes) -> None:
    try:
        report = parse_report(data)
    except GpuReportInvalid:
        return
    assert report.signed + report.signature == data


@bounded
@given(data=REPORTS)
def test_trimming_leaves_a_beginning_and_trims_once(data: bytes) -> None:
    try:
        trimmed = canonical_report(data)
    except GpuReportInvalid:
        return
    assert data.startswith(trimmed)
    assert canonical_report(trimmed) == trimmed


@bounded
@given(
    fields=st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=160)), max_size=4),
    blocks=st.lists(
        st.tuples(st.integers(0, 255), st.binary(min_size=48, max_size=48)), max_size=8
    ),
)
def test_any_signed_fields_verify_to_themselves_or_are_refused(
    fields: list[tuple[int, bytes]], blocks: list[tuple[int, bytes]]
) -> None:
    """A genuine device with hostile firmware signs whatever it likes."""
    parts = take_apart(REPORT)
    kept = tuple(field for field in parts.fields if field[0] not in dict(fields))
    told = replace(parts, blocks=tuple(blocks), fields=(*kept, *fields))
    raw = put_together(told, GPUS.gpu_devices[0].key)
    device = EVIDENCE.devices[0].model_copy(update={"report": to_base64(raw)})
    try:
        verified = verify_device(device, simulator_root=GPUS.root_der, now=NOW)
    except EvidenceRefused:
        return
    assert dict(verified.measurements) == dict(blocks)
    assert dict(verified.report.opaque) == dict(told.fields)
    assert len(told.blocks) == len(verified.measurements)


@bounded
@given(data=mutated(REPORT))
def test_any_report_verifies_to_what_was_signed_or_is_refused(data: bytes) -> None:
    device = EVIDENCE.devices[0].model_copy(update={"report": to_base64(data)})
    try:
        verified = verify_device(device, simulator_root=GPUS.root_der, now=NOW)
    except EvidenceRefused:
        return
    assert verified.report.identity == parse_report(REPORT).identity


@bounded
@given(data=mutated(CHAIN.encode()) | st.binary(max_size=200))
def test_any_chain_verifies_to_the_same_device_or_is_refused(data: bytes) -> None:
    genuine = verify_chain(CHAIN, simulator_root=GPUS.root_der, now=NOW)
    try:
        chain = verify_chain(data.decode("latin-1"), simulator_root=GPUS.root_der, now=NOW)
    except EvidenceRefused:
        return
    assert chain.certificates == genuine.certificates


@bounded
@given(data=st.binary(max_size=400) | mutated(DOCUMENT))
def test_a_document_is_evidence_in_its_one_form_or_refused(data: bytes) -> None:
    try:
        evidence = GpuEvidence.from_bytes(data)
    except EvidenceMalformed:
        return
    assert evidence.to_bytes() == data


@bounded
@given(path=st.integers(0, 10**6), value=JSON)
def test_any_value_anywhere_in_evidence_verifies_identically_or_is_refused(
    path: int, value: Any
) -> None:
    document = json.loads(DOCUMENT)
    _, before = put_somewhere(document, path, value)
    try:
        evidence = GpuEvidence.from_bytes(canonical_json(document))
        verify_gpus(evidence, POLICY, None, nonce=NONCE, simulator_root=GPUS.root_der, now=NOW)
    except EvidenceRefused:
        return
    assert value == before


@bounded
@given(data=st.binary(max_size=300) | mutated(FILE) | JSON.map(lambda it: json.dumps(it).encode()))
def test_files_of_other_tools_are_read_or_refused(data: bytes) -> None:
    try:
        devices = from_nvat(data)
    except EvidenceRefused:
        return
    for device in devices:
        assert GpuEvidence.build((device,), EVIDENCE.claims).devices == (device,)


@bounded
@given(data=st.binary(max_size=400) | mutated(CHAIN.encode()))
def test_respelling_a_chain_is_final(data: bytes) -> None:
    try:
        text = canonical_chain(data)
    except EvidenceMalformed:
        return
    assert canonical_chain(text.encode()) == text


@pytest.mark.parametrize("read", [composite_fwid, tcb_info_fwid])
@bounded
@given(data=st.binary(max_size=200))
def test_firmware_ids_are_digests_or_refused(read: Any, data: bytes) -> None:
    try:
        assert len(read(data)) == 48
    except CertificateChainInvalid:
        return


@bounded
@given(text=st.text(max_size=80))
def test_versions_are_numbers_or_refused(text: str) -> None:
    for key in (driver_key, vbios_key):
        try:
            found = key(text)
        except ValueError:
            continue
        assert all(number >= 0 for number in found)
