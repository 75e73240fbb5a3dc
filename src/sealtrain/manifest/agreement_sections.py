"""The sections of a report on the owners' approvals and on their datasets."""

from __future__ import annotations

from sealtrain.consortium.approvals import Decision
from sealtrain.manifest.markup import Html, Part, join, tag
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.sections import missing, table
from sealtrain.manifest.verify import Facts

__all__ = ["approvals", "datasets"]


def approvals(predicate: Predicate, facts: Facts) -> Html:
    """The owners that had approved this exact recipe."""
    consortium = predicate.consortium
    heading = tag("h2", "Who approved")
    thresholds = consortium.thresholds
    stop = f"any {thresholds.revoke}"
    if consortium.own_data_consent:
        stop += ", and each whose data is read alone,"
    lead = f"{thresholds.approve} of {len(consortium.owners)} owners must approve; {stop} "
    lead += "can stop it."
    rule = tag("p", _own_data(consortium.own_data_consent, facts.unasked))
    if facts.decisions is None:
        return tag("section", heading, tag("p", lead), rule, missing())
    counted = set() if facts.tally is None else set(facts.tally.approved_by)
    rows: list[tuple[str, ...]] = []
    for owner in consortium.owners:
        decided = [
            decision.decision for decision in facts.decisions if decision.owner.name == owner.name
        ]
        rows += [_decision(owner.name, one, owner.name in counted) for one in decided]
        if not decided:
            rows.append((owner.name, "no decision in this manifest", "", "", ""))
    if facts.tally is not None:
        lead = f"{facts.tally.progress} of {facts.tally.owners} owners had approved, "
        lead += f"{facts.tally.threshold} were needed for {', '.join(facts.tally.demanded_by)}; "
        lead += f"{stop} could have stopped it."
    columns = ("Owner", "Decision", "Signed", "Valid until", "Datasets pinned")
    return tag("section", heading, tag("p", lead), rule, table(columns, rows, numbers=(4,)))


def _own_data(consent: bool, unasked: tuple[str, ...] | None) -> Part:
    if consent:
        return "Data is used only while its owner approves."
    rule = "The consortium lets data be used without its owner's approval. "
    if unasked is None:
        return rule + "Whose data was used so is not established."
    if not unasked:
        return rule + "Every owner whose data was used had approved."
    used = f"Data of {', '.join(unasked)} was used without approval."
    return join((rule, tag("strong", used)))


def datasets(facts: Facts) -> Html:
    """The datasets and their owners."""
    heading = tag("h2", "Datasets and owners")
    if facts.datasets is None or facts.lock is None:
        return tag("section", heading, missing())
    roles = {(dataset.owner, dataset.name): dataset.role for dataset in facts.lock.recipe.datasets}
    unasked = facts.unasked
    rows = [
        (
            dataset.owner,
            "not established" if unasked is None else "no" if dataset.owner in unasked else "yes",
            dataset.name,
            roles.get((dataset.owner, dataset.name), ""),
            "withheld" if dataset.records is None else f"{dataset.records:,}",
            "" if dataset.tokens is None else f"{dataset.tokens:,}",
            dataset.sealed_at,
            tag("code", dataset.root),
        )
        for dataset in facts.datasets
    ]
    columns = (
        "Owner",
        "Approved",
        "Dataset",
        "Role",
        "Records",
        "Tokens",
        "Sealed",
        "Root of the ciphertext",
    )
    return tag("section", heading, table(columns, rows, numbers=(4, 5)))


def _decision(owner: str, decision: Decision, counted: bool) -> tuple[str, ...]:
    word = "revoked" if decision.decision == "revoke" else "approved"
    if decision.decision == "approve" and not counted:
        word += ", not counted"
    until = decision.not_after or "for good"
    return (owner, word, decision.signed_at, until, str(len(decision.datasets)))
