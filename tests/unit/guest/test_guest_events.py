"""What a workload says of its end leaves as what a run in one process would say."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from sealtrain.errors import DataInvalid, LeaseStale, SealtrainError, UsageError, error_by_code
from sealtrain.guest.sandbox.events import Named, describe_failure, restate_failure, run_telling
from sealtrain.guest.sandbox.files import PlaceRefused
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.errors import PrivacyBroken, TrainingDiverged
from sealtrain.training.finite import refuse_not_finite
from sealtrain.training.privacy.record import privacy_record

TEXT = "import sealtrain\n\ndef fail(error):\n    raise error\n"
SCRIPTS = {"/copies/train.py": "train.py"}
COUNTS = {"printed": 3, "warned": 1}


def fail(error: BaseException) -> None:
    """Raise it in a line of a script."""
    names: dict[str, Any] = {}
    exec(compile(TEXT, "/copies/train.py", "exec"), names)  # noqa: S102
    names["fail"](error)


def ours() -> UsageError:
    """A refusal of what scripts call, with its words."""
    from sealtrain.guest.script import unwrap_dataset

    with pytest.raises(UsageError) as refused:
        unwrap_dataset()
    return UsageError(refused.value.message, hint=refused.value.hint)


ERRORS: dict[str, Any] = {
    "python's": lambda: KeyError("a record"),
    "a module that is not there": lambda: ModuleNotFoundError("a record"),
    "a file elsewhere": PlaceRefused,
    "of the data": lambda: RecordInvalid("a record", owner="clinic-a", got="a record"),
    "words of ours": ours,
    "words of a script": lambda: UsageError("a record", hint="a record"),
    "a loss": lambda: TrainingDiverged("a record", check="step 3", got="nan"),
    "exit": lambda: SystemExit("a record"),
    "a class of a script's": type("Record", (Exception,), {}),
    "a subclass of ours": lambda: type("Record", (DataInvalid,), {"code": "a record"})("a record"),
}


NAMED = Named(
    datasets=frozenset({("clinic-a", "notes")}), columns=frozenset({"prompt"}), public_model=True
)


def diverged() -> SealtrainError:
    with pytest.raises(TrainingDiverged) as raised:
        refuse_not_finite(3, {"eval_loss": float("inf")})
    return raised.value


def without_floor() -> SealtrainError:
    """A refusal of a phase, in its own words."""
    work = SimpleNamespace(recipe=SimpleNamespace(privacy=SimpleNamespace(dp="sgd")), plan=None)
    with pytest.raises(PrivacyBroken) as raised:
        privacy_record(work, 1)
    return raised.value


OF_PHASES: dict[str, Any] = {name: made for name, made in ERRORS.items() if name != "a loss"} | {
    "of named data": lambda: RecordInvalid(
        "a record", owner="clinic-a", dataset="notes", column="prompt", hint="a record"
    ),
    "of data that nobody named": lambda: RecordInvalid(
        "a record", owner="a record", dataset="a record", column="a record"
    ),
    "a loss that is named": diverged,
    "words of a phase": without_floor,
    "a full disk": lambda: OSError(errno.ENOSPC, "a record", "a record"),
    "a file that is not there": lambda: FileNotFoundError("a record"),
}


@pytest.mark.claim("C108")
@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
@pytest.mark.parametrize("name", OF_PHASES)
def test_a_phase_apart_says_what_one_process_says(name: str, logs: Any) -> None:
    error = OF_PHASES[name]()
    with pytest.raises(SealtrainError) as one:
        run_telling(lambda: raise_(error), logs, lambda: COUNTS, named=NAMED)
    two = restate_failure(
        describe_failure(error, {}), logs, COUNTS, {}, named=NAMED, metrics=["eval_loss"]
    )
    assert type(two) is type(one.value)
    assert two.to_dict() == one.value.to_dict()
    assert "a record" not in str(two.to_dict())


def test_a_training_that_diverged_says_no_word_of_its_own() -> None:
    said = describe_failure(TrainingDiverged("a record", check="a record", got="a record"), {})
    assert "a record" not in str(restate_failure(said, "structured", {}, {}, named=NAMED).to_dict())


def raise_(error: BaseException) -> None:
    raise error


@pytest.mark.claim("C108")
@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
@pytest.mark.parametrize("name", ERRORS)
def test_two_processes_say_what_one_says(name: str, logs: Any) -> None:
    with pytest.raises(SealtrainError) as one:
        run_telling(lambda: fail(ERRORS[name]()), logs, lambda: COUNTS, scripts=SCRIPTS)
    try:
        fail(ERRORS[name]())
    except BaseException as error:
        said = describe_failure(error, SCRIPTS)
    two = restate_failure(said, logs, COUNTS, {"train.py": TEXT})
    assert type(two) is type(one.value)
    assert two.to_dict() == one.value.to_dict()
    assert "a record" not in str(two.to_dict())


def test_a_fault_of_the_machine_stays_one() -> None:
    said = describe_failure(OSError(errno.ENOSPC, "a record", "a record"), SCRIPTS)
    left = restate_failure(said, "none", COUNTS, {"train.py": TEXT})
    assert "a record" not in str(left.to_dict())
    assert left.code == "storage-failed"


def test_what_a_runner_waits_for_is_not_the_scripts_to_say() -> None:
    said = describe_failure(LeaseStale("a record"), SCRIPTS)
    assert restate_failure(said, "none", {}, {"train.py": TEXT}).code == "script-failed"


@pytest.mark.claim("C611")
@pytest.mark.parametrize("code", ["accelerator-unreachable", "dealer-unreachable"])
def test_a_machine_that_a_workload_speaks_with_is_its_to_report(code: str) -> None:
    said = describe_failure(error_by_code(code)("a record", got="a record"), {})
    left = restate_failure(said, "structured", {}, {}, waits={code})
    assert "a record" not in str(left.to_dict())
    assert (left.code, left.exit_code) == (code, 4)
    assert restate_failure(said, "structured", {}, {}).code == "training-failed"
    assert (
        restate_failure(said, "structured", {}, {}, waits={"lease-stale"}).code == "training-failed"
    )
