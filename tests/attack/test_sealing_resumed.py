"""Sealing that is killed or interrupted goes on where it stopped; nothing shows before its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from sealing_world import (
    BINDING,
    CANARY,
    OWNER_ID,
    SealedFolder,
    all_rows,
    everything_below,
    json_lines,
    seal_with,
)

from sealtrain.errors import AlreadyExists, DataInvalid, UsageError
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import WrongKey
from sealtrain.sealing.opened_dataset import contains_record
from sealtrain.sealing.stanza import RecipeBinding, Stanza
from sealtrain.sealing.tabular.conversion import Conversion

pytestmark = [pytest.mark.long, pytest.mark.claim("C33")]

ROWS = [{"text": f"{CANARY} {n} " * 45, "n": n} for n in range(7000)]


class Interrupted(Exception):
    """Raised from inside a callback."""


def seal(source: Path, out: Path, **options: Any) -> SealedFolder:
    """Seal resumably; the stanza's body holds the key, as if wrapped for its owner."""
    keys: list[DataKey] = []

    def stanzas(data_key: DataKey, _: str) -> Sequence[Stanza]:
        keys.append(data_key)
        return (Stanza(kind="owner", recipient="5a" * 32, body=data_key.reveal()),)

    settings: dict[str, Any] = {
        "name": "records",
        "owner_id": OWNER_ID,
        "owner_name": "hospital-a",
        "binding": BINDING,
        "stanzas": stanzas,
        "sign": lambda description: description.root.encode(),
        "shard_bytes": 1 << 20,
        "unwrap": lambda _, found: DataKey(found[0].body),
    }
    description = seal_with(source, out, settings | options)
    return SealedFolder(out, keys[-1], description)


def shards(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.name: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.glob("shard-*.sealed")
    }


class StopAfter:
    """A progress callback that interrupts after so many bytes."""

    def __init__(self, size: int) -> None:
        self.left = size

    def __call__(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise Interrupted


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "rows.jsonl"
    path.parent.mkdir()
    path.write_text(json_lines(ROWS))
    return path


def interrupted(source: Path, out: Path, at: float = 0.7, **options: Any) -> Path:
    size = sum(p.stat().st_size for p in source.rglob("*")) if source.is_dir() else (
        source.stat().st_size
    )  # fmt: skip
    with pytest.raises(Interrupted):
        seal(source, out, progress=StopAfter(int(size * at)), **options)
    assert not out.exists()
    return out.with_name(f".{out.name}.sealing")


@pytest.mark.parametrize("commitments", [False, True])
def test_complete_shards_are_not_sealed_again(
    source: Path, tmp_path: Path, commitments: bool
) -> None:
    out = tmp_path / "d.sealed"
    hidden = interrupted(source, out, commitments=commitments)
    before = shards(hidden)
    complete = len(list(hidden.glob("journal-*.sealed")))
    assert complete >= 1
    made = seal(source, out, commitments=commitments)
    assert not hidden.exists()
    after = shards(out)
    kept = [name for name in before if after[name] == before[name]]
    assert len(kept) >= complete
    with made.open() as dataset:
        assert all_rows(dataset) == ROWS
        if commitments:
            assert contains_record(dataset, ROWS[6999]) == (6999,)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        {"index.sealed", "dataset.json", *after}
        | ({"commitments.sealed"} if commitments else set())
    )


def test_files_are_kept_too(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.bin").write_bytes(os.urandom(200_000))
    out = tmp_path / "d.sealed"
    hidden = interrupted(folder, out)
    before = shards(hidden)
    made = seal(folder, out)
    kept = [name for name, state in shards(out).items() if before.get(name) == state]
    assert len(kept) >= 5
    with made.open() as dataset:
        for name in dataset.file_names:
            with dataset.open_file(name) as file:
                assert file.readall() == (folder / name).read_bytes()


SEAL = """
import sys, time
from pathlib import Path
from test_sealing_resumed import seal

def slow(_):
    print("sealing", flush=True)
    time.sleep(float(sys.argv[3]))

seal(Path(sys.argv[1]), Path(sys.argv[2]), progress=slow)
"""


@pytest.mark.parametrize("lines", [1, 2])
def test_kill_9_and_again_gives_one_whole_dataset(source: Path, tmp_path: Path, lines: int) -> None:
    outputs = tmp_path / "out"
    outputs.mkdir()
    here = Path(__file__).resolve()
    paths = f"{here.parent}:{here.parent.parent / 'support'}"
    child = subprocess.Popen(
        [sys.executable, "-c", SEAL, str(source), str(outputs / "d.sealed"), "0.15"],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert child.stdout is not None
    for _ in range(lines):
        assert child.stdout.readline() == b"sealing\n"
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    assert {path.name for path in outputs.iterdir()} == {".d.sealed.lock", ".d.sealed.sealing"}
    assert CANARY.encode() not in everything_below(outputs)
    made = seal(source, outputs / "d.sealed")
    assert [path.name for path in outputs.iterdir()] == ["d.sealed"]
    with made.open() as dataset:
        assert all_rows(dataset) == ROWS


def test_a_torn_or_forged_shard_is_sealed_again_under_another_salt(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "d.sealed"
    hidden = interrupted(source, out)
    first, second = sorted(hidden.glob("shard-*.sealed"))[:2]
    torn = first.read_bytes()
    first.write_bytes(torn[: len(torn) // 2])
    second.write_bytes(torn)  # a genuine shard in another's place
    made = seal(source, out)
    with made.open() as dataset:
        assert all_rows(dataset) == ROWS
    # Header and keys of the file are the same; salt, key commitment and all that follows are not.
    again = (out / first.name).read_bytes()
    core = int.from_bytes(torn[8:12], "big") + int.from_bytes(torn[12:16], "big")
    salt = 16 + core + 64
    assert again[:salt] == torn[:salt]
    assert again[salt : salt + 24] != torn[salt : salt + 24]
    blocks = {torn[at : at + 16] for at in range(salt + 56, len(torn) // 2, 16)}
    assert not any(again[at : at + 16] in blocks for at in range(salt + 56, len(again), 16))


def test_a_forged_journal_entry_is_not_believed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "d.sealed"
    hidden = interrupted(source, out)
    entry = hidden / "journal-00000.sealed"
    data = bytearray(entry.read_bytes())
    data[-150] ^= 1
    entry.write_bytes(data)
    before = shards(hidden)
    made = seal(source, out)
    assert shards(out)["shard-00000.sealed"] != before["shard-00000.sealed"]
    with made.open() as dataset:
        assert all_rows(dataset) == ROWS


@pytest.mark.parametrize("kept", ["size and time", "nothing"])
def test_a_source_that_changed_is_not_mixed_with_what_was_sealed_of_it(
    source: Path, tmp_path: Path, kept: str
) -> None:
    out = tmp_path / "d.sealed"
    hidden = interrupted(source, out)
    found = source.stat()
    text = source.read_text().replace(f"{CANARY} 3 ", f"{CANARY} 4 ", 1)
    source.write_text(text)
    if kept == "nothing":
        with pytest.raises(AlreadyExists, check=carries(check="journal")):
            seal(source, out)
        assert hidden.exists()
        return
    os.utime(source, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(DataInvalid, check=carries(check="journal")):
        seal(source, out)
    assert not hidden.exists()
    made = seal(source, out)
    with made.open() as dataset:
        assert all_rows(dataset) == [json.loads(line) for line in text.splitlines()]


def test_another_recipe_or_owner_does_not_continue_it(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "d.sealed"
    hidden = interrupted(source, out)
    other = RecipeBinding("a2" * 20, "b2" * 32, OWNER_ID)
    with pytest.raises(AlreadyExists, check=carries(check="journal")):
        seal(source, out, binding=other)
    with pytest.raises(WrongKey):
        seal(source, out, unwrap=lambda *_: DataKey(bytes(32)))
    assert hidden.exists()
    assert len(seal(source, out).description.shards) > 1


@pytest.mark.parametrize(
    "changed", [{"columns": "read"}, {"conversion": Conversion(dates={"n": "YYYY-MM-DD"})}]
)
def test_another_choice_of_columns_or_dates_does_not_continue_it(
    source: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """Else shards of one dataset would hold columns that its owner left out."""
    out = tmp_path / "d.sealed"
    interrupted(source, out)
    with pytest.raises(AlreadyExists, check=carries(check="journal")):
        seal(source, out, **changed)


def test_two_at_once_do_not_mix(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "d.sealed"

    def meanwhile(_: int) -> None:
        with pytest.raises(UsageError, check=carries(check="lock")):
            seal(source, out)

    made = seal(source, out, progress=meanwhile)
    with made.open() as dataset:
        assert all_rows(dataset) == ROWS


def test_a_bad_record_leaves_nothing_to_continue(source: Path, tmp_path: Path) -> None:
    with source.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(DataInvalid):
        seal(source, tmp_path / "d.sealed")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
