"""The failure of a run as a typed event, with as much detail as the release policy allows.

Between the release of keys and the manifest any text may quote a record: messages, tracebacks,
names of files, a host that a library looked up. Only the class of an error leaves, with its code
and the text that the reference has for it; of a foreign exception only that it happened leaves.
Only the classes of ``sealtrain.errors`` count, as they were when this module was loaded: a script
can make subclasses of them, name them as it likes, and write into their attributes.

| `logs` | leaves |
|---|---|
| `none` | code of an error outside the data; `data-invalid` for faults of the data |
| `error-summary` | code of any error |
| `structured` | also the kind of exception, the scripts' line, and counts of dropped output |

A refused program is named at every level, if it is a file that the run did not make: the engineer
has to know which program to do without.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from sealtrain import errors
from sealtrain.errors import (
    DataInvalid,
    EgressRefused,
    ImportRefused,
    SealtrainError,
    TrainingFailed,
    UsageError,
)
from sealtrain.guest.sandbox.files import PlaceRefused
from sealtrain.guest.sandbox.network import program_to_name
from sealtrain.guest.sandbox.programs import ProgramRefused

__all__ = ["Logs", "told"]

Logs = Literal["none", "error-summary", "structured"]
Done = TypeVar("Done")
_WITHOUT_PROGRAM: Final = "switch off what starts it: nothing inside a run starts a program"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A class of error as the source has it."""

    code: str
    exit_code: int
    meaning: str


# By identity, and not by ``==`` or ``hash``, which a class of a script's making can override.
_KNOWN: Final = MappingProxyType(
    {
        id(kind): (
            kind,
            _Known(
                code=kind.code,
                exit_code=kind.exit_code,
                meaning=(kind.__doc__ or "").splitlines()[0],
            ),
        )
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, SealtrainError)
        and kind is not SealtrainError
    }
)


def told(
    work: Callable[[], Done],
    logs: Logs,
    counts: Callable[[], dict[str, int]],
    *,
    scripts: Mapping[str, str] = MappingProxyType({}),
) -> Done:
    """Do ``work``; a failure leaves as a typed event only.

    Args:
        work: Holds plaintext.
        logs: The recipe's ``release_policy.logs``.
        counts: Gives the counts of dropped output and refused calls so far, by event.
        scripts: File of each script of the user's own, with its name in the recipe.

    Raises:
        SealtrainError: In place of any exception, without its text, cause or context.
        KeyboardInterrupt: Without text.
    """
    event: BaseException
    try:
        return work()
    except KeyboardInterrupt:
        event = KeyboardInterrupt()
    except BaseException as error:
        event = _event(error, logs, counts(), scripts)
    raise event  # outside the handlers, so that it does not refer to the original


def _event(
    error: BaseException, logs: Logs, counts: dict[str, int], scripts: Mapping[str, str]
) -> SealtrainError:
    kind = _kind(error, scripts)
    if logs == "none" and issubclass(kind, DataInvalid):
        kind = DataInvalid
    known = _KNOWN[id(kind)][1]
    check = got = None
    hint = f"sealtrain explain {known.code} says more; the release policy lets no more out"
    if logs == "structured":
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        check, got = _where(error, kind, scripts), said or None
    program = program_to_name(error) if type(error) is ProgramRefused else None
    if program is not None:
        check, got, hint = "program", program, _WITHOUT_PROGRAM
    left = kind(known.meaning, check=check, got=got, hint=hint)
    # The class may have been written into since.
    left.code, left.exit_code = known.code, known.exit_code  # type: ignore[misc]
    return left


def _kind(error: BaseException, scripts: Mapping[str, str]) -> type[SealtrainError]:
    for kind in type.mro(type(error)):
        if id(kind) in _KNOWN:
            return _KNOWN[id(kind)][0]
    if type(error) in (PlaceRefused, ProgramRefused):
        return EgressRefused
    if isinstance(error, ModuleNotFoundError):
        return ImportRefused
    return UsageError if scripts else TrainingFailed


def _where(error: BaseException, kind: type[SealtrainError], scripts: Mapping[str, str]) -> str:
    """Kind of exception, and its last line in a script. A class from elsewhere is not named."""
    name = type(error).__name__
    if isinstance(error, (SealtrainError, PlaceRefused, ProgramRefused)):
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
