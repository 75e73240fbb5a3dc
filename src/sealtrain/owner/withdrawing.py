"""Take datasets back for good, at every broker of their owner, and list what has them in it.

1. The owner signs one withdrawal of all the datasets, and hands it to each broker;
2. of each broker that took it, the whole ledger is verified: the list of runs, manifests and model
   files comes from that. A withdrawal counts also where the ledger cannot be read afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.clock import system_clock
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.pin import load_pin
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import SealtrainError
from sealtrain.ledger.uses import DatasetUse, Uses
from sealtrain.owner.ledger_audit import Progress, audit_broker, silent
from sealtrain.owner.owner_files import AtEach, OwnerFiles, at_each

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.ledger.audit import AuditReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """A withdrawal that a broker recorded.

    Attributes:
        digest: Of the signed withdrawal, the same at every broker.
        index: Of its entry in the broker's ledger.
        uses: What became of each dataset; empty where the ledger could not be read.
        audit: Of that ledger, with its findings; ``None`` where it could not be read.
        unread: Why it could not be read.
    """

    digest: str
    index: int
    uses: tuple[DatasetUse, ...] = ()
    audit: AuditReport | None = None
    unread: SealtrainError | None = None


def withdraw(
    owner: OwnerFiles,
    datasets: Iterable[str],
    consortium: Consortium,
    *,
    progress: Progress = silent,
) -> AtEach[Withdrawn]:
    """Withdraw datasets of an owner for good.

    No broker that took it releases a key of them again, renews a lease of a run that has them, or
    registers them again. What left before stays where it is.

    Args:
        owner: Whose datasets they are, and the brokers.
        datasets: Their ids, 32 hex digits each.
        consortium: As the owner holds it.
        progress: Told how far the reading of each ledger is.

    Raises:
        ApprovalUnknown: The owner is not in the consortium.
        SealtrainError: No broker took it: the worst failure.
    """
    me, named = owner.keys, list(datasets)
    consortium.owner(me.name)
    envelope = sign_owned(
        Withdrawal.of(
            named,
            consortium_id=consortium.consortium_id,
            owner=me.public,
            signed_at=system_clock(),
        ),
        me.signer,
    )

    def at(broker: Path) -> Withdrawn:
        pin = load_pin(broker)
        with BrokerClient.at(pin, signer=me.signer) as client:
            index = client.hand_in(Withdrawal.entry_kind, envelope)
        try:
            audit, uses = uses_at(broker, named, consortium, progress=progress)
        except SealtrainError as error:  # it was withdrawn all the same
            return Withdrawn(digest=envelope.digest, index=index, unread=error)
        return Withdrawn(digest=envelope.digest, index=index, uses=uses, audit=audit)

    return at_each(owner.brokers, at)


def uses_at(
    broker: Path,
    datasets: Sequence[str],
    consortium: Consortium,
    *,
    key: bytes | None = None,
    notes: Iterable[str] = (),
    progress: Progress = silent,
) -> tuple[AuditReport, tuple[DatasetUse, ...]]:
    """What became of datasets, as a broker's ledger tells it, and the audit of that ledger.

    Args:
        broker: Broker file of the broker.
        datasets: Ids of the datasets.
        consortium: As the asker holds it.
        key: As for ``audit_broker``.
        notes: As for ``audit_broker``.
        progress: As for ``audit_broker``.

    Raises:
        SealtrainError: As ``audit_broker``.
    """
    collected = Uses(datasets)
    report = audit_broker(broker, consortium, key, notes, progress=progress, seen=collected.entry)
    return report, collected.list_uses()
