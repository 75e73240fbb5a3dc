"""A run that is told to end seals a checkpoint and goes on; ``status`` is right all the while."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
from polling import wait_until
from stage import DEADLINE_SECONDS, OWNERS, RECIPE, stage

from sealtrain.cli.programs import Process, SideProgram

pytestmark = [pytest.mark.nightly, pytest.mark.claim("C139")]
MOST_OF_A_KEEPER = 200 << 20


def test_it_is_told_to_end_and_goes_on(tmp_path: Path) -> None:
    recipe = copy.deepcopy(RECIPE)
    recipe["trainer"]["max_steps"] = 120
    with stage(tmp_path) as world:
        folder = world.propose("job", recipe)
        status = ["status", "--deployment", folder / "app-compose.json", "--broker", world.broker]
        answer = world.try_run(*status)
        assert (answer.code, answer.data["code"]) == (3, "approvals-missing")
        obstacle = next(iter(answer.data["brokers"].values()))["obstacles"][0]
        assert [command.split()[5] for command in obstacle["commands"]] == [
            f"{owner}.identity.json" for owner in OWNERS
        ]
        world.approve(folder, *OWNERS)
        assert world.run(*status, "--data", folder / "sealed")["verdict"] == "guest-unproven"
        here = ["--platform", "simulator", "--guest", "job.sock", *world.collateral]
        proven = [*status, *here, "--broker-deployment", world.folder / "broker-compose.json"]
        assert world.run(*proven)["verdict"] == "released"

        out = tmp_path / "run"
        with world.part(*world.train_words(folder, "run")) as training:
            wait_until(lambda: any((out / "checkpoints").glob("*")) or training.gone)
            assert training.end(signal.SIGTERM) == 143
            said = "\n".join(training.read_stderr())
        assert "run-stopped" in said
        assert "waiting for keys" in said
        assert not (out / "manifest.json").exists()
        named = json.loads((out / "run.json").read_bytes())
        assert all((out / named[name]).exists() for name in ("lock", "guest", "base"))
        assert world.run(*status, "--interrupted", out)["verdict"] == "guest-unproven"
        assert world.run("resume", out)["steps"] == 120

        plain = tmp_path / "plain"
        world.run("open", out, "--identity", world.identity("clinic-a"), "--out", plain)
        for path in (plain, *plain.rglob("*")):
            wanted = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.claim("C544")
def test_a_signal_to_the_whole_group_reaches_a_run_with_ranks_and_supervisor_once(
    tmp_path: Path,
) -> None:
    """As a shell, a job scheduler and systemd send it: to every process of the run."""
    recipe = copy.deepcopy(RECIPE)
    recipe["trainer"]["max_steps"] = 400
    recipe["backend"] = {"name": "trl", "ranks": 2}
    with stage(tmp_path) as world:
        folder = world.propose("job", recipe)
        world.approve(folder, *OWNERS)
        out = tmp_path / "run"

        def start(words: Sequence[str], stdout: IO[bytes], stderr: IO[bytes]) -> Process:
            return subprocess.Popen(
                world.command(*words), stdout=stdout, stderr=stderr,
                env=world.environment(), cwd=world.folder, process_group=0,
            )  # fmt: skip

        words = [*world.train_words(folder, "run"), "--wait-for-lease", "60s"]
        with SideProgram("group", world.folder, words, start=start) as training:
            wait_until(lambda: any((out / "checkpoints").glob("checkpoint-*")) or training.gone)
            processes = family(training.pid)
            assert len(processes) >= 5  # supervisor, keeper, opener, rank 0, rank 1
            [keeper] = {parent(process) for process in processes if begun_anew(process)} - {
                process for process in processes if begun_anew(process)
            }
            assert {training.pid, keeper} <= set(group(training.pid))
            assert peak_bytes(keeper) <= MOST_OF_A_KEEPER
            before = newest(out)
            os.killpg(training.pid, signal.SIGTERM)
            status = training.wait(within=DEADLINE_SECONDS)
            assert (status, json.loads(training.read_stdout())["error"]["code"]) == (
                143,
                "run-stopped",
            )
            assert group(training.pid) == []
            assert not [process for process in processes if Path(f"/proc/{process}").exists()]
        assert newest(out) > before
        assert not (out / "manifest.json").exists()


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def begun_anew(process: int) -> bool:
    """Whether it is a workload, or a rank of one: what is forked keeps its words."""
    return b"sealtrain.guest.workload_life" in Path(f"/proc/{process}/cmdline").read_bytes()


def peak_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024


def newest(out: Path) -> str:
    return max(path.name for path in (out / "checkpoints").glob("checkpoint-*"))


def group(leader: int) -> list[int]:
    """Processes of a process group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (process / "stat").read_text().rsplit(")", 1)[1].split()
            if int(stat[2]) == leader and stat[0] != "Z":
                found.append(int(process.name))
    return found


def family(leader: int) -> list[int]:
    """A process and all below it: workload and opener are groups of their own."""
    found = [leader]
    for process in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process}/task").glob("[0-9]*"):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found
