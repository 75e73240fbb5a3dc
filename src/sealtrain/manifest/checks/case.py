"""One manifest under examination: its inputs, and the facts that checks have established so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sealtrain.consortium.decisions import verify_decision
from sealtrain.manifest.form import Manifest
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.trust import Trust
from sealtrain.signing import dsse

if TYPE_CHECKING:
    from sealtrain.attest.appraise import Verdict
    from sealtrain.attest.evidence import Evidence
    from sealtrain.attest.verify import Verified
    from sealtrain.consortium.approvals import ApprovalTally, SignedDecision
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.consortium.receipts import ReleaseReceipt
    from sealtrain.manifest.predicate import Release
    from sealtrain.recipe.lock import Lock

CLOCK_TOLERANCE_S = 300
"""Seconds that the guest's and the broker's clocks may differ (spec §4)."""

_Fact = TypeVar("_Fact")


class NotEstablished(Exception):
    """A check cannot be done because the check named in ``args[0]`` failed or was not done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedReceipt:
    """A receipt by a trusted broker.

    Attributes:
        broker: Id by which the lock names the broker: it stays, whatever keys it had since.
        ids: That id, and those of every key that the rotations of the receipt lead from.
        key: That signed the receipt and the broker's ledger, 32 bytes.
        receipt: Verified under it.
        listed: As the manifest lists it, with its ledger proof.
    """

    broker: str
    ids: tuple[str, ...]
    key: bytes
    receipt: ReleaseReceipt
    listed: Release


@dataclass(slots=True, kw_only=True)
class Case:
    """Inputs of a verification and what is known so far.

    ``evidence`` to ``unasked`` are ``None`` until their check passed; read them through the
    methods, which raise ``NotEstablished``. ``unasked`` are the owners whose data the run had while
    they did not approve, as a consortium may allow.
    """

    manifest: Manifest
    trust: Trust
    artefacts: Path | None
    now: int
    evidence: Evidence | None = None
    verified: Verified | None = None
    bound: bool = False
    verdict: Verdict | None = None
    lock: Lock | None = None
    datasets: tuple[DatasetManifest, ...] | None = None
    decisions: tuple[SignedDecision, ...] | None = None
    counted: tuple[CountedReceipt, ...] | None = None
    tally: ApprovalTally | None = None
    unasked: tuple[str, ...] | None = None
    log: tuple[Mapping[str, Any], ...] | None = None
    chains: Mapping[tuple[str, str], tuple[DatasetManifest, ...]] = field(default_factory=dict)
    """By owner and name, the members of each series up to the newest that the run read."""

    @property
    def predicate(self) -> Predicate:
        """Shape-checked predicate of the statement."""
        return self.manifest.predicate

    def need_evidence(self) -> Evidence:
        """Evidence signed by the guest key; not yet verified itself."""
        return _require_fact(self.evidence, "evidence-signature")

    def need_verified(self) -> Verified:
        """The verified quote."""
        return _require_fact(self.verified, "quote")

    def need_log(self) -> tuple[Mapping[str, Any], ...]:
        """Entries of the run log, in their forms and led by their chain to the head."""
        return _require_fact(self.log, "run-log")

    def need_binding(self) -> None:
        """The quote names this statement."""
        _require_fact(self.bound or None, "binding")

    def need_lock(self) -> Lock:
        """The lock that hashes to the manifest's recipe hash."""
        return _require_fact(self.lock, "recipe")

    def need_datasets(self) -> tuple[DatasetManifest, ...]:
        """Dataset manifests with verified owners."""
        return _require_fact(self.datasets, "datasets")

    def verify_decisions(self) -> tuple[SignedDecision, ...]:
        """The owners' decisions in the manifest, verified once.

        Raises:
            SealtrainError: As ``consortium.decisions.verify_decision``, each time.
        """
        if self.decisions is None:
            consortium = self.predicate.consortium
            self.decisions = tuple(
                verify_decision(dsse.Envelope.from_dict(document), consortium)
                for document in self.predicate.approvals
            )
        return self.decisions

    @property
    def receipts(self) -> tuple[ReleaseReceipt, ...] | None:
        """Receipts of trusted brokers, in order of time; ``None`` until check 11 passed."""
        return None if self.counted is None else tuple(release.receipt for release in self.counted)

    @property
    def brokers(self) -> tuple[str, ...] | None:
        """Id, as the lock names it, of the broker of each of ``receipts``."""
        return None if self.counted is None else tuple(release.broker for release in self.counted)

    def need_counted(self) -> tuple[CountedReceipt, ...]:
        """Receipts of trusted brokers, each with its broker, in order of time."""
        return _require_fact(self.counted, "releases")

    def need_receipts(self) -> tuple[ReleaseReceipt, ...]:
        """Receipts of trusted brokers, in order of time."""
        return _require_fact(self.receipts, "releases")


def _require_fact(fact: _Fact | None, check: str) -> _Fact:
    if fact is None:
        raise NotEstablished(check)
    return fact
