"""The parties of a run, and when each took part (spec/parties.md §3).

One guest is the case of one stay. Checks 10, 11 and 14 ask it; what the parties did together is
check 18's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sealtrain.base.clock import from_rfc3339
from sealtrain.base.distributions import load
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaboration import holders_of, is_shared_out
from sealtrain.recipe.kinds import KINDS, settings_of
from sealtrain.signing.parties import party_run_id

if TYPE_CHECKING:
    from sealtrain.manifest.checks.case import Case
    from sealtrain.manifest.predicate import Party, Predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A guest that asked brokers for keys, and until when it used them.

    Attributes:
        run_id: That brokers know it by.
        party: Name of the owner whose data alone it held; ``None`` for all of the recipe.
        begins: Seconds since the epoch.
        until: The same.
        leads: It is the run's own guest, which keeps the run log; where there are parties, none is.
    """

    run_id: str
    party: str | None
    begins: int
    until: int
    leads: bool = False

    @property
    def name(self) -> str:
        """As messages name it."""
        return self.party or f"the guest known as run {self.run_id}"


def role_of(kind: str) -> str | None:
    """What a party does in a kind of collaboration; ``None`` for a kind without parties."""
    settings = settings_of(kind)
    return None if settings is None else settings.party_role


def stays_of(predicate: Predicate) -> tuple[Stay, ...]:
    """The guests that hold keys in this run: one, one for each party, or one for each node.

    A party's run id is computed, not read: a manifest cannot give it another's receipts.
    """
    run, collaboration = predicate.run, predicate.collaboration
    if collaboration is None or role_of(collaboration.kind) is None:
        ends = from_rfc3339(run.started_at), from_rfc3339(run.finished_at)
        own = Stay(run_id=run.run_id, party=None, begins=ends[0], until=ends[1], leads=True)
        return (own, *_fellows(predicate))
    return tuple(
        Stay(
            run_id=party_run_id(run.run_id, party.name),
            party=party.name,
            begins=from_rfc3339(party.begun),
            until=from_rfc3339(party.until),
        )
        for party in collaboration.parties
    )


def stays_in(case: Case) -> tuple[Stay, ...]:
    """``stays_of`` a manifest under examination, whose log must hold where it names the guests."""
    collaboration = case.predicate.collaboration
    kind = None if collaboration is None else KINDS.get(collaboration.kind)
    if kind is not None and kind.stays is not None:
        case.need_log()
    return stays_of(case.predicate)


def _fellows(predicate: Predicate) -> tuple[Stay, ...]:
    """The other guests that held all data and trained with the run's own."""
    kind = None if predicate.collaboration is None else KINDS.get(predicate.collaboration.kind)
    if kind is None or kind.stays is None:
        return ()
    return tuple(load(kind.stays)(predicate))


def keys_were_released(predicate: Predicate) -> bool:
    """Whether brokers released keys to this run: not where clients keep their data themselves."""
    collaboration = predicate.collaboration
    settings = None if collaboration is None else settings_of(collaboration.kind)
    return settings is None or settings.keys_from_brokers


def parties_are_the_recipes(case: Case) -> set[str]:
    """(10) The collaboration is the recipe's, and its parties are owners of the recipe's data.

    Returns:
        Owners whose datasets the manifest must list.

    Raises:
        ClaimContradicted: Another kind than the recipe's; a party that is no owner of data, is
            listed twice or under another run id; too few of them.
    """
    recipe, collaboration = case.need_lock().recipe, case.predicate.collaboration
    kind, asked = getattr(collaboration, "kind", None), getattr(recipe.collaboration, "kind", None)
    if kind != asked:
        raise _other("kind of collaboration", kind or "none", asked or "none")
    if collaboration is None or not is_shared_out(recipe):
        if collaboration is not None and collaboration.parties:
            raise _other("number of parties", len(collaboration.parties), "none: one guest")
        return set(recipe.owners)
    for name, times in Counter(party.name for party in collaboration.parties).items():
        if times > 1:
            raise _other("list of parties", f"{name} {times} times", "each once")
    for party in collaboration.parties:
        _refuse_stranger(case, party, collaboration.kind)
    _refuse_too_few(recipe, {party.name for party in collaboration.parties})
    return {party.name for party in collaboration.parties}


def _refuse_stranger(case: Case, party: Party, kind: str) -> None:
    recipe, run = case.need_lock().recipe, case.predicate.run
    if party.name not in recipe.owners:
        raise _other("party", party.name, ", ".join(recipe.owners))
    own = party_run_id(run.run_id, party.name)
    if party.run_id != own:
        raise _other(f"run id of {party.name}", party.run_id, own)
    role = role_of(kind)
    if party.role != role:
        raise _other(f"role of {party.name}", party.role, role)


def _refuse_too_few(recipe: Any, names: set[str]) -> None:
    holders = set(holders_of(recipe))
    needed = recipe.collaboration.parties_needed(len(holders))
    if len(holders & names) < needed:
        raise _other(
            "number of parties", f"{len(holders & names)} with data to train on", f"{needed}"
        )


def _other(what: str, got: object, expected: object) -> ClaimContradicted:
    return ClaimContradicted(
        f"the manifest shows another {what} than the recipe and its run ask for",
        check="parties",
        got=got,
        expected=expected,
    )
