"""Large files in pieces: continued where they broke, and never other bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_world import Server, serving
from variants import variants

from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.storage.errors import OutputStoreInvalid, StorageUnreachable
from sealtrain.storage.pieces import PIECE_BYTES, Pieces, fetch, measure_pieces

pytestmark = pytest.mark.long

LARGE = bytes(range(256)) * (PIECE_BYTES // 256) + b"the end"
"""Two pieces, the second of seven bytes."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces") / "weights"
    path.write_bytes(LARGE)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "store") as running:
        running.root.mkdir()
        yield running


def ranges(server: Server) -> list[str]:
    return [lines["range"] for method, _, lines in server.seen if method == "GET"]


def test_a_file_is_described_by_the_digest_of_each_64_mib(large: Path) -> None:
    pieces = measure_pieces(large)
    assert pieces.size == len(LARGE)
    assert pieces.sha256 == tuple(
        hashlib.sha256(part).hexdigest() for part in (LARGE[:PIECE_BYTES], LARGE[PIECE_BYTES:])
    )


@pytest.mark.parametrize(
    ("size", "digests"), [(0, 1), (1, 0), (PIECE_BYTES, 2), (PIECE_BYTES + 1, 1), (1 << 41, 0)]
)
def test_a_description_that_does_not_cover_its_file_is_refused(size: int, digests: int) -> None:
    with pytest.raises(ValueError, match=r"sha256|size|64 MiB"):
        Pieces(size=size, sha256=("ab" * 32,) * digests)


def test_what_was_fetched_is_what_was_measured_and_is_fetched_once(
    server: Server, large: Path, tmp_path: Path
) -> None:
    (server.root / "weights").write_bytes(LARGE)
    target, told = tmp_path / "in" / "weights", []
    fetch(server.folder("."), "weights", measure_pieces(large), target, progress=told.append)
    assert target.read_bytes() == LARGE
    assert told == [PIECE_BYTES, 7]
    asked = len(server.seen)
    fetch(server.folder("."), "weights", measure_pieces(large), target)
    assert len(server.seen) == asked
    assert [path.name for path in target.parent.iterdir()] == ["weights"]


def test_an_empty_file_is_one_too(server: Server, tmp_path: Path) -> None:
    fetch(server.folder("."), "empty", Pieces(size=0, sha256=()), tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""
    assert server.seen == []


@pytest.mark.claim("C135")
def test_a_transfer_that_broke_goes_on_after_the_pieces_that_are_here(
    server: Server, large: Path, tmp_path: Path
) -> None:
    (server.root / "weights").write_bytes(LARGE)
    target = tmp_path / "weights"
    pieces = measure_pieces(large)
    server.claims = PIECE_BYTES  # it stops in mid-transfer, whoever asks
    with pytest.raises(OutputStoreInvalid):
        fetch(server.folder("."), "weights", pieces, target)
    assert not target.exists()
    server.claims = None
    before = len(ranges(server))
    fetch(server.folder("."), "weights", pieces, target)
    assert target.read_bytes() == LARGE
    assert ranges(server)[before:] == [f"bytes={PIECE_BYTES}-{PIECE_BYTES + 6}"]


@pytest.mark.claim("C135")
@pytest.mark.parametrize(
    "at",
    variants(
        [0, PIECE_BYTES - 1, PIECE_BYTES, len(LARGE) - 1],
        each_time=[len(LARGE) - 1],
    ),
)
def test_other_bytes_are_refused_and_leave_no_file(
    at: int, server: Server, large: Path, tmp_path: Path
) -> None:
    altered = bytearray(LARGE)
    altered[at] ^= 1
    (server.root / "weights").write_bytes(altered)
    with pytest.raises(ModelInvalid):
        fetch(
            server.folder("."), "weights", measure_pieces(large), tmp_path / "weights",
            refused=ModelInvalid,
        )  # fmt: skip
    assert not (tmp_path / "weights").exists()


def test_what_lies_here_under_the_name_is_replaced_where_it_is_another(
    server: Server, large: Path, tmp_path: Path
) -> None:
    (server.root / "weights").write_bytes(LARGE)
    target = tmp_path / "weights"
    target.write_bytes(bytes(len(LARGE)))
    fetch(server.folder("."), "weights", measure_pieces(large), target)
    assert target.read_bytes() == LARGE


def test_a_store_that_fails_is_asked_again_and_told_apart_from_one_that_lacks_it(
    server: Server, tmp_path: Path
) -> None:
    (server.root / "small").write_bytes(b"small")
    pieces = measure_pieces(server.root / "small")
    server.failures = 2
    fetch(server.folder("."), "small", pieces, tmp_path / "small")
    server.failures = 100
    with pytest.raises(StorageUnreachable):
        fetch(server.folder("."), "small", pieces, tmp_path / "again")
    server.failures = 0
    with pytest.raises(DataInvalid):
        fetch(server.folder("."), "missing", pieces, tmp_path / "missing")
