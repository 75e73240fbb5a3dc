"""Collecting from NVSwitches through NSCQ: the library's shapes, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_world import NONCE
from nscq_world import ARCH, CHAIN, COUNT, NAME, OPENING, REPORT, FakeNscq

from sealtrain.attest.errors import EvidenceMalformed, GpuReportInvalid, GuestApiUnreachable
from sealtrain.attest.nvidia.collect import devices_of
from sealtrain.attest.nvidia.nscq import collect_switches
from sealtrain.attest.nvidia.parse import GpuClaims, GpuDevice
from sealtrain.errors import EvidenceRefused, SealtrainError
from sealtrain_rehearsal.simulator.gpu import SimulatedGpus

BOARD = SimulatedGpus(b"a board behind a library", count=8, switches=4, mode="protected_pcie")
Answer = Callable[[int, bytes], Any]


@pytest.fixture
def library(tmp_path: Path) -> FakeNscq:
    return FakeNscq(tmp_path, BOARD)


def collected(library: FakeNscq, nonce: bytes = NONCE) -> tuple[GpuDevice, ...]:
    return collect_switches(nonce, library=str(library.path))


def shown_by(kind: str, nonce: bytes = NONCE) -> list[GpuDevice]:
    return [device for device in BOARD.evidence(nonce).devices if device.kind == kind]


def test_every_switch_is_asked_over_the_nonce(library: FakeNscq) -> None:
    found = collected(library)
    assert [item.certificate_chain for item in found] == [
        item.certificate_chain for item in shown_by("switch")
    ]
    # Reports differ from each other's: signatures are random.
    assert [device.report_bytes[:-96] for device in found] == [
        device.report_bytes[:-96] for device in shown_by("switch")
    ]
    assert library.open_sessions == 0


def test_what_a_library_appends_is_cut(library: FakeNscq) -> None:
    honest = shown_by("switch")
    library.answers[REPORT] = lambda device, _: honest[device].report_bytes + b"\0" * 40
    library.answers[CHAIN] = lambda device, _: honest[device].certificate_chain.encode() + b"\0\0"
    assert list(collected(library)) == honest


def test_a_warning_is_no_error(library: FakeNscq) -> None:
    library.answers[OPENING] = lambda _device, _nonce: 1
    assert len(collected(library)) == 4


@pytest.mark.parametrize(
    ("what", "answer", "error"),
    [
        pytest.param(OPENING, lambda *_: -6, GuestApiUnreachable, id="another-driver"),
        pytest.param(COUNT, lambda *_: -7, GuestApiUnreachable, id="driver-error"),
        pytest.param(COUNT, lambda *_: 0, EvidenceMalformed, id="no-switch"),
        pytest.param(COUNT, lambda *_: 33, EvidenceMalformed, id="too-many-switches"),
        pytest.param(NAME, lambda *_: -2, GuestApiUnreachable, id="no-name"),
        pytest.param(NAME, lambda *_: b"../../x", EvidenceMalformed, id="a-path-for-a-name"),
        pytest.param(NAME, lambda *_: b"\xff" * 63, EvidenceMalformed, id="no-text-for-a-name"),
        pytest.param(ARCH, lambda *_: 1, EvidenceMalformed, id="older-family"),
        pytest.param(ARCH, lambda *_: -1, GuestApiUnreachable, id="no-family"),
        pytest.param(REPORT, lambda *_: -8, GuestApiUnreachable, id="timeout"),
        pytest.param(REPORT, lambda *_: 0x2001, EvidenceRefused, id="longer-than-its-place"),
        pytest.param(REPORT, lambda *_: 0, EvidenceRefused, id="empty"),
        pytest.param(REPORT, lambda *_: b"report", EvidenceRefused, id="no-report"),
        pytest.param(CHAIN, lambda *_: 0, EvidenceMalformed, id="no-certificates"),
        pytest.param(CHAIN, lambda *_: 0x7FFFFFFF, EvidenceMalformed, id="endless-certificates"),
        pytest.param(CHAIN, lambda *_: -127, GuestApiUnreachable, id="foreign-error"),
    ],
)
def test_a_library_that_does_not_answer_as_it_must(
    library: FakeNscq, what: int, answer: Answer, error: type[SealtrainError]
) -> None:
    library.answers[what] = answer
    with pytest.raises(error):
        collected(library)
    assert library.open_sessions == 0


@pytest.mark.negative(43)
def test_a_report_for_another_nonce_is_not_passed_on(library: FakeNscq) -> None:
    other = shown_by("switch", bytes(32))
    library.answers[REPORT] = lambda device, _: other[device].report_bytes
    with pytest.raises(GpuReportInvalid):
        collected(library)


@pytest.mark.parametrize("nonce", [b"", NONCE[:-1], NONCE + b"\0"])
def test_a_nonce_of_another_length_is_refused(library: FakeNscq, nonce: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        collected(library, nonce)


def test_without_the_library_the_reason_is_named(tmp_path: Path) -> None:
    with pytest.raises(GuestApiUnreachable) as ended:
        collect_switches(NONCE)
    assert "libnvidia-nscq" in str(ended.value.expected)
    (tmp_path / "other.so").write_bytes(b"no library")
    with pytest.raises(GuestApiUnreachable):
        collect_switches(NONCE, library=str(tmp_path / "other.so"))


def test_a_library_without_its_functions_is_named(library: FakeNscq) -> None:
    with pytest.raises(GuestApiUnreachable):
        collect_switches(NONCE, library="libc.so.6")


def claims(mode: str) -> GpuClaims:
    return BOARD.evidence(NONCE).claims.model_copy(update={"multi_gpu_mode": mode})


def test_who_is_asked_for_which_devices() -> None:
    """Switches belong to the GPUs in protected PCIe only; the agent is for who sees none."""

    def kind(name: str) -> Callable[[bytes], list[GpuDevice]]:
        return lambda nonce: shown_by(name, nonce)

    def nobody(nonce: bytes) -> list[GpuDevice]:
        raise AssertionError("was asked")

    def asked(mode: str, **who: Any) -> list[str]:
        found = devices_of(claims(mode), NONCE, gpus=kind("gpu"), **who)
        return [item.kind for item in found]

    whole = ["gpu"] * 8 + ["switch"] * 4
    assert asked("none", switches=nobody, agent=nobody) == ["gpu"] * 8
    assert asked("protected_pcie", switches=kind("switch"), agent=nobody) == whole
    assert asked("protected_pcie", switches=None, agent=kind("switch")) == ["switch"] * 4
    with pytest.raises(GuestApiUnreachable):
        asked("protected_pcie", switches=None, agent=None)
