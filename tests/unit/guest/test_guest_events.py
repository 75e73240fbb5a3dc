"""What a workload says of its end leaves as what a run in one process would say."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from sealtrain.errors import (
    DataInvalid,
    LeaseStale,
    RecordInvalid,
    SealtrainError,
    TrainingDiverged,
    UsageError,
)
from sealtrain.guest.sandbox.events import described, restated, told
from sealtrain.guest.sandbox.files import PlaceRefused

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


@pytest.mark.claim("C108")
@pytest.mark.parametrize("logs", ["none", "error-summary", "structured"])
@pytest.mark.parametrize("name", ERRORS)
def test_two_processes_say_what_one_says(name: str, logs: Any) -> None:
    with pytest.raises(SealtrainError) as one:
        told(lambda: fail(ERRORS[name]()), logs, lambda: COUNTS, scripts=SCRIPTS)
    try:
        fail(ERRORS[name]())
    except BaseException as error:
        said = described(error, SCRIPTS)
    two = restated(said, logs, COUNTS, {"train.py": TEXT})
    assert type(two) is type(one.value)
    assert two.to_dict() == one.value.to_dict()
    assert "a record" not in str(two.to_dict())


def test_a_fault_of_the_machine_stays_one() -> None:
    said = described(OSError(errno.ENOSPC, "a record", "a record"), SCRIPTS)
    left = restated(said, "none", COUNTS, {"train.py": TEXT})
    assert "a record" not in str(left.to_dict())
    assert left.code == "storage-failed"


def test_what_a_runner_waits_for_is_not_the_scripts_to_say() -> None:
    said = described(LeaseStale("a record"), SCRIPTS)
    assert restated(said, "none", {}, {"train.py": TEXT}).code == "script-failed"
