"""Secrets planted wherever a library might say them come out nowhere.

A process of its own does what a run does: hushed, confined, locked down for good. Its job says a
secret through every channel there is; streams, files and the core dump setting are looked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sealtrain import errors
from sealtrain.errors import (
    DataInvalid,
    EgressRefused,
    LeaseStale,
    RecordInvalid,
    SealtrainError,
    TrainingFailed,
)
from sealtrain.guest.sandbox.events import told
from sealtrain.guest.sandbox.files import PlaceRefused
from sealtrain.guest.sandbox.output import Tally, hushed
from sealtrain.guest.sandbox.programs import ProgramRefused

pytestmark = pytest.mark.claim("C35")
SECRET = "secret-4be1a7"  # noqa: S105
VICTIM = Path(__file__).resolve().parents[1] / "support" / "runner_victim.py"


@dataclass
class Said:
    """All that came out of a victim."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def answer(self) -> dict[str, object]:
        answer: dict[str, object] = json.loads(self.stdout)
        return answer

    def everything(self) -> str:
        files = [
            path.read_text(errors="replace") + path.name
            for path in self.folder.rglob("*")
            if path.is_file()
        ]
        return "\n".join([self.stdout, self.stderr, *files])


def victim(folder: Path, job: str, logs: str, **environment: str) -> Said:
    for name in ("home", "tmp", "run"):
        (folder / name).mkdir()
    done = subprocess.run(
        [sys.executable, str(VICTIM), str(folder / "run"), job, logs, SECRET],
        cwd=folder / "home",
        env={
            **os.environ,
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Said(done.returncode, done.stdout, done.stderr, folder)


TALKING = (
    "prints",
    "prints_in_c",
    "writes_to_descriptors",
    "logs",
    "logs_with_own_handler",
    "warns",
    "fails_in_a_thread",
    "fails_in_a_destructor",
    "fails_in_a_child",
)


@pytest.mark.parametrize("job", TALKING)
def test_what_is_said_is_dropped_and_counted(job: str, tmp_path: Path) -> None:
    said = victim(tmp_path, job, "structured")
    assert said.code == 0, said.stderr
    assert SECRET not in said.everything()
    if job not in ("prints_in_c", "writes_to_descriptors", "fails_in_a_child"):
        assert said.answer["counts"], "nothing was counted, so nothing was said"


FAILING = {
    "raises": ("training-failed", 1),
    "raises_in_a_collator": ("training-failed", 1),
    "raises_a_record_error": ("record-invalid", 5),
    "exits_with_text": ("training-failed", 1),
    "chains": ("training-failed", 1),
    "looks_a_name_up": ("egress-refused", 3),
    "writes_a_file": ("egress-refused", 3),
}


@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
@pytest.mark.parametrize("job", FAILING)
def test_what_is_raised_leaves_as_its_code(job: str, logs: str, tmp_path: Path) -> None:
    # The switch that prints whole tracebacks, for those who may see the data, shows none either.
    said = victim(tmp_path, job, logs, SEALTRAIN_DEBUG_TRACEBACK="may-show-data")
    code, exit_code = FAILING[job]
    if logs == "none" and exit_code == 5:
        code = "data-invalid"
    assert (said.code, said.answer["code"]) == (exit_code, code)
    assert SECRET not in said.everything()
    assert ("check" in said.answer) == (logs == "structured")


@pytest.mark.parametrize("job", ["crashes", "aborts_in_c"])
def test_a_crash_leaves_neither_words_nor_memory(job: str, tmp_path: Path) -> None:
    said = victim(tmp_path, job, "none", PYTHONFAULTHANDLER="1")
    assert said.code < 0
    assert SECRET not in said.everything()
    assert (said.stdout, said.stderr) == ("", "")
    assert not list(tmp_path.rglob("core*"))


def test_no_core_is_dumped_and_nobody_reads_the_memory(tmp_path: Path) -> None:
    answer = victim(tmp_path, "looks_at_itself", "none").answer
    assert answer["core"] == [0, 0]
    assert answer["dumpable"] == 0


@pytest.mark.claim("C36")
def test_the_kernel_refuses_what_native_code_tries(tmp_path: Path) -> None:
    answer = victim(tmp_path, "goes_around_python", "none").answer
    if answer["landlock"] == 0:
        pytest.skip("this kernel has no Landlock")
    assert answer["inside"] >= 0
    assert {name: answer[name] for name in ("outside", "executed")} == {
        "outside": -1,
        "executed": -1,
    }
    if int(str(answer["landlock"])) >= 4:
        assert answer["connected"] == -1
        assert answer["listening"] == -1
    assert not (tmp_path / "home" / "native").exists()


def test_an_error_carries_neither_its_words_nor_its_cause() -> None:
    def fail() -> None:
        try:
            {}[SECRET]
        except KeyError as error:
            raise RecordInvalid(SECRET, got=SECRET, hint=SECRET) from error

    for logs, kind in (("none", DataInvalid), ("error-summary", RecordInvalid)):
        with pytest.raises(kind) as left:
            told(fail, logs, dict)  # type: ignore[arg-type]
        assert SECRET not in str(left.value.to_dict())
        assert left.value.__cause__ is None
        assert left.value.__context__ is None


def test_a_refusal_from_outside_keeps_its_code_under_none() -> None:
    def refused() -> None:
        raise LeaseStale(SECRET)

    with pytest.raises(LeaseStale) as left:
        told(refused, "none", dict)
    assert SECRET not in str(left.value.to_dict())


def test_a_class_made_of_a_record_is_not_named() -> None:
    disguised = type(SECRET, (RecordInvalid,), {"code": SECRET})
    foreign = type(SECRET, (Exception,), {})

    def fail(kind: type[Exception]) -> None:
        raise kind("x")

    with pytest.raises(RecordInvalid) as left:
        told(lambda: fail(disguised), "structured", dict)
    assert SECRET not in str(left.value.to_dict()) + type(left.value).__name__
    with pytest.raises(TrainingFailed) as failed:
        told(lambda: fail(foreign), "structured", dict)
    assert SECRET not in str(failed.value.to_dict())


class _Equal(type):
    """Classes that claim to be any other class."""

    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return hash(DataInvalid)

    def mro(cls) -> list[type]:
        return [cls, *type.mro(cls)[1:]]


def disguises() -> dict[str, Callable[[], BaseException]]:
    """Errors that a script makes so that words of its own leave with them."""
    told_of = {
        "__doc__": SECRET,
        "code": SECRET,
        "exit_code": 99,
        "__module__": DataInvalid.__module__,
    }
    named = {**told_of, "__qualname__": "DataInvalid"}

    def on_the_instance() -> BaseException:
        error = RecordInvalid(SECRET)
        error.code = SECRET  # type: ignore[misc]
        error.exit_code = 99  # type: ignore[misc]
        return error

    return {
        "module": lambda: type("DataInvalid", (SealtrainError,), named)("x"),
        "subclass": lambda: type("DataInvalid", (RecordInvalid,), named)("x"),
        "equal": lambda: _Equal(SECRET, (SealtrainError,), dict(told_of))("x"),
        "instance": on_the_instance,
        "program": lambda: type("ProgramRefused", (ProgramRefused,), named)(SECRET),
        "place": lambda: type("PlaceRefused", (PlaceRefused,), named)(),
        "words of the system": lambda: PermissionError(13, SECRET, SECRET),
    }


@pytest.mark.claim("C108")
@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
@pytest.mark.parametrize("disguise", disguises())
def test_only_classes_of_our_own_speak(disguise: str, logs: str) -> None:
    def fail() -> None:
        raise disguises()[disguise]()

    with pytest.raises(SealtrainError) as left:
        told(fail, logs, dict)  # type: ignore[arg-type]
    ours = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert type(left.value) in ours
    assert left.value.code == type(left.value).code
    assert left.value.exit_code == type(left.value).exit_code
    said = f"{left.value.to_dict()} {left.value!r} {left.value.exit_code}"
    assert SECRET not in said
    assert "99" not in said


@pytest.mark.claim("C108")
def test_what_a_script_writes_into_our_classes_does_not_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        monkeypatch.setattr(RecordInvalid, "__doc__", SECRET)
        monkeypatch.setattr(RecordInvalid, "code", SECRET)
        monkeypatch.setattr(RecordInvalid, "exit_code", 99)
        raise RecordInvalid(SECRET)

    with pytest.raises(RecordInvalid) as left:
        told(fail, "error-summary", dict)
    assert SECRET not in str(left.value.to_dict())
    assert (left.value.to_dict()["code"], left.value.exit_code) == ("record-invalid", 5)


def test_a_refused_write_is_an_egress(tmp_path: Path) -> None:
    from sealtrain.guest.sandbox.network import confined_to

    def write() -> None:
        (tmp_path / SECRET).write_text(SECRET)

    with (
        confined_to("http://127.0.0.1:1", writable=[]),
        pytest.raises(EgressRefused) as left,
    ):
        told(write, "structured", dict)
    assert SECRET not in str(left.value.to_dict())


def test_the_terminal_speaks_while_everything_else_is_silent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tally = Tally()
    with hushed(tally) as terminal:
        terminal.write("our bar\n")
        print("a record")
        os.write(1, b"a record")
    print("after")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("after\n", "our bar\n")
    assert tally.counts == {"printed": 1}
