"""The Flower app, and what is said where Flower is not installed."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.errors import AlreadyExists, ExtraMissing
from sealtrain_together.federated import frames


def test_the_app_is_the_relay_and_nothing_else(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["federate", "relay", "--out", str(tmp_path / "a"), "--json"])
    assert json.loads(done.stdout) == {"app": str(tmp_path / "a"), "flwr": "1.41.0"}
    project = tomllib.loads((tmp_path / "a" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == ["flwr==1.41.0"]
    code = (tmp_path / "a" / "sealtrain_relay" / "relay.py").read_text()
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported == {
        "flwr.app", "flwr.clientapp", "flwr.serverapp", "select", "socket", "struct", "time",
    }  # fmt: skip
    again = CliRunner().invoke(app, ["federate", "relay", "--out", str(tmp_path / "a")])
    assert isinstance(again.exception, AlreadyExists)


def test_relay_and_guests_mean_the_same_frames() -> None:
    """The relay imports nothing of ours, so it says again what a frame is."""
    code = ast.parse(files("sealtrain_together.federated").joinpath("relay.py").read_text())
    said = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in code.body
        if isinstance(node, ast.Assign)
    }
    assert said["TO_RELAY"] == f"struct.Struct({frames.TO_RELAY.format!r})"
    assert said["FROM_RELAY"] == f"struct.Struct({frames.FROM_RELAY.format!r})"
    assert eval(said["MAX_FRAME"]) == frames.MAX_FRAME  # noqa: S307 - a shift of two numbers
    assert said["(NODES, REPLY, LOST)"] == "range(3)"
    assert (frames.NODES, frames.REPLY, frames.LOST) == (0, 1, 2)


def test_without_flower_the_demo_says_which_extra_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    done = CliRunner().invoke(app, ["federate", "demo", "--out", str(tmp_path / "demo")])
    assert isinstance(done.exception, ExtraMissing)
    assert "sealtrain[federated]" in str(done.exception.hint)
    assert not (tmp_path / "demo").exists()
