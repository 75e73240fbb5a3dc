"""A run that is told to end seals a checkpoint and goes on; ``status`` is right all the while."""

from __future__ import annotations

import copy
import json
import signal
import stat
from pathlib import Path

import pytest
from stage import OWNERS, RECIPE, stage, wait_for

pytestmark = pytest.mark.claim("C139")


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
            wait_for(lambda: any((out / "checkpoints").glob("*")) or training.gone)
            assert training.end(signal.SIGTERM) == 143
            said = "\n".join(training.said())
        assert "run-stopped" in said
        assert "waiting for keys" in said
        assert not (out / "manifest.json").exists()
        named = json.loads((out / "run.json").read_bytes())
        assert all(Path(named[name]).is_absolute() for name in ("lock", "guest", "base"))
        assert world.run(*status, "--interrupted", out)["verdict"] == "guest-unproven"
        assert world.run("resume", out)["steps"] == 120

        plain = tmp_path / "plain"
        world.run("open", out, "--identity", world.identity("clinic-a"), "--out", plain)
        for path in (plain, *plain.rglob("*")):
            wanted = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path
