"""``sealtrain rehearse``: one command plays every part of a run, and its refusals are its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from polling import wait_until
from stage import RECIPE, interpreter, records
from variants import variants

from sealtrain.base.files import TEMPORARY_SUFFIX
from sealtrain.cli import programs

pytestmark = pytest.mark.long

OWNERS = ("clinic-a", "clinic-b", "clinic-c")


def rehearse(folder: Path, *words: str | Path) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [interpreter(), "-m", "sealtrain", "rehearse", *map(str, words), "--json"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=290,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def command_lines() -> list[str]:
    """Of every process that runs now, with its working folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append(f"{line} in {path.with_name('cwd').readlink()}")
    return found


@pytest.fixture
def given(tmp_path: Path) -> list[str | Path]:
    """Words for a short recipe and its data."""
    recipe = RECIPE | {"trainer": RECIPE["trainer"] | {"max_steps": 4}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words: list[str | Path] = ["recipe.yaml"]
    for dataset in recipe["datasets"]:
        key = f"{dataset['owner']}.{dataset['name']}"
        (tmp_path / f"{key}.jsonl").write_text(records(dataset["owner"]))
        words += ["--records", f"{key}={key}.jsonl"]
    return words


@pytest.mark.slow
@pytest.mark.nightly
def test_one_command_plays_the_whole_run(tmp_path: Path, given: list[str | Path]) -> None:
    code, answer, talk = rehearse(
        tmp_path,
        *given,
        "--seal-as",
        "clinic-a.notes=--padding bucket",
        "--out",
        "played",
        "--tee",
        "nitro",
        "--brokers",
        "3",
        "--threshold",
        "2",
    )
    assert code == 0, talk
    assert talk.startswith("SIMULATED — NOT ATTESTED")
    assert answer["trained"]["steps"] == 4
    assert answer["trained"]["simulated"] is True
    checks = {check["name"]: check for check in answer["verified"]["checks"]}
    assert all(check["outcome"] != "failed" for check in checks.values())
    assert checks["releases"]["detail"].startswith("3 release by 3 brokers")
    report = Path(answer["report"]).read_text()
    assert report.startswith("<!doctype html>")
    assert "NSM document" in report  # an enclave's evidence carried the manifest
    assert (Path(answer["model"]) / "model.safetensors").is_file()


def test_half_of_the_brokers_are_no_threshold(tmp_path: Path, given: list[str | Path]) -> None:
    for words in (["--brokers", "4", "--threshold", "2"], ["--brokers", "3"]):
        code, answer, _ = rehearse(tmp_path, *given, "--out", "played", *words)
        assert (code, answer["error"]["code"]) == (2, "usage")
        assert not (tmp_path / "played").exists()


def test_data_that_are_not_the_recipes_are_refused(tmp_path: Path, given: list[str | Path]) -> None:
    code, answer, _ = rehearse(tmp_path, *given[:-2], "--out", "played")
    assert (code, answer["error"]["code"]) == (2, "usage")
    assert "clinic-a.check" in answer["error"]["expected"]


def test_a_folder_that_holds_something_is_left_alone(
    tmp_path: Path, given: list[str | Path]
) -> None:
    (tmp_path / "played").mkdir()
    (tmp_path / "played" / "mine.txt").write_text("mine")
    code, answer, _ = rehearse(tmp_path, *given, "--out", "played")
    assert (code, answer["error"]["code"]) == (2, "already-exists")
    assert [path.name for path in (tmp_path / "played").iterdir()] == ["mine.txt"]


@pytest.mark.nightly
def test_a_step_that_refuses_says_why_and_leaves_no_process(
    tmp_path: Path, given: list[str | Path]
) -> None:
    words = [*given, "--seal-as", "clinic-b.notes=--padding much", "--out", "played"]
    code, answer, _ = rehearse(tmp_path, *words)
    assert code == 2
    assert answer["error"]["message"].startswith("seal: ")
    nothing_runs(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "code"),
    [
        ("clinic-b.notes.jsonl", "{broken\n", "record-invalid"),
        ("clinic-b.notes.jsonl", '{"prompt": "a"}\n', "schema-mismatch"),
        ("recipe.yaml", None, "recipe-invalid"),
    ],
)
def test_recipe_and_data_are_judged_before_anything_starts(
    tmp_path: Path, given: list[str | Path], file: str, text: str | None, code: str
) -> None:
    if text is None:
        recipe = yaml.safe_load((tmp_path / file).read_text())
        recipe["release_policy"]["metrics"] = ["lss"]
        text = yaml.safe_dump(recipe)
    (tmp_path / file).write_text(text)
    _, answer, _ = rehearse(tmp_path, *given, "--out", "played")
    assert answer["error"]["code"] == code
    assert not list((tmp_path / "played").glob("*"))


SCRIPT = """
import sys
import warnings
import sealtrain
print("printed by the script")
warnings.warn("warned by the script")
data = sealtrain.unwrap_dataset()
raise RuntimeError("what the engineer needs to read")
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_rehearsal_shows_what_a_script_prints_and_its_whole_traceback(
    tmp_path: Path, given: list[str | Path]
) -> None:
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"scripts": ["mine.py"]}))
    (tmp_path / "mine.py").write_text(SCRIPT)
    code, answer, talk = rehearse(tmp_path, *given, "--out", "played")
    assert code != 0
    for told in ("printed by the script", "warned by the script", "Traceback", "mine.py", "line 8"):
        assert told in talk, talk
    assert "RuntimeError: what the engineer needs to read" in talk
    assert "needs to read" not in json.dumps(answer)  # what is recorded stays a code
    nothing_runs(tmp_path)


LAST = "guest/app-compose.json"


@pytest.mark.slow
@pytest.mark.claim("C274")
@pytest.mark.parametrize(
    ("until", "ending"),
    variants(
        product(
            ["consortium.json", "broker-guest/app-compose.json", "sealed", LAST],
            [signal.SIGKILL, signal.SIGTERM],
        ),
        each_time=[("broker-guest/app-compose.json", signal.SIGTERM)],
    ),
)
def test_a_rehearsal_that_a_signal_ends_leaves_no_server(
    tmp_path: Path, given: list[str | Path], until: str, ending: signal.Signals
) -> None:
    """Told to end, it leaves no scratch folder and no file that is written in part, either."""
    command = [sys.executable, "-m", "sealtrain", "rehearse", *map(str, given), "--out", "played"]
    scratch, played = tmp_path / "scratch", tmp_path / "played"
    scratch.mkdir()
    with (tmp_path / "rehearsal.log").open("wb") as log:
        rehearsal = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | {"TMPDIR": str(scratch)},
            stdout=log,
            stderr=log,
        )
    wait_until((played / until).exists)
    wait_until(lambda: len([line for line in command_lines() if str(tmp_path) in line]) > 1)
    rehearsal.send_signal(ending)
    assert rehearsal.wait(60) == (130 if ending == signal.SIGTERM else -ending)
    nothing_runs(tmp_path)
    if ending == signal.SIGTERM:
        assert list(scratch.iterdir()) == []
        assert [path for path in played.rglob(f"*{TEMPORARY_SUFFIX}*") if path.is_file()] == []


SLOW_STEP = """
import pathlib, time
part = pathlib.Path("step.tmp")
part.touch()
try:
    time.sleep(60)
finally:
    time.sleep(1)
    part.unlink()
"""


def test_a_step_that_is_interrupted_removes_what_it_wrote_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to end and has time to: killed, it would leave its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(programs, "program", lambda words: [sys.executable, "-c", SLOW_STEP])
    part = tmp_path / "step.tmp"
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
    terminated = signal.signal(signal.SIGTERM, signal.default_int_handler)

    def interrupt() -> None:
        wait_until(part.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        with ThreadPoolExecutor() as beside:
            beside.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                programs.ran("seal")
    finally:
        signal.signal(signal.SIGINT, ignored)
        signal.signal(signal.SIGTERM, terminated)
    assert not part.exists()


def nothing_runs(folder: Path) -> None:
    """Assert it soon: a simulated guest ends once it sees that its program did."""
    wait_until(lambda: not any(str(folder) in line for line in command_lines()), 10)


def test_a_model_that_is_handed_on_is_not_rehearsed(
    tmp_path: Path, given: list[str | Path]
) -> None:
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    recipe["release_policy"]["model"] = {"handed_on": {"deployment": "room/app-compose.json"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    code, answer, _ = rehearse(tmp_path, *given, "--out", tmp_path / "out")
    assert (code, answer["error"]["code"]) == (2, "usage")
    assert not list((tmp_path / "out").glob("*"))
