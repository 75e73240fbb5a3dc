"""Check that the run log of a cut run is consistent (spec/split-cut.md §4).

Rules over the entries: the chain under them is another check's. In order, the first breach is
``ClaimContradicted``, or what a signature's own check raises:

1. the run begins once, with the recipe's layers, wire and share of entries;
2. each owner of the recipe's data joins once, after that, by a consent that it signed to this run
   of this recipe and deployment, and that names exactly its datasets in the manifest;
3. consents were signed while the run went on, and each party's stay in the manifest holds its own;
4. for each dataset is said once what came of it: not more records than its owner consented to,
   nor that than the dataset holds, where its owner says how many; and where records are counted,
   it consented to as many as train;
5. the run is finished once, after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.models import Hex32, Hex64, OwnerName, StrictModel, load_model
from sealtrain.consortium.consents import SignedConsent, verify_consent
from sealtrain.consortium.datasets import DatasetManifest
from sealtrain.consortium.members import Consortium
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S, Case
from sealtrain.manifest.checks.counts import Counts, counts_of
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaborations.cut import Cut
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.target import Target

_PREFIX: Final = "cut."
_Count = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]


class _CutBegun(StrictModel):
    layers: _Count
    wire: str
    spf_share: Annotated[float, Field(ge=0, le=1)]


class _ClientJoined(StrictModel):
    party: OwnerName
    consent: dict[str, Any]


class _Received(StrictModel):
    party: OwnerName
    dataset_id: Hex32
    rows: _Count
    messages: _Count
    bytes: _Count
    digest: Hex64


class _CutFinished(StrictModel):
    entries: _Count


_Word = TypeVar("_Word", bound=StrictModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTerms:
    """Terms that a cut run must keep.

    Attributes:
        how: The recipe's settings.
        consortium: Whose owners may consent.
        run_id: Of the run.
        target: What the owners approved.
        owners: Of the recipe's data, sorted.
        parties: When each party of the manifest left, by name, seconds since the epoch.
        started: When the run began, seconds since the epoch.
        datasets: Of the manifest.
    """

    how: Cut
    consortium: Consortium
    run_id: str
    target: Target
    owners: tuple[str, ...]
    parties: Mapping[str, int]
    started: int
    datasets: Sequence[DatasetManifest]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutResults:
    """Results of a cut run.

    Attributes:
        consents: By owner.
        rows: Records whose activations came.
        entries: Sparse entries that trained.
    """

    consents: dict[str, SignedConsent]
    rows: int
    entries: int


def cut_holds(case: Case) -> str:
    """(18) Owners' consents and what came of their data, by the module's rules."""
    how, predicate = case.need_lock().recipe.collaboration, case.predicate
    collaboration = predicate.collaboration
    if not isinstance(how, Cut):
        raise _broken("another kind of collaboration", getattr(how, "kind", "none"), "cut")
    terms = CutTerms(
        how=how,
        consortium=predicate.consortium,
        run_id=predicate.run.run_id,
        target=Target(
            app_id=predicate.deployment.app_id,
            compose_hash=predicate.deployment.compose_hash,
            recipe_hash=predicate.recipe.recipe_hash,
        ),
        owners=tuple(sorted(set(case.need_lock().recipe.owners))),
        parties={
            party.name: from_rfc3339(party.until)
            for party in (() if collaboration is None else collaboration.parties)
        },
        started=from_rfc3339(predicate.run.started_at),
        datasets=case.need_datasets(),
    )
    came = check_received(case.need_log(), terms)
    sparse = f", {came.entries} sparse entries trained" if came.entries else ""
    return f"{len(came.consents)} owners consented, activations of {came.rows} records came{sparse}"


def check_received(entries: Iterable[Mapping[str, Any]], terms: CutTerms) -> CutResults:
    """Hold a run log to the module's rules.

    Args:
        entries: Of the run log.
        terms: What they must fit.

    Raises:
        ClaimContradicted, RunMismatch, SignatureInvalid, …: The first rule that is broken.
    """
    told = list(entries)
    ours = [entry for entry in told if str(entry["event"]).startswith(_PREFIX)]
    _in_turn([str(our["event"]) for our in ours])
    begun = _read_words(ours, "cut.begun", _CutBegun)
    parts = _read_words(ours, "cut.received", _Received)
    finished = _read_words(ours, "cut.finished", _CutFinished)
    how = terms.how
    wanted = {"layers": how.layers, "wire": how.wire, "spf_share": how.spf_share}
    if begun[0].to_dict() != wanted:
        raise _broken("other settings than the recipe's", begun[0].to_dict(), wanted)
    consents = _consents(terms, _read_words(ours, "cut.joined", _ClientJoined))
    _check_consents(terms, consents, parts)
    _check_counts(consents, counts_of(told))
    return CutResults(
        consents=consents, rows=sum(part.rows for part in parts), entries=finished[0].entries
    )


def _read_words(entries: Iterable[Mapping[str, Any]], event: str, kind: type[_Word]) -> list[_Word]:
    return [
        load_model(kind, entry["fields"], ClaimContradicted, event)
        for entry in entries
        if entry["event"] == event
    ]


def _in_turn(events: Sequence[str]) -> None:
    """Begun once, then all joined, then all received, then finished once."""
    order = ["cut.begun", "cut.joined", "cut.received", "cut.finished"]
    unknown = [event for event in events if event not in order]
    if unknown:
        raise _broken("an event that no cut run has", unknown[0], " or ".join(order))
    turns = [order.index(event) for event in events]
    if turns != sorted(turns) or [turns.count(0), turns.count(3)] != [1, 1] or not turns.count(1):
        raise _broken("events in another order", ", ".join(events)[:200], " → ".join(order))


def _consents(terms: CutTerms, joined: Iterable[_ClientJoined]) -> dict[str, SignedConsent]:
    found: dict[str, SignedConsent] = {}
    for client in joined:
        signed = verify_consent(
            Envelope.from_dict(client.consent),
            terms.consortium,
            run_id=terms.run_id,
            target=terms.target,
        )
        if signed.owner.name != client.party or client.party in found:
            raise _broken("a consent of another owner", signed.owner.name, client.party)
        found[client.party] = signed
    if not set(found) == set(terms.parties) == set(terms.owners):
        raise _broken("other parties than owners of the data", sorted(found), list(terms.owners))
    for name, signed in found.items():
        at = from_rfc3339(signed.document.signed_at)
        begins, ends = terms.started - CLOCK_TOLERANCE_S, terms.parties[name] + CLOCK_TOLERANCE_S
        if not begins <= at <= ends:
            raise _broken(
                f"a consent of {name} from another time",
                signed.document.signed_at,
                f"{to_rfc3339(begins)} to {to_rfc3339(ends)}",
            )
    return found


def _check_consents(
    terms: CutTerms, consents: Mapping[str, SignedConsent], parts: Sequence[_Received]
) -> None:
    """Consents name the manifest's datasets; of each came at most what was consented to."""
    listed = {manifest.dataset_id: manifest for manifest in terms.datasets}
    consented = {
        dataset.dataset_id: (name, dataset)
        for name, signed in consents.items()
        for dataset in signed.document.datasets
    }
    given = {key: (name, dataset.root) for key, (name, dataset) in consented.items()}
    if given != {key: (manifest.owner, manifest.root) for key, manifest in listed.items()}:
        raise _broken("consents to other data than the manifest lists", len(given), len(listed))
    if sorted(part.dataset_id for part in parts) != sorted(listed):
        raise _broken("another set of datasets", len(parts), f"{len(listed)}, each once")
    for part in parts:
        (name, agreed), dataset = consented[part.dataset_id], listed[part.dataset_id]
        held = agreed.rows if dataset.records is None else dataset.records
        if part.party != name or part.rows > agreed.rows or agreed.rows > held:
            raise _broken(
                f"more of {dataset.name} than its owner agreed to or has",
                f"{part.rows} records of {part.party}",
                f"at most {min(agreed.rows, held)} of {name}",
            )


def _check_counts(
    consents: Mapping[str, SignedConsent], counted: Mapping[str, Counts | None]
) -> None:
    """An owner sends those of its training records that leave something to learn."""
    for name, signed in consents.items():
        for agreed in signed.document.datasets:
            counts = counted.get(agreed.dataset_id)
            if counts is not None and counts["whole"] + counts["truncated"] != agreed.rows:
                raise _broken(
                    f"other records of {agreed.name} counted than {name} consented to",
                    counts["whole"] + counts["truncated"],
                    agreed.rows,
                )


def _broken(problem: str, got: object, expected: object) -> ClaimContradicted:
    return ClaimContradicted(
        f"the run log shows {problem}", check="collaboration", got=got, expected=expected
    )
