"""The lead's conversation with one node: prove, ask, receive; again after a failure (spec §3, §5).

Each seat is a thread. It decides nothing: it passes answers to the federation as news, in their
order.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sealtrain.base.secret import Random
from sealtrain.errors import SealtrainError
from sealtrain.release.messages import load_message
from sealtrain.training.errors import ChannelBroken, ChannelCut, PeerUnreachable
from sealtrain_together.channel.answers import receive_answer
from sealtrain_together.channel.channel import AttestedChannel, open_over
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.federated.frames import TURN_BYTES, AskingStream
from sealtrain_together.federated.messages import (
    MAX_HEADER_BYTES,
    MAX_STATE_BYTES,
    MAX_WORDS_BYTES,
    Asked,
    PartyJoined,
)

HANDSHAKE_S = 120
_LONGEST_PAUSE = 10

Carrying = Callable[[bytes, int], bytes]
"""Carries a turn to the node within so many seconds; raises ``PeerUnreachable``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """A party proved itself and named itself."""

    seat: NodeSeat
    joined: PartyJoined


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A party did what it was asked."""

    seat: NodeSeat
    asked: Asked
    words: dict[str, Any]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyGone:
    """The party of this seat is gone, or was never let in."""

    seat: NodeSeat
    error: SealtrainError


News = Came | Answered | PartyGone


class NodeSeat:
    """One node.

    Args:
        carry: Brings turns there.
        conversation: How the lead proves itself, and what it accepts.
        news: Where what it hears goes.
        patience: Seconds that one task may take.
        again_after: Seconds before it tries again after something went wrong; more each time, up
            to ten times as many, and so many for a party that was not let in.
        turn_bytes: Most bytes of the channel in a turn.
        random: Names of conversations.
    """

    def __init__(
        self,
        carry: Carrying,
        conversation: ChannelTerms,
        news: queue.SimpleQueue[News],
        *,
        patience: int,
        again_after: float,
        turn_bytes: int = TURN_BYTES,
        random: Random = os.urandom,
    ) -> None:
        self._carry = carry
        self._conversation = conversation
        self._news = news
        self._patience = patience
        self._again_after = again_after
        self._turn_bytes = turn_bytes
        self._random = random
        self._tasks: queue.SimpleQueue[tuple[Asked, bytes] | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._misses = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.party: str | None = None
        """The party of this seat, once the federation took it in; for the federation's thread."""

    def start(self) -> None:
        """Begin to talk."""
        self._thread.start()

    def ask(self, asked: Asked, state: bytes) -> None:
        """Give the party a task; its result becomes news."""
        self._tasks.put((asked, state))

    def dismiss(self) -> None:
        """End this conversation; another may begin."""
        self._tasks.put(None)

    def end(self) -> None:
        """Begin nothing any more; does not wait for what is under way."""
        self._over.set()
        self._tasks.put(None)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._converse()
                self._misses = _LONGEST_PAUSE
            except SealtrainError as error:
                self._news.put(PartyGone(seat=self, error=_dead(error)))
                self._misses = min(self._misses + 1, _LONGEST_PAUSE)
            self._over.wait(self._again_after * self._misses)

    def _converse(self) -> None:
        seconds = HANDSHAKE_S
        stream = AskingStream(
            lambda data: self._carry(data, seconds),
            self._random(16),
            turn_bytes=self._turn_bytes,
        )
        with open_over(stream, self._conversation) as channel:
            words = channel.expect(max_bytes=MAX_WORDS_BYTES)
            joined = load_message(PartyJoined, words, error=ChannelBroken)
            self._news.put(Came(seat=self, joined=joined))
            seconds, self._misses = self._patience, 0
            while (task := self._tasks.get()) is not None:
                self._news.put(self._answer(channel, *task))

    def _answer(self, channel: AttestedChannel, asked: Asked, state: bytes) -> Answered:
        channel.send(asked.to_bytes())
        channel.send(state)
        # An update has the form of its state: a party cannot make the lead hold more.
        most = min(len(state) + MAX_HEADER_BYTES, MAX_STATE_BYTES)
        words, data = receive_answer(
            channel,
            max_bytes=MAX_WORDS_BYTES,
            max_data_bytes=MAX_STATE_BYTES,
            max_kept_bytes=most,
        )
        return Answered(seat=self, asked=asked, words=words, data=data)


def _dead(error: SealtrainError) -> SealtrainError:
    """A stream that ended early is a party that died, not one that altered a message."""
    if not isinstance(error, ChannelCut):
        return error
    return PeerUnreachable(
        "a party of the federation died, or its connection",
        check=error.check,
        got=error.got,
        expected=error.expected,
        hint="see whether its guest and its SuperNode run",
    )
