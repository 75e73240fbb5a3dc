"""The sum of a round over parties that come and go: attempts, steps, and who is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sealtrain.base.secret import Random
from sealtrain.errors import ChannelCut, DataInvalid, Refused, SealtrainError, UpdateRefused
from sealtrain_collab.federated.masks.keys import Place
from sealtrain_collab.federated.masks.lead import Summing
from sealtrain_collab.federated.masks.messages import Introduction

__all__ = ["Masking", "Sums", "Table"]

_ATTEMPTS: Final = 8
_SLACK_BYTES: Final = 64 << 10
"""Of an answer, besides a vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """What a lead that sees sums only has to know.

    Attributes:
        run_id: Of the whole run.
        threshold: Shares that open a sum.
        numbers: That each update has.
    """

    run_id: str
    threshold: int
    numbers: int


class Table(Protocol):
    """The parties of a federation, as it seats them."""

    def holders(self) -> Collection[str]:
        """Parties that are there and hold an update of the round."""

    def ask_step(self, party: str, body: bytes, most: int) -> bool:
        """Ask a party for a step; whether it is there and has nothing else to do.

        Args:
            party: Its name.
            body: The task.
            most: Bytes of its answer's own message.
        """

    def at_it(self, party: str) -> bool:
        """Whether the party still works on what it was asked."""

    def hear_until(self, enough: Callable[[], bool], seconds: float) -> None:
        """Take in what parties say until it is enough, at most for so many seconds."""

    def freeze(self, parties: tuple[str, ...]) -> None:
        """These parties' updates are in the sum from now on, whether they stay or not."""


class Sums:
    """Opens the sum of each round.

    Args:
        masking: As the recipe says.
        table: Who is there.
        least: Updates that a sum has to be of.
        round_seconds: How long a step may take.
        joining_seconds: How long parties may take to come back before an attempt.
        random: Names of attempts.
    """

    def __init__(
        self,
        masking: Masking,
        table: Table,
        *,
        least: int,
        round_seconds: float,
        joining_seconds: float,
        random: Random = os.urandom,
    ) -> None:
        self._masking, self._table, self._least = masking, table, least
        self._round_seconds, self._joining_seconds = round_seconds, joining_seconds
        self._random = random
        self._introduced: dict[str, Introduction] = {}
        self._asked: dict[str, tuple[Summing, str]] = {}
        self._now: tuple[Summing, str] | None = None
        self.refusal: SealtrainError | None = None
        """The last one of a party that did not only die."""

    def admit(self, party: str, introduction: Introduction | None) -> None:
        """Keep the introduction of a party that joins.

        Raises:
            UpdateRefused: It brings none, or another's.
        """
        if introduction is None or introduction.party != party:
            raise UpdateRefused(
                "a party does not introduce itself to the others",
                owner=party,
                check="introduction",
                got="none" if introduction is None else introduction.party,
            )
        self._introduced[party] = introduction

    def left(self, party: str, error: SealtrainError) -> None:
        """A party is gone, for this reason."""
        self._asked.pop(party, None)
        if isinstance(error, Refused) and not isinstance(error, ChannelCut):
            self.refusal = error

    def heard(self, party: str, words: Mapping[str, Any], data: bytes) -> None:
        """A party's answer to a step; one of an attempt that went on without it is passed over.

        Raises:
            DataInvalid, Refused: It is none.
        """
        asked = self._asked.pop(party, None)
        if asked is None or asked != self._now:
            return
        summing, step = asked
        try:
            summing.take(step, party, words, data)
        except (DataInvalid, Refused) as error:
            self.refusal = error
            raise

    def opened(self, number: int) -> Summing | None:
        """Have the parties that hold an update open their sum; again where too few stayed.

        Args:
            number: Of the round.

        Returns:
            The attempt that was opened; ``None`` where too few parties stayed each time.
        """
        table, least = self._table, self._least
        for _ in range(_ATTEMPTS):
            table.hear_until(lambda: len(table.holders()) >= least, self._joining_seconds)
            members = {party: self._introduced[party] for party in table.holders()}
            if len(members) < least:
                return None
            name = self._random(16).hex()
            place = Place(run_id=self._masking.run_id, round=number, attempt=name)
            summing = Summing(place, self._masking.numbers, members)
            if self._attempted(summing):
                return summing
        return None

    def _attempted(self, summing: Summing) -> bool:
        least, threshold = self._least, self._masking.threshold
        if not (
            self._done(summing, "introduce", summing.introduce, least)
            and self._done(summing, "share", summing.share, least)
            and self._done(summing, "upload", summing.upload, least)
        ):
            return False
        agreeing = summing.agree(frozenset(self._table.holders()))
        if len(summing.survivors) < least:
            return False
        self._table.freeze(summing.survivors)
        return self._done(summing, "agree", lambda: agreeing, threshold) and self._done(
            summing, "unmask", summing.unmask, threshold
        )

    def _done(
        self, summing: Summing, step: str, bodies: Callable[[], Mapping[str, bytes]], least: int
    ) -> bool:
        """Ask each party, and wait for all that stay; whether enough gave a usable answer."""
        self._now = now = (summing, step)
        most = 8 * (self._masking.numbers + 1) if step == "upload" else 0
        for party, body in bodies().items():
            if self._table.ask_step(party, body, most + _SLACK_BYTES):
                self._asked[party] = now
        self._table.hear_until(
            lambda: (
                not any(
                    asked == now and self._table.at_it(party)
                    for party, asked in self._asked.items()
                )
            ),
            self._round_seconds,
        )
        self._now = None
        return summing.answered[step] >= least
