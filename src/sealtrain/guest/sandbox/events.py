"""The failure of a run as a typed event, with as much detail as the release policy allows.

Between the release of keys and the manifest any text may quote a record: messages, tracebacks,
names of files, a host that a library looked up. Only the class of an error leaves, with its code
and the text that the reference has for it; of a foreign exception only that it happened leaves.
Only the classes of ``sealtrain.error_homes`` count, as they were when this module was loaded: a
script can make subclasses of them, name them as it likes, and write into their attributes.

| `logs` | leaves |
|---|---|
| `none` | code of an error outside the data; `data-invalid` for faults of the data |
| `error-summary` | code of any error |
| `structured` | also the kind of exception, the scripts' line, and counts of dropped output |

Two things leave at every level, because owners approved them or anyone may read them: owner,
dataset and column of a fault, as far as the recipe names them; and of an error that is not about
the data, message and hint, if they stand word for word in sealtrain's own code. A base model that
no owner sealed, and its tokenizer, are not data. A script could
choose among these to say something, so of a recipe with scripts no place leaves, and words only
where class, message and hint are together one refusal of what scripts call, as it was before the
script began: the words then say no more than the code does.

In a run whose code is in a workload (``guest.workload``), that process says what ended it and
the keeper decides, by the same rules, from its own copy of the source: ``describe_failure`` and
``restate_failure``.

A refused program is named at every level, if it is a file that the run did not make: the engineer
has to know which program to do without.
"""

from __future__ import annotations

import ast
import builtins
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias, TypeVar

from sealtrain.base.version import PACKAGES, own_folders
from sealtrain.errors import (
    DataInvalid,
    EgressRefused,
    Refused,
    SealtrainError,
    StorageFailed,
    every_error,
)
from sealtrain.guest.errors import ImportRefused, ScriptFailed, TrainingFailed
from sealtrain.guest.sandbox.files import PlaceRefused
from sealtrain.guest.sandbox.network import program_to_name
from sealtrain.guest.sandbox.programs import ProgramRefused, is_told
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.errors import TrainingDiverged

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe

Logs = Literal["none", "error-summary", "structured"]
Done = TypeVar("Done")
_PACKAGES: Final = tuple(f"{name}." for name in PACKAGES)
_FOR_SCRIPTS: Final = (
    "sealtrain.guest.script",
    "sealtrain.guest.lightning",
    "sealtrain.training.checkpoints.loop",
    "sealtrain.training.distributed.agreement",
    "sealtrain.training.saved_model",
)
"""What scripts call: how it refuses."""
_Saying: TypeAlias = tuple[int, str | None, str | None]
"""Identity of a class of error, its message and its hint."""
_OF_THE_MACHINE: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM}
)
"""Faults of the system that say nothing about data: a full disk, too many open files."""
_LONGEST: Final = 500
_LONGEST_NAME: Final = 128
_SAID: Final = {
    "message": _LONGEST,
    "hint": _LONGEST,
    "owner": _LONGEST_NAME,
    "dataset": _LONGEST_NAME,
    "column": _LONGEST_NAME,
    "check": _LONGEST_NAME,
    "got": _LONGEST,
}
"""What a workload says of an error of ours, with the longest text of each."""
_BEGINNING: Final = 12
_NOT_FINITE: Final = re.compile(r"(nan|-?inf) at step [0-9]{1,16}")
_UNNAMED: Final = "exception"
_WITHOUT_PROGRAM: Final = "switch off what starts it: nothing inside a run starts a program"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A class of error as the source has it."""

    code: str
    exit_code: int
    meaning: str

    @classmethod
    def of(cls, kind: type[SealtrainError]) -> Self:
        """The class as it is now."""
        meaning = (kind.__doc__ or "").splitlines()[0]
        return cls(code=kind.code, exit_code=kind.exit_code, meaning=meaning)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What an approved recipe names.

    Attributes:
        datasets: (owner, dataset name).
        columns: Names of columns, the owners' and the recipe's.
        public_model: The base model and its tokenizer are no owner's, and no run's.
    """

    datasets: frozenset[tuple[str, str]] = frozenset()
    columns: frozenset[str] = frozenset()
    public_model: bool = False

    @classmethod
    def in_recipe(cls, recipe: PhaseRecipe) -> Self:
        """Of a recipe."""
        rules = recipe.validation
        columns = {*recipe.columns.names, *(() if rules is None else rules.columns)}
        for dataset in recipe.datasets:
            columns.update(dataset.columns)
            columns.update(dataset.columns.values())
        return cls(
            datasets=frozenset((dataset.owner, dataset.name) for dataset in recipe.datasets),
            columns=frozenset(columns),
            public_model=recipe.model.kind != "sealed"
            and (recipe.schedule is None or recipe.schedule.continues == "base"),
        )

    def place(self, owner: object, dataset: object, column: object) -> dict[str, str]:
        """Owner, dataset and column that an error names, as far as the recipe has them."""
        found = {}
        if any(_is(owner, named) for named, _name in self.datasets):
            found["owner"] = str(owner)
            if any(_is(owner, o) and _is(dataset, name) for o, name in self.datasets):
                found["dataset"] = str(dataset)
        if any(_is(column, named) for named in self.columns):
            found["column"] = str(column)
        return found


_NOTHING: Final = Named()


class _KnownErrors(NamedTuple):
    """Classes of our own and what they were at first: by identity, by code and by name.

    By identity, and not by ``==`` or ``hash``, which a class of a script's making can override.
    """

    by_id: Mapping[int, tuple[type[SealtrainError], _Known]]
    by_code: Mapping[str, type[SealtrainError]]
    by_name: Mapping[str, type[SealtrainError]]


@cache
def remember_errors() -> _KnownErrors:
    """Remember our own classes as they are now: call it once imports are closed, before any script.

    Rooms that the lock does not pin cannot be imported then, and their classes are left out.
    """
    kinds = [kind for kind in every_error() if kind is not SealtrainError]
    return _KnownErrors(
        by_id=MappingProxyType({id(kind): (kind, _Known.of(kind)) for kind in kinds}),
        by_code=MappingProxyType({kind.code: kind for kind in kinds}),
        by_name=MappingProxyType({kind.__name__: kind for kind in kinds}),
    )


def run_telling(
    work: Callable[[], Done],
    logs: Logs,
    counts: Callable[[], dict[str, int]],
    *,
    scripts: Mapping[str, str] = MappingProxyType({}),
    insecure_shown: bool = False,
    named: Named = _NOTHING,
) -> Done:
    """Do ``work``; a failure leaves as a typed event only.

    Args:
        work: Holds plaintext.
        logs: The recipe's ``release_policy.logs``.
        counts: Gives the counts of dropped output and refused calls so far, by event.
        scripts: File of each script of the user's own, with its name in the recipe.
        insecure_shown: Print the traceback, too: a rehearsal (``sandbox.rehearsed``).
        named: What may be named at every level.

    Raises:
        SealtrainError: In place of any exception, without its text, cause or context.
        KeyboardInterrupt: Without text.
    """
    remember_errors()
    event: BaseException
    sayings = frozenset(_sayings_for_scripts()) if scripts else None
    try:
        return work()
    except KeyboardInterrupt:
        event = KeyboardInterrupt()
    except Restated as judged:
        event = judged.error
    except BaseException as error:
        if insecure_shown:
            traceback.print_exception(error)
        event = _event(error, logs, counts(), scripts, _NOTHING if scripts else named, sayings)
    raise event  # outside the handlers, so that it does not refer to the original


class Restated(Exception):
    """What ended a workload, as far as it may leave.

    Attributes:
        error: The typed event.
    """

    def __init__(self, error: SealtrainError) -> None:
        super().__init__(error.code)
        self.error = error


def describe_failure(error: BaseException, scripts: Mapping[str, str]) -> dict[str, Any]:
    """What a workload says of the error that ended it, for ``restate_failure``.

    Args:
        error: As raised.
        scripts: As ``run_telling``.
    """
    kind = _kind(error, scripts)
    ours = error if type(error) is kind and isinstance(error, SealtrainError) else None
    script, line = _place_in(scripts, error)
    of_system = error.errno if type(error) is OSError else None
    return {
        "code": remember_errors().by_id[id(kind)][1].code,
        **{
            name: None if ours is None else _plain(getattr(ours, name), most)
            for name, most in _SAID.items()
        },
        "errno": of_system if of_system in _OF_THE_MACHINE else None,
        "kind": _name_of(error, kind)[:_LONGEST_NAME],
        "script": script,
        "line": line,
        "program": program_to_name(error) if type(error) is ProgramRefused else None,
    }


def restate_failure(
    said: Mapping[str, Any],
    logs: Logs,
    counts: Mapping[str, int],
    scripts: Mapping[str, str],
    *,
    named: Named = _NOTHING,
    metrics: Collection[str] = (),
    waits: Collection[str] = (),
) -> SealtrainError:
    """The typed event of a workload's end: of its words none leaves that is not known here.

    An error that a runner waits for, such as a broker's, is not the workload's to raise.

    Args:
        said: From ``describe_failure``, by a stranger.
        logs: The recipe's ``release_policy.logs``.
        counts: Of dropped output and refused calls, by event.
        scripts: Text of each script by its name in the recipe.
        named: What may be named at every level of a recipe without scripts.
        metrics: Measurements that the release policy names.
        waits: Codes that it may raise nevertheless: of machines that it speaks with itself.
    """
    kind = remember_errors().by_code.get(said["code"], Refused)
    if id(kind) not in remember_errors().by_id or (
        kind.retry != "never" and kind.code not in waits
    ):
        kind = ScriptFailed if scripts else TrainingFailed
    of_model = kind is ModelInvalid and named.public_model and not scripts
    about_data = issubclass(kind, DataInvalid) and not of_model
    place = named.place(said["owner"], said["dataset"], said["column"])
    about = (said["message"], said["hint"])
    sayings: frozenset[_Saying] = frozenset()
    if scripts:
        sayings = frozenset(_sayings_for_scripts())
    elif not about_data:
        sayings = frozenset(_sayings_of(kind, about))
    if logs == "none" and about_data:
        kind = DataInvalid
    known = remember_errors().by_id[id(kind)][1]
    message, hint = known.meaning, _hint_for(known.code)
    if about_data and "owner" in place:
        hint = _hint_for_owner(place["owner"])
    elif (id(kind), *about) in sayings:
        message, hint = said["message"], said["hint"] or hint
    elif (id(kind), None, said["hint"]) in sayings:
        hint = said["hint"] or hint
    elif kind is StorageFailed and said["errno"] in _OF_THE_MACHINE and not scripts:
        message, hint = _of_the_system(said["errno"])
    check = got = None
    if logs == "structured":
        check, got = _find_known_place(said, kind, scripts), _sum_up(counts)
    if kind is TrainingDiverged and not scripts and logs != "none":
        check, got = _find_diverged(said, metrics)
    program = said["program"]
    if program is not None and is_told(program, ()):
        check, got, hint = "program", program, _WITHOUT_PROGRAM
    return kind(message, check=check, got=got, hint=hint, **place)


def _find_diverged(
    said: Mapping[str, Any], metrics: Collection[str]
) -> tuple[str | None, str | None]:
    """The measurement that is not finite, and when; of a weight only that it is one."""
    check, got = said["check"], said["got"]
    losses = {name for name in metrics if name.endswith("_loss")}
    if check not in {*losses, "grad_norm", "loss", "weights"}:
        return None, None
    return check, got if got is not None and _NOT_FINITE.fullmatch(got) else None


def _hint_for_owner(owner: str) -> str:
    return f"{owner} looks at that dataset: sealtrain validate; then seals it anew"


def _of_the_system(number: int) -> tuple[str, str]:
    hint = "mend that; sealtrain resume goes on from the last checkpoint"
    return f"the system refused a file: {os.strerror(number)}", hint


def _find_known_place(
    said: Mapping[str, Any], kind: type[SealtrainError], scripts: Mapping[str, str]
) -> str:
    foreign = getattr(builtins, said["kind"], None)
    is_builtin = isinstance(foreign, type) and issubclass(foreign, BaseException)
    name = said["kind"] if is_builtin else kind.__name__
    if not is_builtin and said["kind"] == _UNNAMED:
        name = _UNNAMED
    script, line = said["script"], said["line"]
    if script not in scripts or not 1 <= (line or 0) <= len(scripts[script].splitlines()):
        return name
    return f"{name}, {script} line {line}"


def _event(
    error: BaseException,
    logs: Logs,
    counts: dict[str, int],
    scripts: Mapping[str, str],
    named: Named,
    sayings: Collection[_Saying] | None,
) -> SealtrainError:
    kind = _kind(error, scripts)
    ours = error if type(error) is kind and isinstance(error, SealtrainError) else None
    of_model = kind is ModelInvalid and named.public_model and not scripts
    about_data = issubclass(kind, DataInvalid) and not of_model
    if logs == "none" and about_data:
        kind = DataInvalid
    known = remember_errors().by_id[id(kind)][1]
    check = got = None
    message = known.meaning
    hint = _hint_for(known.code)
    place = {} if ours is None else named.place(ours.owner, ours.dataset, ours.column)
    if ours is not None and not about_data:
        if sayings is None:
            own = set(_words(_list_loaded()))
            message = _among(own, ours.message) or message
            hint = _among(own, ours.hint) or hint
        elif _is_saying(ours, kind, sayings):
            message, hint = ours.message, ours.hint or hint
    elif about_data and "owner" in place:
        hint = _hint_for_owner(place["owner"])
    elif kind is StorageFailed and isinstance(error, OSError):
        message, hint = _of_the_system(error.errno or 0)
    if logs == "structured":
        check, got = _where(error, kind, scripts), _sum_up(counts)
    if ours is not None and kind is TrainingDiverged and not scripts and logs != "none":
        check, got = ours.check, ours.got
    program = program_to_name(error) if type(error) is ProgramRefused else None
    if program is not None:
        check, got, hint = "program", program, _WITHOUT_PROGRAM
    left = kind(message, check=check, got=got, hint=hint, **place)
    # The class may have been written into since.
    left.code, left.exit_code = known.code, known.exit_code  # type: ignore[misc]
    return left


def _kind(error: BaseException, scripts: Mapping[str, str]) -> type[SealtrainError]:
    for kind in type.mro(type(error)):
        if id(kind) in remember_errors().by_id:
            return remember_errors().by_id[id(kind)][0]
    if type(error) in (PlaceRefused, ProgramRefused):
        return EgressRefused
    if isinstance(error, ModuleNotFoundError):
        return ImportRefused
    if type(error) is OSError and error.errno in _OF_THE_MACHINE:
        return StorageFailed
    return ScriptFailed if scripts else TrainingFailed


def _is(got: object, approved: str) -> bool:
    """Whether it is that name and a plain string: a class of a script's could equal any."""
    return type(got) is str and got == approved


def _among(words: Collection[str], text: object) -> str | None:
    return text if type(text) is str and text in words else None


def _list_loaded() -> list[str]:
    return [name for name in list(sys.modules) if name.startswith(_PACKAGES)]


def _is_saying(
    error: SealtrainError, kind: type[SealtrainError], sayings: Collection[_Saying]
) -> bool:
    """Whether it is one refusal as the source has it, in plain strings."""
    plain = type(error.message) is str and type(error.hint) in {str, NoneType}
    return plain and (id(kind), error.message, error.hint) in sayings


def _sayings_for_scripts() -> Iterator[_Saying]:
    """How what scripts call refuses, from its source: loading it would start libraries here."""
    for name in _FOR_SCRIPTS:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            yield from _sayings_in(Path(spec.origin).read_bytes())


def _sayings_of(
    kind: type[SealtrainError], about: tuple[str | None, str | None]
) -> Iterator[_Saying]:
    """How sealtrain refuses with one class of error, from its source.

    Where a message is put together, ``None`` stands for it: the hint beside it stands in the
    source.

    Args:
        kind: The class.
        about: Message and hint that are looked for; a file without the beginning of either has
            neither.
    """
    begun = [text[:_BEGINNING].encode() for text in about if text is not None]
    loaded = [folder for name, folder in own_folders().items() if name in sys.modules]
    for folder in loaded if begun else ():
        for path in folder.rglob("*.py"):
            source = path.read_bytes()
            if kind.__name__.encode() in source and any(beginning in source for beginning in begun):
                yield from _sayings_in(source, put_together=True)


def _sayings_in(source: bytes, *, put_together: bool = False) -> Iterator[_Saying]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            kind = remember_errors().by_name.get(node.func.id)
            hints = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
            if id(kind) in remember_errors().by_id:
                messages: list[str | None] = [*_texts(node.args[:1])]
                if put_together and any(_is_put_together(arg) for arg in node.args[:1]):
                    messages.append(None)
                for message, hint in product(messages, _texts(hints) or (None,)):
                    yield id(kind), message, hint


def _is_put_together(message: ast.expr) -> bool:
    return any(isinstance(part, ast.JoinedStr | ast.Name) for part in ast.walk(message))


def _texts(values: list[ast.expr]) -> list[str]:
    """What one argument says, whichever way it is chosen."""
    inner = [part for value in values for part in ast.walk(value)]
    found = (part.value for part in inner if isinstance(part, ast.Constant))
    return [text for text in found if isinstance(text, str)]


def _words(modules: Collection[str]) -> Iterator[str]:
    """Sentences that stand in the code of modules, as constants."""
    for name in modules:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            for value in tuple(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    yield from _words_of(value)


def _words_of(value: Any) -> Iterator[str]:
    if isinstance(value, type):
        for member in tuple(vars(value).values()):
            member = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if isinstance(member, FunctionType):
                yield from _words_in(member.__code__)
    else:
        function = getattr(value, "__wrapped__", value)
        if isinstance(function, FunctionType):
            yield from _words_in(function.__code__)


def _words_in(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words_in(constant)
        elif _is_sentence(constant):
            yield str(constant)


def _is_sentence(constant: object) -> bool:
    return isinstance(constant, str) and " " in constant and len(constant) <= _LONGEST


def _where(error: BaseException, kind: type[SealtrainError], scripts: Mapping[str, str]) -> str:
    """Kind of exception, and its last line in a script. A class from elsewhere is not named."""
    script, line = _place_in(scripts, error)
    name = _name_of(error, kind)
    return name if script is None else f"{name}, {script} line {line}"


def _name_of(error: BaseException, kind: type[SealtrainError]) -> str:
    name = type(error).__name__
    if isinstance(error, (SealtrainError, PlaceRefused, ProgramRefused)):
        return kind.__name__
    return name if getattr(builtins, name, None) is type(error) else _UNNAMED


def _place_in(
    scripts: Mapping[str, str], error: BaseException
) -> tuple[str, int] | tuple[None, None]:
    found: tuple[str, int] | tuple[None, None] = (None, None)
    place = error.__traceback__
    while place is not None:
        script = scripts.get(place.tb_frame.f_code.co_filename)
        if script is not None:
            found = script, place.tb_lineno
        place = place.tb_next
    return found


def _hint_for(code: str) -> str:
    return f"sealtrain explain {code} says more; the release policy lets no more out"


def _sum_up(counts: Mapping[str, int]) -> str | None:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or None


def _plain(text: object, most: int) -> str | None:
    return text[:most] if type(text) is str else None
