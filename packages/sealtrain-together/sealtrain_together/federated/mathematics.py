"""The mathematics of a round as a federation asks for it (spec/federated.md §4, §5).

The federation knows who is there and what came in time; what an update means, whether one can be
read, and what the merge of several is, it leaves to a ``Merging``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sealtrain.base.canonical import JsonValue
from sealtrain_together.federated.messages import LearnedMessage, PartyJoined


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """An update that was looked at and counts.

    Attributes:
        party: Whose.
        records: It was trained on.
        norm: L2 norm of what it changes, before any cut; ``None`` where rounds hide patients: then
            no figure of the update may be told, nor its digest.
        value: The update as ``Merging`` wants it.
    """

    party: str
    records: int
    norm: float | None
    value: Any


class Merging(Protocol):
    """The mathematics of a round. Methods with a body here are for rounds without patient privacy.

    Attributes:
        rate: Probability of each patient to take part in a round, once there is a plan.
        needed: Parties that have to be there before a round can begin.
    """

    rate: float | None = None
    needed: int = 0

    def admit(self, joined: PartyJoined) -> dict[str, JsonValue]:
        """Further fields of the log about a party that joins. Raises ``UpdateRefused``."""
        return {}

    def plan(self, present: Sequence[str]) -> dict[str, JsonValue] | None:
        """Called once before the first round, with who is there: what the log says of the plan."""
        return None

    def choose(self, number: int, present: Sequence[str], state: bytes) -> tuple[str, ...] | None:
        """Parties to ask in a round that begins; ``None`` for all, and those that come later.

        Args:
            number: Of the round.
            present: Parties that are there, sorted; at least ``needed``.
            state: The adapter that they begin with.
        """
        return None

    def memory(self) -> bytes:
        """What the rule remembers of earlier rounds, to be sealed with the lead's state."""
        return b""

    def recall(self, memory: bytes) -> None:
        """Go on from what ``memory`` gave. Raises ``CheckpointRefused`` for another rule's."""
        return None

    def take(self, party: str, records: int, update: bytes, state: bytes) -> Taken:
        """Read an update to ``state``. Raises ``DataInvalid`` or ``Refused`` for other bytes."""

    def outside(self, party: str, learned: LearnedMessage) -> dict[str, JsonValue]:
        """Further fields of the log about an update that counts. Raises as ``take``."""
        return {}

    def read_report(self, party: str, document: dict[str, Any]) -> Any:
        """What a party says of itself, read. Raises as ``take``."""

    def merge(
        self, number: int, taken: Sequence[Taken], state: bytes
    ) -> tuple[bytes, dict[str, JsonValue]]:
        """The adapter after round ``number``, and what the log says of the merge besides."""
