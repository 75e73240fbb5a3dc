"""Requests of a lane that are here already: read, opened and not yet served.

The next request is received while one is served. Whoever serves sees whether it would have to wait:
a request counts as here once all of it opened, so no network can make one seem to be here.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sealtrain.base.canonical import parse_json
from sealtrain.errors import DataInvalid, SealtrainError

if TYPE_CHECKING:
    from sealtrain_together.channel.channel import AttestedChannel


@dataclass(frozen=True, slots=True)
class Message:
    """A request, and the bytes that followed it."""

    command: bytes
    payload: bytes = b""


class Inbox:
    """Receives requests of a channel in a thread of its own. Use as a context.

    Args:
        channel: Whose messages; nothing else may receive from it.
        max_command: Longest request, bytes.
        max_payload: Most bytes that may follow one.
    """

    def __init__(self, channel: AttestedChannel, max_command: int, max_payload: int) -> None:
        self._channel = channel
        self._max_command = max_command
        self._max_payload = max_payload
        self._messages: queue.Queue[Message | SealtrainError | None] = queue.Queue(maxsize=1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @property
    def empty(self) -> bool:
        """Whether ``next`` would wait."""
        return self._messages.empty()

    def next(self) -> Message | None:
        """The next request, ``None`` at the end of the channel.

        Raises:
            SealtrainError: The channel broke.
        """
        found = self._messages.get()
        if isinstance(found, SealtrainError):
            raise found
        return found

    def _receive(self) -> None:
        while not self._over.is_set():
            try:
                found: Message | SealtrainError | None = self._message()
            except SealtrainError as error:
                found = error
            while not self._over.is_set():
                try:
                    self._messages.put(found, timeout=1.0)
                    break
                except queue.Full:
                    continue
            if not isinstance(found, Message):
                return

    def _message(self) -> Message | None:
        command = self._channel.receive(max_bytes=self._max_command)
        if command is None:
            return None
        try:
            asked = parse_json(command)
        except DataInvalid:
            return Message(command)  # refused where it is served
        if isinstance(asked, dict) and asked.get("payload", 0):
            return Message(command, self._channel.receive(max_bytes=self._max_payload) or b"")
        return Message(command)
