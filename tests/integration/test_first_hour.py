"""The first hour, typed as its page has it: real processes, real files, and what they say."""

from __future__ import annotations

import importlib.util
import json
import shlex
import stat
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from ports import free_port
from stage import interpreter

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location(
    "first_hour", REPOSITORY / "examples" / "first_hour" / "record.py"
)
assert SPEC is not None
assert SPEC.loader is not None
WALK = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = WALK
SPEC.loader.exec_module(WALK)

PAGE = (REPOSITORY / "docs" / "guides" / "first_hour.md").read_text("utf-8")
STEPS = WALK.steps_of(PAGE)


def test_a_person_types_twelve_commands_and_each_owner_acts_with_its_own_key() -> None:
    assert len(STEPS) == 12
    signing = [step.words for step in STEPS if "--and-approve" in step.words]
    assert len(signing) == 3
    keys = [words[words.index("--identity") + 1] for words in signing if "--identity" in words]
    assert len(set(keys)) == 2  # the third is the one that the project file names
    assert all(words.count("--identity") <= 1 for words in signing)
    assert not any("--yes" in step.words for step in STEPS)


def test_the_page_numbers_its_commands() -> None:
    assert "**Command 12**" in PAGE
    assert "**Command 13**" not in PAGE


@pytest.mark.slow
def test_the_page_says_what_the_commands_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter())
    for step, played in zip(STEPS, WALK.play(STEPS, tmp_path, port=free_port()), strict=True):
        typed = shlex.join(step.words)
        assert played.status == step.exits, f"{typed}\n{played.said}"
        assert WALK.likeness(played.said) == WALK.likeness(step.said), typed
    assert (tmp_path / "model" / "adapter_model.safetensors").stat().st_size > 0
    row = (tmp_path / "clinic-b" / "letters.csv").read_bytes().splitlines()[1]
    plain = {path for path in tmp_path.rglob("*") if path.is_file() and row in path.read_bytes()}
    # Its owner made it, and no command wrote it anywhere else.
    assert {path.name for path in plain} == {"letters.csv"}
    for path in (*tmp_path.rglob("*.identity.json"), *(tmp_path / "model").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("role", ["auditor", "engineer", "operator"])
def test_the_page_of_a_role_says_what_the_commands_say(role: str, tmp_path: Path) -> None:
    [page] = [page for page in WALK.PAGES if page.stem == f"first_hour_{role}"]
    steps = WALK.steps_of(page.read_text("utf-8"))
    for step, played in zip(steps, WALK.play(steps, tmp_path, port=free_port()), strict=True):
        typed = shlex.join(step.words)
        assert played.status == step.exits, f"{typed}\n{played.said}"
        assert WALK.likeness(played.said) == WALK.likeness(step.said), typed


@pytest.mark.slow
@pytest.mark.claim("C151")
def test_sealing_signs_nothing_for_an_owner_who_does_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter())
    terminal = WALK.Terminal(tmp_path, free_port())

    def typed(*words: str, said: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sealtrain", *words],
            cwd=tmp_path,
            env=terminal.environment(),
            input=said,
            capture_output=True,
            text=True,
        )

    seal = STEPS[6].words[1:]
    assert "--and-approve" in seal
    with terminal.beside:
        for step in STEPS[:6]:
            assert terminal.type(step).status == 0, step.typed
        early = typed(*seal, "--no-register", said="APPROVE\n")
        assert early.returncode == 2
        assert not (tmp_path / "sealed/clinic-a.sealed").exists()

        refused = typed(*seal, said="approve\n")
        assert refused.returncode == 2
        assert "You are about to approve" in refused.stderr
        assert (tmp_path / "sealed/clinic-a.sealed").is_dir()
        assert typed("approve", said="").returncode != 0
        counted = typed("approvals", "status", "--json")
        assert json.loads(counted.stdout)["approved_by"] == []
        asked = typed("status", "--json")
        assert json.loads(asked.stdout)["code"] == "approvals-missing"


@pytest.mark.parametrize("begins", ["Q", "7", "+", "/", "++", "+a/"])
@pytest.mark.parametrize("size", [32, 68], ids=["root", "signature"])
def test_a_digest_is_hidden_whatever_character_it_begins_with(begins: str, size: int) -> None:
    said = b64encode(bytes(size)).decode()
    other = begins + said[len(begins) :]
    for line in ("{}", "root {}", "ledger  2 entries, root {}", "— sealtrain/ledger/log {}"):
        assert WALK.likeness(line.format(said)) == WALK.likeness(line.format(other))
        assert WALK.likeness(line.format(said)) == [line.format("DIGEST")]


def test_a_page_that_says_something_else_is_told_apart() -> None:
    [status] = [step for step in STEPS if step.words == ["sealtrain", "status"]]
    lie = status.said.replace("clinic-c", "clinic-b")
    assert WALK.likeness(lie) != WALK.likeness(status.said)
    assert WALK.likeness(status.said.replace("keys  no", "keys  yes")) != WALK.likeness(status.said)
