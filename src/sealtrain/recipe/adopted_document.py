"""A deployment document that a platform added to (spec/deployment-document.md §8).

A platform that takes the docker compose file alone writes a document of its own around it. Which
fields it may add, with which values, is a closed list: all of them but the script change nothing of
what runs, by dstack's own reader (``AppCompose`` of Dstack-TEE/dstack@312dc605). The script may be
the one here, which does nothing, or one whose digest the lock names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.visible_text import is_visible
from sealtrain.recipe.errors import LockInvalid

SCRIPT_FIELD: Final = "pre_launch_script"
"""The field that makes a document an adopted one: §5 judges every other document."""
EMPTY_SCRIPT: Final = """\
#!/bin/sh
# sealtrain deployment document 3
# Nothing is done before the containers start.
:
"""
_MAX_NAME_CHARS = 128
_HEX_DIGITS = frozenset("0123456789abcdef")
_ACCOUNT = frozenset(("registry", "username", "password", "token_key"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A field that a platform added, or a name that it replaced.

    Attributes:
        field: Of the document.
        value: What the platform wrote.
        changes: What the field can change in a guest.
    """

    field: str
    value: JsonValue
    changes: str


@dataclass(frozen=True, slots=True)
class _Field:
    """Which values of a field are accepted, given the whole document, and what it can change."""

    accepts: Callable[[Any, Mapping[str, Any]], bool]
    changes: str


def _is(expected: object) -> Callable[[Any, Mapping[str, Any]], bool]:
    return lambda value, _: type(value) is type(expected) and value == expected


def _is_name(value: Any, _: Mapping[str, Any]) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME_CHARS and is_visible(value)


def _is_features(value: Any, document: Mapping[str, Any]) -> bool:
    return value == [] or (value == ["kms"] and document.get("kms_enabled") is True)


def _is_no_account(value: Any, _: Mapping[str, Any]) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= _ACCOUNT
        and all(text is None or text == "" for text in value.values())
    )


def _is_salt(value: Any, _: Mapping[str, Any]) -> bool:
    return value is None or (value != "" and _is_hex(value, 64))


def _is_env_key(value: Any, _: Mapping[str, Any]) -> bool:
    return _is_hex(value, 130)


def _is_closed_gateway(value: Any, _: Mapping[str, Any]) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"ports", "restrict_mode"}
        and value["ports"] == []
        and isinstance(value["restrict_mode"], bool)
    )


def _is_hex(value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most and set(value) <= _HEX_DIGITS


_NAME = _Field(_is_name, "what Info and dashboards show")
_FIELDS: Final[Mapping[str, _Field]] = {
    "features": _Field(_is_features, "nothing: dstack looks for tproxy-net in it"),
    "tproxy_enabled": _Field(_is(False), "nothing: the gateway stays off"),
    "docker_config": _Field(_is_no_account, "nothing: it has no account"),
    "salt": _Field(_is_salt, "the hash"),
    "env_pubkey": _Field(_is_env_key, "nothing: no environment variable is allowed"),
    "port_policy": _Field(_is_closed_gateway, "nothing: the gateway stays off"),
    "swap_size": _Field(_is(0), "nothing: no memory goes to a disk"),
    "event_log_version": _Field(_is(1), "nothing: events are measured as ever"),
    "verity_volumes": _Field(_is([]), "nothing: no file system is mounted"),
}


def script_digest(script: str) -> str:
    """SHA-256 of a script's UTF-8, as a lock and the command line name it."""
    return sha256_hex(script.encode("utf-8", "surrogatepass"))


def require_additions(
    data: bytes,
    document: Mapping[str, Any],
    expected: Mapping[str, Any],
    scripts: Collection[str],
) -> tuple[Addition, ...]:
    """Judge a document with a launch script against the one that its files give.

    Args:
        data: The document's bytes.
        document: The same, parsed.
        expected: The document that sealtrain writes from the same files, parsed.
        scripts: Digests of scripts that are accepted besides ``EMPTY_SCRIPT``.

    Returns:
        What was added, by the name of its field.

    Raises:
        LockInvalid: It breaks one of the four checks; ``field`` names the place.
    """
    if canonical_json(dict(document)) != data:
        raise _refusal("is not canonical JSON, and a platform's document must be", "")
    for name, value in expected.items():
        if name not in document:
            raise _refusal(f"lacks the field {name!r}", name)
        if name != "name" and not _is(value)(document[name], document):
            raise _refusal(f"has another {name!r} than its files give", name, document[name])
    added = []
    if not _is(expected["name"])(document["name"], document):
        added.append(_addition("name", _NAME, document))
    for name in sorted(document.keys() - expected.keys() - {SCRIPT_FIELD}):
        if name not in _FIELDS:
            raise _refusal(f"has a field that no platform may add: {name!r}", name)
        added.append(_addition(name, _FIELDS[name], document))
    return (*added, _script(document[SCRIPT_FIELD], scripts))


def _addition(name: str, field: _Field, document: Mapping[str, Any]) -> Addition:
    value = document[name]
    if not field.accepts(value, document):
        raise _refusal(f"has a value that no platform may give to {name!r}", name, value)
    return Addition(field=name, value=value, changes=field.changes)


def _script(script: Any, scripts: Collection[str]) -> Addition:
    if not isinstance(script, str):
        raise _refusal(f"has something else than a text in {SCRIPT_FIELD!r}", SCRIPT_FIELD, script)
    if script == EMPTY_SCRIPT:
        return Addition(field=SCRIPT_FIELD, value=script, changes="nothing: it does nothing")
    digest = script_digest(script)
    if digest not in scripts:
        raise LockInvalid(
            f"deployment document runs another {SCRIPT_FIELD!r} than its lock names",
            check="document",
            got=digest,
            expected=", ".join(sorted(scripts)) or script_digest(EMPTY_SCRIPT),
            hint="give the platform the script of sealtrain deploy parts, which does nothing; or "
            "read this one, write its digest into hardware.launch_script and lock again",
            field=SCRIPT_FIELD,
        )
    return Addition(field=SCRIPT_FIELD, value=script, changes="everything: it runs as root first")


def _refusal(problem: str, field: str, got: object = None) -> LockInvalid:
    return LockInvalid(
        f"deployment document {problem}",
        check="document",
        got=None if got is None else repr(got)[:60],
        hint="ask the platform for a document without it; spec/deployment-document.md §8 lists "
        "what a platform may add",
        field=field or None,
    )
