"""Strict documents: what arrives from outside is a frozen pydantic model that knows every field."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from sealtrain.base.canonical import (
    MAX_JSON_VALUES,
    JsonValue,
    parse_canonical,
    parse_json,
)
from sealtrain.errors import DataInvalid, SealtrainError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "Base64",
    "ErrorCode",
    "Hex32",
    "Hex40",
    "Hex64",
    "OwnerName",
    "StrictModel",
    "Timestamp",
    "load_canonical",
    "load_json",
    "load_model",
]

Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""16 bytes in lower-case hex."""
Hex40 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
"""20 bytes in lower-case hex."""
Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes in lower-case hex."""
OwnerName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
"""Name of an owner or dataset: lower-case letters, digits and hyphens."""
Base64 = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
"""Padded standard base64; decode with ``base.encoding.from_base64``."""
ErrorCode = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}$")]
"""Code of an error: never a message, which could quote what a code cannot."""
Timestamp = Annotated[
    str,
    # Not \d, which also takes the digits of other scripts.
    StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"),
]
"""RFC 3339 in UTC, whole seconds."""


class StrictModel(BaseModel):
    """Base of every document: immutable, no unknown field, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, every field present."""
        return self.model_dump(mode="json", by_alias=True)


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
    return _validated(cls, _json(data, error, what), error, what)


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
    return _validated(cls, data, error, what)


def _validated(cls: type[Model], data: bytes, error: type[SealtrainError], what: str) -> Model:
    try:
        # JSON mode lets arrays become tuples while strict mode still refuses "1" for 1.
        return cls.model_validate_json(data)
    except ValidationError as invalid:
        first, near = _most_telling(invalid, _field_names(cls))
        where = ".".join(str(part) for part in first["loc"]) or "(top level)"
        hint = f"see the schema of {what}"
        if first["type"] == "extra_forbidden":
            message = f"{what} has an unknown field {where!r}"
            hint = f"did you mean {near!r}?" if near else hint
        elif first["type"] == "missing":
            message = f"{what} lacks the field {where!r}"
            hint = "write every field; there are no defaults"
        else:
            reason = first["msg"].removeprefix("Value error, ")
            message = f"{what}: {where}: {reason}" if first["loc"] else f"{what}: {reason}"
        field = where if first["loc"] else None
        raise error(message, check=what, field=field, hint=hint) from None


def load_canonical(
    cls: type[Model],
    data: bytes,
    error: type[SealtrainError],
    what: str,
    *,
    max_bytes: int,
    check: str,
    max_values: int = MAX_JSON_VALUES,
    hint: str | None = None,
) -> Model:
    """Parse canonical JSON (RFC 8785) and validate it against ``cls``.

    Args:
        cls: The document's model.
        data: The document's bytes.
        error: Error class to raise.
        what: Name of the document for messages.
        max_bytes: Longest accepted document.
        check: Name of the check that a document of another form fails.
        max_values: Most values in it, arrays and objects included.
        hint: What to do about one.

    Raises:
        SealtrainError: An ``error``: too long, too deep, of too many values, not canonical, or as
            ``load_model``.
    """
    try:
        parse_canonical(data, max_bytes=max_bytes, max_values=max_values)
    except DataInvalid as problem:
        raise error(
            f"{what} cannot be parsed: {problem.message}", check=check, hint=hint
        ) from problem
    return _validated(cls, data, error, what)


def _most_telling(invalid: ValidationError, fields: list[str]) -> tuple[ErrorDetails, str | None]:
    """A misspelt field with the one that was meant, else the first problem.

    A misspelling also makes the right field missing; naming the cause beats naming the effect.
    """
    problems = invalid.errors(include_url=False, include_input=False)
    for problem in problems[:_LOOKED_AT]:
        if problem["type"] == "extra_forbidden" and str(problem["loc"][-1]) not in fields:
            near = difflib.get_close_matches(str(problem["loc"][-1]), fields, n=1, cutoff=0.6)
            if near:
                return problem, near[0]
    return problems[0], None


def _json(data: JsonValue, error: type[SealtrainError], what: str) -> bytes:
    import json

    try:
        return json.dumps(data, allow_nan=False).encode()
    except (TypeError, ValueError) as problem:
        raise error(f"{what} holds a value that JSON cannot carry", check=what) from problem


def _field_names(cls: type[BaseModel]) -> list[str]:
    """Names of all fields of a model and of the models inside it."""
    names: list[str] = []
    pending: list[Any] = [cls]
    seen: set[Any] = set()
    while pending:
        kind = pending.pop()
        if kind in seen:
            continue
        seen.add(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names.extend(kind.model_fields)
            pending.extend(field.annotation for field in kind.model_fields.values())
        else:
            pending.extend(
                part for part in getattr(kind, "__args__", ()) if not isinstance(part, str)
            )
    return names
