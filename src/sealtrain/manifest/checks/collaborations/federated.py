"""Check that the run log of a federation is consistent (spec/federated-rounds.md §6).

Pure rules over the entries: other checks cover the hash chain and its signature. Read in
order, the first breach is ``ClaimContradicted``:

1. the federation begins once, as the recipe says, and is finished once, after the last round;
2. rounds are begun and merged from 1 on, each from the adapter that the one before was merged to;
3. a party is there from where it joined to where it left, never twice at once, with as many records
   as its datasets hold; with no number where their owner keeps it;
4. it gives at most one update to a round, while it is there and the round goes on, and while the
   manifest says that it took part;
5. a round is merged of exactly those who gave an update, at least as many as the recipe asks for;
6. the parties of the manifest are exactly those whose updates were merged.

Where rounds hide patients, ``patients`` has the rules that come besides; where an accelerator
multiplies for the parties, ``sessions`` has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import AllowInfNan, Field

from sealtrain.base.clock import from_rfc3339
from sealtrain.base.models import ErrorCode, Hex64, OwnerName, StrictModel, load_model
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S, Case
from sealtrain.manifest.checks.collaborations.padfacts import PadsBegun
from sealtrain.manifest.checks.collaborations.patients import (
    Breach,
    Hiding,
    PlannedFields,
    privacy_is,
)
from sealtrain.manifest.checks.collaborations.sessions import PadSessions, SessionSpent
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaboration import holders_of
from sealtrain.recipe.collaborations.federated import Federated
from sealtrain.recipe.collaborations.pads import ProductSettings
from sealtrain.recipe.collaborations.patients import PatientPrivacy

_PREFIXES: Final = ("federation.", "party.", "round.", "update.")
_COUNTED: Final = ("products", "rows")
_Count = Annotated[int, Field(ge=1, le=(1 << 53) - 1)]
_Names = Annotated[tuple[OwnerName, ...], Field(min_length=1, max_length=256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedTerms:
    """Terms that a federation must keep.

    Attributes:
        rule: How updates are merged.
        rounds: How many merges.
        min_parties: Updates that each needs.
        holders: Owners who give data to train on.
        records: In the training data of each party that the manifest names; ``None`` where its
            owner keeps the number.
        windows: From when until when each of them took part, seconds since the epoch.
        promised: To patients; ``None`` for nothing.
        products: That an accelerator makes for each party; ``None`` for none.
        local_steps: Optimizer steps of a party in a round.
    """

    rule: str
    rounds: int
    min_parties: int
    holders: tuple[str, ...]
    records: Mapping[str, int | None]
    windows: Mapping[str, tuple[int, int]]
    promised: PatientPrivacy | None = None
    products: ProductSettings | None = None
    local_steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResults:
    """Results of the rounds of a run.

    Attributes:
        merged: Parties of each round, in order.
        refused: Updates that did not count.
        left: How often a party dropped out.
        state: Digest of the last merged adapter.
        hiding: Of patients, what it came to.
        sessions: Of pads, what they came to.
    """

    merged: tuple[tuple[str, ...], ...]
    refused: int
    left: int
    state: str
    hiding: Hiding
    sessions: PadSessions


class _Begun(StrictModel):
    rule: str
    rounds: _Count
    min_parties: _Count
    parties: _Names
    state: Hex64


class _Joined(StrictModel):
    party: OwnerName
    records: _Count | None
    patients: _Count | None = None
    products: PadsBegun | None = None


class _Left(StrictModel):
    party: OwnerName
    code: ErrorCode


class _NotLetIn(StrictModel):
    code: ErrorCode


class _RoundBegun(StrictModel):
    round: _Count
    state: Hex64


class _Taken(StrictModel):
    round: _Count
    party: OwnerName
    digest: Hex64 | None
    records: _Count | None
    norm: Annotated[float, AllowInfNan(False), Field(ge=0)] | None
    products: SessionSpent | None = None


class _Refused(StrictModel):
    round: _Count
    party: OwnerName
    code: ErrorCode


class _Merged(StrictModel):
    round: _Count
    rule: str
    parties: _Names
    state: Hex64
    noise_multiplier: Annotated[float, AllowInfNan(False)] | None = None


class _Finished(StrictModel):
    rounds: _Count
    state: Hex64


def rounds_hold(case: Case) -> str:
    """(19) What the run log says of rounds keeps the rules of this module."""
    recipe, collaboration = case.need_lock().recipe, case.predicate.collaboration
    how = recipe.collaboration
    if collaboration is None or not isinstance(how, Federated):
        raise TypeError("rounds are of federated runs")
    terms = FederatedTerms(
        rule=how.aggregation,
        rounds=how.rounds,
        min_parties=how.min_parties,
        holders=holders_of(recipe),
        records={party.name: _records(case, party.name) for party in collaboration.parties},
        windows={
            party.name: (from_rfc3339(party.begun), from_rfc3339(party.until))
            for party in collaboration.parties
        },
        promised=how.patient_privacy,
        products=how.products,
        local_steps=how.local_steps,
    )
    found = check_rounds(case.need_log(), terms)
    kept = privacy_is(case.predicate, found.hiding)
    updates = sum(map(len, found.merged))
    return (
        f"{len(found.merged)} rounds merged by {how.merged_by}, {updates} updates of "
        f"{len(collaboration.parties)} parties, {found.refused} refused, "
        f"{found.left} dropped out{kept}{_describe_elsewhere(found.sessions)}"
    )


def _describe_elsewhere(sessions: PadSessions) -> str:
    if sessions.how is None:
        return ""
    products = sum(spent.products for spent in sessions.used)
    return (
        f", {products} products made elsewhere under {sessions.how.pads} pads in "
        f"{len(sessions.used)} sessions"
    )


def _records(case: Case, party: str) -> int | None:
    """To train on, where all the party's manifests tell how many records they hold."""
    counts = [dataset.records for dataset in case.need_datasets() if dataset.owner == party]
    named = case.need_lock().recipe.datasets
    training = {
        dataset.name for dataset in named if dataset.owner == party and dataset.role == "train"
    }
    trained = [
        dataset.records or 0
        for dataset in case.need_datasets()
        if dataset.owner == party and dataset.name in training
    ]
    return None if None in counts else sum(trained)


def sum_up(entries: Iterable[Mapping[str, Any]], how: Federated) -> str:
    """Sum up the rounds for a report.

    Args:
        entries: Of the log, in order.
        how: The recipe's collaboration.

    Raises:
        ClaimContradicted: It tells of no products where the recipe has them.
    """
    told = list(entries)
    rounds = sum(entry["event"] == "round.merged" for entry in told)
    text = f"{rounds:,} rounds were merged by {how.merged_by}."
    if how.products is None:
        return text
    sessions = PadSessions(how.products, how.local_steps)
    sessions.recount(told)
    joined = [entry["fields"] for entry in told if entry["event"] == "party.joined"]
    if not joined:
        raise ClaimContradicted("no party joined", check="rounds")
    begun = load_model(
        PadsBegun, joined[0].get("products"), ClaimContradicted, "products of a party"
    )
    layers = ", ".join(f"{name} {count:,}" for name, count in begun.layers.items())
    products, rows = (sum(getattr(session, name) for session in sessions.used) for name in _COUNTED)
    return (
        f"{text} Layers of each party under pads: {layers}. Up to their last updates parties had "
        f"{products:,} products of {rows:,} rows made elsewhere, each checked with "
        f"{how.products.checks} secret vectors. Pads: {how.products.pads}, of "
        f"{len(sessions.used):,} sessions."
    )


def check_rounds(entries: Iterable[Mapping[str, Any]], terms: FederatedTerms) -> RoundResults:
    """Check the entries of a run log that tell of rounds; others are not looked at.

    Args:
        entries: All of the log, oldest first.
        terms: What they must keep.

    Raises:
        ClaimContradicted: The first of the module's rules that is broken.
    """
    sessions = PadSessions(terms.products, terms.local_steps)
    told = _Told(terms, Hiding(terms.promised, terms.rounds), sessions)
    for entry in entries:
        if str(entry["event"]).startswith(_PREFIXES):
            told.take(entry)
    return told.sum()


@dataclass
class _Told:
    """The log as far as it was read."""

    terms: FederatedTerms
    hiding: Hiding
    sessions: PadSessions
    state: str | None = None
    number: int = 0
    open: bool = False
    there: dict[str, int | None] = field(default_factory=dict)
    gave: set[str] = field(default_factory=set)
    merged: list[tuple[str, ...]] = field(default_factory=list)
    refused: int = 0
    left: int = 0
    over: bool = False

    def take(self, entry: Mapping[str, Any]) -> None:
        event = entry["event"]
        if event not in _STEPS:
            raise _broken(f"an event of no federation: {event}", entry, "event")
        if self.over or (event != "federation.begun") != (self.state is not None):
            raise _broken(f"{event} is out of place", entry, "event")
        kind, step = _STEPS[event]
        name = f"run log entry {entry['seq']}"
        step(self, load_model(kind, entry["fields"], ClaimContradicted, name), entry)

    def sum(self) -> RoundResults:
        if not self.over or self.state is None:
            raise ClaimContradicted("the federation did not finish", check="rounds")
        took_part = {party for parties in self.merged for party in parties}
        if took_part != set(self.terms.windows):
            raise ClaimContradicted(
                "the manifest names other parties than those whose updates were merged",
                check="rounds",
                got=", ".join(sorted(self.terms.windows)),
                expected=", ".join(sorted(took_part)),
            )
        return RoundResults(
            merged=tuple(self.merged),
            refused=self.refused,
            left=self.left,
            state=self.state,
            hiding=self.hiding,
            sessions=self.sessions,
        )

    def begin(self, said: _Begun, entry: Mapping[str, Any]) -> None:
        terms = self.terms
        meant = (terms.rule, terms.rounds, terms.min_parties, terms.holders)
        if (said.rule, said.rounds, said.min_parties, said.parties) != meant:
            raise _broken("a federation began otherwise than the recipe says", entry)
        self.state = said.state

    def join(self, said: _Joined, entry: Mapping[str, Any]) -> None:
        if said.party not in self.terms.holders or said.party in self.there:
            raise _broken(
                f"{said.party} joined, and is a stranger or was there already", entry, "party"
            )
        if said.records != self.terms.records.get(said.party, said.records):
            raise _broken(
                f"{said.party} claimed another number of records than it has", entry, "records"
            )
        self._holds(self.hiding.join(said.party, said.patients), entry)
        self._holds(self.sessions.join(said.party, said.products), entry)
        self.there[said.party] = said.records

    def leave(self, said: _Left, entry: Mapping[str, Any]) -> None:
        if said.party not in self.there:
            raise _broken(f"{said.party} left without having joined", entry, "party")
        self.there.pop(said.party)
        self.left += 1

    def not_let_in(self, said: _NotLetIn, entry: Mapping[str, Any]) -> None:
        """A party that was not let in gave nothing."""

    def plan(self, said: PlannedFields, entry: Mapping[str, Any]) -> None:
        if self.number:
            raise _broken("noise was planned after the first round had begun", entry, "event")
        self._holds(self.hiding.make(said, self.there), entry)

    def begin_round(self, said: _RoundBegun, entry: Mapping[str, Any]) -> None:
        if self.open or said.round != self.number + 1 or said.round > self.terms.rounds:
            raise _broken(f"round {said.round} began out of turn", entry, "round")
        self._holds(self.hiding.begin_round(), entry)
        self._goes_on_from(said.state, entry)
        self.number, self.open, self.gave = said.round, True, set()

    def give(self, said: _Taken, entry: Mapping[str, Any]) -> None:
        if not self.open or said.round != self.number:
            raise _broken(
                f"an update of {said.party} counts in a round that is over", entry, "round"
            )
        if said.party in self.gave:
            raise _broken(f"{said.party} gave two updates to round {said.round}", entry, "party")
        if said.party not in self.there or self.there[said.party] != said.records:
            raise _broken(
                f"{said.party} gave an update while absent, or of other records",
                entry,
                "records",
            )
        begins, until = self.terms.windows.get(said.party, (0, 0))
        moment = from_rfc3339(entry["at"])
        if not begins - CLOCK_TOLERANCE_S <= moment <= until + CLOCK_TOLERANCE_S:
            raise _broken(f"{said.party} gave an update without taking part", entry, "at")
        self._holds(self.hiding.give(said.party, told=(said.digest, said.norm)), entry)
        self._holds(self.sessions.give(said.party, said.products), entry)
        self.gave.add(said.party)

    def refuse(self, said: _Refused, entry: Mapping[str, Any]) -> None:
        if said.party not in self.there or said.round > self.number:
            raise _broken("a refused update was never requested from a party", entry, "party")
        self.refused += 1

    def merge(self, said: _Merged, entry: Mapping[str, Any]) -> None:
        if not self.open or said.round != self.number or said.rule != self.terms.rule:
            raise _broken(
                f"round {said.round} was merged out of turn, or by another rule", entry, "round"
            )
        if said.parties != tuple(sorted(self.gave)):
            raise _broken(
                f"round {said.round} was merged of others than gave an update", entry, "parties"
            )
        if len(said.parties) < self.terms.min_parties:
            raise _broken(f"round {said.round} was merged of too few", entry, "min_parties")
        self._holds(self.hiding.merge(said.noise_multiplier), entry)
        self.merged.append(said.parties)
        self.state, self.open = said.state, False

    def finish(self, said: _Finished, entry: Mapping[str, Any]) -> None:
        if self.open or (self.number, said.rounds) != (self.terms.rounds, self.terms.rounds):
            raise _broken("the federation finished before its last round", entry, "rounds")
        self._goes_on_from(said.state, entry)
        self.over = True

    @staticmethod
    def _holds(breach: Breach | None, entry: Mapping[str, Any]) -> None:
        if breach is not None:
            raise _broken(breach.what, entry, breach.field)

    def _goes_on_from(self, state: str, entry: Mapping[str, Any]) -> None:
        if state != self.state:
            raise _broken("it continues from another adapter than was merged", entry, "state")


_STEPS: Final[Mapping[str, tuple[type[StrictModel], Callable[..., None]]]] = {
    "federation.begun": (_Begun, _Told.begin),
    "federation.planned": (PlannedFields, _Told.plan),
    "party.joined": (_Joined, _Told.join),
    "party.left": (_Left, _Told.leave),
    "party.refused": (_NotLetIn, _Told.not_let_in),
    "round.begun": (_RoundBegun, _Told.begin_round),
    "update.taken": (_Taken, _Told.give),
    "update.refused": (_Refused, _Told.refuse),
    "round.merged": (_Merged, _Told.merge),
    "federation.finished": (_Finished, _Told.finish),
}


def _broken(problem: str, entry: Mapping[str, Any], field: str | None = None) -> ClaimContradicted:
    return ClaimContradicted(
        problem,
        check="rounds",
        field=field,
        got=f"run log entry {entry['seq']}",
        hint="it was not written by the lead's measured code, or is not whole",
    )
