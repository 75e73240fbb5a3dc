"""Tar files made to harm whoever seals them: nothing is written, read elsewhere, or filled up."""

from __future__ import annotations

import contextlib
import io
import struct
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from carrying import carries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_world import png, tar
from sealing_world import CANARY
from variants import examples

from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.sealing.tabular.archive import MAX_HEADER_BYTES, members
from sealtrain.sealing.tabular.batches import open_records

BLOCK = 512


def rows(path: Path) -> int:
    _, batches = open_records([path], lambda _: None, form="webdataset")
    return sum(batch.num_rows for batch in batches)


def single(path: Path, kind: bytes = tarfile.REGTYPE, name: str = "a.txt", link: str = "") -> Path:
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, link
    with tarfile.open(path, "w") as target:
        target.addfile(header)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "/etc/a.txt",
        "../a.txt",
        "x/../../a.txt",
        "..",
        "./../a.txt",
        "x\\a.txt",
        "C:\\a.txt",
        ".a.txt",
        "x/.git/a.txt",
        "a\n.txt",
        "a\u202etxt.txt",
        "a\udcff.txt",
    ],
)
def test_names_that_leave_their_folder_or_hide(name: str, tmp_path: Path) -> None:
    header = tarfile.TarInfo(name)
    with tarfile.open(tmp_path / "a.tar", "w", errors="surrogateescape") as target:
        target.addfile(header)
    with pytest.raises(RecordInvalid, match="member 1"):
        rows(tmp_path / "a.tar")


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.LNKTYPE,
        tarfile.SYMTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
        b"Z",
    ],
)
def test_only_plain_files_are_records(kind: bytes, tmp_path: Path) -> None:
    with pytest.raises(RecordInvalid, match="member 1"):
        rows(single(tmp_path / "a.tar", kind, link="/etc/passwd"))


@pytest.mark.parametrize(
    "names",
    [
        ("a.txt", "a.txt"),
        ("a.png", "a.jpg"),
        ("a.txt", "./a.txt"),
        ("a.txt", "b.txt", "a.cls"),
        ("a.json", "a.json"),
    ],
)
def test_no_file_of_a_record_comes_twice_or_later(names: tuple[str, ...], tmp_path: Path) -> None:
    data = {"png": png(), "jpg": b"\xff\xd8\xff", "json": b"{}", "cls": b"1", "txt": b""}
    files = [(name, data[name.rpartition(".")[2]]) for name in names]
    with pytest.raises(RecordInvalid, check=carries(check="archive")):
        rows(tar(tmp_path / "a.tar", files))


def test_a_sparse_file_would_claim_more_than_there_is(tmp_path: Path) -> None:
    headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "a.txt"}
    headers |= {"GNU.sparse.size": str(1 << 50), "GNU.sparse.map": "0,1"}
    header = tarfile.TarInfo("a.txt")
    header.pax_headers = headers
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as target:
        target.addfile(header)
    with pytest.raises(DataInvalid):
        rows(tmp_path / "a.tar")


def raw_header(size: int, kind: bytes, name: bytes = b"a.txt") -> bytes:
    """A ustar header with any size, negative ones too."""
    encoded = b"\xff" * 4 + struct.pack(">q", size) if size < 0 else b"%011o\0" % size
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = encoded
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L", b"K", b"S", b"5"])
def test_a_negative_size_goes_back_nowhere(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(
        raw_header(0, b"0", b"b.txt") + raw_header(-BLOCK * 2, kind) + bytes(20 * BLOCK)
    )
    with pytest.raises(DataInvalid):
        rows(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_header_cannot_fill_memory(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    size = 200 << 20
    with path.open("wb") as target:  # sparse on disk
        target.write(raw_header(size, kind))
        target.truncate(BLOCK + size + 3 * BLOCK)
    tracemalloc.start()
    with pytest.raises(LimitExceeded):
        rows(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.timeout(20)
def test_a_chain_of_headers_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    one = raw_header(2, b"L") + b"a\0".ljust(BLOCK, b"\0")
    path.write_bytes(one * 5000 + bytes(2 * BLOCK))
    with pytest.raises(DataInvalid):
        rows(path)


@pytest.mark.timeout(20)
def test_a_line_of_digits_does_not_keep_a_pattern_busy(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    body = b"1" * (MAX_HEADER_BYTES - 4 * BLOCK)
    path.write_bytes(raw_header(len(body), b"x") + body + raw_header(0, b"0") + bytes(2 * BLOCK))
    with contextlib.suppress(DataInvalid):  # tarfile may ignore it
        assert rows(path) == 1


def test_many_members_do_not_fill_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with path.open("wb") as target:
        for number in range(20_000):
            target.write(raw_header(0, b"0", b"%d.txt" % number))
        target.write(bytes(2 * BLOCK))
    tracemalloc.start()
    assert sum(1 for _ in members(path)) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def archive() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as opened:
        for number in range(4):
            for name, data in ((f"{number}.txt", CANARY.encode()), (f"{number}.cls", b"1")):
                header = tarfile.TarInfo(name)
                header.size = len(data)
                opened.addfile(header, io.BytesIO(data))
    return target.getvalue()


ARCHIVE = archive()
USED = 8 * 2 * BLOCK


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(ARCHIVE)
    assert rows(path) == 4
    for member in range(8):
        damaged = bytearray(ARCHIVE)
        damaged[member * 2 * BLOCK + 1] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(RecordInvalid):
            rows(path)


def test_an_archive_cut_short_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for end in [*range(0, USED + BLOCK, 97), USED, USED + BLOCK, USED + 2 * BLOCK - 1]:
        path.write_bytes(ARCHIVE[:end])
        with pytest.raises(DataInvalid):
            rows(path)


def test_joined_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(ARCHIVE + ARCHIVE)
    with pytest.raises(RecordInvalid, check=carries(check="archive")):
        rows(tmp_path / "a.tar")


@settings(
    max_examples=examples(250),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.integers(0, USED - 1), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_a_changed_archive_gives_its_records_or_a_clean_refusal(
    tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(ARCHIVE)
    for place, mask in changes:
        data[place] ^= mask
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    try:
        rows(path)
    except DataInvalid as error:
        assert CANARY not in repr(error.args) + str(error.got) + str(error.hint)  # noqa: PT017
    else:
        assert sum(1 for _ in members(path)) == 8
