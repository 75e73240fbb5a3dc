"""Submissions of owners and guests: decisions, dataset manifests, run manifests (§6).

Each is verified, then recorded in the database and the ledger in one transaction. Submissions are
idempotent: the same bytes again change nothing and get the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import to_base64
from sealtrain.broker.service.chaining import require_first, require_place
from sealtrain.broker.service.counting import Counting, reserving
from sealtrain.broker.service.entries import is_refusal
from sealtrain.broker.service.parts import BrokerParts
from sealtrain.broker.service.witnessing import Witnessing
from sealtrain.broker.store.recording import record
from sealtrain.broker.store.succession import ENTRY_KIND
from sealtrain.broker.store.transaction import StoredDocument, Transaction
from sealtrain.consortium.approvals import SignedDecision, tally_as_stated, verify_decision
from sealtrain.consortium.datasets import DatasetManifest, dataset_entry, replaces, verify_dataset
from sealtrain.consortium.decisions import not_overtaken
from sealtrain.consortium.documents import DOCUMENTS
from sealtrain.consortium.errors import ApprovalExpired, DatasetMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import entry_of, verify_owned
from sealtrain.consortium.policies import OwnerPolicy
from sealtrain.consortium.receipts import OwnedId
from sealtrain.consortium.series import may_join
from sealtrain.consortium.succession import verify_succession
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import LeaseStale, LimitExceeded, RunMismatch, SealtrainError
from sealtrain.ledger.uses import outputs_entry
from sealtrain.manifest.checks.parties import stays_of
from sealtrain.manifest.form import read as read_manifest
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.trust import Trust, TrustedBrokers
from sealtrain.manifest.verify import verify_manifest
from sealtrain.release.checks import none_withdrawn
from sealtrain.release.errors import LeaseUnknown
from sealtrain.release.facts import RunState
from sealtrain.release.messages import (
    REGISTERED_PAGE,
    SERIES_PAGE,
    Accepted,
    EnvelopeDocument,
    FailureReport,
    OwnerPolicies,
    RegisteredDatasets,
    SeriesPage,
    StandingCount,
    TallyAnswer,
)
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.identity import broker_id
from sealtrain.signing.target import Target


class Registry:
    """Accepts submissions for one broker. Thread-safe."""

    def __init__(self, parts: BrokerParts, counting: Counting) -> None:
        self._parts = parts
        self._counting = counting
        self.witnessing = Witnessing(parts)
        """Owners' cosignatures of the ledger."""
        self._records: Mapping[str, Callable[[Envelope], int]] = {
            "approval": self._record_decision,
            "dataset": self._record_dataset,
            "succession": self._record_succession,
        }

    def hand_in(self, kind: str, document: EnvelopeDocument) -> Accepted:
        """Record what owners signed: a decision, a dataset manifest, a succession, or a document.

        Args:
            kind: Of ``consortium.documents.handed_in``.
            document: As received.

        Raises:
            Refused: Not signed by an owner of this consortium, malformed, expired, for other
                brokers, or it may not follow what was recorded before.
            LimitExceeded: The broker holds as many decisions as it keeps.
        """
        envelope = document.envelope()
        with self._refusing(kind, envelope.digest):
            record_document = self._records.get(kind) or partial(self._record_owned, kind)
            return self._accept(record_document(envelope), envelope.digest)

    def policies(self) -> OwnerPolicies:
        """Owners' policies in force."""
        with self._parts.store.reading() as transaction:
            found = transaction.owner_documents.in_force(OwnerPolicy.entry_kind)
        return OwnerPolicies(
            policies=tuple(
                EnvelopeDocument.of(Envelope.from_bytes(data)) for _, data in found.values()
            )
        )

    def run_of(self, lease_id: str) -> str:
        """Return the run that a lease was granted for, live or ended.

        Raises:
            LeaseUnknown: The broker granted no such lease; nothing is recorded.
        """
        with self._parts.store.reading() as transaction:
            lease = transaction.lease(lease_id)
        if lease is None:
            raise LeaseUnknown("the broker granted no such lease", check="lease", got=lease_id)
        return lease.run_id

    def record_failure(self, asked: FailureReport) -> Accepted:
        """Record that a run failed, and end its lease (§5).

        Args:
            asked: What the holder of the lease sent.

        Raises:
            LeaseUnknown: The lease is not this run's.
            LeaseStale: It has ended, or was given back.
        """
        with self._parts.store.transaction() as transaction:
            lease = transaction.lease(asked.lease_id)
            if lease is None or lease.run_id != asked.run_id:
                raise LeaseUnknown("the run has no such lease", check="lease", got=asked.lease_id)
            if lease.superseded or lease.not_after <= self._parts.clock():
                raise LeaseStale("the lease has ended", check="lease", got=asked.lease_id)
            body = {"run_id": asked.run_id, "lease_id": asked.lease_id, "code": asked.code}
            index = self._record(transaction, "failure", body)
        return self._accept(index, sha256_hex(canonical_json(body)))

    def find_manifest(self, data: bytes) -> Accepted | None:
        """The answer to a manifest that was recorded before; ``None`` for any other."""
        digest = sha256_hex(data)
        with self._parts.store.reading() as transaction:
            index = transaction.manifest(digest)
        return None if index is None else self._accept(index, digest)

    def submit_manifest(self, data: bytes, run_id: str) -> Accepted:
        """Verify a run's manifest as an auditor would and record its digest.

        Args:
            data: The manifest file's bytes.
            run_id: Of the guest that hands it in, as its lease says.

        Raises:
            RunMismatch: The manifest is of another run, or this broker released no key to it.
            Refused: The manifest does not verify.
            LimitExceeded: Too many manifests for this run.
        """
        digest = sha256_hex(data)
        with self._refusing("manifest", digest):
            read = read_manifest(data)
            asked = [stay.run_id for stay in stays_of(read.predicate)]
            if run_id not in asked:
                raise RunMismatch(
                    "the manifest is of another run than that of the guest which hands it in",
                    check="run",
                    got=read.predicate.run.run_id,
                    expected=run_id,
                )
            with self._parts.store.reading() as transaction:
                known = {
                    asked_id: run
                    for asked_id in asked
                    if (run := transaction.run(asked_id)) is not None
                }
            trust = self._trust(read.predicate.run.run_id, next(iter(known.values()), None))
            verify_manifest(data, trust, artefacts=None, now=self._parts.clock())
            outputs = outputs_entry([(subject.name, subject.sha256) for subject in read.subjects])
            return self._record_manifest(digest, list(known), outputs, read.predicate)

    def list_registered(
        self,
        *,
        app_id: str,
        compose_hash: str,
        owner_id: str,
        dataset_ids: Sequence[str] = (),
        after: str | None = None,
    ) -> RegisteredDatasets:
        """Which datasets of an owner are registered here for a deployment, by id (§5.2).

        However many there are, other owners' answers grow by none.

        Args:
            app_id: Of the deployment.
            compose_hash: The same.
            dataset_ids: Only these; all where there are none.
            after: Only ids behind this one.
        """
        with self._parts.store.reading() as transaction:
            ids = transaction.list_registered(
                owner_id,
                app_id=app_id,
                compose_hash=compose_hash,
                among=dataset_ids,
                after=after or "",
                limit=REGISTERED_PAGE + 1,
            )
        page = ids[:REGISTERED_PAGE]
        return RegisteredDatasets(dataset_ids=page, end=page[-1] if len(ids) > len(page) else None)

    def series(
        self, *, app_id: str, compose_hash: str, owner: str, name: str, after: int = 0
    ) -> SeriesPage:
        """Members of an owner's series that are registered for a deployment, by number (§4.6).

        Args:
            app_id: Of the deployment.
            compose_hash: The same.
            owner: Name of the owner.
            name: Of the series.
            after: Only members with higher numbers.
        """
        with self._parts.store.reading() as transaction:
            found = transaction.members_after(
                after,
                owner=owner,
                series=name,
                app_id=app_id,
                compose_hash=compose_hash,
                limit=SERIES_PAGE + 1,
            )
        page = found[:SERIES_PAGE]
        return SeriesPage(
            members=tuple(EnvelopeDocument.of(Envelope.from_bytes(data)) for _, data in page),
            end=page[-1][0] if len(found) > len(page) else None,
        )

    def tally(self, target: Target) -> TallyAnswer:
        """The state of a target's approval, with the signed decisions on it, oldest first.

        It is counted by the needs that approvals state; ``release`` counts by the measured
        recipe's.
        """
        now = self._parts.clock()
        with self._parts.store.reading() as transaction:
            decisions = self._counting.decisions(transaction)
            stand = any(
                signed.decision.standing is not None and signed.decision.target == target
                for signed in decisions
            )
            reserved = transaction.reservations() if stand else {}
            private = reserving(self._parts.ledger, reserved)
            used = self._counting.uses(transaction, target, private) if stand else {}
        counted = tally_as_stated(decisions, self._parts.consortium, target, now)
        standing = tuple(
            StandingCount(
                owner=approval.owner.name,
                approval=approval.digest,
                runs=used[approval.digest][1].runs,
                epsilon=used[approval.digest][1].most,
            )
            for approval in counted.approvals
            if approval.digest in used
        )
        envelopes = [
            decision.envelope for decision in decisions if decision.decision.target == target
        ]
        return TallyAnswer(
            version=1,
            tally=counted.to_dict(),
            decisions=tuple(EnvelopeDocument.of(envelope) for envelope in envelopes),
            standing=standing,
        )

    def _record_owned(self, kind: str, envelope: Envelope) -> int:
        signed = verify_owned(DOCUMENTS[kind], envelope, self._parts.consortium)
        with self._parts.store.transaction() as transaction:
            known = transaction.owner_documents.find_recorded(signed.digest)
            if known is not None:
                return known
            signed.document.follow(_Before(transaction, self._parts.consortium))
            return self._record(transaction, kind, entry_of(signed))

    def _record_decision(self, envelope: Envelope) -> int:
        now = self._parts.clock()
        ids = tuple(broker_id(key) for key in self._parts.ledger.keys)
        signed = verify_decision(envelope, self._parts.consortium, now=now, broker_ids=ids)
        decision = signed.decision
        if decision.ends is not None and decision.ends < now:
            raise ApprovalExpired(
                "the approval expired before it was submitted",
                check="not after",
                owner=signed.owner.name,
                got=decision.not_after,
                expected="a time in the future",
                hint="approve again",
            )
        with self._parts.store.transaction() as transaction:
            known = transaction.decision(signed.digest)
            if known is not None:
                return known[0]
            if decision.decision == "approve":
                transaction.successions.require_none()
                not_overtaken(signed, self._counting.decisions(transaction))
            self._room_for(signed, self._counting.decisions(transaction))
            return self._record(transaction, signed.entry_kind, signed.entry)

    def _record(self, transaction: Transaction, kind: str, body: dict[str, JsonValue]) -> int:
        return record(transaction, self._parts.ledger, kind, body, now=self._parts.clock())

    def _room_for(self, signed: SignedDecision, recorded: Iterable[SignedDecision]) -> None:
        """Each owner has a share, half of it for revocations: no owner uses up another's."""
        word, owner = signed.decision.decision, signed.owner
        made = sum(
            earlier.owner == owner and earlier.decision.decision == word for earlier in recorded
        )
        most = self._parts.limits.decisions // (2 * len(self._parts.consortium.owners))
        if made >= most:
            raise LimitExceeded(
                f"the broker has no room for more decisions to {word} of this owner",
                check="decisions",
                owner=owner.name,
                got=made,
                expected=f"fewer than {most}",
                hint="ask the operator to raise the limit, or begin a successor",
            )

    def _record_dataset(self, envelope: Envelope) -> int:
        manifest = verify_dataset(envelope, self._parts.consortium)
        with self._parts.store.transaction() as transaction:
            transaction.successions.require_none()
            owned = OwnedId(manifest.owner_id, manifest.dataset_id)
            none_withdrawn(transaction.owner_documents.about(Withdrawal.entry_kind, "", [owned]))
            known = transaction.manifests_of_dataset(owned)
            before = known.get((manifest.app_id, manifest.compose_hash))
            if before is not None and before[1] == envelope.digest:
                return before[0]
            self._succeeds(manifest, before)
            others = [self._read(data) for _, _, data in known.values()]
            members = [
                self._read(data)
                for _deployment, data in transaction.members(manifest.owner, manifest.name)
            ]
            may_join(manifest, others=others, members=members)
            return self._record(transaction, "dataset", dataset_entry(manifest, envelope))

    def _record_succession(self, envelope: Envelope) -> int:
        found = verify_succession(envelope, self._parts.consortium).in_time(self._parts.clock())
        with self._parts.store.transaction() as transaction:
            before = transaction.successions.find_recorded()
            if before is not None and before[1] == envelope.digest:
                return before[2]
            transaction.successions.require_none()
            return self._record(transaction, ENTRY_KIND, found.entry)

    def _read(self, envelope: bytes) -> DatasetManifest:
        return verify_dataset(Envelope.from_bytes(envelope), self._parts.consortium)

    def _succeeds(self, manifest: DatasetManifest, known: StoredDocument | None) -> None:
        if known is None:
            return
        before = self._read(known[2])
        if not replaces(manifest, before, known[1]):
            raise DatasetMismatch(
                "the manifest does not continue the registered manifest",
                check="previous manifest",
                owner=manifest.owner,
                got=manifest.previous,
                expected=known[1],
                hint="name the registered manifest as previous, or seal as a new dataset",
            )

    def _trust(self, run_id: str, run: RunState | None) -> Trust:
        if run is None:
            raise _no_such_run(run_id)
        policy = self._parts.policy
        return Trust(
            version=1,
            consortium_id=self._parts.consortium.consortium_id,
            recipe_hash=run.recipe_hash,
            compose_hash=run.compose_hash,
            app_id=run.app_id,
            brokers=TrustedBrokers(
                # All keys of the ledger: the run may have begun before a rotation.
                signing_keys=tuple(to_base64(key) for key in self._parts.ledger.keys),
                threshold=1,
                datasets="theirs",
            ),
            appraisal=policy,
            simulated="refuse" if policy.simulator_root is None else "accept-insecure",
        )

    def _record_manifest(
        self,
        digest: str,
        run_ids: list[str],
        outputs: list[JsonValue] | None,
        predicate: Predicate,
    ) -> Accepted:
        run_id, continues = run_ids[0], predicate.continues
        stated: dict[str, JsonValue] = {"parties": run_ids} if len(run_ids) > 1 else {}
        if continues is not None:
            stated["continues"] = continues.to_dict()
        with self._parts.store.transaction() as transaction:
            index = transaction.manifest(digest)
            if index is None:
                recorded = transaction.manifests_of(run_id)
                if recorded >= self._parts.limits.manifests_per_run:
                    raise LimitExceeded(
                        "too many manifests were submitted for this run",
                        check="manifests",
                        got=recorded,
                        expected=f"at most {self._parts.limits.manifests_per_run}",
                    )
                if continues is None:
                    require_first(transaction, predicate)
                else:
                    require_place(transaction, self._parts.ledger, predicate, continues)
                index = self._record(
                    transaction,
                    "manifest",
                    {"run_id": run_id, "manifest_digest": digest, "outputs": outputs} | stated,
                )
        return self._accept(index, digest)

    @contextmanager
    def _refusing(self, action: str, digest: str) -> Iterator[None]:
        """Record a refusal that the block raises."""
        try:
            yield
        except SealtrainError as error:
            if is_refusal(error):
                body = {"action": action, "code": error.code, "check": error.check}
                with self._parts.store.transaction(alone=False):
                    self._parts.ledger.append("refusal", body | {"digest": digest})
            raise

    def _accept(self, index: int, digest: str) -> Accepted:
        proof = self._parts.ledger.proof(index).to_dict()
        return Accepted(version=1, index=index, digest=digest, proof=proof)


class _Before:
    """What the broker's database holds; see ``RecordedBefore``."""

    def __init__(self, transaction: Transaction, consortium: Consortium) -> None:
        self._transaction = transaction
        self._consortium = consortium

    def newest(self, kind: str, owner: str) -> str | None:
        digest, _ = self._transaction.owner_documents.in_force(kind).get(owner, (None, b""))
        return digest

    def owners_of(self, dataset_id: str) -> set[tuple[str, str]]:
        registered = self._transaction.owners_of_dataset(dataset_id)
        return {
            (owner.name, owner.owner_id)
            for owner in self._consortium.owners
            if owner.owner_id in registered
        }


def _no_such_run(run_id: str) -> RunMismatch:
    return RunMismatch(
        "this broker released no key to this run",
        check="run",
        got=run_id,
        hint="submit the manifest to the broker whose receipts are in it",
    )
