"""A party of a federation: answers a proven lead, one conversation at a time (spec §3, §4).

Any process that reaches its socket may begin a conversation and gets as far as the handshake. A
lead that proves itself takes the place of one before, which its party thought alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sealtrain.errors import SealtrainError
from sealtrain.release.messages import load_message
from sealtrain.training.errors import ChannelBroken, PeerUnreachable
from sealtrain_together.channel.answers import Done, answer
from sealtrain_together.channel.channel import AttestedChannel, accept_over
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.federated.mailbox import AnsweringStream, LeadMessage, Mailbox
from sealtrain_together.federated.messages import (
    MAX_STATE_BYTES,
    MAX_WORDS_BYTES,
    Asked,
    PartyJoined,
)

_MAX_PENDING = 4
_POLL_S = 0.5


class Work(Protocol):
    """Work of a party for its lead."""

    def learn(self, asked: Asked, state: bytes) -> Done:
        """Train a round from a merged adapter: ``Learned`` as JSON, and the update."""

    def finish(self, state: bytes) -> Done:
        """Measure the merged adapter: counts by metric, and nothing after them."""

    def failure(self) -> SealtrainError | None:
        """What the party cannot go on after. Asked once its lead has been told."""


@dataclass(eq=False, slots=True)
class _Talk:
    """One conversation, as far as it came."""

    stream: AnsweringStream
    proven: bool = False
    over: bool = False


class PartyService:
    """Serves a lead until it says that all is done.

    Args:
        mailbox: Where turns arrive.
        conversation: How this guest proves itself, and which leads it accepts; its context is the
            run's.
        joined: What it says first, in each conversation.
        work: What it can do.
        may_go_on: Raises when the party must stop, such as when its lease ended.
        patience: Seconds for which no lead that proved itself may say anything.
        largest: Most bytes of a merged adapter.
        on_refused: Called with the error of each conversation that was refused.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        conversation: ChannelTerms,
        joined: Callable[[], PartyJoined],
        work: Work,
        *,
        may_go_on: Callable[[], None],
        patience: float,
        largest: int = MAX_STATE_BYTES,
        on_refused: Callable[[SealtrainError], None] | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._conversation = conversation
        self._joined = joined
        self._work = work
        self._may_go_on = may_go_on
        self._patience = patience
        self._largest = largest
        self._on_refused = on_refused
        self._failed: SealtrainError | None = None
        self._talks: dict[bytes, _Talk] = {}
        self._lock = threading.Lock()
        self._working = threading.Lock()
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Serve until the lead said that all is done.

        Raises:
            PeerUnreachable: No lead says anything any more.
            SealtrainError: ``may_go_on`` said no, or there was a ``failure``.
        """
        self._heard = time.monotonic()
        try:
            while not self._done.is_set():
                self._may_go_on()
                self._refuse_silence()
                turn = self._mailbox.next(_POLL_S)
                if turn is not None:
                    self._route(turn)
        finally:
            for talk in tuple(self._talks.values()):
                talk.stream.end()
            for thread in self._threads:
                thread.join(_POLL_S)
        if self._failed is not None:
            raise self._failed

    def _refuse_silence(self) -> None:
        if self._working.locked():  # it is this side that takes its time
            self._heard = time.monotonic()
        if time.monotonic() - self._heard > self._patience:
            raise PeerUnreachable(
                "the lead of this run is silent",
                check="lead",
                got=f"silence for {self._patience:.0f} s",
                hint="check that the lead still runs; if it does, join again",
            )

    def _route(self, turn: LeadMessage) -> None:
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._talks = {name: talk for name, talk in self._talks.items() if not talk.over}
            talk = self._talks.get(turn.conversation)
            pending = sum(not talk.proven for talk in self._talks.values())
            if talk is None and turn.number == 0 and pending < _MAX_PENDING:
                talk = _Talk(stream=AnsweringStream(self._mailbox.turn_bytes))
                self._talks[turn.conversation] = talk
                thread = threading.Thread(target=self._talk, args=(talk,), daemon=True)
                self._threads.append(thread)
                thread.start()
        if talk is None:
            turn.refuse()
        else:
            if talk.proven:
                self._heard = time.monotonic()
            talk.stream.deliver(turn)

    def _talk(self, talk: _Talk) -> None:
        try:
            with accept_over(talk.stream, self._conversation) as channel:
                self._take_the_place_of_others(talk)
                channel.send(self._joined().to_bytes())
                self._attend(channel)
        except SealtrainError as error:
            if self._on_refused is not None:
                self._on_refused(error)
        finally:
            talk.over = True
            talk.stream.end()

    def _take_the_place_of_others(self, talk: _Talk) -> None:
        with self._lock:
            talk.proven = True
            self._heard = time.monotonic()
            others = [other for other in self._talks.values() if other.proven and other is not talk]
        for other in others:
            other.stream.end()

    def _attend(self, channel: AttestedChannel) -> None:
        while (message := channel.receive(max_bytes=MAX_WORDS_BYTES)) is not None:
            asked = load_message(Asked, message, error=ChannelBroken)
            state = channel.expect(max_bytes=min(asked.payload, self._largest))
            if len(state) != asked.payload:
                raise ChannelBroken("the lead sent another adapter than announced", check="payload")
            answer(channel, partial(self._act, asked, state))
            self._failed = self._work.failure()
            if asked.do == "finish" or self._failed is not None:
                # The event comes after the answer is out: then the process may end.
                channel.close()
                self._done.set()
                return

    def _act(self, asked: Asked, state: bytes) -> Done:
        with self._working:  # of a conversation before, which may still be at it
            self._may_go_on()
            if asked.do == "learn":
                return self._work.learn(asked, state)
            return self._work.finish(state)
