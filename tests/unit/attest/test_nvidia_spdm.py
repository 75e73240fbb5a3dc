"""Reports parse in their one form, to the values other people read from them."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from gpu_world import NONCE, Parts, captured, expected, put_together, take_apart

from sealtrain.attest.errors import GpuReportInvalid
from sealtrain.attest.nvidia.spdm import FeatureFlag, canonical_report, parse_report
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus

VECTORS = (
    "hopper_535",
    "hopper_580_mpt",
    "hopper_bad_signature",
    "hopper_cert_hold",
    "hopper_multi4_ppcie",
    "hopper_single_ppcie",
    "switch_ls10",
    "switch_ls10_x4_duplicate",
)
KEY = ec.generate_private_key(ec.SECP384R1())


@pytest.fixture(scope="module")
def genuine() -> bytes:
    gpus = SimulatedGpus(b"reports to take apart", count=1)
    return gpus.evidence(NONCE).devices[0].report_bytes


@pytest.fixture(scope="module")
def parts(genuine: bytes) -> Parts:
    return take_apart(genuine)


@pytest.mark.parametrize("name", VECTORS)
def test_captured_reports_read_as_their_notes_say(shared: Path, name: str) -> None:
    devices, notes = captured(shared, name), expected(shared, name)
    assert len(devices) == len(notes)
    for device, note in zip(devices, notes, strict=True):
        report = parse_report(device.report_bytes)
        assert report.nonce.hex() == note["nonce"]
        assert len(report.measurements) == note["n_measurements"]
        assert report.driver_version == (note["driver_version"] or "")
        # The notes leave out what switches spell as text.
        assert report.vbios_version == (note["vbios_version"] or "96.10.55.00.01")
        assert (None if report.fwid is None else report.fwid.hex()) == note["opaque_fwid"]
        status = {"aa": True, "55": False, None: None}[note["protected_pcie_status"]]
        assert report.protected_pcie is status
        flag = None if report.feature_flag is None else struct.pack("<H", report.feature_flag).hex()
        assert flag == note["feature_flag"]
        if report.kind == "gpu":
            assert report.switch_pdis == frozenset(note["switch_pdis"] or ())
            assert report.nvdec0 == "off"


def test_switches_of_a_gpu_are_spelled_as_switches_spell_themselves(shared: Path) -> None:
    (gpu,), (switch,) = captured(shared, "hopper_bad_signature"), captured(shared, "switch_ls10")
    assert parse_report(switch.report_bytes).own_pdi in parse_report(gpu.report_bytes).switch_pdis


def test_what_is_signed_is_all_but_the_signature(genuine: bytes) -> None:
    report = parse_report(genuine)
    assert report.signed + report.signature == genuine
    assert len(report.signature) == 96


@pytest.mark.negative(53)
def test_a_byte_after_the_signature_is_refused_and_the_collector_cuts_it(genuine: bytes) -> None:
    for tail in (b"\0", bytes(100)):
        with pytest.raises(GpuReportInvalid):
            parse_report(genuine + tail)
        assert canonical_report(genuine + tail) == genuine


@pytest.mark.negative(53)
def test_every_truncation_is_refused(genuine: bytes) -> None:
    for length in range(len(genuine)):
        with pytest.raises(GpuReportInvalid):
            parse_report(genuine[:length])
        with pytest.raises(GpuReportInvalid):
            canonical_report(genuine[:length])


def forms(parts: Parts) -> dict[str, Parts]:
    """Reports that nobody may accept, however well they are signed."""
    first, rest = parts.blocks[0], parts.blocks[1:]

    def head(form: int = 1, size: int = 51, kind: int = 1, inner: int = 48) -> Parts:
        packed = struct.pack("<BHBH", form, size, kind, inner)
        return replace(parts, record_head=lambda index, _: bytes([index]) + packed)

    return {
        "block twice": replace(parts, blocks=(first, first, *rest[1:])),
        "block twice, values differ": replace(
            parts, blocks=(first, (first[0], bytes(48)), *rest[1:])
        ),
        "block zero": replace(parts, blocks=((0, first[1]), *rest)),
        "no block": replace(parts, blocks=()),
        "fewer blocks than counted": replace(parts, count=63),
        "more blocks than counted": replace(parts, count=65),
        "another block form": head(form=2),
        "block size off by one": head(size=52),
        "raw value instead of a digest": head(kind=0x81),
        "inner size off by one": head(inner=47),
        "field twice": replace(parts, fields=(*parts.fields, parts.fields[0])),
        "another request": replace(parts, request=bytes.fromhex("11e00101")),
        "unsigned request": replace(parts, request=bytes.fromhex("11e000ff")),
        "another answer": replace(parts, response=bytes.fromhex("117f0000")),
        "later version": parts.with_field(34, struct.pack("<H", 2)),
        "version of nine bytes": parts.with_field(34, bytes(9)),
        "unknown flag": parts.with_field(36, struct.pack("<H", 3)),
        "status neither on nor off": parts.with_field(21, b"\0"),
        "decoder neither on nor off": parts.with_field(11, b"\xff"),
        "firmware id too short": parts.with_field(20, bytes(47)),
        "identity of nine bytes": parts.with_field(22, bytes(9)),
        "no VBIOS": parts.with_field(6, None),
        "VBIOS of seven bytes": parts.with_field(6, bytes(7)),
        "control character in driver": parts.with_field(3, b"590\n.1\0"),
        "text inside zeros": parts.with_field(3, b"590\0.12\0"),
        "switch with two identities": parts.with_field(3, None).with_field(22, bytes(range(16))),
    }


CASES = tuple(forms(Parts(bytes(32), ((1, bytes(48)),) * 3, ((3, b""),))))


@pytest.mark.negative(53)
@pytest.mark.parametrize("case", CASES)
def test_reports_of_another_form_are_refused(parts: Parts, case: str) -> None:
    with pytest.raises(GpuReportInvalid):
        parse_report(put_together(forms(parts)[case], KEY))


@pytest.mark.negative(53)
def test_a_field_that_runs_past_the_end_is_refused(genuine: bytes, parts: Parts) -> None:
    last, value = parts.fields[-1]
    at = genuine.rindex(struct.pack("<HH", last, len(value)) + value)
    for size in (len(value) + 1, 0xFFFF):
        longer = genuine[:at] + struct.pack("<HH", last, size) + genuine[at + 4 :]
        with pytest.raises(GpuReportInvalid):
            parse_report(longer)


def test_a_field_nobody_knows_is_kept_and_not_read(parts: Parts) -> None:
    report = parse_report(put_together(parts.with_field(4711, b"later"), KEY))
    assert report.opaque[4711] == b"later"


def test_a_flag_counts_only_from_version_one_on(parts: Parts) -> None:
    assert parse_report(put_together(parts, KEY)).feature_flag is FeatureFlag.SPT
    older = parse_report(put_together(parts.with_field(34, None), KEY))
    assert older.feature_flag is None
    assert older.opaque_version == 0
