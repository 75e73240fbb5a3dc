"""Every script of benchmarks/ starts, at its smallest setting, and says what a machine lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from programs import VARIABLE, found
from variants import variants

from measured_on import LACKING

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest setting of a script.

    Attributes:
        words: Its arguments; ``{folder}`` is an empty folder.
        needs: Programs without which it ends with ``LACKING``.
        reads: Third-party data without which it does, a folder beside the repository.
        json: It prints JSON.
        judges: It ends with 1 where this machine is too slow for what it promises.
    """

    words: str
    needs: tuple[str, ...] = ()
    reads: str | None = None
    json: bool = True
    judges: bool = False


QUICK = {
    "sealing.py": Smallest(words="--megabytes 1 --rounds 1 --folder {folder} --json"),
}
"""What takes under three seconds."""

SLOW = {
    "admission.py": Smallest(words="--megabytes 1 --rounds 1 --json"),
    "attest.py": Smallest(words="--rounds 1 --shared {folder} --json"),
    "backends.py": Smallest(words="--json"),
    "begin.py": Smallest(words="--gigabytes 0.01 --rounds 1", json=False, judges=True),
    "checkpoint.py": Smallest(
        words="--megabytes 1 --rounds 1 --layers 1 --folder {folder} --json",
    ),
    "commands.py": Smallest(words="--rounds 1 --json"),
    "compare_runs.py": Smallest(words="--runs 2 --points 10 --rounds 1 --json", judges=True),
    "console.py": Smallest(
        words="--visits 1 --updates 1 --points 100 --runs 12",
        needs=("node", "chromium"),
        json=False,
        judges=True,
    ),
    "data_path.py": Smallest(words="--megabytes 1 --rounds 1 --json"),
    "delivery.py": Smallest(words="--megabytes 4 --json"),
    "demos.py": Smallest(words="--only split --idle --json", judges=True),
    "deployed.py": Smallest(words="--rounds 1 --steps 2 --json"),
    "gpu.py": Smallest(words="--rounds 1 --ways lora --json"),
    "hybrid_sharding.py": Smallest(
        words="--loopback --rounds 1 --steps 1 --millions 15 --tokens 2 --json"
    ),
    "large_updates.py": Smallest(words="--mib 1 --json"),
    "loader.py": Smallest(words="--megabytes 1 --rounds 1 --epochs 1 --json"),
    "medical.py": Smallest(
        words="tiny --ways tfidf --partitions iid --parties 2 --seeds 1"
        " --cells {folder}/cells.jsonl --json",
        json=False,  # a line of each cell is before it
    ),
    "medical_classify.py": Smallest(words="pubmedqa --steps 1 --json", reads="data/medical"),
    "meeting.py": Smallest(words="--nodes 2 --times 1 --json"),
    "merging.py": Smallest(words="--parties 2 --layers 1 --width 64 --rank 2 --times 1 --json"),
    "node_wire.py": Smallest(words="--loopback --rounds 1 --megabytes 1 --json"),
    "opener.py": Smallest(words="--megabytes 1 --rounds 1 --json"),
    "phases.py": Smallest(words="sft-lora --rounds 1 --seconds 0 --json"),
    "release.py": Smallest(
        words="--releases 4 --guests 2 --postgres --json", needs=("postgresql",)
    ),
    "run_control.py": Smallest(words="--entries 100 --rounds 1 --json", judges=True),
    "scale.py": Smallest(words="--gigabytes 2 --nodes 1 2 --json"),
    "scale_share.py": Smallest(words="--megabytes 1 --nodes 2"),
    "scheduler_rest.py": Smallest(words="--seconds 0"),
    "recipe_check.py": Smallest(words="--mib 3 --rounds 1 --json"),
    "sealed_vs_plain.py": Smallest(words="--megabytes 1 --rounds 1 --steps 1 --json"),
    "session_protocols.py": Smallest(words="--handshakes 1 --mebibytes 8 --json"),
    "sharded_checkpoint.py": Smallest(
        words="--ranks 2 --megabytes 1 --rounds 1 --folder {folder} --json"
    ),
    "split.py": Smallest(
        words="--rounds 1 --hidden 64 --layers 1 --batch 1 --length 8 --json",
    ),
    "start.py": Smallest(words="--rounds 1 --json"),
    "travelling.py": Smallest(words="--quick --kilobytes 64 --json"),
    "verifiers.py": Smallest(words="--rounds 1 --json", needs=("node", "chromium"), judges=True),
}
"""What takes longer."""

STARTED_BY = {
    "data_path_peers.py": "data_path.py",
    "gpu_inside.py": "gpu.py",
    "scale_ranks.py": "scale.py",
    "travelling_roles.py": "travelling.py",
}
"""Scripts that another one starts, and gives what they need."""


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """A machine on which a script can do nothing."""

    script: str
    words: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


LACKS = {
    "console.py without chromium": Lacking(script="console.py", variables={VARIABLE: "chromium"}),
    "verifiers.py without node": Lacking(script="verifiers.py", variables={"PATH": "/nowhere"}),
    "release.py without PostgreSQL": Lacking(
        script="release.py", words="--postgres", variables={VARIABLE: "postgresql"}
    ),
    "medical.py without collections": Lacking(
        script="medical.py", variables={"SEALTRAIN_SHARED": "/nowhere"}
    ),
    "medical_classify.py without collections": Lacking(
        script="medical_classify.py", variables={"SEALTRAIN_SHARED": "/nowhere"}
    ),
    "split.py without a GPU": Lacking(
        script="split.py", words="--device cuda", variables={"CUDA_VISIBLE_DEVICES": ""}
    ),
    "travelling.py without a GPU": Lacking(
        script="travelling.py", words="--part gpu", variables={"CUDA_VISIBLE_DEVICES": ""}
    ),
}


def started(
    script: str, words: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Start a script in an empty folder."""
    return subprocess.run(
        [sys.executable, BENCHMARKS / script, *words.format(folder=folder).split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), **variables},
    )


def has_all(smallest: Smallest) -> bool:
    """Whether this machine has what a script needs."""
    shared = Path(os.environ.get("SEALTRAIN_SHARED", BENCHMARKS.parents[1] / "shared"))
    there = smallest.reads is None or (shared / smallest.reads).is_dir()
    return there and all(found(name) is not None for name in smallest.needs)


def plays(script: str, smallest: Smallest, folder: Path, **variables: str) -> None:
    done = started(script, smallest.words, folder, **variables)
    if not has_all(smallest):
        assert done.returncode == LACKING
        return
    assert done.returncode in ((0, 1) if smallest.judges else (0,)), done.stderr[-2000:]
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    if smallest.json:
        json.loads(done.stdout)
    assert done.stdout


@pytest.fixture
def collections(tmp_path: Path) -> str:
    """Medical collections of two labels; the variable names them."""
    tiny = tmp_path / "shared/data/medical/tiny"
    tiny.mkdir(parents=True)
    for part in ("train", "test"):
        rows = [{"text": f"{kind} {number}", "label": kind}
                for number in range(12) for kind in ("cough", "fever")]  # fmt: skip
        (tiny / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "shared")


@pytest.mark.parametrize("script", QUICK)
def test_a_script_starts(script: str, tmp_path: Path) -> None:
    plays(script, QUICK[script], tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1260)
@pytest.mark.parametrize("script", SLOW)
def test_a_slow_script_starts(script: str, tmp_path: Path, collections: str) -> None:
    variables = {"SEALTRAIN_SHARED": collections} if script == "medical.py" else {}
    plays(script, SLOW[script], tmp_path, **variables)


@pytest.mark.parametrize("name", variants(LACKS, each_time=["medical.py without collections"]))
def test_a_script_says_in_one_line_what_this_machine_lacks(name: str, tmp_path: Path) -> None:
    machine = LACKS[name]
    done = started(machine.script, machine.words, tmp_path, **machine.variables)
    assert (done.returncode, done.stdout) == (LACKING, ""), done.stderr[-2000:]
    assert len(done.stderr.splitlines()) == 1


def test_every_script_is_in_one_of_the_tables() -> None:
    scripts = {
        path.name
        for path in BENCHMARKS.rglob("*.py")
        if '\nif __name__ == "__main__":' in path.read_text("utf-8")
    }
    tables = [QUICK, SLOW, STARTED_BY]
    assert sorted(name for table in tables for name in table) == sorted(scripts)
    assert set(STARTED_BY.values()) <= QUICK.keys() | SLOW.keys()
