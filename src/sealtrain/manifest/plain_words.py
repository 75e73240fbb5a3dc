"""Sections of a report: what was allowed, in plain words, and which keys were released."""

from __future__ import annotations

from collections.abc import Iterator

from sealtrain.base.tiers import WORDS
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.manifest.markup import Html, tag
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.sections import missing, table
from sealtrain.manifest.verify import Facts
from sealtrain.recipe.lockfile import Lock
from sealtrain.recipe.modelspec import ModelFromConfig, SealedModel


def in_plain_words(predicate: Predicate, facts: Facts) -> Html:
    """Consent, purpose, legal basis, retention, base model and machine, a sentence each."""
    heading = tag("h2", "In plain words")
    if facts.lock is None or facts.datasets is None:
        return tag("section", heading, missing())
    sentences = [
        _consent(predicate, facts),
        *_purpose(facts.lock),
        *(sentence for dataset in facts.datasets for sentence in _state_use(dataset)),
        _base(facts.lock),
        _machine(facts),
    ]
    return tag("section", heading, tag("ul", *(tag("li", sentence) for sentence in sentences)))


def _consent(predicate: Predicate, facts: Facts) -> str:
    if facts.tally is None or facts.unasked is None:
        return "Consent: the check that establishes who approved did not pass."
    approved = ", ".join(facts.tally.approved_by)
    if facts.unasked:
        unasked = ", ".join(facts.unasked)
        return (
            f"Consent: {approved} approved this run; data of {unasked} was used without approval."
        )
    own = " Data is used only while its owner approves."
    return f"Consent: {approved} approved this run." + (
        own if predicate.consortium.own_data_consent else ""
    )


def _purpose(lock: Lock) -> Iterator[str]:
    recipe = lock.recipe
    purpose = recipe.purpose or "the recipe states none"
    yield f"Purpose: {purpose}."
    yield f"Legal basis: {recipe.legal_basis or 'the recipe states none'}."


def _state_use(dataset: DatasetManifest) -> Iterator[str]:
    name = f"{dataset.owner}/{dataset.name}"
    use = dataset.data_use
    if use is None:
        yield f"{name}: the owner states no purpose, no legal basis and no retention."
        return
    words = "; ".join(f"{what}: {text}" for what, text in use.in_words().items())
    yield f"{name}: {words}."
    if use.retention_until is None:
        yield f"{name}: the owner states no end of retention."


def _base(lock: Lock) -> str:
    model = lock.recipe.model
    if isinstance(model, ModelFromConfig):
        kind = model.config["model_type"]
        return f"Base model: none. A {kind} was trained from random weights."
    if isinstance(model, SealedModel):
        return f"Base model: the sealed model {model.sealed}, whose key an owner holds."
    return f"Base model: {lock.origins.get('model', model.path)}, pinned by its digest."


def _machine(facts: Facts) -> str:
    if facts.verdict is None:
        return "Machine: the check that establishes what it proves did not pass."
    tier = facts.verdict.tier
    played = "simulated, and proves nothing; it plays " if facts.verdict.simulated else ""
    return f"Machine: {played}tier {tier}: {WORDS[tier]}."


def release_matrix(facts: Facts) -> Html | None:
    """Dataset by broker: how often keys were released, and when for the first time."""
    heading = tag("h2", "Keys by dataset and broker")
    if facts.receipts is None or facts.brokers is None or facts.datasets is None:
        return tag("section", heading, missing())
    if not facts.receipts:
        return None
    known = sorted(set(facts.brokers))
    rows = []
    for dataset in facts.datasets:
        cells = []
        for broker in known:
            times = sorted(
                receipt.released_at
                for receipt, by in zip(facts.receipts, facts.brokers, strict=True)
                if by == broker
                and any(read.dataset_id == dataset.dataset_id for read in receipt.datasets)
            )
            cells.append(f"{len(times)}, first {times[0]}" if times else "no release")
        rows.append((f"{dataset.owner}/{dataset.name}", *cells))
    columns = ("Dataset", *(f"Broker {broker[:8]}" for broker in known))
    return tag("section", heading, table(columns, rows))
