"""Strict documents: what arrives from outside is a frozen pydantic model that knows every field."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)

from sealtrain.base.canonical import (
    MAX_JSON_VALUES,
    JsonValue,
    canonical_json,
    parse_canonical,
    parse_json,
)
from sealtrain.base.clock import from_rfc3339
from sealtrain.base.encoding import from_base64
from sealtrain.base.filenames import OWNER_NAME
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.suggestion import nearest
from sealtrain.base.visible_text import is_visible
from sealtrain.errors import ERROR_CODES, DataInvalid, SealtrainError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""16 bytes in lower-case hex."""
Hex40 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
"""20 bytes in lower-case hex."""
Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes in lower-case hex."""
OwnerName = Annotated[str, StringConstraints(pattern=OWNER_NAME)]
"""Name of an owner or dataset: lower-case letters, digits and hyphens."""
Base64 = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
"""Padded standard base64; decode with ``base.encoding.from_base64``."""


def _require_known(code: str) -> str:
    if code not in ERROR_CODES:
        raise ValueError("not a code of an error")
    return code


ErrorCode = Annotated[
    str,
    AfterValidator(_require_known),
    WithJsonSchema({"type": "string", "enum": sorted(ERROR_CODES)}),
]
"""Code of an error, from the closed list: a form would let its writer put words of its own there.

The refusal does not quote the word, which may be what it was meant to carry.
"""
SkipReason = Literal["late", "schedule-spent", "still-running"]
"""Why a scheduler passes a due time over, beside the codes of errors (spec/schedule.md §2)."""
Timestamp = Annotated[
    str,
    # Not \d, which also takes the digits of other scripts.
    StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"),
]
"""RFC 3339 in UTC, whole seconds."""


def printable(text: str) -> str:
    """Return ``text`` if every character can be seen.

    Raises:
        ValueError: A character that the table of visible ones does not admit (``is_visible``).
    """
    if not is_visible(text):
        raise ValueError("text holds a character that is not in the table of visible ones")
    return text


def holding(check: Callable[[str], object]) -> AfterValidator:
    """Validates a text of which ``check`` raises no ``DataInvalid``."""

    def hold(text: str) -> str:
        try:
            check(text)
        except DataInvalid as error:
            raise ValueError(error.message) from None
        return text

    return AfterValidator(hold)


ONE_SPELLING = holding(from_base64)
"""Of base64: bytes have one spelling, so nothing signed can be re-encoded."""
RealTime = Annotated[Timestamp, holding(from_rfc3339)]
"""A ``Timestamp`` that a calendar has."""


class StrictModel(BaseModel):
    """Base of every document: immutable, no unknown field, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    words_instead: ClassVar[Mapping[str, str]] = {}
    """Names that people write here and no document has, each with what to write: the hint."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, every field present."""
        return self.model_dump(mode="json", by_alias=True)

    def to_bytes(self) -> bytes:
        """Canonical JSON (RFC 8785)."""
        return canonical_json(self.to_dict())


class Document(StrictModel):
    """A document that stands by itself: its class says how it is read and what refuses it."""

    what: ClassVar[str]
    """Its name in messages."""
    refusal: ClassVar[type[SealtrainError]]
    """Raised for what is no such document."""
    max_bytes: ClassVar[int]
    """Longest accepted document."""
    max_values: ClassVar[int] = MAX_JSON_VALUES
    """Most values in it, arrays and objects included."""
    any_spelling: ClassVar[bool] = False
    """Whether it may come as other JSON than the canonical one."""
    form: ClassVar[tuple[str, str | None]] = ("", None)
    """Name of the check that another form fails, ``what`` where empty, and its hint."""

    @classmethod
    def from_dict(cls, data: JsonValue) -> Self:
        """Validate a parsed document.

        Raises:
            SealtrainError: A ``refusal``: a field is missing, unknown, of another form or too long.
        """
        return load_model(cls, data, cls.refusal, cls.what)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a document.

        Raises:
            SealtrainError: A ``refusal``: too long, too deep, of too many values, not JSON in its
                spelling, or as ``from_dict``.
        """
        parse = parse_json if cls.any_spelling else parse_canonical
        try:
            parse(data, max_bytes=cls.max_bytes, max_values=cls.max_values)
        except DataInvalid as problem:
            check, hint = cls.form
            raise cls.refusal(
                f"{cls.what} cannot be parsed: {problem.message}",
                check=check or cls.what,
                hint=hint,
            ) from problem
        return _validate(cls, data, cls.refusal, cls.what)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            DataInvalid: The file cannot be read or is too long.
            SealtrainError: As ``from_bytes``.
        """
        return cls.from_bytes(read_bounded(path, cls.max_bytes))

    def save(self, path: Path) -> None:
        """Write a new file, whole or not at all.

        Raises:
            AlreadyExists: The file exists.
        """
        atomic_write(path, self.to_bytes())


Model = TypeVar("Model", bound=BaseModel)

_LOOKED_AT = 16
"""Problems of a document that are examined: a sender may cause any number, each costing time."""


def load_model(cls: type[Model], data: JsonValue, error: type[SealtrainError], what: str) -> Model:
    """Validate parsed JSON or YAML against ``cls``.

    Args:
        cls: The document's model.
        data: Parsed value.
        error: Error class to raise.
        what: Name of the document for the message (``"recipe"``).

    Raises:
        SealtrainError: An instance of ``error`` naming the first offending field, never its value.
    """
    return _validate(cls, _json(data, error, what), error, what)


def load_json(
    cls: type[Model],
    data: bytes,
    error: type[SealtrainError],
    what: str,
    *,
    max_bytes: int,
    max_values: int = MAX_JSON_VALUES,
) -> Model:
    """Parse JSON strictly (``parse_json``) and validate it against ``cls``.

    Args:
        cls: The document's model.
        data: The document's bytes.
        error: Class to raise when the fields are not those of ``cls``.
        what: Name of the document for messages.
        max_bytes: Longest accepted document.
        max_values: Most values in it, arrays and objects included.

    Raises:
        LimitExceeded: Longer, deeper or of more values than allowed.
        DataInvalid: Not JSON.
        SealtrainError: As ``load_model``.
    """
    # Stricter than the model's own parser.
    parse_json(data, max_bytes=max_bytes, max_values=max_values)
    return _validate(cls, data, error, what)


def _validate(cls: type[Model], data: bytes, error: type[SealtrainError], what: str) -> Model:
    try:
        # JSON mode lets arrays become tuples while strict mode still refuses "1" for 1.
        return cls.model_validate_json(data)
    except ValidationError as invalid:
        unknown = _unknown(invalid, cls)
        first = _most_telling(invalid, unknown)
        where = ".".join(str(part) for part in first["loc"]) or "(top level)"
        hint = f"see the schema of {what}"
        if first["type"] == "extra_forbidden":
            named = ", ".join(repr(field) for field in unknown)
            message = f"{what} has {_plural(unknown, 'an unknown field')} {named}"
            hint = _suggest(unknown) or hint
        elif first["type"] == "missing":
            missing = _missing_beside(invalid)
            named = ", ".join(repr(field) for field in missing)
            message = f"{what} lacks {_plural(missing, 'the field')} {named}"
            hint = f"write {'each of them' if len(missing) > 1 else 'it'}: there is no default"
        else:
            reason = first["msg"].removeprefix("Value error, ")
            message = f"{what}: {where}: {reason}" if first["loc"] else f"{what}: {reason}"
        field = where if first["loc"] else None
        raise error(message, check=what, field=field, hint=hint) from None


def _most_telling(invalid: ValidationError, unknown: dict[str, str | None]) -> ErrorDetails:
    """A misspelt field, else the first problem.

    A misspelling also makes the right field missing; naming the cause beats naming the effect.
    Missing fields come before other problems, because they are named all at once.
    """
    problems = invalid.errors(include_url=False, include_input=False)[:_LOOKED_AT]
    order = ("extra_forbidden", "missing") if any(unknown.values()) else ("missing",)
    for kind in order:
        for problem in problems:
            if problem["type"] == kind:
                return problem
    return problems[0]


def _unknown(invalid: ValidationError, cls: type[BaseModel]) -> dict[str, str | None]:
    """The fields that no document of the kind has, each with its hint.

    The hint says what to write instead, by the document's own table or by the field beside it that
    was meant; ``None`` where no field is like it, or where it is known elsewhere in the document.
    """
    everywhere = {name for model in _models_in([cls]) for name in model.model_fields}
    found: dict[str, str | None] = {}
    for problem in invalid.errors(include_url=False, include_input=False)[:_LOOKED_AT]:
        if problem["type"] == "extra_forbidden":
            *place, last = map(str, problem["loc"])
            models = _models_at(cls, place)
            words = {name: word for model in models for name, word in model.words_instead.items()}
            near = None
            if last not in words and last not in everywhere:
                near = nearest(last, {name for model in models for name in model.model_fields})
            found[".".join((*place, last))] = words.get(last) or (
                f"did you mean {near!r}?" if near else None
            )
    return found


def _suggest(unknown: dict[str, str | None]) -> str:
    told = {field: hint for field, hint in unknown.items() if hint}
    if len(unknown) == 1:
        return "".join(told.values())
    return "; ".join(f"{field}: {hint}" for field, hint in told.items())


def _plural(things: Collection[object], singular: str) -> str:
    """``the field`` and ``an unknown field`` of one thing or of several."""
    return singular if len(things) == 1 else f"{singular.removeprefix('an ')}s"


def _missing_beside(invalid: ValidationError) -> list[str]:
    """The missing fields, so that a document is completed in one go."""
    problems = invalid.errors(include_url=False, include_input=False)[:_LOOKED_AT]
    return [
        ".".join(str(part) for part in problem["loc"])
        for problem in problems
        if problem["type"] == "missing"
    ]


def _json(data: JsonValue, error: type[SealtrainError], what: str) -> bytes:
    import json

    try:
        return json.dumps(data, allow_nan=False).encode()
    except (TypeError, ValueError) as problem:
        raise error(f"{what} holds a value that JSON cannot carry", check=what) from problem


def _models_at(cls: type[BaseModel], place: list[str]) -> list[type[StrictModel]]:
    """The models that a document may have at a place.

    Pydantic's places name fields, positions in a sequence and members of a union; only a field
    leads on.
    """
    kinds: list[Any] = [cls]
    for part in place:
        next_ = [
            model.model_fields[part].annotation
            for model in _models_in(kinds, inner=False)
            if part in model.model_fields
        ]
        kinds = next_ or kinds
    return [model for model in _models_in(kinds, inner=False) if issubclass(model, StrictModel)]


def _models_in(kinds: list[Any], *, inner: bool = True) -> list[type[BaseModel]]:
    """The models that types name (of a union all), and those inside these models."""
    found: list[type[BaseModel]] = []
    pending, seen = [*kinds], set[Any]()
    while pending:
        kind = pending.pop()
        if kind in seen:
            continue
        seen.add(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
            if inner:
                pending.extend(field.annotation for field in kind.model_fields.values())
        else:
            pending.extend(
                part for part in getattr(kind, "__args__", ()) if not isinstance(part, str)
            )
    return found
