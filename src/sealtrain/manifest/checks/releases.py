"""Checks 11, 13 and 14: the brokers' receipts, their ledgers, and the order of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from sealtrain.base.canonical import JsonValue, parse_canonical
from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.models import load_model
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.consortium.receipts import (
    ReleaseReceipt,
    RunDataset,
    data_of_entry,
    receipt_digest,
    verify_receipt,
)
from sealtrain.errors import BrokerNotApproved, DataInvalid, SignatureInvalid
from sealtrain.ledger.proofs import LedgerProof, verify_proof
from sealtrain.ledger.rotation import read_rotation, rotation_entry
from sealtrain.manifest.checks.case import CLOCK_TOLERANCE_S, Case, CountedReceipt
from sealtrain.manifest.checks.chain_proofs import chain_allowed
from sealtrain.manifest.checks.leases import live_throughout, windows_of
from sealtrain.manifest.checks.parties import Stay, keys_were_released, stays_in
from sealtrain.manifest.checks.privacy import privacy_reserved
from sealtrain.manifest.checks.series import begins_as_allowed
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.predicate import Release
from sealtrain.signing import dsse
from sealtrain.signing.ed25519 import key_id
from sealtrain.signing.errors import ProofInvalid, StatementInvalid
from sealtrain.signing.identity import broker_id


def receipts_hold(case: Case) -> str:
    """(11) Enough trusted brokers of the lock released each dataset to this run of this recipe."""
    trusted = case.trust.brokers.by_key_id
    if not keys_were_released(case.predicate):
        return _none_released(case)
    counted = tuple(_verify_receipts(case, trusted))
    if not counted:
        problem = "the manifest holds no release receipt by a trusted broker"
        if case.predicate.releases:
            raise SignatureInvalid(problem, check="releases", expected=", ".join(sorted(trusted)))
        raise ClaimContradicted(problem, check="releases")
    digests = [
        receipt_digest(dsse.Envelope.from_dict(release.listed.receipt)) for release in counted
    ]
    if len(set(digests)) != len(digests):
        raise ClaimContradicted("the manifest lists a receipt twice", check="releases")
    stays = {stay.run_id: stay for stay in stays_in(case)}
    for release in counted:
        _refuse_other_run(case, release.receipt, stays)
        _refuse_other_datasets(case, release.receipt, stays[release.receipt.run_id])
        _refuse_other_model(case, release.receipt)
    _refuse_too_few(case, counted)
    receipts = [release.receipt for release in counted]
    chain_allowed(receipts, case.trust.chain)
    case.counted = counted
    kinds = [release.receipt.kind for release in counted]
    brokers, renewals = len({release.broker for release in counted}), kinds.count("renewal")
    ignored = len(case.predicate.releases) - len(counted)
    return (
        f"{kinds.count('release')} release"
        + (f" by {brokers} brokers" if brokers > 1 else "")
        + (f", {renewals} renewals" if renewals else "")
        + ("" if case.trust.chain is None else "; each allowed by the chain")
        + (f"; {ignored} receipts of other brokers do not count" if ignored else "")
    )


def ledger_holds_receipts(case: Case) -> str:
    """(13) Each broker's signed log holds its receipts."""
    origin = _origin(case)
    indices: dict[str, list[int]] = {}
    stays = {stay.run_id: stay for stay in stays_in(case)}
    for release in case.need_counted():
        proof = LedgerProof.from_dict(release.listed.proof)
        entry = verify_proof(proof, release.key, origin=origin)
        body = entry["body"]
        named = body.get("receipt_digest") if isinstance(body, dict) else None
        recorded = (entry["kind"], named)
        digest = receipt_digest(dsse.Envelope.from_dict(release.listed.receipt))
        expected = (release.receipt.kind, digest)
        if recorded != expected:
            raise ProofInvalid(
                "the ledger entry is about something else than this receipt",
                check="ledger",
                got="another receipt",
                expected=" ".join(expected),
            )
        if isinstance(body, dict):
            privacy_reserved(case, release.receipt, body, proof.index)
            begins_as_allowed(case, release, body)
            if release.receipt.kind == "release":
                _refuse_other_data(case, body, stays[release.receipt.run_id])
        indices.setdefault(release.broker, []).append(proof.index)
    if any(places != sorted(set(places)) for places in indices.values()):
        raise ProofInvalid("receipts stand in the ledger in another order", check="ledger")
    shown = "; ".join(", ".join(map(str, places)) for places in indices.values())
    return f"in the brokers' signed logs at {shown}"


def events_are_in_order(case: Case) -> str:
    """(14) Start, releases, resumes, end and leases follow each other as spec §4 says."""
    run = case.predicate.run
    started, finished = from_rfc3339(run.started_at), from_rfc3339(run.finished_at)
    if finished < started:
        raise _disorder("the run ended before it began", run.finished_at, f"≥ {run.started_at}")
    if finished > case.now + CLOCK_TOLERANCE_S:
        raise _disorder("the run ends in the future", run.finished_at, f"≤ {to_rfc3339(case.now)}")
    for resume in run.resumes:
        _refuse_outside(resume.at, started, finished, "a resume")
    stays = {stay.run_id: stay for stay in stays_in(case)}
    for stay in stays.values():
        for moment in (stay.begins, stay.until):
            _refuse_outside(to_rfc3339(moment), started, finished, "a party's part")
        if stay.until < stay.begins:
            ends = to_rfc3339(stay.until), f"≥ {to_rfc3339(stay.begins)}"
            raise _disorder(f"{stay.name} left before it came", *ends)
    for receipt in case.need_receipts():
        stay = stays[receipt.run_id]
        _refuse_outside(receipt.released_at, stay.begins, stay.until, "a release")
    for stay in stays.values():
        _refuse_lease_gaps(case, stay)
        _refuse_ended_retention(case, stay)
    last_release = max(
        (
            from_rfc3339(receipt.released_at)
            for receipt in case.need_receipts()
            if receipt.kind == "release"
        ),
        default=finished,
    )
    for dataset in case.need_datasets():
        if from_rfc3339(dataset.sealed_at) > last_release + CLOCK_TOLERANCE_S:
            raise _disorder(
                f"the dataset {dataset.name} was sealed after its release",
                dataset.sealed_at,
                f"≤ {to_rfc3339(last_release)}",
            )
    whole = case.trust.brokers.datasets == "all"
    leases = "under a lease throughout" if whole else "each lease renewed before its end"
    if not keys_were_released(case.predicate):
        leases = "no key was released"
    return f"{run.started_at} to {run.finished_at}, {leases}"


def _none_released(case: Case) -> str:
    """Clients that keep their data themselves ask no broker for its key."""
    if case.predicate.releases:
        raise ClaimContradicted(
            "a run whose clients keep their data holds receipts of releases",
            check="releases",
            got=f"{len(case.predicate.releases)} receipts",
            expected="none",
        )
    chain_allowed((), case.trust.chain)
    case.counted = ()
    return "no key was released: each client kept its data"


def _refuse_other_run(case: Case, receipt: ReleaseReceipt, stays: Mapping[str, Stay]) -> None:
    deployment = case.predicate.deployment
    own = receipt.run_id if receipt.run_id in stays else " or ".join(stays)
    facts = {
        "run id": (receipt.run_id, own),
        "consortium": (receipt.consortium_id, case.predicate.consortium.consortium_id),
        "app id": (receipt.app_id, deployment.app_id),
        "compose hash": (receipt.compose_hash, deployment.compose_hash),
        "recipe hash": (receipt.recipe_hash, case.predicate.recipe.recipe_hash),
    }
    for what, (got, expected) in facts.items():
        if got != expected:
            raise ClaimContradicted(
                f"a release receipt is about another {what}",
                check="releases",
                got=got,
                expected=expected,
            )


def _verify_receipts(case: Case, trusted: dict[str, bytes]) -> Iterator[CountedReceipt]:
    """Receipts that name a trusted key, verified under it; those of other brokers count nothing."""
    for release in case.predicate.releases:
        envelope = dsse.Envelope.from_dict(release.receipt)
        for named in {signature.keyid for signature in envelope.signatures} & set(trusted):
            key = trusted[named]
            receipt = verify_receipt(envelope, key)
            ids = _ids_of(case, key, release)
            yield CountedReceipt(
                broker=_name_broker(case, ids), ids=ids, key=key, receipt=receipt, listed=release
            )


def _ids_of(case: Case, key: bytes, listed: Release) -> tuple[str, ...]:
    """Ids of the broker with this key: its own, and those of the keys that it was rotated from.

    Raises:
        SignatureInvalid, StatementInvalid: A rotation does not hold, or leads elsewhere.
    """
    keys = [key]
    for document in reversed(listed.rotations):
        entry = rotation_entry(dsse.Envelope.from_dict(document))
        rotation = read_rotation(entry, origin=_origin(case))
        if rotation.new != keys[-1]:
            raise StatementInvalid(
                "a rotation does not lead to the key that signed the receipt",
                check="releases",
                got=key_id(rotation.new),
                expected=key_id(keys[-1]),
            )
        keys.append(rotation.old)
    return tuple(broker_id(former) for former in keys)


def _name_broker(case: Case, ids: Sequence[str]) -> str:
    """By which of its ids the lock names a broker.

    Raises:
        BrokerNotApproved: The lock does not name it. The measured code obeys no such broker, so
            this is no manifest of that code, whomever its reader trusts.
    """
    brokers = case.need_lock().brokers
    for id_ in ids:
        if id_ in brokers:
            return id_
    raise BrokerNotApproved(
        "a receipt is by a broker that the recipe's lock does not name",
        check="releases",
        got=ids[0],
        expected=" or ".join(brokers),
        hint="a guest of this recipe obeys no such broker: ask where the manifest comes from",
    )


def _origin(case: Case) -> str:
    """Of the ledgers of the brokers of this consortium."""
    return f"sealtrain/ledger/{case.predicate.consortium.consortium_id}"


def _refuse_other_data(case: Case, body: Mapping[str, JsonValue], stay: Stay) -> None:
    """Noise is made from all data of a run: each release of it was for exactly this data."""
    used = {
        RunDataset(dataset.owner_id, dataset.dataset_id, dataset.root)
        for dataset in case.need_datasets()
        if stay.party in (None, dataset.owner)
    }
    released = data_of_entry(body)
    if released != used:
        raise DatasetMismatch(
            "the ledger shows that keys were released to a run on other data than the manifest's",
            check="ledger",
            owner=stay.party,
            got=", ".join(sorted(dataset.dataset_id for dataset in released ^ used))[:200],
            expected="the datasets of the manifest, under the same roots",
        )


def _refuse_other_datasets(case: Case, receipt: ReleaseReceipt, stay: Stay) -> None:
    used = {
        dataset.dataset_id: (dataset.owner_id, dataset.root, dataset.name)
        for dataset in case.need_datasets()
        if stay.party in (None, dataset.owner)
    }
    released = {
        dataset.dataset_id: (dataset.owner_id, dataset.root) for dataset in receipt.datasets
    }
    if len(released) != len(receipt.datasets):
        raise ClaimContradicted("a receipt releases a dataset twice", check="releases")
    if (receipt.kind == "renewal") != (not released) or not set(released) <= set(used):
        raise DatasetMismatch(
            "a broker released other datasets than the manifest lists",
            check="releases",
            owner=stay.party,
            got=f"{len(released)} datasets",
            expected="none in a renewal; some of the recipe's, or the party's, in a release",
        )
    for dataset_id, (owner_id, root) in released.items():
        if used[dataset_id][:2] != (owner_id, root):
            raise DatasetMismatch(
                f"the broker released another version of {used[dataset_id][2]}",
                check="releases",
                got=root,
                expected=used[dataset_id][1],
            )


def _refuse_other_model(case: Case, receipt: ReleaseReceipt) -> None:
    """A run began with the model of the run that it names, where its recipe says so, and no other.

    A release is with the key of that model, and a renewal is without any.
    """
    schedule = case.need_lock().recipe.schedule
    follows = schedule is not None and schedule.continues == "last"
    expected = case.predicate.continues if follows and receipt.kind == "release" else None
    if receipt.continues != expected:
        raise ClaimContradicted(
            "the broker released the key of another model than of the run before",
            check="model before",
            got="none" if receipt.continues is None else receipt.continues.manifest_digest,
            expected="none" if expected is None else expected.manifest_digest,
        )


def _refuse_too_few(case: Case, counted: Sequence[CountedReceipt]) -> None:
    by: dict[str, set[str]] = {}
    for release in counted:
        for dataset in release.receipt.datasets:
            by.setdefault(dataset.dataset_id, set()).add(release.broker)
    brokers = case.trust.brokers
    for wanted in case.need_datasets():
        released = len(by.get(wanted.dataset_id, ()))
        if released < brokers.threshold and (brokers.datasets == "all" or released):
            raise DatasetMismatch(
                f"too few trusted brokers released {wanted.name}",
                check="releases",
                owner=wanted.owner,
                got=f"{released} brokers",
                expected=f"{brokers.threshold} of {len(brokers.signing_keys)}",
            )


def _refuse_lease_gaps(case: Case, stay: Stay) -> None:
    counted = [release for release in case.need_counted() if release.receipt.run_id == stay.run_id]
    windows = [
        window
        for broker in dict.fromkeys(release.broker for release in counted)
        for window in windows_of(
            [release.receipt for release in counted if release.broker == broker]
        )
    ]
    brokers = case.trust.brokers
    # The resumes are those of the guest that leads; where there are parties, it holds no keys.
    resumes = len(case.predicate.run.resumes) if stay.leads else 0
    if not keys_were_released(case.predicate):
        return
    if brokers.datasets == "theirs":
        # The others' leases may have carried the run where theirs did not.
        _refuse_guest_without_keys(case, stay)
        return
    for dataset in case.need_datasets():
        if stay.party not in (None, dataset.owner):
            continue
        lent = [window for window in windows if dataset.dataset_id in window.datasets]
        begun = sorted(window.begins for window in lent)[brokers.threshold - 1 :]
        if not stay.leads and begun and begun[0] > stay.begins + CLOCK_TOLERANCE_S:
            raise _disorder(
                f"{stay.name} took part before keys of {dataset.name} were released",
                to_rfc3339(stay.begins),
                f"≥ {to_rfc3339(begun[0])}",
            )
        live_throughout(
            lent, brokers.threshold, until=stay.until - CLOCK_TOLERANCE_S, name=dataset.name
        )
        if len(lent) < brokers.threshold * (resumes + 1):
            raise _disorder(
                "the run was resumed without asking for the keys again",
                f"{resumes} resumes, {len(lent)} releases of {dataset.name}",
                f"{brokers.threshold} releases at the start and at each resume",
            )


def _refuse_guest_without_keys(case: Case, stay: Stay) -> None:
    """Refuse a guest that held all data, but to which the manifest lists no release of some.

    A reader who trusts one broker of several cannot verify what the others released, but an honest
    manifest lists it. Where the lock has no other brokers, only receipts that were verified count.
    """
    if stay.party is not None:
        return
    counted = case.need_counted()
    trusted = {release.broker for release in counted}
    trusted |= {broker_id(key) for key in case.trust.brokers.by_key_id.values()}
    receipts = [release.receipt for release in counted]
    if set(case.need_lock().brokers) - trusted:
        receipts += _read_receipts(case)
    theirs = {dataset.dataset_id for release in counted for dataset in release.receipt.datasets}
    shown = {
        dataset.dataset_id
        for receipt in receipts
        if receipt.run_id == stay.run_id
        for dataset in receipt.datasets
    }
    for dataset in case.need_datasets():
        if dataset.dataset_id in theirs - shown:
            raise _disorder(
                f"{stay.name} took part without a release of {dataset.name}",
                "no release",
                "a release to each guest that held all data",
            )


def _read_receipts(case: Case) -> Iterator[ReleaseReceipt]:
    """Receipts as the manifest lists them, by whichever broker."""
    for release in case.predicate.releases:
        with suppress(DataInvalid, StatementInvalid):
            payload = parse_canonical(dsse.Envelope.from_dict(release.receipt).payload)
            yield load_model(ReleaseReceipt, payload, StatementInvalid, "release receipt")


def _refuse_ended_retention(case: Case, stay: Stay) -> None:
    """No key was released or lent, and no data used, after the owner's retention of it."""
    moments = [
        from_rfc3339(receipt.released_at)
        for receipt in case.need_receipts()
        if receipt.run_id == stay.run_id
    ]
    for dataset in case.need_datasets():
        if stay.party in (None, dataset.owner):
            dataset.require_retained(max([stay.until - CLOCK_TOLERANCE_S, *moments]))


def _refuse_outside(moment: str, started: int, finished: int, what: str) -> None:
    at = from_rfc3339(moment)
    if not started - CLOCK_TOLERANCE_S <= at <= finished + CLOCK_TOLERANCE_S:
        raise _disorder(
            f"{what} lies outside the run",
            moment,
            f"{to_rfc3339(started)} to {to_rfc3339(finished)}",
        )


def _disorder(problem: str, got: str, expected: str) -> ClaimContradicted:
    return ClaimContradicted(problem, check="times", got=got, expected=expected)
