"""A model's files come to the keeper in parts, and wait where the disk does not tell them."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from sealtrain.guest.delivered import DeliveredFiles
from sealtrain.guest.workload.channel import Misused
from sealtrain.guest.workload.messages import FileDelivered
from sealtrain.sealing.errors import SealRefused

WEIGHTS = "model.safetensors"
CANARY = b"CANARY-4711-" * 100_000


def part(offset: int, length: int, *, name: str = WEIGHTS, size: int = 6) -> FileDelivered:
    return FileDelivered(name=name, size=size, offset=offset, length=length)


def deliver(files: DeliveredFiles, name: str, content: bytes, step: int) -> None:
    for at in range(0, len(content), step):
        piece = content[at : at + step]
        question = part(at, len(piece), name=name, size=len(content))
        done = files.take(question, memoryview(piece))
        assert (done is None) == (at + step < len(content))
    files.keep()


def test_parts_make_the_file_and_leave_nothing_behind(tmp_path: Path) -> None:
    files = DeliveredFiles(tmp_path)
    deliver(files, WEIGHTS, CANARY, 1 << 20)
    deliver(files, "config.json", b"{}   ", 2)
    assert files.held == {"config.json": b"{}   "}
    assert files.names == ("config.json", WEIGHTS)
    for _ in range(2):
        with files.waiting[WEIGHTS].open() as file:
            assert file.read() == CANARY
    assert list(tmp_path.iterdir()) == []
    files.close()
    assert files.names == ()


WRONG = {
    "a part in the middle": [part(2, 2)],
    "a part twice": [part(0, 2), part(0, 2)],
    "a gap": [part(0, 2), part(3, 2)],
    "more than it said": [part(0, 2), part(2, 5)],
    "another size": [part(0, 2), part(2, 2, size=7)],
    "another file in between": [part(0, 2), part(0, 2, name="config.json")],
    "an empty part": [part(0, 2), part(2, 0)],
    "an empty first part": [part(0, 0)],
}


@pytest.mark.claim("C769")
@pytest.mark.parametrize("name", WRONG)
def test_parts_out_of_order_are_no_file(tmp_path: Path, name: str) -> None:
    *before, wrong = WRONG[name]
    with closing(DeliveredFiles(tmp_path)) as files:
        for question in before:
            assert files.take(question, memoryview(bytes(question.length))) is None
        with pytest.raises(Misused):
            files.take(wrong, memoryview(bytes(wrong.length)))
        assert files.names == ()


@pytest.mark.claim("C769", "C774")
def test_a_file_whose_last_part_never_comes_is_none_and_leaves_nothing(tmp_path: Path) -> None:
    with closing(DeliveredFiles(tmp_path)) as files:
        half = memoryview(CANARY)[: len(CANARY) // 2]
        assert files.take(part(0, len(half), size=len(CANARY)), half) is None
        assert (files.names, files.is_between) == ((), False)
        own = open_below(tmp_path)
        assert CANARY[:24] not in os.pread(own, len(CANARY), 0)
        assert list(tmp_path.iterdir()) == []  # no name by which another process finds it
    with pytest.raises(ValueError, match="unpack"):
        open_below(tmp_path)
    assert files.names == ()


@pytest.mark.claim("C769")
def test_what_waits_is_ciphertext_and_is_found_altered(tmp_path: Path) -> None:
    with closing(DeliveredFiles(tmp_path)) as files:
        deliver(files, WEIGHTS, CANARY, 1 << 20)
        own = open_below(tmp_path)
        size = os.fstat(own).st_size
        assert size > len(CANARY)
        assert CANARY[:24] not in os.pread(own, size, 0)
        os.pwrite(own, bytes([os.pread(own, 1, size // 2)[0] ^ 1]), size // 2)
        with files.waiting[WEIGHTS].open() as file, pytest.raises(SealRefused):
            file.read()


def open_below(folder: Path) -> int:
    """The one descriptor of this process of a file that lay in a folder."""
    (found,) = [
        int(each.name)
        for each in Path("/proc/self/fd").iterdir()
        if each.is_symlink() and str(each.readlink()).startswith(f"{folder}/")
    ]
    return found
