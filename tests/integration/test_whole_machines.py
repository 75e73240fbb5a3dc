"""Runs on machines whose evidence comes through more than one door: whole boards, the kernel's."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stage import OWNERS, RECIPE, Stage, stage
from variants import variants

from sealtrain.attest.presets import PRESETS

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.claim("C118")]

SUPPORT = Path(__file__).resolve().parent.parent / "support"
SHORT: dict[str, Any] = {
    **RECIPE,
    "trainer": {**RECIPE["trainer"], "max_steps": 10},
}


def trained(world: Stage, guest: str = "") -> Any:
    """Approve, train in a process that locks itself down, verify; what the verifier says."""
    engineer = world.folder / "engineer"
    world.approve(engineer, *OWNERS)
    world.run(*world.train_words(engineer, "run", guest))
    world.run(
        "trust", "new", "--consortium", "consortium.json", "--deployment", world.deployment,
        "--policy", "policy.yaml", "--broker", world.broker, "--out", world.trust,
    )  # fmt: skip
    return world.run("verify", world.folder / "run/manifest.json", "--trust", world.trust)


def inside(world: Stage) -> tuple[Any, Any]:
    """Predicate and evidence of the run's manifest."""
    manifest = json.loads((world.folder / "run/manifest.json").read_bytes())
    statement, evidence = (
        json.loads(base64.b64decode(item["payload"]))
        for item in (manifest["bundle"]["dsseEnvelope"], manifest["evidence"])
    )
    return statement["predicate"], evidence


def h200(simulated: dict[str, Any]) -> dict[str, Any]:
    """The preset, with an owner's choice of roots, images and key provider filled in."""
    policy = json.loads(json.dumps(PRESETS["dstack-h200"]))
    policy |= {"platform": "simulator", "root": simulated["root"]}
    open_values = ("measurements", "key_provider", "os_image_hash", "platform_ids")
    policy["cpu"] |= dict.fromkeys(open_values, "any")
    policy["gpu"] |= {name: simulated["gpu"][name] for name in ("root", "rim_root")}
    policy["gpu"] |= dict.fromkeys(("devices", "vbios_versions"), "any")
    return dict(policy)


@pytest.mark.nightly
def test_a_box_of_eight_gpus_meets_the_rules_of_its_preset(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """An app of dstack 0.6 does not see the switches: its agent shows the board, renewals too."""
    machine = ("--gpus", "8", "--switches", "4")
    with stage(tmp_path_factory.mktemp("box"), machine=machine, policy=h200) as world:
        world.propose("engineer", SHORT)
        report = trained(world)
        assert report["accepted"]
        assert report["simulated"]
        _, evidence = inside(world)
        kinds = [device["kind"] for device in evidence["gpu"]["devices"]]
        assert (kinds.count("gpu"), kinds.count("switch")) == (8, 4)


@contextmanager
def kernel(world: Stage, tee: str, folder: Path) -> Iterator[None]:
    """The reports' folder of a guest that measured the deployment."""
    folder.mkdir()
    served = subprocess.Popen(
        [sys.executable, SUPPORT / "configfs/served.py", folder, tee, "root", world.deployment],
        stdout=subprocess.PIPE,
        cwd=world.folder,
    )
    try:
        assert served.stdout is not None
        assert served.stdout.readline() == b"configfs-tsm ready\n"
        yield
    finally:
        served.kill()
        served.communicate()


class Waiting(Stage):
    """A guest whose run waits for the files of a plain folder, as it would for the kernel's."""

    def command(self, *words: str | Path) -> list[str]:
        if words[0] == "train":
            return [sys.executable, str(SUPPORT / "configfs/waiting.py"), *map(str, words)]
        return super().command(*words)


@pytest.mark.parametrize("tee", variants(["tdx", "snp"], each_time=[]))
def test_a_locked_down_run_asks_the_kernel_for_every_report(tmp_path: Path, tee: str) -> None:
    """From the first request to the last quote, renewals between them, inside the run's border."""
    folder = tmp_path / "tsm"
    variables = {"SERVED_CONFIGFS": str(folder)}
    world = Waiting(tmp_path, machine=("--tee", tee), variables=variables, warm=False)
    with world.stack:
        world.found()
        world.propose("engineer", SHORT)
        with kernel(world, tee, folder):
            report = trained(world, f"{tee}:{folder}?compose={world.deployment}")
        assert report["accepted"]
        predicate, evidence = inside(world)
        asked = list(folder.iterdir())
        assert len(asked) >= 3  # a release, a renewal at least, the final quote
        assert all((question / "outblob").exists() for question in asked)
        assert len(predicate["releases"]) >= 2
        assert evidence["cpu"]["tee"] == tee
