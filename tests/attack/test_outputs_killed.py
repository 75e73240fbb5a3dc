"""A process that makes an output is killed at each of its steps, or raced at each of them.

A step is anything that Python asks of the file system. Afterwards the output is what it was before
or what was being made, and the next command goes on from there.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from sealing_world import BINDING, OWNER_ID, all_rows, json_lines
from variants import variants

from sealtrain.base import files
from sealtrain.base.files import atomic_folder, atomic_writer, exchange_names
from sealtrain.errors import AlreadyExists, UsageError
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import DatasetDescription
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.sealer import NewDataset, seal_dataset
from sealtrain.sealing.stanza import Stanza

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C102"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked"),
]

STEPS = {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}
MOST_STEPS = 200
OLD, NEW = {"a": b"old", "b": b"old"}, {"a": b"new", "c/d": b"new"}


def processes(
    work: Callable[[Callable[[], None]], None], at_step: Callable[[], None]
) -> Iterator[int]:
    """Waits for one process after the other, in each of which ``at_step`` is called one step later.

    Gives the exit status of each, negative for a signal, until one has no such step any more.
    """
    for wanted in range(MOST_STEPS):
        child = os.fork()
        if child == 0:
            _run(work, at_step, wanted)
        yield os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(
    work: Callable[[Callable[[], None]], None], at_step: Callable[[], None], wanted: int
) -> None:
    left, counting, over = wanted, False, False

    def begin() -> None:
        nonlocal counting
        counting = True

    def hook(event: str, _: Any) -> None:
        nonlocal left, over
        if not counting or over or event not in STEPS:
            return
        left -= 1
        if left < 0:
            over = True
            at_step()

    status = 70
    try:
        sys.addaudithook(hook)
        work(begin)
        status = 0 if not over else 1
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill(folder: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("in_one_step", variants([True, False], each_time=[False]))
def test_a_folder_that_is_replaced_is_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_step: bool
) -> None:
    place = tmp_path / "out"
    if not in_one_step:  # a file system that cannot exchange two names
        monkeypatch.setattr(files, "exchange_names", lambda *_: False)

    def replace(begin: Callable[[], None]) -> None:
        begin()
        with atomic_folder(place, overwrite=True) as folder:
            fill(folder, NEW)

    seen = []
    place.mkdir()
    fill(place, OLD)
    for status in processes(replace, kill):
        if in_one_step:
            seen.append(content_of(place))
        with pytest.raises(AlreadyExists), atomic_folder(place):
            pass
        found = content_of(place)
        assert found in (OLD, NEW)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        if found == NEW:  # once more from the beginning
            with atomic_folder(place, overwrite=True) as folder:
                fill(folder, OLD)
    else:
        pytest.fail("too many steps")
    assert content_of(place) == NEW
    assert all(found in (OLD, NEW) for found in seen)
    assert not list(tmp_path.glob(".out.replaced*"))


def test_names_are_exchanged_in_one_step_here(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.mkdir()
        (path / path.name).touch()
    if not exchange_names(one, other):
        pytest.skip("this file system cannot")
    assert (one / "other").exists()
    assert (other / "one").exists()
    with pytest.raises(FileNotFoundError):
        exchange_names(one, tmp_path / "missing")


def test_a_failed_replacement_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "out"
    place.mkdir()
    fill(place, OLD)
    rename, renamed = Path.rename, []

    def failing(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == 2:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(files, "exchange_names", lambda *_: False)
    monkeypatch.setattr(Path, "rename", failing)
    with (
        pytest.raises(OSError, check=carries(errno=errno.ENOSPC)),
        atomic_folder(place, overwrite=True) as folder,
    ):
        fill(folder, NEW)
    assert content_of(place) == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_is_the_old_or_the_new(tmp_path: Path, overwrite: bool) -> None:
    place = tmp_path / "out"

    def write(begin: Callable[[], None]) -> None:
        begin()
        with atomic_writer(place, overwrite=overwrite) as file:
            file.write(b"new")

    for status in processes(write, kill):
        if status == 0:
            break
        found = place.read_bytes() if place.exists() else None
        assert found in ((None, b"old", b"new") if overwrite else (None, b"new"))
        place.unlink(missing_ok=True)
        if overwrite:
            place.write_bytes(b"old")
    else:
        pytest.fail("too many steps")
    assert place.read_bytes() == b"new"


def test_two_outputs_at_once_are_one_of_them_whole(tmp_path: Path) -> None:
    place = tmp_path / "out"

    def fill_slowly() -> None:
        with atomic_folder(place) as slower:
            fill(slower, OLD)
            with atomic_folder(place) as faster:
                fill(faster, NEW)

    with pytest.raises(AlreadyExists):
        fill_slowly()
    assert content_of(place) == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


ROWS = [{"text": f"record {n} " * 20, "n": n} for n in range(300)]


def seal(source: Path, out: Path, *, sign: Callable[[], None] = lambda: None) -> None:
    """Seal resumably; the stanza's body holds the key, as if wrapped for its owner."""

    def signed(description: DatasetDescription) -> bytes:
        sign()
        return description.root.encode()

    seal_dataset(
        source,
        out,
        NewDataset(
            name="records",
            owner_id=OWNER_ID,
            owner_name="hospital-a",
            binding=BINDING,
            stanzas=lambda key, _: (Stanza(kind="owner", recipient="5a" * 32, body=key.reveal()),),
            sign=signed,
            unwrap=lambda _, found: DataKey(found[0].body),
        ),
    )


def rows_of(out: Path) -> list[dict[str, Any]]:
    from sealtrain.sealing.rewrap import read_stanzas

    key = DataKey(read_stanzas(out)[1][0].body)
    with SealedDataset.open(out, key, root=(out / "dataset.json").read_text()) as dataset:
        return all_rows(dataset)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(json_lines(ROWS))
    return path


def test_a_sealing_killed_at_any_of_its_last_steps_is_finished_by_the_next(
    source: Path, tmp_path: Path
) -> None:
    outputs = tmp_path / "out"
    outputs.mkdir()
    number = 0

    def work(begin: Callable[[], None]) -> None:
        seal(source, outputs / f"{number}.sealed", sign=begin)

    for status in processes(work, kill):
        out = outputs / f"{number}.sealed"
        complete = out.exists()
        if complete:
            assert rows_of(out) == ROWS
        try:
            seal(source, out)
        except AlreadyExists:
            assert rows_of(out) == ROWS
        assert rows_of(out) == ROWS
        expected = {"dataset.json", "index.sealed", "shard-00000.sealed"}
        assert {path.name for path in out.iterdir()} == expected
        assert {path.name for path in outputs.glob(".*.sealing")} == set()
        number += 1
        if status == 0:
            break
        assert status == -signal.SIGKILL
    else:
        pytest.fail("too many steps")
    assert number > 8


def test_another_sealing_that_begins_at_any_of_the_last_steps_loses_nothing(
    source: Path, tmp_path: Path
) -> None:
    outputs = tmp_path / "out"
    outputs.mkdir()
    number = 0

    def work(begin: Callable[[], None]) -> None:
        seal(source, outputs / f"{number}.sealed", sign=begin)

    def race() -> None:
        child = os.fork()
        if child == 0:
            try:
                seal(source, outputs / f"{number}.sealed")
                os._exit(3)
            except (UsageError, AlreadyExists):
                os._exit(0)
            finally:
                os._exit(4)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            os._exit(5)

    for status in processes(work, race):
        assert status in (0, 1)  # the first one finished, with and without a second one
        assert rows_of(outputs / f"{number}.sealed") == ROWS
        number += 1
        if status == 0:
            break
    else:
        pytest.fail("too many steps")
    assert sorted(path.name for path in outputs.iterdir()) == sorted(
        f"{each_number}.sealed" for each_number in range(number)
    )
