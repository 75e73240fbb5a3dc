"""A broker's HTTP interface, typed: one method for each path of spec/key-release.md.

Nothing here needs trust in the broker: what it returns is signed by another party, checked by the
caller (``client.attested``, ``client.grant``), or counted again from signed decisions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import load_model
from sealtrain.base.secret import Random, Secret
from sealtrain.client.transport import Answer, Transport
from sealtrain.consortium.approvals import ApprovalTally, SignedDecision, tally, verify_decision
from sealtrain.consortium.documents import list_handed_in
from sealtrain.consortium.errors import ConsortiumMismatch
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import verify_owned
from sealtrain.consortium.policies import OwnerPolicy, SignedPolicy
from sealtrain.consortium.receipts import OwnedId
from sealtrain.consortium.series_block import MAX_MEMBERS
from sealtrain.consortium.submissions import ControlDocument
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.ledger.ledger import LedgerProof
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.lease_code import Closing, show_lease, show_manifest
from sealtrain.release.messages import (
    MAX_NAMED_IDS,
    Accepted,
    BrokerIdentity,
    BrokerKeys,
    BrokerStatus,
    Challenge,
    ChallengePurpose,
    CosignedPage,
    EnvelopeDocument,
    FailureReport,
    Health,
    LedgerCheckpoint,
    LedgerConsistency,
    LedgerPage,
    LedgerRotations,
    OwnerPolicies,
    Ready,
    RegisteredDatasets,
    ReleaseAnswer,
    ReleaseRequest,
    RenewalAnswer,
    RenewalRequest,
    SeriesPage,
    StandingCount,
    TallyAnswer,
)
from sealtrain.release.run_control import (
    Posted,
    SearchPage,
    ShownSubmission,
    SubmissionAnswer,
    SubmissionPage,
)
from sealtrain.release.sealing_key import SignedSealingKey
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.needs import Needs
from sealtrain.signing.target import Target

if TYPE_CHECKING:
    from sealtrain.client.pin import BrokerPin


class BrokerClient:
    """A broker's HTTP interface, typed. Usable as a context manager.

    Args:
        url: Base URL.
        timeout: Seconds to wait for a connection and between bytes.
        total: Seconds for a whole exchange.
        signer: Key of the owner who hands something in; nothing else needs one.
        broker: Id of the broker that what is handed in is meant for; needed with ``signer``.
        authorities: Certificates in PEM of the broker's private authority.
        clock: Time of signing.
        random: Source of nonces.
    """

    def __init__(
        self,
        url: str,
        timeout: float = 60.0,
        *,
        total: float = 300.0,
        signer: Ed25519Signer | None = None,
        broker: str | None = None,
        authorities: str = "",
        clock: Clock = system_clock,
        random: Random = os.urandom,
    ) -> None:
        self._transport = Transport(url, timeout, total=total, authorities=authorities)
        self._signer = signer
        self._broker = broker
        self._clock = clock
        self._random = random

    @classmethod
    def at(
        cls,
        pin: BrokerPin,
        *,
        timeout: float = 60.0,
        total: float = 300.0,
        signer: Ed25519Signer | None = None,
        clock: Clock = system_clock,
    ) -> Self:
        """The broker that a broker file names, by the authorities of that file.

        Args:
            pin: The broker file's content.
            timeout: Seconds to wait for a connection and between bytes.
            total: Seconds for a whole exchange.
            signer: Key of the owner who hands something in.
            clock: Time of signing.
        """
        return cls(
            pin.url,
            timeout,
            total=total,
            signer=signer,
            broker=None if signer is None else pin.broker_id,
            authorities=pin.trusted,
            clock=clock,
        )

    @property
    def url(self) -> str:
        """Base URL."""
        return self._transport.url

    def close(self) -> None:
        """Close connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def health(self) -> Health:
        """Whether it answers, and for which consortium."""
        return self._transport.get("/v1/health", Health)

    def ready(self) -> Ready:
        """That it can decide now.

        Raises:
            BrokerUnreachable: It cannot, or does not answer.
        """
        return self._transport.get("/v1/ready", Ready)

    def status(self, token: str) -> BrokerStatus:
        """How it is, for an operator.

        Args:
            token: Of scope ``status``.

        Raises:
            TokenRefused: The token is not good for this.
        """
        return self._transport.get("/v1/status", BrokerStatus, bearer=token)

    def consortium(self, consortium_id: str) -> Consortium:
        """The consortium document with this id, as the broker holds it.

        Raises:
            ConsortiumMismatch: The broker serves another consortium.
        """
        served = self._transport.get("/v1/consortium", Consortium)
        if served.consortium_id != consortium_id:
            raise ConsortiumMismatch(
                "the broker serves another consortium",
                check="consortium",
                got=served.consortium_id,
                expected=consortium_id,
                hint="use the consortium file and the broker that belong together",
            )
        return served

    def identity(self, nonce: str) -> BrokerIdentity:
        """Its unverified statement of which broker it is; use ``client.attested``."""
        return self._transport.get("/v1/identity", BrokerIdentity, nonce=nonce)

    def keys(self, *, app_id: str, compose_hash: str, nonce: str) -> BrokerKeys:
        """Its unverified statement of keys; use ``fetch_keys``."""
        return self._transport.get(
            "/v1/keys", BrokerKeys, app_id=app_id, compose_hash=compose_hash, nonce=nonce
        )

    def sealing_key(
        self, *, app_id: str, compose_hash: str, owner_id: str, nonce: str
    ) -> SignedSealingKey:
        """Its unverified statement of one key; use ``release.sealing_key``.

        Raises:
            ApprovalUnknown: The consortium has no such owner.
        """
        return self._transport.get(
            "/v1/keys/signed",
            SignedSealingKey,
            app_id=app_id,
            compose_hash=compose_hash,
            owner_id=owner_id,
            nonce=nonce,
        )

    def challenge(self, consortium_id: str, purpose: ChallengePurpose) -> Challenge:
        """A fresh challenge.

        Raises:
            ConsortiumMismatch: The broker serves another consortium.
            AnswerInvalid: The answer is for another purpose or consortium.
        """
        body = {"version": 1, "consortium_id": consortium_id, "purpose": purpose}
        answer = self._transport.post("/v1/challenges", canonical_json(body), Challenge)
        if (answer.consortium_id, answer.purpose) != (consortium_id, purpose):
            raise AnswerInvalid("the challenge is for something else", check="challenge")
        return answer

    def release(self, request: ReleaseRequest) -> ReleaseAnswer:
        """Send a release request; ``client.grant`` makes it and checks the answer."""
        return self._transport.post("/v1/releases", request.to_bytes(), ReleaseAnswer)

    def renew(self, request: RenewalRequest, lease_key: Secret) -> RenewalAnswer:
        """Send a renewal request; ``client.grant`` makes it and checks the answer.

        Args:
            lease_key: As it came with the lease.
        """
        body = request.to_bytes()
        shown = show_lease(request.lease_id, lease_key, body)
        return self._transport.post(
            "/v1/renewals", body, RenewalAnswer, sign=lambda *_request: shown
        )

    def report_failure(self, run_id: str, code: str, lease_id: str, lease_key: Secret) -> None:
        """Say with which code a run failed, and give its lease back.

        Args:
            run_id: As the broker knows it.
            code: Of the error.
            lease_id: Of the run's lease here.
            lease_key: As it came with the lease.

        Raises:
            DataInvalid: The closed list does not have the code; nothing is sent.
            LeaseStale: The lease has ended, or was given back.
            LeaseUnknown: The lease is of another run.
        """
        fields = {"version": 1, "run_id": run_id, "lease_id": lease_id, "code": code}
        report = load_model(FailureReport, fields, DataInvalid, "failure")
        body = report.to_bytes()
        shown = show_lease(lease_id, lease_key, body)
        self._transport.post("/v1/failures", body, Accepted, sign=lambda *_request: shown)

    def hand_in(self, kind: str, envelope: Envelope) -> int:
        """Hand in what owners signed; returns its index in the ledger.

        Args:
            kind: Of its ledger entry (``consortium.documents.handed_in``).
            envelope: As it was signed.

        Raises:
            Refused: The broker does not accept it.
        """
        accepted = self._hand_in(list_handed_in()[kind].path, envelope.to_bytes(), Accepted)
        return _index(accepted, envelope.digest)

    def policies(self, consortium: Consortium) -> dict[str, SignedPolicy]:
        """Verified policies in force, by owner name.

        Raises:
            Refused: One does not verify.
        """
        answer = self._transport.get("/v1/policies", OwnerPolicies)
        found = [
            verify_owned(OwnerPolicy, policy.envelope(), consortium) for policy in answer.policies
        ]
        return {signed.owner.name: signed for signed in found}

    def series(
        self, owner: str, name: str, *, app_id: str, compose_hash: str
    ) -> tuple[EnvelopeDocument, ...]:
        """Members of a series that are registered with it for a deployment, as it lists them.

        Args:
            owner: Name of the owner.
            name: Of the series.
            app_id: Of the deployment.
            compose_hash: The same.

        Raises:
            AnswerInvalid: The pages do not go on, or hold more members than a series has.
        """
        found: list[EnvelopeDocument] = []
        after = 0
        while True:
            page = self._transport.get(
                "/v1/datasets/series",
                SeriesPage,
                app_id=app_id,
                compose_hash=compose_hash,
                owner=owner,
                name=name,
                after=after,
            )
            found += page.members
            if page.end is None:
                return tuple(found)
            if page.end <= after or not page.members or len(found) > MAX_MEMBERS:
                raise _endless("series", page.end, after)
            after = page.end

    def standing(self, target: Target) -> tuple[StandingCount, ...]:
        """What runs took of the standing approvals of a target: the broker's word."""
        return self._transport.get("/v1/approvals", TallyAnswer, **target.to_dict()).standing

    def ask_registered(
        self, wanted: Iterable[OwnedId], *, app_id: str, compose_hash: str
    ) -> frozenset[OwnedId]:
        """Which of some datasets are registered with it for a deployment: what to ask it for."""
        ids: dict[str, list[str]] = {}
        for owned in wanted:
            ids.setdefault(owned.owner_id, []).append(owned.dataset_id)
        found = set()
        for owner_id, listed in ids.items():
            for first in range(0, len(listed), MAX_NAMED_IDS):
                some = listed[first : first + MAX_NAMED_IDS]
                page = self._transport.get(
                    "/v1/datasets/registered",
                    RegisteredDatasets,
                    app_id=app_id,
                    compose_hash=compose_hash,
                    owner_id=owner_id,
                    dataset_id=some,
                )
                found |= {OwnedId(owner_id, id_) for id_ in page.dataset_ids if id_ in some}
        return frozenset(found)

    def list_registered(
        self, owner_id: str, *, app_id: str, compose_hash: str, most: int
    ) -> tuple[str, ...]:
        """Ids of an owner's datasets that are registered with it for a deployment.

        Args:
            app_id: Of the deployment.
            compose_hash: The same.
            most: At most so many ids; the rest is left out.

        Raises:
            AnswerInvalid: The pages do not go on.
        """
        found: list[str] = []
        after = "0" * 32  # before every id: one is random, and none is that
        while len(found) < most:
            page = self._transport.get(
                "/v1/datasets/registered",
                RegisteredDatasets,
                app_id=app_id,
                compose_hash=compose_hash,
                owner_id=owner_id,
                after=after,
            )
            found += page.dataset_ids
            if page.end is None:
                break
            if page.end <= after or not page.dataset_ids:
                raise _endless("datasets", page.end, after)
            after = page.end
        return tuple(found[:most])

    def submit_manifest(self, manifest: bytes, closing: Closing) -> int:
        """Have a run's manifest verified and recorded by digest; returns its ledger index.

        Args:
            manifest: The file's bytes.
            closing: Of a guest of the run that this broker released keys to.

        Raises:
            LeaseUnknown: The broker granted no such lease, or the key is another.
            RunMismatch: The lease is of another run.
            Refused: The manifest does not verify.
        """
        shown = show_manifest(closing, manifest)
        accepted = self._transport.post(
            "/v1/manifests", manifest, Accepted, sign=lambda *_request: shown
        )
        return _index(accepted, sha256_hex(manifest))

    def post_control(self, kind: type[ControlDocument], envelope: Envelope) -> Posted:
        """Hand in a submission, a run event or a stop.

        Args:
            kind: Of ``consortium.submissions`` or ``consortium.runevents``.
            envelope: From ``consortium.submissions.sign_control``.

        Raises:
            Refused: The broker does not accept it.
        """
        return self._hand_in(kind.path, envelope.to_bytes(), Posted)

    def submissions(
        self,
        *,
        open_only: bool = False,
        name: str | None = None,
        compose_hash: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[ShownSubmission, ...]:
        """Where submissions stand, newest first; the broker's word as it stands.

        Args:
            open_only: Only those that have not ended.
            name: Only the one of this name.
            compose_hash: Only those of this document.
            before: Only those whose entry has a lower index.
            limit: At most so many, up to 100.
        """
        asked: dict[str, Any] = {"name": name, "compose_hash": compose_hash, "before": before}
        given: dict[str, Any] = {word: value for word, value in asked.items() if value is not None}
        found = self._transport.get(
            "/v1/submissions",
            SubmissionPage,
            state="open" if open_only else "all",
            limit=limit,
            **given,
        )
        return found.submissions

    def submission(self, submission_id: str) -> SubmissionAnswer:
        """One submission as it was signed, and where it stands. Nothing is verified yet.

        Raises:
            SubmissionUnknown: The broker has no such submission.
        """
        return self._transport.get(f"/v1/submissions/{submission_id}", SubmissionAnswer)

    def ledger_search(
        self,
        *,
        run_id: str | None = None,
        submission_id: str | None = None,
        compose_hash: str | None = None,
        kind: str | None = None,
        start: int = 0,
        limit: int = 100,
    ) -> SearchPage:
        """Entries that name a run, a submission or a document, or of one kind.

        At most one of the three may be given. The page proves nothing: ``ledger_proof`` does.
        """
        asked = {
            "run_id": run_id,
            "submission_id": submission_id,
            "compose_hash": compose_hash,
            "kind": kind,
        }
        given = {word: value for word, value in asked.items() if value is not None}
        return self._transport.get(
            "/v1/ledger/search", SearchPage, start=start, limit=limit, **given
        )

    def decisions(self, target: Target) -> list[dict[str, JsonValue]]:
        """Signed decisions on a target, oldest first, as DSSE JSON. Nothing is verified yet."""
        answer = self._transport.get("/v1/approvals", TallyAnswer, **target.to_dict())
        return [decision.to_dict() for decision in answer.decisions]

    def approvals_status(
        self, target: Target, consortium: Consortium, now: int, *, needs: Needs
    ) -> ApprovalTally:
        """Where a target's approval stands, counted here from the signed decisions.

        Args:
            target: The recipe in question.
            consortium: As the asker holds it.
            now: Seconds since the epoch.
            needs: Of the recipe (``recipe.needs``).

        Raises:
            Refused: A decision the broker holds does not verify.
        """
        return tally(self.list_decisions(target, consortium), consortium, target, now, needs=needs)

    def list_decisions(self, target: Target, consortium: Consortium) -> list[SignedDecision]:
        """Verified decisions on a target, oldest first. Errors as ``approvals_status``."""
        return [
            verify_decision(Envelope.from_dict(decision), consortium)
            for decision in self.decisions(target)
        ]

    def ledger_checkpoint(self) -> str:
        """The ledger's present head, a signed note."""
        return self._transport.get("/v1/ledger/checkpoint", LedgerCheckpoint).checkpoint

    def ledger_entries(self, start: int = 0, limit: int = 100) -> list[dict[str, JsonValue]]:
        """Entries from ``start`` on, at most ``limit``."""
        page = self._transport.get("/v1/ledger/entries", LedgerPage, start=start, limit=limit)
        return list(page.entries)

    def ledger_proof(self, index: int) -> LedgerProof:
        """Inclusion proof of one entry; ``ledger.ledger.verify_proof`` checks it."""
        return self._transport.get("/v1/ledger/proof", LedgerProof, index=index)

    def ledger_consistency(self, first: int, second: int) -> tuple[str, ...]:
        """Proof between two sizes; ``ledger.ledger.verify_extension`` checks it."""
        return self._transport.get(
            "/v1/ledger/consistency", LedgerConsistency, first=first, second=second
        ).path

    def ledger_rotations(self) -> tuple[tuple[int, dict[str, JsonValue]], ...]:
        """Changes of the ledger's key: index and body of each entry; ``client.rotated`` checks."""
        found = self._transport.get("/v1/ledger/rotations", LedgerRotations)
        return tuple((rotation.index, rotation.rotation) for rotation in found.rotations)

    def ledger_cosigned(self, start: int = 0, limit: int = 100) -> tuple[str, ...]:
        """Cosigned tree heads of at least ``start`` entries, smallest first, at most 100.

        ``ledger.witness.verify_witnessed`` checks one.
        """
        return self._transport.get(
            "/v1/ledger/cosigned", CosignedPage, start=start, limit=limit
        ).checkpoints

    def ledger_witnessed(self, quorum: int) -> str | None:
        """The newest tree head that claims ``quorum`` cosignatures; unverified."""
        found = self._transport.get(
            "/v1/ledger/cosigned/latest", CosignedPage, quorum=quorum
        ).checkpoints
        return found[0] if found else None

    def submit_cosignature(self, cosigned: str) -> tuple[str, ...]:
        """Hand in a cosigned tree head; returns it with all cosignatures so far.

        Raises:
            LedgerInconsistent: The broker no longer has the history it showed.
            Refused: The cosignature is by no owner of the consortium.
        """
        body = canonical_json({"version": 1, "cosigned": cosigned})
        return self._hand_in("/v1/ledger/cosignatures", body, CosignedPage).checkpoints

    def _hand_in(self, path: str, body: bytes, cls: type[Answer]) -> Answer:
        """Post what an owner hands in, signed (spec/requests.md §1)."""
        signer, broker = self._signer, self._broker
        if signer is None or broker is None:
            raise UsageError(
                "only an owner hands this in, to a broker that is known",
                check="identity",
                hint="give your --identity, and the broker file",
            )

        # Its library takes longer to load than most questions take, and few commands sign one.
        from sealtrain.signing.http_signature import sign_request

        def sign(method: str, url: str, body: bytes, now: int | None) -> dict[str, str]:
            created = self._clock() if now is None else now
            nonce = self._random(16).hex()
            return sign_request(
                method, url, body, signer, broker=broker, created=created, nonce=nonce
            )

        return self._transport.post(path, body, cls, sign=sign)


def _index(accepted: Accepted, digest: str) -> int:
    if accepted.digest != digest:
        raise AnswerInvalid(
            "the broker recorded something else than was submitted",
            check="digest",
            got=accepted.digest,
            expected=digest,
        )
    return accepted.index


def _endless(what: str, end: object, after: object) -> AnswerInvalid:
    return AnswerInvalid(
        f"the broker's pages of {what} do not go on",
        check="page",
        got=end,
        expected=f"a place behind {after}",
    )
