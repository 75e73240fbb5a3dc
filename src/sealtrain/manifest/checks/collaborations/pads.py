"""Check that the run log of products under pads is consistent (spec/one-time-pads.md §8).

Pure rules over the entries: other checks cover the hash chain and its signature. Read in
order, the first breach is ``ClaimContradicted``:

1. every ``pads.begun`` and ``pads.spent`` has exactly its fields, in their types;
2. pads were made, and products checked, as the recipe says, by a dealer exactly where it has one;
3. each process of the run begins once, before it spends, seals a checkpoint or ends training;
4. a checkpoint and the end of training come after the counts, which never fall in a process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sealtrain.base.models import load_model
from sealtrain.manifest.checks.case import Case
from sealtrain.manifest.checks.collaborations.padfacts import PadsBegun, PadsSpent, another_than
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaborations.pads import Pads

_STARTS: Final = frozenset({"run.started", "run.restarted", "run.resumed"})
_NEEDS_COUNTS: Final = frozenset({"checkpoint.sealed", "training.finished"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PadUse:
    """Products made outside the guest under pads.

    Attributes:
        layers: How many, by what they are called in their blocks.
        beginnings: Processes of the run; each had pads of its own.
        products: Made and checked, as far as the log goes: what a process did after its last
            checkpoint, and lost, is in no count.
        rows: In them.
        bytes_out: To the accelerators.
        bytes_in: From them.
    """

    layers: Mapping[str, int]
    beginnings: int
    products: int
    rows: int
    bytes_out: int
    bytes_in: int


def pads_hold(case: Case) -> str:
    """Check 18 of a run whose products were made elsewhere."""
    how = case.need_lock().recipe.collaboration
    if not isinstance(how, Pads):
        raise ClaimContradicted("the recipe has all products made in the guest", check="pads")
    found = read_pad_use(case.need_log(), how)
    return (
        f"{found.products} products of {sum(found.layers.values())} layers made elsewhere under "
        f"{how.pads} pads, {found.bytes_out} bytes out and {found.bytes_in} in"
    )


def sum_up(entries: Iterable[Mapping[str, Any]], how: Pads) -> str:
    """Sum up the products under pads for a report. Arguments and errors: ``read_pad_use``."""
    found = read_pad_use(entries, how)
    layers = ", ".join(f"{name} {count:,}" for name, count in found.layers.items())
    return (
        f"Layers: {layers}. {found.products:,} products of {found.rows:,} rows were made "
        f"elsewhere and checked with {how.checks} secret vectors each; {found.bytes_out:,} bytes "
        f"left and {found.bytes_in:,} came back. Pads: {how.pads}, of {found.beginnings:,} "
        "beginnings."
    )


def read_pad_use(entries: Iterable[Mapping[str, Any]], how: Pads) -> PadUse:
    """Read the use of pads from a run log, by the module's rules.

    Args:
        entries: Of the log, in order.
        how: The recipe's collaboration.

    Raises:
        ClaimContradicted: A rule of the module is broken.
    """
    told = _PadsTold(how)
    for entry in entries:
        told.take(entry)
    return told.sum()


@dataclass
class _PadsTold:
    """The log as far as it was read."""

    how: Pads
    begun: PadsBegun | None = None
    counted: PadsSpent | None = None
    before: list[PadsSpent] = field(default_factory=list)
    beginnings: int = 0
    layers: dict[str, int] = field(default_factory=dict)

    def take(self, entry: Mapping[str, Any]) -> None:
        event, number = entry["event"], entry["seq"]
        if event in _STARTS:
            self._leave()
        elif event == "pads.begun":
            self._begin(_read(PadsBegun, entry), number)
        elif event == "pads.spent":
            self._spend(_read(PadsSpent, entry), number)
        elif event in _NEEDS_COUNTS and self.counted is None:
            raise _broken(f"{event} comes before any count of products", number, "products")

    def sum(self) -> PadUse:
        self._leave()
        if not self.beginnings:
            raise ClaimContradicted("the run log names no product under pads", check="pads")
        totals = {
            name: sum(getattr(use, name) for use in self.before)
            for name in ("products", "rows", "bytes_out", "bytes_in")
        }
        return PadUse(layers=self.layers, beginnings=self.beginnings, **totals)

    def _leave(self) -> None:
        """A process ended, one way or another."""
        if self.counted is not None:
            self.before.append(self.counted)
        self.begun = self.counted = None

    def _begin(self, begun: PadsBegun, number: int) -> None:
        if self.begun is not None:
            raise _broken("pads begin twice in one process", number, "event")
        if (name := another_than(self.how, begun)) is not None:
            raise _broken(f"pads began otherwise than the recipe says: {name}", number, name)
        if self.layers and self.layers != begun.layers:
            raise _broken("pads began for other layers than before", number, "layers")
        self.begun, self.layers = begun, begun.layers
        self.beginnings += 1

    def _spend(self, spent: PadsSpent, number: int) -> None:
        if self.begun is None:
            raise _broken("products were made before pads began", number, "event")
        if self.counted is not None and spent.falls_below(self.counted):
            raise _broken("counts of products fall", number, "products")
        self.counted = spent


def _read(kind: type[Any], entry: Mapping[str, Any]) -> Any:
    name = f"run log entry {entry['seq']}"
    return load_model(kind, entry["fields"], ClaimContradicted, name)


def _broken(what: str, number: int, field: str) -> ClaimContradicted:
    return ClaimContradicted(what, check="pads", field=field, got=f"run log entry {number}")
