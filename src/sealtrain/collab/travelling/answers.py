"""What a party answers to the orchestrator: what it did, or why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.models import StrictModel
from sealtrain.errors import ChannelBroken, SealtrainError
from sealtrain.release.messages import ErrorFields, load_message

__all__ = ["Answer", "Done", "answered", "read_answer"]

Done = tuple[dict[str, JsonValue], bytes]
"""What was done, and the message that follows the answer; none where it is empty."""


class Answer(StrictModel):
    """One answer.

    Attributes:
        ok: What it did.
        error: Why not.
        payload: Length of the message that follows; 0 for none.
    """

    ok: dict[str, Any] = Field(default_factory=dict)
    error: ErrorFields | None = None
    payload: int = 0


def answered(act: Callable[[], Done]) -> tuple[bytes, bytes]:
    """Do what was asked: the answer, and the message that follows it.

    Args:
        act: Does it. A refusal of ours becomes the answer.
    """
    try:
        done, data = act()
    except SealtrainError as error:
        return canonical_json({"error": error.to_dict(), "payload": 0}), b""
    return canonical_json({"ok": done, "payload": len(data)}), data


def read_answer(message: bytes | None) -> Answer:
    """The answer of a party that did as it was asked.

    Raises:
        ChannelBroken: It ended the conversation, or answers something else.
        SealtrainError: What it refused with.
    """
    if message is None:
        raise ChannelBroken("the other side ended the conversation", check="channel")
    answer = load_message(Answer, message, error=ChannelBroken)
    if answer.error is not None:
        raise answer.error.error()
    return answer
