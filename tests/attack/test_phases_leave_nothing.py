"""Every phase, as a run trains it: each file opened for writing, each connection, each program.

One process trains a ready recipe of each phase on the data of its story. Two traces are kept: what
Python tries (an audit hook, before anything is refused) and what reaches the kernel (``strace``,
native code and children included). ``SEALTRAIN_EVERY_RECIPE=1`` plays all ready recipes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from programs import found
from variants import variants

from every_phase import program
from sealtrain.recipe.schema import PHASES

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.claim("C35"),
    pytest.mark.timeout(1200),
]

ROOT = Path(__file__).resolve().parents[2]
VICTIM = ROOT / "tests" / "support" / "phases_victim.py"
# The smallest model of a phase that has several ready recipes.
PREFERRED = {"classify": "classify-tabular", "sft": "sft-lora", "dpo": "dpo-lora", "cpt": "cpt"}
CALLS = (
    "open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,"
    "symlinkat,mknod,mknodat,truncate,connect,bind,listen,execve,execveat"
)


def phase_of(recipe: Path) -> str:
    return next(
        line.split(":")[1].split("#")[0].strip()
        for line in recipe.read_text().splitlines()
        if line.startswith("phase:")
    )


def played() -> list[str]:
    """Ready recipes whose backend is installed: all, or one a phase."""
    ready = {
        name: phase_of(ROOT / "recipes" / f"{name}.yaml")
        for name in program("run").playable()
        # One process is watched here; test_ranks_confined.py and test_ranks_exact.py watch several.
        if "ranks:" not in (ROOT / "recipes" / f"{name}.yaml").read_text()
    }
    if os.environ.get("SEALTRAIN_EVERY_RECIPE"):
        return list(ready)
    first = {phase: name for name, phase in reversed(ready.items())}
    return sorted(PREFERRED.get(phase, name) for phase, name in first.items())


RECIPES = played()
EVERY_RECIPE = pytest.mark.parametrize("recipe", variants(RECIPES, each_time=["sft-lora"]))


@dataclass
class Traced:
    """What was seen of one recipe."""

    answer: dict[str, Any]
    calls: list[str] | None
    folder: Path


@pytest.fixture(scope="module")
def traced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Traced]:
    chosen = {
        item.callspec.params.get("recipe")
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
    }
    recipes = [name for name in RECIPES if name in chosen]
    folder = tmp_path_factory.mktemp("phases")
    for name in ("home", "tmp", "cwd", "played"):
        (folder / name).mkdir()
    trace = folder / "trace"
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "400", "-o", str(trace)]
    done = subprocess.run(
        [
            *([*strace, "-e", f"trace={CALLS}"] if works(strace) else []),
            *(sys.executable, "-W", "ignore", str(VICTIM), str(folder / "played"), *recipes),
        ],
        cwd=folder / "cwd",
        env={
            **os.environ,
            **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "HF_HOME"), str(folder / "home")),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": os.pathsep.join([str(VICTIM.parent), *sys.path]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    lines = trace.read_text(errors="replace").splitlines() if trace.exists() else None
    found = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        name = answer["recipe"]
        found[name] = Traced(answer, None if lines is None else between(lines, name), folder)
    return found


def works(strace: list[str]) -> bool:
    if found("strace") is None:
        return False
    return subprocess.run([*strace, "true"], capture_output=True).returncode == 0


def between(lines: list[str], name: str) -> list[str]:
    """System calls during the training of one recipe."""
    marks = [number for number, line in enumerate(lines) if f'"/nowhere/begin-{name}"' in line]
    ends = [number for number, line in enumerate(lines) if f'"/nowhere/end-{name}"' in line]
    return lines[marks[0] + 1 : ends[0]] if marks and ends else []


def of(traced: dict[str, Traced], recipe: str) -> Traced:
    assert "error" not in traced[recipe].answer, traced[recipe].answer.get("trace")
    return traced[recipe]


def test_every_phase_is_played() -> None:
    missing = set(PHASES) - {phase_of(ROOT / f"recipes/{name}.yaml") for name in RECIPES}
    assert missing == set()


@EVERY_RECIPE
def test_only_sealed_checkpoints_are_opened_for_writing(
    recipe: str, traced: dict[str, Traced]
) -> None:
    seen = of(traced, recipe)
    checkpoints = f"{seen.folder}/played/{recipe}/run/checkpoints/"
    allowed = re.compile(
        rf"{re.escape(checkpoints)}\.?checkpoint-\d{{8}}-\d{{10}}\.sealed(\.[0-9a-f]+\.tmp)?"
        r"|/dev/null|/proc/.*|/dev/shm/.*"
    )
    assert [path for path in seen.answer["opened"] if not allowed.fullmatch(path)] == []
    trains = phase_of(ROOT / f"recipes/{recipe}.yaml") != "evaluate"
    assert len(seen.answer["checkpoints"]) == (2 if trains else 0)


@pytest.mark.needs("strace")
@EVERY_RECIPE
def test_nothing_else_reaches_the_kernel(recipe: str, traced: dict[str, Traced]) -> None:
    seen = of(traced, recipe)
    if seen.calls is None:
        pytest.skip("this system lets no process trace another")
    assert seen.calls, "the trace is empty"
    run = f"{seen.folder}/played/{recipe}/run/"
    strange = []
    for call in seen.calls:
        match = re.search(r"\b(\w+)\((.*)\) = (\S+)", call)
        if match is None or match[3] == "-1":
            continue
        name, words = match[1], match[2]
        paths = re.findall(r'"([^"]*)"', words)
        if name in ("open", "openat", "openat2"):
            if not re.search(r"O_WRONLY|O_RDWR|O_CREAT", words):
                continue
            if paths[0].startswith((run, "/dev/", "/proc/")):
                continue
        elif paths and all(path.startswith("/dev/shm/") for path in paths):  # noqa: S108
            continue  # the run's folder in memory; semaphores get their name by a link
        elif name in ("rename", "renameat", "renameat2", "mkdir", "mkdirat") and all(
            path.startswith(run) for path in paths
        ):
            continue
        strange.append(call)
    assert strange == []


@EVERY_RECIPE
def test_no_file_holds_a_piece_of_the_records(recipe: str, traced: dict[str, Traced]) -> None:
    answer = of(traced, recipe).answer
    assert answer["needles"] >= 10
    assert answer["holding"] == []


@EVERY_RECIPE
def test_nothing_is_reached_for_but_what_is_harmless(
    recipe: str, traced: dict[str, Traced]
) -> None:
    answer = of(traced, recipe).answer
    # The test's own broker address; and urllib3, which tries on import whether there is IPv6.
    harmless = {"socket.getaddrinfo 127.0.0.1", "socket.bind ('::1', 0)"}
    assert set(answer["reached"]) <= harmless
    assert set(answer["refused"]) <= {"network.refused"}


@EVERY_RECIPE
def test_only_named_metrics_come_out(recipe: str, traced: dict[str, Traced]) -> None:
    answer = of(traced, recipe).answer
    assert set(answer["metrics"]) <= set(answer["policy"])


def test_nothing_is_left_in_home_and_temporary_folders(traced: dict[str, Traced]) -> None:
    folder = next(iter(traced.values())).folder
    left = [
        path
        for name in ("home", "tmp", "cwd")
        for path in (folder / name).rglob("*")
        if path.is_file()
    ]
    assert left == []
