"""A walk asks for its packages first: before it writes, prepares or serves anything."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.errors import ExtraMissing

REAL = importlib.metadata.version


@pytest.mark.parametrize(
    ("words", "absent", "extra"),
    [
        (["--list"], "trl", "train"),
        (["--list"], "uvicorn", "simulator"),
        (["--all"], "sqlalchemy", "broker"),
        (["no-such-switch"], "trl", "train"),
        ([], "trl", "train"),
        ([], "jinja2", "console"),
        (["--anew"], "webauthn", "console"),
    ],
)
def test_a_missing_package_is_named_before_anything_is_written(
    words: list[str], absent: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a minute of preparing would be spent for nothing, and a folder be left."""

    def version(name: str) -> str:
        if name == absent:
            raise importlib.metadata.PackageNotFoundError(name)
        return REAL(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    done = CliRunner().invoke(app, ["walk", "--out", str(tmp_path / "walk"), *words])
    assert isinstance(done.exception, ExtraMissing)
    assert done.exception.got == absent
    assert extra in (done.exception.hint or "")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_the_page_s_package_is_not_asked_for_where_no_page_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == "webauthn":
            raise importlib.metadata.PackageNotFoundError(name)
        return REAL(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    done = CliRunner().invoke(app, ["walk", "--out", str(tmp_path / "walk"), "--list"])
    assert done.exit_code == 0
    assert list(tmp_path.iterdir()) == []
