"""Rounds of a federation: parties, updates that count, and merges (spec §5).

One thread decides and records; each party has a seat whose thread only talks. What it needs of
training and of runs is handed in: this module knows neither keys nor models. With ``LeadStates`` it
seals where it stands after each merge, and another lead goes on from there (spec §8).
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from sealtrain.base.canonical import JsonValue
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import load_model
from sealtrain.base.secret import Random
from sealtrain.errors import DataInvalid, Refused, SealtrainError
from sealtrain.training.errors import PeerUnreachable
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.errors import TooFewParties, UpdateRefused
from sealtrain_together.federated.carrier import Carrier
from sealtrain_together.federated.frames import TURN_BYTES
from sealtrain_together.federated.mathematics import Merging, Taken
from sealtrain_together.federated.messages import Asked, LearnedMessage, PartyJoined, SealedState
from sealtrain_together.federated.node_conversation import Answered, Came, News, NodeSeat, PartyGone
from sealtrain_together.federated.states import FederationStanding, LeadStates

_TICK_S = 0.5
_SEATS_FOR_A_PARTY = 4
_MOST_NORM = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What the recipe says of the rounds, and how often the lead tries again.

    Attributes:
        rule: How updates are merged.
        rounds: How many merges.
        min_parties: Updates that each needs.
        round_seconds: How long it waits for them.
        joining_seconds: How long the lead waits for parties: for all at the beginning, later for
            ``min_parties`` of a round whose time is over.
        parties: Owners who may take part: those who give data to train on.
        again_after: Seconds before the lead tries again to talk to a node.
        turn_bytes: Most bytes of a channel in one turn; what is longer goes in several.
    """

    rule: str
    rounds: int
    min_parties: int
    round_seconds: int
    joining_seconds: int
    parties: tuple[str, ...]
    again_after: float = 3.0
    turn_bytes: int = TURN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Results of a federation.

    Attributes:
        state: The last merged adapter.
        reports: The newest report of each party whose updates were merged, as it was read.
        counts: What each party that was there at the end measured.
        steps: Optimizer steps of all updates that were merged.
    """

    state: bytes
    reports: dict[str, Any]
    counts: dict[str, dict[str, Any]]
    steps: int


@dataclass(slots=True)
class _Round:
    """A round as far as it came; number 0 is before the first."""

    number: int = 0
    state: bytes = b""
    chosen: tuple[str, ...] | None = None
    taken: dict[str, Taken] = field(default_factory=dict)
    learned: dict[str, LearnedMessage] = field(default_factory=dict)
    reports: dict[str, Any] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    retried: dict[NodeSeat, str] = field(default_factory=dict)


class Federation:
    """One run.

    Args:
        rounds: What the recipe says.
        carrier: Flower.
        conversation: How the lead proves itself, and what it accepts; its context is the run's.
        merging: The mathematics.
        record: Appends an event to the run log.
        on_merged: Called for each round when it is merged: number, and mean loss of its updates.
        states: Where it seals its state after each round, and finds one to go on from; without,
            a lead that ends cannot be resumed.
        random: Names of conversations.
        monotonic: Clock that counts seconds: when the time of a round, or to join, is over.
    """

    def __init__(  # noqa: PLR0913  # what a run consists of
        self,
        rounds: Rounds,
        carrier: Carrier,
        conversation: ChannelTerms,
        merging: Merging,
        *,
        record: Callable[[str, dict[str, JsonValue]], None],
        on_merged: Callable[[int, float | None], None] | None = None,
        states: LeadStates | None = None,
        random: Random = os.urandom,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rounds = rounds
        self._carrier = carrier
        self._conversation = conversation
        self._merging = merging
        self._record = record
        self._on_merged = on_merged
        self._states = states
        self._countable: dict[str, bool] = {}
        self._random = random
        self._monotonic = monotonic
        self._unsaid: list[tuple[str, dict[str, JsonValue]]] | None = None
        self._lost: dict[str, str] = {}
        self._documents: dict[str, dict[str, Any]] = {}
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._seats: dict[int, NodeSeat] = {}
        self._present: dict[str, NodeSeat] = {}
        self._busy: dict[str, int] = {}
        self._round = _Round()
        self._said: set[tuple[int, str]] = set()
        self._reports: dict[str, Any] = {}
        self._counts: dict[str, dict[str, Any]] = {}
        self._steps = 0

    def run(self, state: bytes) -> Merged:
        """All rounds.

        Args:
            state: The adapter that everybody begins with.

        Raises:
            TooFewParties: A round had too few updates in its time.
            CheckpointRefused: A party knows a sealed state that this lead has not, or the one to go
                on from does not open.
        """
        rounds = self._rounds
        number = 0
        try:
            if self._states is not None and self._states.waiting:
                number, state = self._take_up(self._states)
            else:
                self._record("federation.begun", {
                    "rule": rounds.rule, "rounds": rounds.rounds,
                    "min_parties": rounds.min_parties, "parties": list(rounds.parties),
                    "state": sha256_hex(state),
                })  # fmt: skip
                self._gather()
                if (planned := self._merging.plan(sorted(self._present))) is not None:
                    self._record("federation.planned", planned)
            while number < rounds.rounds:
                number += 1
                state = self._merge_round(number, state)
            self._measure(state)
        finally:
            for seat in self._seats.values():
                seat.end()
        self._record("federation.finished", {"rounds": rounds.rounds, "state": sha256_hex(state)})
        return Merged(
            state=state,
            reports=self._reports,
            counts=self._counts,
            steps=self._steps,
        )

    def _take_up(self, states: LeadStates) -> tuple[int, bytes]:
        """Open the newest sealed state with the parties that come; its round and adapter.

        What happens before is recorded when the log can be: it is sealed, too.
        """
        self._unsaid = []
        opened: list[FederationStanding] = []

        def is_open() -> bool:
            if not opened and (standing := states.open_standing()) is not None:
                opened.append(standing)
            return bool(opened)

        self._hear_until(is_open, self._rounds.joining_seconds)
        if not opened:
            raise self._too_few(
                len(self._present), "came to open the sealed state", self._rounds.joining_seconds
            )
        (standing,) = opened
        self._documents = dict(standing.reports)
        self._reports = {
            party: self._merging.read_report(party, document)
            for party, document in standing.reports.items()
        }
        self._steps = standing.steps
        self._merging.recall(standing.memory)
        unsaid, self._unsaid = self._unsaid, None
        for event, fields in unsaid:
            self._record(event, fields)
        # Most of them open the state; a merge without those that are on their way is another one,
        # and so is a choice among fewer: a party counts that no round has chosen yet, too.
        expected = {*standing.reports, *states.present}
        self._hear_until(lambda: expected <= self._present.keys(), self._rounds.round_seconds)
        return standing.round, standing.state

    def _gather(self) -> None:
        """Wait for all parties; at the deadline, for as many as a round needs."""
        seconds = self._rounds.joining_seconds
        self._hear_until(lambda: len(self._present) == len(self._rounds.parties), seconds)
        if len(self._present) < self._rounds.min_parties:
            raise self._too_few(len(self._present), "joined", seconds)

    def _merge_round(self, number: int, state: bytes) -> bytes:
        rounds = self._rounds
        self._await_those_to_choose_from(number)
        chosen = self._merging.choose(number, sorted(self._present), state)
        self._round = this = _Round(number=number, state=state, chosen=chosen)
        self._record("round.begun", {"round": number, "state": sha256_hex(state)})
        for party in tuple(self._present):
            self._ask(party)
        self._hear_until(self._is_complete, rounds.round_seconds)
        if len(this.taken) < rounds.min_parties and this.chosen is not None:
            # Too few of those that were chosen answered: the others take their places.
            this.chosen = None
            for party in tuple(self._present):
                self._ask(party)
        # Those who have enough go on without the others; too few wait for others to come back.
        self._hear_until(lambda: len(this.taken) >= rounds.min_parties, rounds.joining_seconds)
        if len(this.taken) < rounds.min_parties:
            raise self._too_few(
                len(this.taken),
                f"gave an update to round {number}",
                rounds.round_seconds + rounds.joining_seconds,
            )
        parties = sorted(this.taken)
        state, besides = self._merging.merge(number, [this.taken[name] for name in parties], state)
        self._record("round.merged", besides | {
            "round": number, "rule": rounds.rule, "parties": parties,
            "state": sha256_hex(state),
        })  # fmt: skip
        self._reports |= this.reports
        losses = []
        for party in parties:
            learned = this.learned[party]
            self._documents[party] = learned.report
            self._steps += learned.steps
            losses += [] if learned.loss is None else [learned.loss]
        loss = sum(losses) / len(losses) if losses else None
        if self._on_merged is not None:
            self._on_merged(number, loss)
        if self._states is not None:
            self._states.seal(
                FederationStanding(
                    round=number,
                    state=state,
                    reports=self._documents,
                    steps=self._steps,
                    loss=loss,
                    memory=self._merging.memory(),
                )
            )
        return state

    def _await_those_to_choose_from(self, number: int) -> None:
        needed, seconds = self._merging.needed, self._rounds.joining_seconds
        self._round = _Round()  # whoever comes meanwhile is asked nothing of a round that is over
        self._hear_until(lambda: len(self._present) >= needed, seconds)
        if len(self._present) < needed:
            raise self._too_few(
                len(self._present), f"were there to begin round {number}", seconds, needed
            )

    def _is_complete(self) -> bool:
        at_it = self._round.number in self._busy.values() or bool(self._round.retried)
        return len(self._round.taken) >= self._rounds.min_parties and not at_it

    def _measure(self, state: bytes) -> None:
        """Have the parties that are there measure the last adapter; wait for no other."""
        self._round = _Round()
        asked = [party for party in self._present if party not in self._busy]
        last = self._rounds.rounds
        for party in asked:
            self._busy[party] = 0
            task = Asked(do="finish", round=last, payload=len(state), sealed=self._seal_state())
            self._present[party].ask(task, state)
        self._hear_until(lambda: 0 not in self._busy.values(), self._rounds.round_seconds)

    def _seal_state(self) -> SealedState | None:
        return None if self._states is None else self._states.newest

    def _ask(self, party: str) -> None:
        this = self._round
        if this.chosen is not None and party not in this.chosen:
            return
        if this.number and party not in self._busy and party not in this.answered:
            self._busy[party] = this.number
            task = Asked(
                do="learn",
                round=this.number,
                payload=len(this.state),
                rate=self._merging.rate,
                sealed=self._seal_state(),
            )
            self._present[party].ask(task, this.state)

    def _hear_until(self, enough: Callable[[], bool], seconds: float) -> None:
        """Take news until it is enough, at most for so many seconds."""
        until = self._monotonic() + seconds
        while not enough() and (left := until - self._monotonic()) > 0:
            self._seat_nodes()
            try:
                news = self._news.get(timeout=min(left, _TICK_S))
            except queue.Empty:
                continue
            if isinstance(news, Came):
                self._came(news)
            elif isinstance(news, PartyGone):
                self._note_leaver(news)
            else:
                self._note_answer(news)

    def _seat_nodes(self) -> None:
        most = _SEATS_FOR_A_PARTY * len(self._rounds.parties)
        listed = self._carrier.nodes
        for node in listed:
            if node not in self._seats and (len(self._seats) < most or self._gives_up(listed)):
                seat = NodeSeat(
                    lambda data, seconds, node=node: self._carrier.exchange(  # type: ignore[misc]
                        node, data, seconds=seconds
                    ),
                    self._conversation,
                    self._news,
                    patience=2 * self._rounds.round_seconds,
                    again_after=self._rounds.again_after,
                    turn_bytes=self._rounds.turn_bytes,
                    random=self._random,
                )
                self._seats[node] = seat
                seat.start()

    def _gives_up(self, listed: Collection[int]) -> bool:
        """Give up the seats of nodes that are gone: a SuperNode that begins again has another id.

        Args:
            listed: Nodes that are there now.

        Returns:
            Whether there is a seat for another node.
        """
        gone = [node for node in self._seats if node not in listed]
        gone = [node for node in gone if self._seats[node].party is None]
        for node in gone:
            seat = self._seats.pop(node)
            self._round.retried.pop(seat, None)
            seat.end()
        return bool(gone)

    def _came(self, news: Came) -> None:
        joined, seat = news.joined, news.seat
        self._round.retried.pop(seat, None)
        if seat not in self._seats.values():  # given up meanwhile
            return
        try:
            besides = self._let_in(joined)
        except UpdateRefused as refused:
            seat.dismiss()
            self._say_refused(seat, refused)
            return
        seat.party = joined.party
        self._present[joined.party] = seat
        self._countable[joined.party] = joined.countable
        told = joined.records if joined.countable else None
        self._lost.pop(joined.party, None)
        self._say("party.joined", besides | {"party": joined.party, "records": told})
        self._ask(joined.party)

    def _let_in(self, joined: PartyJoined) -> dict[str, JsonValue]:
        stranger = joined.party not in self._rounds.parties
        if stranger or joined.party in self._present:
            raise UpdateRefused(
                "a party cannot take part",
                owner=joined.party,
                check="party",
                got="not of this run" if stranger else "here already",
            )
        if self._states is not None:
            self._states.admit(joined)
        return self._merging.admit(joined)

    def _note_leaver(self, news: PartyGone) -> None:
        party = news.seat.party
        self._round.retried.pop(news.seat, None)
        if party is not None:
            news.seat.party = None
            self._present.pop(party)
            self._busy.pop(party, None)
            self._lost[party] = f"{party}: {news.error.code} in round {self._round.number}"
            chosen = self._round.chosen
            asked = chosen is None or party in chosen
            if self._round.number and asked and party not in self._round.answered:
                self._round.retried[news.seat] = party
            self._say("party.left", {"party": party, "code": news.error.code})
        elif not isinstance(news.error, PeerUnreachable):
            self._say_refused(news.seat, news.error)

    def _say_refused(self, seat: NodeSeat, error: SealtrainError) -> None:
        """Each kind of refusal of a node stands in the log once: it may try again for ever."""
        if (id(seat), error.code) not in self._said:
            self._said.add((id(seat), error.code))
            self._say("party.refused", {"code": error.code})

    def _say(self, event: str, fields: dict[str, JsonValue]) -> None:
        """Record an event; while the log is sealed, once it is open."""
        if self._unsaid is None:
            self._record(event, fields)
        else:
            self._unsaid.append((event, fields))

    def _note_answer(self, news: Answered) -> None:
        party = news.seat.party
        if party is None:
            return
        self._busy.pop(party, None)
        if news.asked.do == "finish":
            self._counts[party] = news.words
            return
        number = news.asked.round
        try:
            self._take(party, number, news)
        except (DataInvalid, Refused) as error:
            self._record("update.refused", {"round": number, "party": party, "code": error.code})
        self._ask(party)

    def _take(self, party: str, number: int, news: Answered) -> None:
        this = self._round
        if number != this.number:
            raise UpdateRefused(
                "an update came too late",
                owner=party,
                check="round",
                got=number,
                expected=this.number or "none any more",
            )
        this.answered.add(party)
        learned = load_model(LearnedMessage, news.words, UpdateRefused, "update")
        if learned.round != number:
            raise UpdateRefused("an update is for another round", owner=party, check="round")
        taken = self._merging.take(party, learned.records, news.data, this.state)
        if taken.norm is not None and not taken.norm <= _MOST_NORM:
            raise UpdateRefused(
                "an update changes more than any training does",
                owner=party,
                check="norm",
                got=f"{taken.norm:.3g}",
                expected=f"at most {_MOST_NORM:.0e}",
            )
        report = self._merging.read_report(party, learned.report)
        besides = self._merging.outside(party, learned)
        this.reports[party] = report
        this.taken[party], this.learned[party] = taken, learned
        self._record("update.taken", besides | {
            "round": number, "party": party,
            "digest": None if taken.norm is None else sha256_hex(news.data),
            "records": learned.records if self._countable[party] else None,
            "norm": taken.norm,
        })  # fmt: skip

    def _too_few(
        self, count: int, what: str, seconds: int, needed: int | None = None
    ) -> TooFewParties:
        lost = "; ".join(self._lost[party] for party in sorted(self._lost))
        return TooFewParties(
            f"too few parties {what} in time",
            check="parties",
            owner=min(self._lost, default=None),
            got=f"{count} ({lost})" if lost else count,
            expected=f"{needed or self._rounds.min_parties} within {seconds} s",
            hint="see whether their guests and SuperNodes run, then: sealtrain resume",
        )
