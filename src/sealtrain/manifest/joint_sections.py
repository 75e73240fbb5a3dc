"""The section of the report on parties that trained together, from the lead's run log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sealtrain.base.distributions import load
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.markup import Html, tag
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.sections import table
from sealtrain.manifest.verify import Facts
from sealtrain.recipe.collaboration import DECRYPTED_IN_A_GUEST
from sealtrain.recipe.kinds import KINDS, settings_of

_COLUMNS: Final = {
    "meeting": "Meeting",
    "node": "Node",
    "run_id": "Asked for keys as run",
    "evidence": "SHA-256 of its evidence",
    "key": "SHA-256 of its channel key",
    "from": "From",
}


def summary_of(kind: str) -> str:
    """What a kind of collaboration is, in one sentence; its name where it is not known."""
    settings = settings_of(kind)
    return kind if settings is None else settings.summary


def say_where_decrypted(kind: str | None) -> str:
    """Where records were in the clear, in one sentence; ``None`` is one guest by itself."""
    if kind is None:
        return DECRYPTED_IN_A_GUEST
    settings = settings_of(kind)
    return f"The collaboration {kind} is not known." if settings is None else settings.decrypted


def parties(
    predicate: Predicate, facts: Facts, guests: Sequence[Mapping[str, Any]] | None
) -> Html | None:
    """The parties and the times of their parts; ``None`` where one guest trained by itself.

    Args:
        predicate: Of the manifest.
        facts: The facts that the checks established.
        guests: As ``Report.guests``.
    """
    collaboration = predicate.collaboration
    if collaboration is None:
        return None
    owned = Counter(dataset.owner for dataset in facts.datasets or ())
    rows = [
        (
            party.name,
            party.role,
            party.begun,
            party.until,
            str(owned[party.name]),
            tag("code", party.run_id),
        )
        for party in collaboration.parties
    ]
    columns = ("Party", "Role", "From", "Until", "Datasets", "Asked for keys as run")
    events = Counter(
        str(entry.get("event")).partition(".")[0] for entry in predicate.run_log.entries
    )
    recorded = ", ".join(f"{name} {count:,}" for name, count in sorted(events.items()))
    return tag(
        "section",
        tag("h2", "Training together"),
        tag("p", summary_of(collaboration.kind)),
        table(columns, rows, numbers=(4,)) if rows else None,
        _guests(guests) if guests else None,
        _summary(predicate, facts),
        tag("p", f"Events in the run log: {recorded}.", class_="soft"),
    )


def _guests(guests: Sequence[Mapping[str, Any]]) -> Html:
    columns = [_COLUMNS.get(name, name) for name in guests[0]]
    rows = [[tag("code", str(value)) for value in guest.values()] for guest in guests]
    return table(columns, rows)


def _summary(predicate: Predicate, facts: Facts) -> Html | None:
    """What the kind tells of the run log; ``None`` if it tells nothing, or its check refused."""
    how = None if facts.lock is None else facts.lock.recipe.collaboration
    place = None if how is None else KINDS[how.kind].summary
    if place is None or facts.log is None:
        return None
    try:
        text: str = load(place)(facts.log, how)
    except ClaimContradicted:  # the check says so
        return None
    return tag("p", text)
