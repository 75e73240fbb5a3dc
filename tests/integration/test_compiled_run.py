"""A recipe that compiles its model trains in a guest; the workload starts a compiler alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage import OWNERS, RECIPE, stage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.claim("C741"),
    pytest.mark.needs("compiler"),
]


def test_a_compiler_builds_in_a_guest_and_the_manifest_says_nothing_else(tmp_path: Path) -> None:
    compiled = RECIPE | {
        "name": "compiled",
        "datasets": [each for each in RECIPE["datasets"] if each["role"] == "train"],
        "release_policy": RECIPE["release_policy"] | {"metrics": ["loss"]},
        "trainer": RECIPE["trainer"] | {"max_steps": 2, "torch_compile": True},
    }
    with stage(tmp_path) as world:
        world.anew = True  # the workload starts with nothing that another run compiled
        folder = world.propose("compiled", compiled)
        world.approve(folder, *OWNERS)
        with world.part(*world.train_words(folder, "run")) as part:
            assert part.wait_for_end(within=800)["steps"] == 2
        world.run(
            "trust", "new", "--consortium", "consortium.json",
            "--deployment", folder / "app-compose.json", "--policy", "policy.yaml",
            "--broker", world.broker, "--out", tmp_path / "trust.yaml",
        )  # fmt: skip
        manifest = tmp_path / "run" / "manifest.json"
        verdict = world.run("verify", manifest, "--trust", tmp_path / "trust.yaml")
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
