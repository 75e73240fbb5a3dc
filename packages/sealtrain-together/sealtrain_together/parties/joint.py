"""The end of a run that several parties trained: their reports become one manifest.

The lead seals the model to its recipients, writes the manifest over a final quote of its own guest
and hands it to the brokers, which know the run by its parties' run ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sealtrain.consortium.datasets import verify_dataset
from sealtrain.guest.run_end import Outcome, StatedInputs, outcome_of, write_outputs
from sealtrain.guest.validating import log_counts
from sealtrain.manifest.checks.counts import require_true_counts
from sealtrain.manifest.checks.parties import role_of
from sealtrain.manifest.condense import in_order_of_ledgers
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.parties import party_run_id
from sealtrain.training.inputs.learnable import counts_records

if TYPE_CHECKING:
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.guest.validating import PublicCounts
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.model_files import Trained
    from sealtrain_together.parties.lead import LeadRun
    from sealtrain_together.parties.party import PartyReport, ReportedCounts


def close_joint(lead: LeadRun, trained: Trained, reports: Sequence[PartyReport]) -> Outcome:
    """Log what the parties counted, seal the model, write and submit the manifest.

    Args:
        lead: Its run log is complete but for the end.
        trained: Model files in memory and what training counted.
        reports: Of every party that took part, each out of that party's channel.

    Returns:
        Where everything is.

    Raises:
        ClaimContradicted: As ``check_report``, or there are two reports of one party.
        SealtrainError: No broker took the manifest; it lies in the run's folder.
    """
    for name, times in Counter(report.name for report in reports).items():
        if times > 1:
            raise ClaimContradicted(
                "two reports are of one party", check="parties", owner=name, got=times, expected=1
            )
    parties = [check_report(lead, report) for report in sorted(reports, key=lambda one: one.name)]
    counts: PublicCounts = {}
    for party in parties:
        counts |= {
            dataset_id: None if said is None else said.to_dict()
            for dataset_id, said in (party.counts or {}).items()
        }
    log_counts(lead.record, counts)
    how = lead.recipe.collaboration
    held = StatedInputs(
        datasets=[envelope for party in parties for envelope in party.datasets],
        releases=in_order_of_ledgers(
            [release.to_dict() for party in parties for release in party.releases]
        ),
        collaboration={
            "kind": getattr(how, "kind", ""),
            "parties": [
                {
                    "name": party.name,
                    "role": party.role,
                    "run_id": party.run_id,
                    "from": party.begun,
                    "until": party.until,
                }
                for party in parties
            ],
        },
    )
    manifest = write_outputs(lead, trained, trained.files, lambda: held)
    if held.releases:  # brokers keep manifests of runs that they released keys to
        shown = [closing.to_closing() for party in parties for closing in party.closings]
        lead.quorum.submit_manifest(manifest, shown)
    lead.close()
    return outcome_of(lead, trained)


def check_report(lead: LeadRun, report: PartyReport) -> PartyReport:
    """The report, if it is of the party that it names and of no other data.

    Raises:
        ClaimContradicted: It is of another run, of nobody in the recipe, in another role, lists
            another owner's dataset, one twice or not all of its own, or counts records that its
            datasets do not have.
        EgressRefused: It counts records whose counts may not leave.
        SignatureInvalid: A dataset's manifest is not signed by its owner.
    """
    named = {dataset.owner for dataset in lead.recipe.datasets}
    role = role_of(getattr(lead.recipe.collaboration, "kind", ""))
    facts: dict[str, tuple[object, object]] = {
        "run id": (report.run_id, party_run_id(lead.run_id, report.name)),
        "owner": (report.name if report.name in named else "a stranger", report.name),
        "role": (report.role, role),
    }
    manifests = [
        verify_dataset(Envelope.from_dict(envelope), lead.consortium)
        for envelope in report.datasets
    ]
    for manifest in manifests:
        facts[f"dataset {manifest.name}"] = (manifest.owner, report.name)
    for what, (got, expected) in facts.items():
        if got != expected:
            raise ClaimContradicted(
                f"a party reports another {what} than its own",
                check="parties",
                owner=report.name,
                got=got,
                expected=expected,
            )
    _require_whole(report.name, manifests, lead.recipe)
    require_counts(report.counts, report.name, manifests, lead.recipe)
    return report


def _require_whole(party: str, manifests: Iterable[DatasetManifest], recipe: PhaseRecipe) -> None:
    """Refuse a report that leaves one of the party's datasets out, or lists one twice."""
    own = [dataset for dataset in recipe.datasets if dataset.owner == party]
    in_series = {dataset.name for dataset in own if dataset.series is not None}
    wanted = Counter(dataset.name for dataset in own if dataset.name not in in_series)
    listed = Counter(found.name for found in manifests if found.name not in in_series)
    if listed != wanted:
        raise ClaimContradicted(
            "a party does not report exactly its datasets of the recipe",
            check="parties",
            owner=party,
            got=", ".join(sorted(listed.elements())) or "none",
            expected=", ".join(sorted(wanted.elements())),
        )


def require_counts(
    counts: Mapping[str, ReportedCounts | None] | None,
    party: str,
    manifests: Iterable[DatasetManifest],
    recipe: PhaseRecipe,
) -> None:
    """Refuse counts unless they are of each training dataset of a party, as verifiers do.

    Args:
        counts: Of a ``PartyReport``.
        party: That stated them.
        recipe: That owners approved.

    Raises:
        ClaimContradicted: They are of other data or of another number of records, or withheld.
        EgressRefused: They may not leave.
    """
    roles = {(dataset.owner, dataset.name): dataset.role for dataset in recipe.datasets}
    trained = {
        manifest.dataset_id: manifest
        for manifest in manifests
        if roles.get((manifest.owner, manifest.name)) == "train"
    }
    counted = counts_records(recipe)
    if (counts is not None) != counted or set(counts or ()) != (set(trained) if counted else set()):
        raise ClaimContradicted(
            "a party does not count exactly its own training data",
            check="counts",
            owner=party,
            got="none" if counts is None else f"{len(counts)} counted",
            expected=f"{len(trained)} trained on" if counted else "none",
        )
    for dataset_id, said in (counts or {}).items():
        stated = None if said is None else said.to_dict()
        require_true_counts(trained[dataset_id], stated, recipe)
