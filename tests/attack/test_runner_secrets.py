"""Secrets planted wherever a library might say them come out nowhere.

A process of its own does what a run does: hushed, confined, locked down for good. Its job says a
secret through every channel there is; streams, files and the core dump setting are looked at.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
from remains import ended
from variants import variants

from sealtrain.errors import (
    DataInvalid,
    EgressRefused,
    LeaseStale,
    SealtrainError,
    StorageFailed,
    UsageError,
    every_error,
)
from sealtrain.guest.errors import ScriptFailed, TrainingFailed
from sealtrain.guest.sandbox.events import Named, run_telling
from sealtrain.guest.sandbox.files import PlaceRefused
from sealtrain.guest.sandbox.output import OutputTally, hush
from sealtrain.guest.sandbox.programs import ProgramRefused
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.tokenizerfacts import without_template
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch

pytestmark = [pytest.mark.long, pytest.mark.claim("C35")]
SECRET = "secret-4be1a7"  # noqa: S105


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
    places = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    done = ended(
        "runner_victim", folder / "run", job, logs, SECRET,
        timeout=300, cwd=folder / "home", forked=True,
        **{**places, "PYTHONDONTWRITEBYTECODE": "1"} | environment,
    )  # fmt: skip
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


UNDER_EVERY_POLICY = ("raises", "raises_a_record_error", "writes_a_file")
FAILING = {
    "raises": ("training-failed", 1),
    "raises_in_a_collator": ("training-failed", 1),
    "raises_a_record_error": ("record-invalid", 5),
    "exits_with_text": ("training-failed", 1),
    "chains": ("training-failed", 1),
    "looks_a_name_up": ("egress-refused", 3),
    "writes_a_file": ("egress-refused", 3),
}


@pytest.mark.parametrize(
    ("job", "logs"),
    variants(
        product(FAILING, ["none", "error-summary", "structured"]),
        each_time=[
            *product(FAILING, ["structured"]),
            *product(UNDER_EVERY_POLICY, ["none", "error-summary"]),
        ],
    ),
)
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
            run_telling(fail, logs, dict)  # type: ignore[arg-type]
        assert SECRET not in str(left.value.to_dict())
        assert left.value.__cause__ is None
        assert left.value.__context__ is None


def test_a_refusal_from_outside_keeps_its_code_under_none() -> None:
    def refused() -> None:
        raise LeaseStale(SECRET)

    with pytest.raises(LeaseStale) as left:
        run_telling(refused, "none", dict)
    assert SECRET not in str(left.value.to_dict())


def test_a_class_made_of_a_record_is_not_named() -> None:
    disguised = type(SECRET, (RecordInvalid,), {"code": SECRET})
    foreign = type(SECRET, (Exception,), {})

    def fail(kind: type[Exception]) -> None:
        raise kind("x")

    with pytest.raises(RecordInvalid) as left:
        run_telling(lambda: fail(disguised), "structured", dict)
    assert SECRET not in str(left.value.to_dict()) + type(left.value).__name__
    with pytest.raises(TrainingFailed) as failed:
        run_telling(lambda: fail(foreign), "structured", dict)
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


NAMED = Named(datasets=frozenset({("clinic-a", "notes")}), columns=frozenset({"prompt"}))


@pytest.mark.claim("C576")
@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
def test_a_fault_of_a_public_model_is_told_in_words(logs: str) -> None:
    def fail() -> None:
        raise without_template()

    def secretly() -> None:
        raise ModelInvalid(f"the tokenizer says {SECRET}", got=SECRET, hint=SECRET)

    public = replace(NAMED, public_model=True)
    with pytest.raises(ModelInvalid) as left:
        run_telling(fail, logs, dict, named=public)  # type: ignore[arg-type]
    words = without_template()
    assert (left.value.message, left.value.hint) == (words.message, words.hint)
    with pytest.raises(ModelInvalid) as left:
        run_telling(secretly, logs, dict, named=public)  # type: ignore[arg-type]
    assert SECRET not in str(left.value.to_dict())
    # Of a model that owners sealed, or with a script, nothing is told.
    for named, scripts in ((NAMED, {}), (public, {__file__: "train.py"})):
        with pytest.raises(DataInvalid) as kept:
            run_telling(fail, logs, dict, named=named, scripts=scripts)  # type: ignore[arg-type]
        assert kept.value.message != words.message


class _Alike(str):
    """Equal to any name, and reads otherwise."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@pytest.mark.claim("C108")
@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
def test_a_fault_of_the_data_names_what_the_recipe_names(logs: str) -> None:
    def fail() -> None:
        raise SchemaMismatch(
            SECRET, owner="clinic-a", dataset="notes", column="prompt", got=SECRET, hint=SECRET
        )

    with pytest.raises(DataInvalid) as left:
        run_telling(fail, logs, dict, named=NAMED)  # type: ignore[arg-type]
    said = left.value.to_dict()
    assert (said["owner"], said["dataset"], said["column"]) == ("clinic-a", "notes", "prompt")
    assert SECRET not in str(said)


@pytest.mark.claim("C108")
@pytest.mark.parametrize("of_script", [False, True])
@pytest.mark.parametrize(
    "place",
    [
        {"owner": SECRET, "dataset": SECRET, "column": SECRET},
        {"owner": _Alike(SECRET), "dataset": _Alike(SECRET), "column": _Alike(SECRET)},
        {"dataset": "notes", "owner": SECRET},
    ],
)
def test_no_other_name_leaves(place: dict[str, str], of_script: bool) -> None:
    def fail() -> None:
        raise RecordInvalid("x", **place)  # type: ignore[arg-type]

    scripts = {__file__: "train.py"} if of_script else {}
    with pytest.raises(DataInvalid) as left:
        run_telling(fail, "none", dict, scripts=scripts, named=NAMED)
    assert not {"owner", "dataset", "column"} & set(left.value.to_dict())
    assert SECRET not in str(left.value.to_dict())


@pytest.mark.claim("C108")
def test_a_script_says_nothing_by_the_place_it_names() -> None:
    def fail() -> None:
        raise RecordInvalid("x", owner="clinic-a", dataset="notes", column="prompt")

    with pytest.raises(DataInvalid) as left:
        run_telling(fail, "structured", dict, scripts={__file__: "train.py"}, named=NAMED)
    assert not {"owner", "dataset", "column"} & set(left.value.to_dict())


def test_our_own_words_leave_and_no_others() -> None:
    import sealtrain.guest.script as module  # its words, as a run without scripts has them loaded

    def ours() -> None:
        module.unwrap_dataset()

    def theirs() -> None:
        raise UsageError(f"a row: {SECRET}", hint=f"call it with {SECRET}")

    with pytest.raises(UsageError) as said:
        ours()
    for scripts in ({}, {__file__: "train.py"}):
        with pytest.raises(UsageError) as left:
            run_telling(ours, "none", dict, scripts=scripts)
        assert (left.value.message, left.value.hint) == (said.value.message, said.value.hint)
        with pytest.raises(UsageError) as hidden:
            run_telling(theirs, "structured", dict, scripts=scripts)
        assert SECRET not in str(hidden.value.to_dict())


@pytest.mark.claim("C108")
def test_a_script_says_nothing_by_the_words_it_picks() -> None:
    import sealtrain.guest.script as module

    with pytest.raises(UsageError) as ours:
        module.unwrap_dataset()
    message, hint = ours.value.message, ours.value.hint
    another = "several datasets have this name"
    picked = [
        TrainingFailed(message, hint=hint),
        UsageError(message, hint="leave map_style out"),
        UsageError(another, hint=hint),
        UsageError(_Alike(message), hint=hint),
        UsageError("Names of the modules, and of the packages they lie in."),
    ]
    for error in picked:

        def fail(error: SealtrainError = error) -> None:
            raise error

        with pytest.raises(type(error)) as left:
            run_telling(fail, "structured", dict, scripts={__file__: "train.py"})
        assert left.value.message not in {message, another, error.message}
        assert left.value.hint not in {hint, error.hint}


@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
def test_a_scripts_own_error_is_no_wrong_command_line(logs: str) -> None:
    def fail() -> None:
        raise KeyError(SECRET)

    with pytest.raises(ScriptFailed) as left:
        run_telling(fail, logs, dict, scripts={__file__: "train.py"})  # type: ignore[arg-type]
    assert SECRET not in str(left.value.to_dict())
    assert ("train.py line" in (left.value.check or "")) == (logs == "structured")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_a_full_disk_is_none_of_the_data(number: int) -> None:
    def fail() -> None:
        raise OSError(number, SECRET, SECRET)

    with pytest.raises(StorageFailed) as left:
        run_telling(fail, "none", dict)
    assert SECRET not in str(left.value.to_dict())
    assert left.value.exit_code == 4


@pytest.mark.claim("C108")
@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
@pytest.mark.parametrize("disguise", disguises())
def test_only_classes_of_our_own_speak(disguise: str, logs: str) -> None:
    def fail() -> None:
        raise disguises()[disguise]()

    with pytest.raises(SealtrainError) as left:
        run_telling(fail, logs, dict)  # type: ignore[arg-type]
    assert type(left.value) in every_error()
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
        run_telling(fail, "error-summary", dict)
    assert SECRET not in str(left.value.to_dict())
    assert (left.value.to_dict()["code"], left.value.exit_code) == ("record-invalid", 5)


def test_a_refused_write_is_an_egress(tmp_path: Path) -> None:
    from sealtrain.guest.sandbox.network import confine_to

    def write() -> None:
        (tmp_path / SECRET).write_text(SECRET)

    with (
        confine_to("http://127.0.0.1:1", writable=[]),
        pytest.raises(EgressRefused) as left,
    ):
        run_telling(write, "structured", dict)
    assert SECRET not in str(left.value.to_dict())


def test_the_terminal_speaks_while_everything_else_is_silent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tally = OutputTally()
    with hush(tally) as terminal:
        terminal.write("our bar\n")
        print("a record")
        os.write(1, b"a record")
    print("after")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("after\n", "our bar\n")
    assert tally.counts == {"printed": 1}
