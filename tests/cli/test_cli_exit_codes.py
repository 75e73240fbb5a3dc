"""How a command leaves: the exit code says who must act, stderr says why, stdout stays data."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sealtrain import cli
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.consortium.errors import ApprovalsMissing
from sealtrain.errors import ExtraMissing, SealtrainError
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.sealing.errors import NotSealed

pytestmark = pytest.mark.long

SAMPLE = "patient 4711, malignant"


def leave(monkeypatch: pytest.MonkeyPatch, error: BaseException, *words: str) -> int:
    """Exit code of the program when its command raises ``error``."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["sealtrain", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecipeInvalid("bad field"), 2),
        (ApprovalsMissing("one short"), 3),
        (BrokerUnreachable("no answer"), 4),
        (NotSealed("no seal"), 5),
        (KeyboardInterrupt(), 130),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out"), 4),
        (OSError("a fault of our own"), 1),
        (ZeroDivisionError(), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_the_exit_code_follows_the_error(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    assert leave(monkeypatch, error) == code


def test_a_refusal_says_everything_it_knows_on_stderr_and_nothing_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ApprovalsMissing(
        "recipe is not approved",
        owner="hospital-b",
        check="approvals",
        got="1 of 3",
        expected="2 of 3",
        hint="ask hospital-b",
    )
    leave(monkeypatch, error)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[0] == "refused [approvals-missing]: recipe is not approved"
    for part in ("hospital-b", "approvals", "1 of 3", "2 of 3", "ask hospital-b"):
        assert part in shown.err


def test_with_json_the_error_is_one_object_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = NotSealed("no seal", got="text")
    leave(monkeypatch, error, "inspect", "x", "--json")
    assert json.loads(capsys.readouterr().out) == {"error": error.to_dict()}


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_a_bug_shows_its_kind_and_place_but_never_a_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert leave(monkeypatch, ValueError(SAMPLE), *words) == 1
    shown = capsys.readouterr()
    assert SAMPLE not in shown.out + shown.err
    assert "ValueError" in shown.err
    assert Path(__file__).name in shown.err


def test_an_unknown_subclass_of_the_root_is_still_reported_as_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, SealtrainError("odd")) == 1
    assert "error [error]: odd" in capsys.readouterr().err


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sealtrain", *words], cwd=cwd, capture_output=True, text=True
    )


def test_a_command_line_that_makes_no_sense_exits_2(tmp_path: Path) -> None:
    result = run("seal", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Usage:" in result.stderr


def test_an_absent_file_exits_without_a_traceback_and_leaves_nothing(tmp_path: Path) -> None:
    result = run("lock", "absent.yaml", cwd=tmp_path)
    assert result.returncode in {2, 5}
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_new_identity_is_never_written_over_an_old_one(tmp_path: Path) -> None:
    assert run("keygen", "hospital-a", cwd=tmp_path).returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = run("keygen", "hospital-a", cwd=tmp_path)
    assert again.returncode == 2
    assert "[already-exists]" in again.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_json_output_is_one_object_and_talk_goes_to_stderr(tmp_path: Path) -> None:
    result = run("keygen", "hospital-a", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["name"] == "hospital-a"
    assert "secret" in result.stderr


@pytest.mark.parametrize(
    ("words", "absent", "extra"),
    [
        (["broker", "backup", "--state", "s", "--out", "o"], "sqlalchemy", "broker"),
        pytest.param(
            ["merge", "adapter", "--base-model", "b", "--out", "o"],
            "torch",
            "train",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_missing_extra_is_named(
    words: list[str], absent: str, extra: str, tmp_path: Path
) -> None:
    program = (
        "import sys; sys.modules[sys.argv.pop(1)] = None; sys.argv[0] = 'sealtrain'\n"
        "from sealtrain.cli import main; main()"
    )
    for name in ("adapter/adapter_config.json", "b/config.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", program, absent, *words, "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["got"].partition(".")[0]) == (
        ExtraMissing.exit_code,
        "extra-missing",
        absent,
    )
    assert f"sealtrain[{extra}]" in error["hint"]


def test_ctrl_c_in_a_command_ends_it_and_says_how_to_go_on(tmp_path: Path) -> None:
    """As it is typed: between the signal and the exit code, typer has handlers of its own."""
    program = (
        "import os, signal, sys\n"
        # Whoever started the tests in the background has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from sealtrain.keys.identity import Identity\n"
        "Identity.generate = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['sealtrain', 'keygen', 'a', '--out', 'new']\n"
        "from sealtrain.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert "sealtrain resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "loading", ["sealtrain.cli", "click.core", "typer", "sealtrain.errors", "sealtrain.cli.keys"]
)
def test_ctrl_c_while_a_command_is_loaded_shows_no_traceback(loading: str, tmp_path: Path) -> None:
    program = (
        "import os, runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Hasty:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {loading!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Hasty())\n"
        "sys.argv = ['sealtrain', 'keygen', 'a', '--out', 'new']\n"
        "runpy.run_module('sealtrain', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


PLACES = {
    "under a file": "file/out",
    "over a file": "file",
    "where nothing can be made": "/proc/out",
    "too long a name": "n" * 300,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_folder_that_cannot_be_made_is_no_bug(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    program = f"import sys; sys.argv = {['sealtrain', 'keygen', 'a', '--out', place, '--json']!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}from sealtrain.cli import main; main()"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (2, 4)
    assert json.loads(done.stdout)["error"]["code"] != "internal"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"
