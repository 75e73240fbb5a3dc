"""The section of the report on parties that trained together, from the lead's run log."""

from __future__ import annotations

from collections import Counter

from sealtrain.errors import ClaimContradicted
from sealtrain.manifest.markup import Html, tag
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.sections import table
from sealtrain.manifest.verify import Facts
from sealtrain.recipe.collaboration import Pads
from sealtrain_collab.pads.check import outsourced

__all__ = ["KINDS", "parties"]

KINDS = {
    "travelling": "One accelerator went from holder to holder; no data left a holder but for it.",
    "federated": "Each party trained on its own data; an attested guest merged their updates.",
    "pads": "One guest trained; an untrusted accelerator multiplied for it under one-time pads.",
    "cut": "Clients ran the front half of the model, one guest trained the back half.",
}
"""Each kind of collaboration, in one sentence."""


def parties(predicate: Predicate, facts: Facts) -> Html | None:
    """The parties and the times of their parts; ``None`` where one guest trained by itself."""
    together = predicate.collaboration
    if together is None:
        return None
    owned = Counter(one.owner for one in facts.datasets or ())
    rows = [
        (one.name, one.role, one.begun, one.until, str(owned[one.name]), tag("code", one.run_id))
        for one in together.parties
    ]
    columns = ("Party", "Role", "From", "Until", "Datasets", "Asked for keys as run")
    events = Counter(
        str(entry.get("event")).partition(".")[0] for entry in predicate.run_log.entries
    )
    recorded = ", ".join(f"{name} {count:,}" for name, count in sorted(events.items()))
    return tag(
        "section",
        tag("h2", "Training together"),
        tag("p", KINDS.get(together.kind, together.kind)),
        table(columns, rows, numbers=(4,)) if rows else None,
        _made_elsewhere(predicate, facts),
        tag("p", f"Events in the run log: {recorded}.", class_="soft"),
    )


def _made_elsewhere(predicate: Predicate, facts: Facts) -> Html | None:
    """Figures of the products under pads; ``None`` for other kinds, or if the log is refused."""
    how = None if facts.lock is None else facts.lock.recipe.collaboration
    if not isinstance(how, Pads):
        return None
    try:
        found = outsourced(predicate.run_log.entries, how)
    except ClaimContradicted:  # the check reports it
        return None
    layers = ", ".join(f"{name} {count:,}" for name, count in found.layers.items())
    said = (
        f"Layers: {layers}. {found.products:,} products of {found.rows:,} rows were made "
        f"elsewhere and checked with {how.checks} secret vectors each; {found.bytes_out:,} bytes "
        f"left and {found.bytes_in:,} came back. Pads: {how.pads}, of {found.beginnings:,} "
        "beginnings."
    )
    return tag("p", said)
