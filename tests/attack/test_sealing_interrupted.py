"""Sealing is interrupted, killed or fed a bad record: nothing appears, nothing leaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from carrying import carries
from sealing_world import (
    CANARY,
    KEY,
    content,
    context,
    everything_below,
    json_lines,
    sealed_folder,
)

from sealtrain.sealing.errors import RecordInvalid, RootMismatch
from sealtrain.sealing.export import export
from sealtrain.sealing.file import seal_file
from sealtrain.sealing.opened_dataset import contains_record

pytestmark = pytest.mark.claim("C5")


class Interrupted(Exception):
    """Raised from inside a callback."""


class FailingSource:
    """Yields some content, then fails like a broken disk."""

    def __init__(self) -> None:
        self.left = 3

    def read(self, size: int) -> bytes:
        self.left -= 1
        if not self.left:
            raise Interrupted
        return content(size)


def test_a_failing_source_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        seal_file(FailingSource(), tmp_path / "a", data_key=KEY, context=context())  # type: ignore[arg-type]  # a source that fails
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["progress", "stanzas", "sign", "count_tokens"])
@pytest.mark.parametrize("layout", ["arrow", "raw"])
def test_an_interruption_at_any_step_leaves_no_folder(
    tmp_path: Path, step: str, layout: str
) -> None:
    if layout == "raw" and step == "count_tokens":
        pytest.skip("raw files have no records")
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines([{"text": CANARY * 30, "n": n} for n in range(6000)]))

    def fail(*_: object) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        sealed_folder(source, tmp_path / "d.sealed", layout=layout, **{step: fail})
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_bad_record_late_in_the_file_leaves_no_folder(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines([{"a": CANARY * 100}] * 5000) + "{broken\n")
    with pytest.raises(RecordInvalid, match="record 5001"):
        sealed_folder(source, tmp_path / "d.sealed")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


SEAL_SLOWLY = """
import sys, time
from pathlib import Path
from sealing_world import sealed_folder

def slow(_):
    print("sealing", flush=True)
    time.sleep(0.2)

sealed_folder(Path(sys.argv[1]), Path(sys.argv[2]), progress=slow, layout=sys.argv[3],
              shard_bytes=1 << 20)
"""


@pytest.mark.parametrize("layout", ["arrow", "raw"])
def test_kill_9_leaves_a_hidden_folder_of_ciphertext_at_most(tmp_path: Path, layout: str) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    outputs.mkdir()
    source = inputs / "rows.jsonl"
    source.write_text(json_lines([{"text": CANARY * 50, "n": n} for n in range(24_000)]))
    support = Path(__file__).resolve().parent.parent / "support"
    environment = os.environ | {"PYTHONPATH": str(support), "TMPDIR": str(outputs)}
    child = subprocess.Popen(
        [sys.executable, "-c", SEAL_SLOWLY, str(source), str(outputs / "d.sealed"), layout],
        stdout=subprocess.PIPE,
        env=environment,
        cwd=outputs,
    )
    try:
        assert child.stdout is not None
        # It reads the whole file first, so what was written says how far it is.
        while len(everything_below(outputs)) <= 1 << 20:
            assert child.stdout.readline() == b"sealing\n"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        child.stdout.close() if child.stdout else None
    left = list(outputs.iterdir())
    assert not (outputs / "d.sealed").exists()
    assert all(path.name.startswith(".d.sealed.") for path in left)
    written = everything_below(outputs)
    assert CANARY.encode() not in written
    assert len(sealed_folder(source, outputs / "d.sealed", layout=layout).description.shards) >= 1


@pytest.mark.claim("C4")
def test_no_plaintext_is_on_disk_while_or_after_sealing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    outputs.mkdir()
    monkeypatch.setenv("TMPDIR", str(outputs))
    monkeypatch.chdir(outputs)
    source = inputs / f"{CANARY}.jsonl"
    rows = [{"text": f"{CANARY} {n} " * 20, CANARY: n} for n in range(4000)]
    source.write_text(json_lines(rows))
    seen: list[bool] = []

    def look(*_: object) -> bytes:
        seen.append(CANARY.encode() in everything_below(outputs))
        return b"{}"

    made = sealed_folder(
        source, outputs / "d.sealed", progress=look, sign=look, commitments=True, padding="bucket"
    )
    with made.open() as dataset:
        assert contains_record(dataset, rows[5]) == (5,)
        assert dataset.batch(0).num_rows
    assert seen
    assert not any(seen)
    assert CANARY.encode() not in everything_below(outputs)


def test_an_export_stopped_by_damage_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json_lines([{"text": "x" * 900, "n": n} for n in range(4000)]))
    made = sealed_folder(source, tmp_path / "d.sealed")
    shard = made.folder / "shard-00000.sealed"
    data = bytearray(shard.read_bytes())
    data[-200_000] ^= 1
    shard.write_bytes(data)
    present = sorted(path.name for path in tmp_path.iterdir())
    for to in ("jsonl", "csv", "parquet", "arrow", "raw"):
        with (
            made.open() as dataset,
            pytest.raises(RootMismatch, check=carries(check="group hash")),
        ):
            export(dataset, tmp_path / f"out.{to}", to=to)
        assert sorted(path.name for path in tmp_path.iterdir()) == present


def test_sealing_streams_in_bounded_memory(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from sealing_world import KEY, context, sealed_folder
from sealtrain.sealing.file import seal_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sealed_folder(Path(sys.argv[1]), Path(sys.argv[2]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) // 1024)
"""
    source = tmp_path / "rows.jsonl"
    line = json_lines([{"text": "word " * 300, "n": 1}])
    with source.open("w") as file:
        for _ in range(70):
            file.write(line * 1000)
    size = source.stat().st_size >> 20
    assert size > 100
    support = Path(__file__).resolve().parent.parent / "support"
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(tmp_path / "d.sealed")],
        env=os.environ | {"PYTHONPATH": str(support)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 70, f"{done.stdout} MiB for {size} MiB of records"
