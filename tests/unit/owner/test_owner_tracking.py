"""What leaves for a tracker, and where it may go; real servers are in ``test_tracking_servers``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from manifest_world import NOW, World, make_world
from typer.testing import CliRunner
from world import OWNERS, RECIPE

from sealtrain.base.yamltext import yaml_text
from sealtrain.cli import app
from sealtrain.errors import Refused, UsageError
from sealtrain.manifest.verify import verify_manifest
from sealtrain.owner.tracking import require_tracker, track_verified

pytestmark = pytest.mark.claim("C681")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def test_only_released_values_and_digests_leave(world: World) -> None:
    data = world.manifest()
    run = track_verified(verify_manifest(data, world.trust(), artefacts=None, now=NOW))
    facts = world.facts["run"]
    curve = [point for point in run.points if not point.final]
    assert [{"step": p.step, "values": p.values} for p in curve] == facts["history"]
    assert run.points[-1].values == {f"final/{n}": v for n, v in facts["metrics"].items()}
    text = json.dumps(run.to_dict())
    for name in (*OWNERS, RECIPE["name"], "example-org", str(Path.home())):
        assert name not in text


@pytest.mark.parametrize(
    "url",
    [
        "http://tracker.example", "http://127.0.0.1.evil.example", "ftp://127.0.0.1", "file:///tmp",
        "https://user:secret@tracker.example", "https://tracker.example/?write_token=secret",
        "https://tracker.example/#secret", "https://", "", "https://a\nb", "http://[::1", "sqlite:///x",
        "databricks", "http://127.0.0.1:99999999",
    ],
)  # fmt: skip
def test_no_other_server_gets_a_number(url: str) -> None:
    with pytest.raises(UsageError, check=carries(check="--tracking-uri")) as refused:
        require_tracker(url)
    assert "secret" not in str(refused.value.to_dict())


def test_servers_over_tls_and_on_this_machine_do() -> None:
    for url in ("https://tracker.example/a", "http://127.0.0.1:5000", "http://localhost:1"):
        assert require_tracker(f"{url}/") == url


def run_track(world: World, folder: Path, change: Any = None, *words: str) -> Any:
    (folder / "manifest.json").write_bytes(world.manifest(change))
    (folder / "trust.yaml").write_text(yaml_text(world.trust_document()))
    called = [
        "run", "track", str(folder), "--trust", str(folder / "trust.yaml"), "--tracker", "mlflow",
        "--tracking-uri", "http://127.0.0.1:9", *words,
    ]  # fmt: skip
    return CliRunner().invoke(app, called)


def test_a_dry_run_shows_what_would_leave_and_sends_nothing(world: World, tmp_path: Path) -> None:
    done = run_track(world, tmp_path, None, "--dry-run", "--json")
    assert (done.exit_code, json.loads(done.stdout)["sent"]) == (0, False)


def test_a_manifest_that_does_not_verify_is_not_tracked(world: World, tmp_path: Path) -> None:
    def leak(predicate: dict[str, Any]) -> None:
        predicate["run"]["metrics"]["unreleased"] = 0.5

    done = run_track(world, tmp_path, leak, "--dry-run")
    assert isinstance(done.exception, Refused)
    assert done.stdout == ""


def test_names_and_trackers_that_are_none_are_refused(world: World, tmp_path: Path) -> None:
    for words, check in (
        (("--experiment", "../x"), "--experiment"),
        (("--experiment", "a\nb"), "--experiment"),
        (("--tracker", "wandb"), "--tracker"),
    ):
        done = run_track(world, tmp_path, None, "--dry-run", *words)
        assert isinstance(done.exception, UsageError)
        assert done.exception.check == check
