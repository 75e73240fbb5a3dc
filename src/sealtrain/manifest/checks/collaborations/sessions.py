"""Sessions of pads in a federation: each is one party's, and goes forward only (spec §6).

Lead and verifiers hold a run log to the same rules. The lead remembers how far each session is, so
it also sees where two processes go on with the pads of one: such as of a guest's memory that was
copied, or put back to an earlier moment.

1. a party joins with a session as the recipe asks for, for the layers of every other party;
2. an update names its session, which no other party's update named;
3. the counts of a session never fall, and each update adds a product for every step, of one row or
   more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sealtrain.base.models import Hex32, load_model
from sealtrain.manifest.checks.collaborations.padfacts import PadsBegun, PadsSpent, another_than
from sealtrain.manifest.checks.collaborations.patients import Breach
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaborations.pads import ProductSettings

_TAKEN: Final = "update.taken"


class SessionSpent(PadsSpent):
    """Accepted products of a party's session, up to an update.

    Attributes:
        session: Its name (spec/one-time-pads.md §4).
    """

    session: Hex32


@dataclass(slots=True)
class PadSessions:
    """What all parties' pads were used for, as far as it was told.

    Attributes:
        how: What the recipe says of products; ``None`` where each guest makes its own.
        local_steps: Optimizer steps of an update.
        layers: That left each guest, once it is known.
    """

    how: ProductSettings | None
    local_steps: int
    layers: Mapping[str, int] | None = None
    _last: dict[str, tuple[str, SessionSpent]] = field(default_factory=dict)

    @property
    def used(self) -> tuple[SessionSpent, ...]:
        """The last count of each session, in the order of their names."""
        return tuple(self._last[name][1] for name in sorted(self._last))

    def join(self, party: str, begun: PadsBegun | None) -> Breach | None:
        """A party says how its session began (1)."""
        if (begun is None) != (self.how is None):
            return Breach("products", f"{party} has other products made elsewhere than the recipe")
        if self.how is None or begun is None:
            return None
        if (name := another_than(self.how, begun)) is not None:
            return Breach(name, f"{party} began pads otherwise than the recipe says")
        if self.layers is None:
            self.layers = begun.layers
        if begun.layers != self.layers:
            return Breach("layers", f"{party} began pads for other layers than the others")
        return None

    def give(self, party: str, spent: SessionSpent | None) -> Breach | None:
        """A party's update says what its session came to (2, 3)."""
        if (spent is None) != (self.how is None):
            return Breach("products", f"{party} counts other products than the recipe has")
        if spent is None:
            return None
        owner, last = self._last.get(spent.session, (party, _nothing(spent.session)))
        if owner != party:
            return Breach("session", f"{party} uses the pads of {owner}")
        if spent.falls_below(last):
            return Breach("products", f"{party} uses pads that it used before")
        products, rows = spent.products - last.products, spent.rows - last.rows
        if not self.local_steps <= products <= rows:
            return Breach("products", f"{party} gave an update of fewer products than steps")
        self._last[spent.session] = (party, spent)
        return None

    def recount(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Know what a log tells of an earlier lead's updates.

        Args:
            entries: Of the log, in order; it keeps the rules.
        """
        for entry in entries:
            told = entry["fields"].get("products") if entry["event"] == _TAKEN else None
            if told is not None:
                spent = load_model(SessionSpent, told, ClaimContradicted, "products of an update")
                self._last[spent.session] = (entry["fields"]["party"], spent)


def _nothing(session: str) -> SessionSpent:
    return SessionSpent(session=session, products=0, rows=0, bytes_out=0, bytes_in=0)
