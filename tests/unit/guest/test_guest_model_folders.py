"""A model may have folders (an encoder's pooling): sealed and opened under their names."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from sealtrain.cli import app
from sealtrain.guest.outputs import seal_model
from sealtrain.keys.identity import Identity
from sealtrain.manifest.outputs import subjects_of

FILES = {"model.safetensors": b"weights", "1_Pooling/config.json": b"{}", "modules.json": b"[]"}


def test_folders_of_a_model_come_back(tmp_path: Path) -> None:
    words = ["keygen", "archive-a", "--out", str(tmp_path / "keys")]
    made = CliRunner().invoke(app, words)
    assert made.exit_code == 0, made.output
    (private,) = (tmp_path / "keys").glob("*.identity.json")
    made = seal_model(
        FILES,
        tmp_path,
        run_id="ab" * 16,
        owner_id="cd" * 32,
        recipients=[Identity.load(private).public],
    )
    assert {item.name for item in subjects_of(made)} == {f"model/{name}.sealed" for name in FILES}
    words = ["open", str(tmp_path / "model"), "--identity", str(private), "--no-manifest"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "opened")])
    assert done.exit_code == 0, done.output
    found = {
        path.relative_to(tmp_path / "opened").as_posix(): path.read_bytes()
        for path in (tmp_path / "opened").rglob("*")
        if path.is_file()
    }
    assert found == FILES
