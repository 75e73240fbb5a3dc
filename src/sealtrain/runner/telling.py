"""What a failed run may say of its failure: a typed event, as far as the release policy goes.

Between the release of keys and the manifest any text may quote a record: messages, tracebacks,
names of files, a host that a library looked up. What leaves is the class of the error, its code and
the text that the reference has for it; of what is no error of ours, that it happened.

| `logs` | leaves |
|---|---|
| `none` | code of what stood in the way outside the data; `data-invalid` for faults of the data |
| `error-summary` | code of any error |
| `structured` | also the kind of exception, the scripts' line, and counts of what was not said |
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeVar

from sealtrain.errors import (
    DataInvalid,
    EgressRefused,
    ImportRefused,
    SealtrainError,
    TrainingFailed,
    UsageError,
)
from sealtrain.runner.egress import WRITE_REFUSED

__all__ = ["Logs", "told"]

Logs = Literal["none", "error-summary", "structured"]
Done = TypeVar("Done")
_PAGE = "docs/reference/errors.md says what it means; the release policy lets no more out"


def told(
    work: Callable[[], Done],
    logs: Logs,
    counts: Callable[[], dict[str, int]],
    *,
    scripts: Mapping[str, str] = MappingProxyType({}),
) -> Done:
    """Do ``work``; what goes wrong leaves as a typed event only.

    Args:
        work: Holds plaintext.
        logs: The recipe's ``release_policy.logs``.
        counts: What was printed, logged or refused so far, by event.
        scripts: File of each script of the user's own, with its name in the recipe.

    Raises:
        SealtrainError: In place of whatever was raised, without its text, cause or context.
        KeyboardInterrupt: Without text.
    """
    event: BaseException
    try:
        return work()
    except KeyboardInterrupt:
        event = KeyboardInterrupt()
    except BaseException as error:
        event = _event(error, logs, counts(), scripts)
    raise event  # outside the handlers, so that nothing refers to the original any more


def _event(
    error: BaseException, logs: Logs, counts: dict[str, int], scripts: Mapping[str, str]
) -> SealtrainError:
    kind = _kind(error, scripts)
    if logs == "none" and issubclass(kind, DataInvalid):
        kind = DataInvalid
    if logs != "structured":
        return kind(_meaning(kind), hint=_PAGE)
    said = ", ".join(f"{name} {count}" for name, count in counts.items())
    return kind(_meaning(kind), check=_where(error, kind, scripts), got=said or None, hint=_PAGE)


def _kind(error: BaseException, scripts: Mapping[str, str]) -> type[SealtrainError]:
    if isinstance(error, SealtrainError):
        return next(
            kind for kind in type(error).__mro__ if kind.__module__ == SealtrainError.__module__
        )
    if isinstance(error, PermissionError) and error.strerror == WRITE_REFUSED:
        return EgressRefused
    if isinstance(error, ModuleNotFoundError):
        return ImportRefused
    return UsageError if scripts else TrainingFailed


def _meaning(kind: type[SealtrainError]) -> str:
    return (kind.__doc__ or "").splitlines()[0]


def _where(error: BaseException, kind: type[SealtrainError], scripts: Mapping[str, str]) -> str:
    """Kind of exception, and its last line in a script. A class of unknown make has no name."""
    name = type(error).__name__
    if isinstance(error, SealtrainError):
        name = kind.__name__
    elif getattr(builtins, name, None) is not type(error):
        name = "exception"
    return f"{name}{_line_in(scripts, error)}"


def _line_in(scripts: Mapping[str, str], error: BaseException) -> str:
    line, place = "", error.__traceback__
    while place is not None:
        script = scripts.get(place.tb_frame.f_code.co_filename)
        if script is not None:
            line = f", {script} line {place.tb_lineno}"
        place = place.tb_next
    return line
