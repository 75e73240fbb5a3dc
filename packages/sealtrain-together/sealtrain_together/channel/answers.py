"""Answers of a channel's parties: the result of a request, or the refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import Field

from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.base.models import StrictModel
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.release.messages import ErrorFields, load_message
from sealtrain.training.errors import ChannelBroken
from sealtrain_together.channel.channel import AttestedChannel
from sealtrain_together.channel.streams import Buffer

Done = tuple[dict[str, JsonValue], Buffer]
"""The answer's fields, and the message that follows; an empty message is not sent."""


class _Answer(StrictModel):
    """One answer.

    Attributes:
        ok: What it did.
        error: Why not.
        payload: Length of the message that follows; 0 for none.
    """

    ok: dict[str, Any] = Field(default_factory=dict)
    error: ErrorFields | None = None
    payload: int = 0


def operation(message: bytes, known: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """Parse a request: the operation that ``do`` names, and the other fields.

    Args:
        message: JSON, as it came.
        known: Names of the operations.

    Raises:
        DataInvalid: It asks for none of them.
    """
    asked = parse_json(message)
    name = asked.pop("do", None) if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or not isinstance(name, str) or name not in known:
        raise DataInvalid("no such operation", expected=", ".join(known), check="operation")
    return name, asked


def answer(
    channel: AttestedChannel, act: Callable[[], Done], *, refusal_ends: bool = False
) -> None:
    """Serve one request: act, then send the answer and the message that follows it.

    Args:
        channel: To the peer that asked.
        act: Does it. A refusal of ours becomes the answer.
        refusal_ends: Raise a refusal, once it was answered.

    Raises:
        SealtrainError: As the channel, or what was refused.
    """
    try:
        done, data = act()
    except SealtrainError as error:
        channel.send(canonical_json({"error": error.to_dict(), "payload": 0}))
        if refusal_ends:
            raise
        return
    channel.send(canonical_json({"ok": done, "payload": len(data)}))
    if data:
        channel.send(data)


def receive_answer(
    channel: AttestedChannel,
    *,
    max_bytes: int,
    max_data_bytes: int,
    max_kept_bytes: int | None = None,
) -> tuple[dict[str, Any], bytes]:
    """The answer of a party that did as it was asked, and the message that follows it.

    Args:
        channel: To the party.
        max_bytes: Of the answer.
        max_data_bytes: Of what follows.
        max_kept_bytes: What is announced as longer is read, not kept, and comes out empty.

    Raises:
        ChannelCut: It ended the conversation.
        ChannelBroken: It answers something else than it says.
        SealtrainError: What it refused with.
    """
    ok, size = _receive_words(channel, max_bytes)
    most = max_data_bytes if max_kept_bytes is None else max_kept_bytes
    if max_kept_bytes is not None and size > most:
        channel.skip(max_bytes=max_data_bytes)
        return ok, b""
    data = channel.expect(max_bytes=most) if size else b""
    if len(data) != size:
        raise _another_payload()
    return ok, data


def receive_answer_into(
    channel: AttestedChannel, target: memoryview, *, max_bytes: int
) -> dict[str, Any]:
    """As ``receive_answer``, where what follows is known to be as long as ``target``."""
    ok, size = _receive_words(channel, max_bytes)
    if size != len(target) or (size and channel.receive_into(target) != size):
        raise _another_payload()
    return ok


def _receive_words(channel: AttestedChannel, max_bytes: int) -> tuple[dict[str, Any], int]:
    message = channel.expect(max_bytes=max_bytes)
    found = load_message(_Answer, message, error=ChannelBroken)
    if found.error is not None:
        raise found.error.error()
    return found.ok, found.payload


def _another_payload() -> ChannelBroken:
    return ChannelBroken("the peer sent an unexpected payload", check="payload")
