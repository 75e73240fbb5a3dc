"""The broker without HTTP: issues challenges, shows its keys, releases, renews.

Contract of a release (spec/key-release.md §4):

1. the challenge is burnt before anything else is looked at;
2. evidence is verified outside the database; the decision, the record of run and lease and the
   ledger entry are one transaction;
3. the answer is sealed before that transaction commits and returned after it: a failure anywhere
   means that nothing leaves;
4. every refusal is a ledger entry; if it cannot be written, the answer withholds the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from threading import BoundedSemaphore
from typing import TypeVar

from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import to_base64
from sealtrain.broker.config import BrokerLimits
from sealtrain.broker.service.bootauth import BootAuthority
from sealtrain.broker.service.chaining import (
    began_after,
    newest_run,
    run_of,
    withdrawn_before,
)
from sealtrain.broker.service.challenges import Challenges
from sealtrain.broker.service.condition import Condition
from sealtrain.broker.service.counting import Counting, Reserved, sum_reserved
from sealtrain.broker.service.entries import (
    is_refusal,
    receipt_of,
    refusal_entry,
    target_of,
    write_granted_entry,
)
from sealtrain.broker.service.guests import Appraised, appraise_guest, hold_owners_policies
from sealtrain.broker.service.operators import Operators
from sealtrain.broker.service.owners import Owners
from sealtrain.broker.service.parts import BrokerParts
from sealtrain.broker.service.run_control import RunControl
from sealtrain.broker.service.submissions import Registry
from sealtrain.broker.service.throttle import Shares, Throttle
from sealtrain.broker.store.recording import record
from sealtrain.broker.store.transaction import Transaction
from sealtrain.consortium.datasets import DatasetManifest, verify_dataset
from sealtrain.consortium.errors import ApprovalUnknown
from sealtrain.consortium.members import MAX_OWNERS, Consortium
from sealtrain.consortium.owner_document import verify_owned
from sealtrain.consortium.policies import OwnerPolicy
from sealtrain.consortium.receipts import ReleaseReceipt, RunDataset, sign_receipt
from sealtrain.consortium.series import chain_of
from sealtrain.consortium.standing_approval import is_spent
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import SealtrainError
from sealtrain.ledger.ledger import Ledger
from sealtrain.ledger.rotation import rotation_entry
from sealtrain.release.checks import same_consortium
from sealtrain.release.decide import admit, decide, decide_renewal, reserves_of
from sealtrain.release.facts import ChallengeState, DecisionLimits, Known, Measured
from sealtrain.release.lease_code import LeaseShown
from sealtrain.release.messages import (
    IDENTITY_PURPOSE,
    KEYS_PURPOSE,
    BrokerIdentity,
    BrokerKeys,
    Challenge,
    ChallengePurpose,
    ChallengeRequest,
    EnvelopeDocument,
    LedgerRotation,
    LedgerRotations,
    ReleaseAnswer,
    ReleaseRequest,
    RenewalAnswer,
    RenewalRequest,
)
from sealtrain.release.sealing_key import SealingKey, SignedSealingKey, sign_sealing_key
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.identity import broker_id

_log = logging.getLogger("sealtrain.broker")
_MANIFESTS_A_MINUTE = 8
_MANIFESTS = 256
"""How many verified dataset manifests are remembered."""

Asked = TypeVar("Asked", ReleaseRequest, RenewalRequest)
Answered = TypeVar("Answered", ReleaseAnswer, RenewalAnswer)


class Broker:
    """One consortium's key-release service. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        missing = parts.store.join(parts.ledger, now=parts.clock())
        if missing:
            _log.warning("recorded entries=%s that were missing from the database", missing)
        self._counting = Counting(parts.consortium, parts.limits)
        self.registry = Registry(parts, self._counting)
        """Accepts submissions of owners and guests."""
        self.owners = Owners(parts)
        """Authenticates owners, submitters and runners."""
        self.run_control = RunControl(parts)
        """Records submissions, run events and stops."""
        self.condition = Condition(parts)
        """The broker's health."""
        self.operators = Operators(parts)
        """Authenticates operators."""
        self.throttle = Throttle(parts.limits.posts_per_minute)
        """Counts requests that cost disk or a quote."""
        self.shares = Shares(parts.limits.share, "address")
        """Counts those requests by address."""
        self.manifest_shares = Shares(_MANIFESTS_A_MINUTE, "run")
        """Counts manifests by run."""
        self._lease_shares = Shares(parts.limits.posts_per_lease, "lease")
        self.boot = BootAuthority(parts, self._counting) if parts.answers.boot_auth else None
        """Answers dstack's KMS; ``None`` where the boot authority is off."""
        self._limits = DecisionLimits(
            broker_ids=parts.ids,
            consortium_id=parts.consortium.consortium_id,
            lease_seconds=parts.answers.lease_seconds,
        )
        self._challenges = Challenges(
            partial(parts.keyring.challenge_key, parts.consortium.consortium_id),
            parts.store,
            parts.random,
        )
        # A process never changes its own key, so this list is final.
        self._rotations = LedgerRotations(
            rotations=tuple(
                LedgerRotation(index=index, rotation=rotation_entry(rotation.envelope))
                for index, rotation in parts.ledger.rotations()
            )
        )
        self._at_work = BoundedSemaphore(parts.limits.deciding)
        self._renewing = BoundedSemaphore(parts.limits.deciding)
        # Cached by bytes: a manifest that changes in the database is verified again.
        self._policy = lru_cache(maxsize=MAX_OWNERS)(
            lambda data: verify_owned(OwnerPolicy, Envelope.from_bytes(data), parts.consortium)
        )
        self._manifest = lru_cache(maxsize=_MANIFESTS)(
            lambda data: verify_dataset(Envelope.from_bytes(data), parts.consortium)
        )

    @property
    def consortium(self) -> Consortium:
        """The consortium it serves."""
        return self._parts.consortium

    @property
    def ledger(self) -> Ledger:
        """Its ledger, to read."""
        return self._parts.ledger

    def rotations(self) -> LedgerRotations:
        """Every change of the ledger's key."""
        return self._rotations

    @property
    def caps(self) -> BrokerLimits:
        """Caps."""
        return self._parts.limits

    def now(self) -> int:
        """The broker's time, seconds since the epoch."""
        return self._parts.clock()

    def identity(self, nonce: str) -> BrokerIdentity:
        """This broker's identity, under its own fresh evidence (§2.2).

        Args:
            nonce: 64 hex digits the asker chose; makes the evidence fresh.
        """
        statement = {
            "consortium_id": self.consortium.consortium_id,
            "signing_key": to_base64(self._parts.keyring.signer.public),
            "nonce": nonce,
        }
        evidence = self._parts.collect(Binding(IDENTITY_PURPOSE, statement))
        return BrokerIdentity.model_validate_json(
            canonical_json({"version": 1, **statement, "evidence": evidence.to_dict()})
        )

    def keys(self, *, app_id: str, compose_hash: str, nonce: str) -> BrokerKeys:
        """The broker's public keys for one recipe, under its own fresh evidence (§2).

        Args:
            app_id: 40 hex digits.
            compose_hash: 64 hex digits.
            nonce: 64 hex digits the asker chose; makes the evidence fresh.
        """
        statement = {
            "consortium_id": self.consortium.consortium_id,
            "app_id": app_id,
            "compose_hash": compose_hash,
            "keys": [
                key.to_dict()
                for key in self._parts.keyring.public_keys(
                    self.consortium, app_id=app_id, compose_hash=compose_hash
                )
            ],
            "signing_key": to_base64(self._parts.keyring.signer.public),
            "nonce": nonce,
        }
        evidence = self._parts.collect(Binding(KEYS_PURPOSE, statement))
        return BrokerKeys.model_validate_json(
            canonical_json({"version": 1, **statement, "evidence": evidence.to_dict()})
        )

    def sealing_key(
        self, *, app_id: str, compose_hash: str, owner_id: str, nonce: str
    ) -> SignedSealingKey:
        """The public key that one owner's data is sealed to for one recipe, signed (§2.3).

        Args:
            app_id: 40 hex digits.
            compose_hash: 64 hex digits.
            owner_id: 64 hex digits; the consortium's id for the models of the recipe's own runs.
            nonce: 64 hex digits the asker chose.

        Raises:
            ApprovalUnknown: The consortium has no such owner.
        """
        owners = self.consortium.owners
        known = {owner.owner_id for owner in owners} | {self.consortium.consortium_id}
        if owner_id not in known:
            raise ApprovalUnknown(
                "the broker serves no such owner",
                check="owner",
                got=owner_id,
                expected=", ".join(owner.owner_id for owner in owners),
            )
        key = self._parts.keyring.public_key(owner_id, app_id=app_id, compose_hash=compose_hash)
        signer = self._parts.keyring.signer
        statement = SealingKey(
            broker_id=broker_id(signer.public),
            consortium_id=self.consortium.consortium_id,
            app_id=app_id,
            compose_hash=compose_hash,
            owner_id=owner_id,
            public_key=key,
            nonce=nonce,
        )
        return sign_sealing_key(statement, signer)

    @property
    def challenge_writes(self) -> bool:
        """Whether making a challenge must wait for the database now, which is rare."""
        return self._challenges.writes(expires_at=self._challenge_ends)

    @property
    def _challenge_ends(self) -> int:
        return self.now() + self._parts.limits.challenge_seconds

    def challenge(self, request: ChallengeRequest) -> Challenge:
        """Issue a challenge (§3).

        Raises:
            ConsortiumMismatch: The guest names another consortium.
        """
        same_consortium(request.consortium_id, self._limits, "request")
        expires_at = self._challenge_ends
        challenge = self._challenges.issue(request.purpose, expires_at=expires_at)
        return Challenge(
            version=1,
            consortium_id=request.consortium_id,
            purpose=request.purpose,
            challenge=challenge,
            expires_at=to_rfc3339(expires_at),
        )

    def release(self, request: ReleaseRequest) -> ReleaseAnswer:
        """Release keys to a guest, or refuse (§4).

        Raises:
            Refused: The class of the first check that fails; the refusal is in the ledger.
        """
        return self._decide(request, "release", self._release)

    def renew(self, request: RenewalRequest, *, holder: str | None = None) -> RenewalAnswer:
        """Let a lease end later, or refuse (§5). Errors as ``release``.

        Args:
            holder: Id of the lease whose holder authenticated the request's head. The request
                counts for that lease only once its challenge is fresh, so that a replay uses up
                none of the holder's quota.
        """
        return self._decide(request, "renewal", self._renew, holder)

    def has_granted(self, shown: LeaseShown) -> bool:
        """Whether a request's head was made by the holder of a lease that was granted here."""
        return self._parts.keyring.has_granted(shown)

    def closes(self, shown: LeaseShown) -> bool:
        """Whether a manifest's head was made by a guest, or for it, that keys were released to."""
        return self._parts.keyring.closes(shown)

    def _decide(
        self,
        request: Asked,
        action: ChallengePurpose,
        grant: Callable[[Asked, ChallengeState | None, Appraised, int], Answered],
        holder: str | None = None,
    ) -> Answered:
        """Checks 1-7, the chain, then ``grant``; a refusal goes into the ledger."""
        now = self.now()
        try:
            with self._parts.store.transaction(alone=False) as transaction:
                challenge = self._challenges.burn(
                    transaction.challenges, request.challenge, action, now=now
                )
            if holder is not None:
                self._count(holder, challenge, now)
            admit(request, challenge, now=now, limits=self._limits)
            collateral = self._parts.collateral(request.evidence)
            gpu_collateral = self._parts.gpu_collateral()
            with self._at_work if holder is None else self._renewing:
                appraised = appraise_guest(
                    request,
                    self._parts.policy,
                    collateral=collateral,
                    gpu_collateral=gpu_collateral,
                    now=now,
                )
            if self._parts.chain is not None:
                word = self._parts.chain.require_allowed(request.app_id, request.compose_hash)
                appraised = replace(appraised, chain=word)
            return grant(request, challenge, appraised, now)
        except SealtrainError as error:
            if not is_refusal(error):
                raise
            with self._parts.store.transaction(alone=False):
                self.ledger.append("refusal", refusal_entry(request, action, error))
            raise

    def _count(self, holder: str, challenge: ChallengeState | None, now: int) -> None:
        if challenge is None or challenge.used or now >= challenge.expires_at:
            self.throttle.take(now)
        else:
            self._lease_shares.take(holder, now)

    def _release(
        self, request: ReleaseRequest, challenge: ChallengeState | None, guest: Appraised, now: int
    ) -> ReleaseAnswer:
        private = guest.measured.privacy
        # The ledger states the privacy that runs spent: no entry of it may be uncommitted.
        follows = guest.measured.follows
        with self._parts.store.transaction(alone=bool(private) or follows) as transaction:
            transaction.successions.require_none()
            limits = self._limits_for(transaction, guest)
            run = transaction.run(request.run_id)
            registered = self._find_registered(transaction, request, request.data)
            reserved = transaction.reservations() if private else {}
            before = sum_reserved(self.ledger, reserved) if private else Reserved()
            begins = run is None and not request.resume
            used = self._counting.uses(transaction, target_of(request), before.runs)
            asked = reserves_of(guest.measured)
            spent = {
                digest: why
                for digest, (signed, use) in used.items()
                if begins and (why := is_spent(signed, use, asked)) is not None
            }
            permit = decide(
                request,
                guest.measured,
                Known(
                    challenge=challenge,
                    tally=self._counting.tally(
                        transaction,
                        target_of(request),
                        now,
                        needs=guest.measured.needs,
                        spent=spent,
                    ),
                    uses={digest: use for digest, (_signed, use) in used.items()},
                    chains=self._chains(transaction, request, guest.measured, registered),
                    run=run,
                    withdrawn=transaction.owner_documents.about(
                        Withdrawal.entry_kind,
                        request.run_id,
                        [dataset.owned for dataset in request.data],
                    )
                    | withdrawn_before(transaction, target_of(request), guest.measured),
                    newest=newest_run(transaction, self.ledger, target_of(request))
                    if follows
                    else None,
                    began=began_after(transaction, self.ledger, request.run_id)
                    if follows
                    else None,
                ),
                registered=registered,
                now=now,
                limits=limits,
                spent=before.spent,
            )
            lease_id = self._parts.random(32).hex()
            granted = receipt_of(request, permit, guest, lease_id, now)
            receipt = self._sign(granted)
            model_of = run_of(transaction, self.ledger, permit.continues)
            sealed = self._parts.keyring.seal_answer(  # (15)
                request, registered, granted, receipt, model_of=model_of
            )
            index = record(
                transaction,
                self.ledger,
                "release",
                write_granted_entry(
                    request,
                    permit,
                    guest,
                    lease_id,
                    receipt,
                    reserved_at=next(
                        (place for place, of in reserved.items() if of == request.run_id), None
                    ),
                ),
                now=now,
                instance_id=guest.measured.instance_id,
            )
        return ReleaseAnswer(
            version=2,
            run_id=request.run_id,
            enc=to_base64(sealed),
            receipt=EnvelopeDocument.of(receipt),
            proof=self.ledger.proof(index).to_dict(),
        )

    def _renew(
        self, request: RenewalRequest, challenge: ChallengeState | None, guest: Appraised, now: int
    ) -> RenewalAnswer:
        with self._parts.store.transaction(alone=False) as transaction:
            transaction.successions.require_none()
            limits = self._limits_for(transaction, guest)
            run = transaction.run(request.run_id)
            permit = decide_renewal(
                request,
                guest.measured,
                Known(
                    challenge=challenge,
                    tally=self._counting.tally(
                        transaction, target_of(request), now, needs=guest.measured.needs
                    ),
                    run=run,
                    withdrawn=transaction.owner_documents.about(
                        Withdrawal.entry_kind, request.run_id
                    )
                    | withdrawn_before(transaction, target_of(request), guest.measured),
                ),
                lease=transaction.lease(request.lease_id),
                registered=self._find_registered(
                    transaction, request, () if run is None else run.data
                ),
                now=now,
                limits=limits,
            )
            receipt = self._sign(receipt_of(request, permit, guest, request.lease_id, now))
            index = record(
                transaction,
                self.ledger,
                "renewal",
                write_granted_entry(request, permit, guest, request.lease_id, receipt),
                now=now,
            )
        return RenewalAnswer(
            version=2,
            run_id=request.run_id,
            receipt=EnvelopeDocument.of(receipt),
            proof=self.ledger.proof(index).to_dict(),
        )

    def _limits_for(self, transaction: Transaction, guest: Appraised) -> DecisionLimits:
        """The broker's bounds, or narrower ones of owners whose data the guest reads (§4.2)."""
        in_force = transaction.owner_documents.in_force(OwnerPolicy.entry_kind)
        policies = [self._policy(envelope) for _, envelope in in_force.values()]
        return hold_owners_policies(guest, policies, self._limits)

    def _find_registered(
        self,
        transaction: Transaction,
        request: ReleaseRequest | RenewalRequest,
        data: Iterable[RunDataset],
    ) -> dict[str, DatasetManifest]:
        """Manifests of the data of a run, by dataset id, as far as their owners registered them."""
        found = transaction.datasets(
            [dataset.owned for dataset in data],
            app_id=request.app_id,
            compose_hash=request.compose_hash,
        )
        return {dataset_id: self._manifest(envelope) for dataset_id, envelope in found.items()}

    def _chains(
        self,
        transaction: Transaction,
        request: ReleaseRequest,
        measured: Measured,
        registered: Mapping[str, DatasetManifest],
    ) -> dict[tuple[str, str], tuple[DatasetManifest, ...]]:
        """Members of series that are registered for the target of a request, by number.

        Of the series that the recipe names, and of those of which the run has a member.
        """
        named = {
            (manifest.owner, manifest.name)
            for manifest in registered.values()
            if manifest.series is not None
        }
        target = (request.app_id, request.compose_hash)
        found = {
            key: chain_of(
                self._manifest(envelope)
                for deployment, envelope in transaction.members(*key)
                if deployment == target
            )
            for key in sorted({*measured.series, *named})
        }
        return {key: chain for key, chain in found.items() if chain}

    def _sign(self, receipt: ReleaseReceipt) -> Envelope:
        return sign_receipt(receipt, self._parts.keyring.signer)
