"""Quotes of a bare guest through configfs-tsm, played by a kernel of a few lines."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from carrying import carries

from sealtrain.attest.errors import (
    EvidenceMalformed,
    GuestApiUnreachable,
    PlatformMismatch,
    QuoteInvalid,
    ReportDataMismatch,
)
from sealtrain.attest.tdx.collect import collect_quote
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.attest.tsm import MAX_BLOB_BYTES, KernelFolders, tsm_report
from sealtrain_rehearsal.simulator.pki import SimulatedPki

ASKED = bytes(range(64))
BASE = Path("/tsm/report")


class Kernel:
    """Reports in memory: a write moves the generation, a read of outblob makes the report."""

    def __init__(self, make_report: Callable[[bytes], bytes], provider: str = "tdx_guest") -> None:
        self.make_report, self.provider = make_report, provider
        self.reports: dict[Path, dict[str, bytes]] = {}
        self.made = 0
        self.other_writers = 0
        self.auxblob: bytes | OSError = OSError(errno.ENXIO, "no auxblob")

    def make(self, path: Path) -> None:
        assert path.parent == BASE
        self.made += 1
        self.reports[path] = {"generation": b"0\n", "provider": self.provider.encode() + b"\n"}

    def write(self, path: Path, data: bytes) -> None:
        report = self.reports[path.parent]
        report[path.name] = data
        report["generation"] = b"%d\n" % (int(report["generation"]) + 1)

    def read(self, path: Path) -> bytes:
        report = self.reports[path.parent]
        if path.name == "outblob":
            blob = self.make_report(report["inblob"])
            if self.other_writers:
                self.other_writers -= 1
                self.write(path.parent / "inblob", bytes(64))
            return blob
        if path.name == "auxblob":
            if isinstance(self.auxblob, OSError):
                raise self.auxblob
            return self.auxblob
        return report[path.name]

    def remove(self, path: Path) -> None:
        del self.reports[path]


@pytest.fixture
def kernel(pki: SimulatedPki) -> Kernel:
    return Kernel(pki.quote)


def test_a_quote_over_what_was_asked_in_its_one_encoding(kernel: Kernel, pki: SimulatedPki) -> None:
    assert collect_quote(ASKED, base=BASE, folders=kernel) == pki.quote(ASKED)
    kernel.make_report = lambda data: pki.quote(data).ljust(8000, b"\0")  # as some clouds pad
    assert collect_quote(ASKED, base=BASE, folders=kernel) == pki.quote(ASKED)
    assert kernel.reports == {}


def test_every_report_has_a_folder_that_nobody_can_guess(kernel: Kernel) -> None:
    names: list[int] = []

    def random(count: int) -> bytes:
        names.append(count)
        return bytes([len(names)]) * count

    for _ in range(2):
        collect_quote(ASKED, base=BASE, folders=kernel, random=random)
    assert names == [16, 16]


@pytest.mark.negative(8)
def test_a_report_that_somebody_else_overwrote_is_not_taken(kernel: Kernel) -> None:
    kernel.other_writers = 2
    assert parse_quote(collect_quote(ASKED, base=BASE, folders=kernel)).report_data == ASKED
    assert kernel.made == 3
    kernel.other_writers = 99
    with pytest.raises(
        GuestApiUnreachable, check=carries(check="TEE device", got="3 reports were overwritten")
    ):
        collect_quote(ASKED, base=BASE, folders=kernel)
    assert kernel.reports == {}


@pytest.mark.negative(8)
def test_a_platform_that_quotes_something_else_is_refused(
    kernel: Kernel, pki: SimulatedPki
) -> None:
    for other in (bytes(64), ASKED[:32] + bytes(32)):
        kernel.make_report = lambda _data, other=other: pki.quote(other)
        with pytest.raises(ReportDataMismatch):
            collect_quote(ASKED, base=BASE, folders=kernel)


def test_another_tee_is_named(kernel: Kernel) -> None:
    kernel.provider = "sev_guest"
    with pytest.raises(
        GuestApiUnreachable, check=carries(check="TEE device", got="sev_guest")
    ) as caught:
        collect_quote(ASKED, base=BASE, folders=kernel)
    assert (caught.value.got, caught.value.expected) == ("sev_guest", "tdx_guest")


@pytest.mark.parametrize("blob", [b"", b"report", b"\0" * 4000])
def test_what_is_no_quote_is_refused(kernel: Kernel, blob: bytes) -> None:
    kernel.make_report = lambda _data: blob
    with pytest.raises((QuoteInvalid, PlatformMismatch)):
        collect_quote(ASKED, base=BASE, folders=kernel)


@pytest.mark.parametrize("data", [b"", ASKED[:63], ASKED + b"\0"])
def test_report_data_has_one_length(kernel: Kernel, data: bytes) -> None:
    with pytest.raises(EvidenceMalformed):
        collect_quote(data, base=BASE, folders=kernel)
    assert kernel.made == 0


@pytest.mark.parametrize("generation", [b"", b"x\n", b"-1\n", b"9" * 30])
def test_a_generation_that_is_no_number_is_refused(kernel: Kernel, generation: bytes) -> None:
    make = kernel.make

    def with_generation(path: Path) -> None:
        make(path)
        kernel.reports[path]["generation"] = generation

    kernel.make = with_generation  # type: ignore[method-assign]
    with pytest.raises(EvidenceMalformed):
        collect_quote(ASKED, base=BASE, folders=kernel)


def test_certificates_come_along_where_there_are_some(kernel: Kernel) -> None:
    for found, expected in (
        (b"certificates", b"certificates"),
        (OSError(errno.ENOENT, "none"), b""),
        (OSError(errno.ENXIO, "none"), b""),
    ):
        kernel.auxblob = found
        report = tsm_report(ASKED, provider="tdx_guest", base=BASE, folders=kernel)
        assert (report.auxblob, report.provider) == (expected, "tdx_guest")
    kernel.auxblob = OSError(errno.EIO, "broken")
    with pytest.raises(GuestApiUnreachable, check=carries(check="TEE device", got="broken")):
        tsm_report(ASKED, provider="tdx_guest", base=BASE, folders=kernel)


def test_a_machine_without_the_interface_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GuestApiUnreachable) as caught:
        collect_quote(ASKED, base=tmp_path / "no" / "report")
    assert caught.value.exit_code == 4
    assert "configfs" in str(caught.value.hint)
    # An ordinary folder is no configfs: the report's files do not appear in it.
    with pytest.raises(GuestApiUnreachable):
        collect_quote(ASKED, base=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_are_read_whole_and_within_limits(tmp_path: Path) -> None:
    folders, path = KernelFolders(), tmp_path / "report"
    folders.make(path)
    with pytest.raises(FileNotFoundError):  # the kernel has made it, or there is none
        folders.write(path / "inblob", b"a")
    (path / "inblob").touch()
    folders.write(path / "inblob", b"a" * MAX_BLOB_BYTES)
    assert folders.read(path / "inblob") == b"a" * MAX_BLOB_BYTES
    folders.write(path / "inblob", b"a" * (MAX_BLOB_BYTES + 1))
    with pytest.raises(EvidenceMalformed, match="inblob"):
        folders.read(path / "inblob")
    (path / "inblob").unlink()
    folders.remove(path)
    assert not path.exists()
