"""In-toto statements v1: a typed predicate about files named by their SHA-256.

``parse`` accepts canonical JSON with exactly the four fields of the specification and

1. ``_type`` is in-toto's v1,
2. the predicate type is the expected one,
3. there is at least one subject, each with one ``sha256`` and a name no other subject has, and
4. the predicate is an object.

Signed with ``signing.dsse`` under ``PAYLOAD_TYPE``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical
from sealtrain.errors import DataInvalid
from sealtrain.signing.errors import StatementInvalid

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
MAX_SUBJECTS = 100_000
MAX_STATEMENT_VALUES = 250_000
"""Values in the JSON of a statement, arrays and objects included."""
_MAX_NAME_CHARS = 1024
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A file: its name and the SHA-256 of its bytes in hex."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a payload says: subjects in their order, and the predicate about them."""

    subjects: tuple[Subject, ...]
    predicate: dict[str, JsonValue]


def build(
    subjects: Iterable[Subject], predicate_type: str, predicate: dict[str, JsonValue]
) -> bytes:
    """Canonical bytes of a statement, ready for ``dsse.sign``.

    Raises:
        StatementInvalid: The result would not pass ``parse``.
        DataInvalid: The predicate has no canonical JSON form.
    """
    document = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": subject.name, "digest": {"sha256": subject.sha256}} for subject in subjects
        ],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    payload = canonical_json(document)
    parse(payload, predicate_type)
    return payload


def parse(payload: bytes, predicate_type: str) -> Statement:
    """Read a statement of one type.

    Args:
        payload: The verified payload of an envelope.
        predicate_type: The only accepted type.

    Raises:
        StatementInvalid: A check of the module's list fails.
    """
    try:
        document = parse_canonical(payload, max_values=MAX_STATEMENT_VALUES)
    except DataInvalid as error:
        raise StatementInvalid(f"in-toto statement: {error}", check="statement") from error
    return _read(document, predicate_type)


def _read(document: JsonValue, predicate_type: str) -> Statement:
    fields = {"_type", "subject", "predicateType", "predicate"}
    if not isinstance(document, dict) or set(document) != fields:
        raise StatementInvalid(
            "the in-toto statement has a missing or unknown field", check="statement"
        )
    for field, expected in (("_type", STATEMENT_TYPE), ("predicateType", predicate_type)):
        if document[field] != expected:
            raise StatementInvalid(
                f"in-toto statement has another {field}",
                check=field,
                got=document[field],
                expected=expected,
            )
    listed = document["subject"]
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_SUBJECTS:
        raise StatementInvalid("in-toto statement names no file", check="subject")
    subjects = tuple(_subject(subject) for subject in listed)
    if len({subject.name for subject in subjects}) != len(subjects):
        raise StatementInvalid("in-toto statement names a file twice", check="subject")
    if not isinstance(document["predicate"], dict):
        raise StatementInvalid("in-toto predicate is not an object", check="predicate")
    return Statement(subjects=subjects, predicate=document["predicate"])


def _subject(value: JsonValue) -> Subject:
    match value:
        case {"name": str(name), "digest": {"sha256": str(digest), **others}, **rest}:
            known = not others and not rest and _HEX64.fullmatch(digest)
            if known and 1 <= len(name) <= _MAX_NAME_CHARS:
                return Subject(name=name, sha256=digest)
    raise StatementInvalid(
        "in-toto subject is not {name, digest: {sha256}}",
        check="subject",
        hint="exactly one lower-case hex SHA-256 for each file",
    )
