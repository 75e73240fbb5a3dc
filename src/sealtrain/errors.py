"""Every error that sealtrain raises on purpose, as one tree under ``SealtrainError``.

The name of a class gives its code: ``WrongKey`` is ``wrong-key``, ``UsageError`` is ``usage``. Each
class says with which code a process exits (``exit_code``), with which status a service answers
(``http_status``) and whether the same request may succeed later (``retry``).
docs/reference/errors.md shows the tree and what to do about each error.

The base, its branches and what several packages raise stand here; an error that one package raises
stands in its ``errors`` module. ``error_homes`` is the closed table of all of them, by code;
``tools/error_reference.py`` writes table and page (``make format``).

Any other exception that escapes is a bug and exits 1. A message never holds a key, a row or a
sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import ClassVar, Final, Literal, Self

from sealtrain.error_homes import HOMES

_FIELDS: Final = ("check", "owner", "dataset", "column", "got", "expected", "hint")
Retry = Literal["never", "again", "later"]
"""What the same request may bring. ``again``: the receiver decided nothing, and the request may
succeed in a moment; ``later``: owners or operators can change the answer; ``never``: neither."""


def code_of(name: str) -> str:
    """The code of a class, by its name: ``WrongKey`` is ``wrong-key``, ``UsageError`` ``usage``."""
    if name == "SealtrainError":
        return "error"
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name.removesuffix("Error")).lower()


class SealtrainError(Exception):
    """Root of the tree: every error that sealtrain raises on purpose.

    Args:
        message: One sentence, what happened.
        check: Name of the check that failed (``"compose hash"``).
        owner: Owner concerned, if any.
        got: The value that was found, printable and free of secrets and samples.
        expected: A value that the check would have accepted.
        hint: A command or an action.
        field: Where in a document the problem is (``"trainer.max_steps"``). It stays in the
            process: ``to_dict`` leaves it out.
        dataset: Name of the owner's dataset that it is about.
        column: Name of the column that it is about.
    """

    code: ClassVar[str] = "error"
    label: ClassVar[str] = "error"
    """The word in front of the code on a terminal."""
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    """Of a service's answer. 500 is a fault of the service; a higher one, a part that is away."""
    retry: ClassVar[Retry] = "never"

    def __init_subclass__(cls) -> None:
        """Name the code after a class of the table; any other keeps its parent's code."""
        code = code_of(cls.__name__)
        if HOMES.get(code) == f"{cls.__module__}:{cls.__name__}":
            cls.code = code

    def __init__(  # noqa: PLR0913  # a keyword for each line that is shown
        self,
        message: str,
        *,
        check: str | None = None,
        owner: str | None = None,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
        field: str | None = None,
        dataset: str | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.check = check
        self.owner = owner
        self.got = None if got is None else str(got)
        self.expected = None if expected is None else str(expected)
        self.hint = hint
        self.field = field
        self.dataset = dataset
        self.column = column

    def __str__(self) -> str:
        """Message with got and expected behind it, on one line."""
        if self.got is None and self.expected is None:
            return self.message
        return f"{self.message} (got {self.got}, expected {self.expected})"

    def with_message(
        self, message: str, *, owner: str | None = None, hint: str | None = None
    ) -> Self:
        """The same error with another message; ``owner`` and ``hint`` stay where none is given."""
        return type(self)(
            message,
            check=self.check,
            owner=owner or self.owner,
            got=self.got,
            expected=self.expected,
            hint=hint or self.hint,
            field=self.field,
            dataset=self.dataset,
            column=self.column,
        )

    def to_dict(self) -> dict[str, str]:
        """Fields that are set, for ``--json`` and for a broker's refusal."""
        names = ("code", "message", *_FIELDS)
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @staticmethod
    def from_dict(told: Mapping[str, object], clean: Callable[[str], str] = str) -> SealtrainError:
        """The error that a peer wrote by ``to_dict``: of its code's class, ``Refused`` otherwise.

        A peer may send anything: a field that ``to_dict`` does not write is dropped, a value that
        is no text becomes one, and a message that is missing is the code.

        Args:
            told: Of the peer.
            clean: Applied to each text, such as ``base.visible.escape_hidden`` for a terminal.
        """
        kind = error_by_code(str(told.get("code")))
        fields = {name: clean(str(told[name])) for name in _FIELDS if told.get(name) is not None}
        return kind(clean(str(told.get("message") or "")) or kind.code, **fields)


class ConfigError(SealtrainError):
    """A command line, or a file that a person wrote, cannot be used."""

    exit_code = 2
    http_status = 400


class UsageError(ConfigError):
    """Options or arguments are missing, wrong, or do not go together."""


class ProjectInvalid(ConfigError):
    """A project file is malformed, or another user made it or can change it."""


class TrustInvalid(ConfigError):
    """A trust file or appraisal policy is missing a field or has an unknown one."""


class KeyFileInvalid(ConfigError):
    """A key file is malformed, or other users of the machine can read it."""


class AlreadyExists(ConfigError):
    """The output exists already; sealtrain never overwrites it silently."""


class ExtraMissing(ConfigError):
    """An optional dependency is not installed."""


class Refused(SealtrainError):
    """A check of policy, evidence, approvals or a signature failed."""

    label = "refused"
    exit_code = 3
    http_status = 403


class ImageRefused(Refused):
    """A container image is malformed, or not everything in it is accounted for."""


class SignatureInvalid(Refused):
    """A signature does not verify under the expected key."""


class EvidenceRefused(Refused):
    """The guest did not prove what the appraisal policy asks for."""


class KeyProviderMismatch(EvidenceRefused):
    """The guest got its keys from another key provider than the pinned one."""


class TierRefused(EvidenceRefused):
    """The machine proves less than the lowest tier that a policy or the recipe takes."""


class ReleaseRefused(Refused):
    """The broker does not release the keys."""


class RecipeChanged(ReleaseRefused):
    """The recipe that runs is not the recipe that was approved."""


class LeaseStale(ReleaseRefused):
    """The lease has ended: the guest must not use the keys any longer."""

    retry = "later"


class RunMismatch(ReleaseRefused):
    """A run id is unknown, taken, or belongs to another recipe or to other data."""


class BrokerNotApproved(ReleaseRefused):
    """The recipe's lock, which the owners approved, does not name this broker."""


class ChainRefused(ReleaseRefused):
    """The owners' contract on the chain does not allow this, or is not the pinned one."""

    retry = "later"


class KmsAnswerInvalid(Refused):
    """The answer of a key service or security module fails its checks."""


class LedgerInconsistent(Refused):
    """A ledger was rewritten or forked."""


class TripBroken(Refused):
    """On a trip, the accelerator's program, state, model or data was not the agreed one."""


class EgressRefused(Refused):
    """The run tried to write, send or start something that the release policy does not name."""


class ForkRefused(Refused):
    """A forked process would use a counter, and the key under it, of the process it came from."""


class PadsRefused(Refused):
    """A one-time pad is missing, or would be used twice."""


class ManifestRefused(Refused):
    """A manifest does not prove what it claims."""


class RunChainBroken(ManifestRefused):
    """Run manifests, each valid by itself, are not one whole chain of runs."""


class Unreachable(SealtrainError):
    """A service, a party or a process did not answer in time."""

    label = "unreachable"
    exit_code = 4
    http_status = 503
    retry: ClassVar[Retry] = "again"


class AcceleratorUnreachable(Unreachable):
    """The accelerator is gone or broken; resume the run, or take it over, with one that works."""

    retry = "later"


class ChainUnreachable(Unreachable):
    """The chain's nodes do not answer, disagree, or show an old block."""


class KmsUnreachable(Unreachable):
    """The key service did not answer."""


class GuestLost(Unreachable):
    """A guest ended and left neither a model nor a code that says why."""

    retry = "later"


class NodeLost(Unreachable):
    """A node of the run ended, or is about to."""

    retry = "later"


class StorageFailed(Unreachable):
    """The disk refused a write: it is full, read-only or broken."""

    retry = "never"


class TooManyRequests(Unreachable):
    """One caller, or all callers together, sent more requests than the broker answers."""

    http_status = 429


class DataInvalid(SealtrainError):
    """Data is malformed, inconsistent or too large."""

    label = "data invalid"
    exit_code = 5
    http_status = 400


class EntryUnknown(DataInvalid):
    """The ledger has no such entry, or is shorter than the request says."""

    http_status = 404


class FormatUnknown(DataInvalid):
    """No reader knows this file format."""


class LimitExceeded(DataInvalid):
    """Input is larger, deeper or longer than the limit that protects this step."""


class ProtectionMissing(SealtrainError):
    """A step of a walk passed without its protection, or was refused with it."""


INTERNAL: Final = "internal"
"""The code of a fault, which no class has: its text stays where it happened."""
ERROR_CODES: Final = frozenset(HOMES) | {INTERNAL}
"""The closed list of codes. A document that names another one is refused: a word of the right form
could hold anything that its writer chose."""


def error_by_code(code: str) -> type[SealtrainError]:
    """Class of an error code received from a peer; ``Refused`` for an unknown one.

    The module of the class is imported where it is not yet, and nothing else is. A process that
    runs code of others takes its classes from ``every_error`` before that code begins.
    """
    return _class_at(HOMES[code]) or Refused if code in HOMES else Refused


def every_error() -> tuple[type[SealtrainError], ...]:
    """Every class of the table, in the order of the codes; all modules with errors are imported.

    Classes of packages that are not installed are left out.
    """
    return tuple(kind for kind in map(_class_at, HOMES.values()) if kind is not None)


def _class_at(home: str) -> type[SealtrainError] | None:
    module, _, name = home.partition(":")
    try:
        found: type[SealtrainError] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        return None  # a room that this installation does without
    return found
