"""Audit the ledger that a broker serves, entry by entry, under the key that the broker proved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import system_clock
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import attest_pinned_broker
from sealtrain.client.pin import load_pin
from sealtrain.consortium.members import Consortium
from sealtrain.errors import LedgerInconsistent
from sealtrain.ledger.audit import Auditor, AuditReport
from sealtrain.release.messages import ledger_origin
from sealtrain.signing.tree_head import verify_tree_head

_PAGE = 1000

Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Shows progress: given how many entries there are, yields what is told of each few."""


def silent(_size: int) -> AbstractContextManager[Callable[[int], None]]:
    """Show no progress."""
    return nullcontext(lambda _entries: None)


def audit_broker(
    broker: Path,
    members: Consortium,
    key: bytes | None,
    notes: Iterable[str],
    *,
    progress: Progress = silent,
    seen: Callable[[int, object], None] = lambda _index, _entry: None,
) -> AuditReport:
    """Audit what the broker of a broker file serves.

    Args:
        broker: Its broker file.
        members: The consortium, as the auditor holds it.
        key: The ledger's key, 32 bytes; the one that the broker proves now when ``None``.
        notes: Tree heads from elsewhere, which the entries must give too.
        progress: Told how far it is.
        seen: Called with index and entry; nothing is verified yet.

    Raises:
        SealtrainError: As ``audit_served``, or the broker's evidence does not verify.
    """
    pin = load_pin(broker)
    with BrokerClient.at(pin) as client:
        if key is None:
            found = attest_pinned_broker(client, pin, members.consortium_id, now=system_clock())
            key = found.signing_key
        return audit_served(client, members, key, notes, progress=progress, seen=seen)


def require_holds(report: AuditReport) -> AuditReport:
    """The report of an audit without findings.

    Raises:
        LedgerInconsistent: There are findings; the error names the first.
    """
    if not report.holds:
        first = report.findings[0]
        raise LedgerInconsistent(
            f"the broker's ledger does not hold: {first.problem}",
            check=first.check,
            got=first.where,
            hint="see all findings: sealtrain log audit --broker; ask the operator",
        )
    return report


def audit_served(
    client: BrokerClient,
    members: Consortium,
    key: bytes,
    notes: Iterable[str],
    *,
    progress: Progress,
    seen: Callable[[int, object], None],
) -> AuditReport:
    """Audit what a broker serves, and show each entry to ``seen`` as it comes.

    Args:
        members: The consortium, as the auditor holds it.
        key: The ledger's key, 32 bytes, attested or pinned.
        notes: Tree heads from elsewhere, which the entries must give too.
        progress: Told how far it is.
        seen: Called with index and entry; nothing is verified yet.

    Raises:
        SignatureInvalid: The broker's tree head is by another key.
        BrokerUnreachable: It does not answer.
    """
    head = client.ledger_checkpoint()
    origin = ledger_origin(members.consortium_id)
    size = verify_tree_head(head, key, origin=origin).size
    auditor = Auditor(
        members, key, origin=origin, checkpoints=[*notes, *_read_cosigned(client, size), head]
    )
    with progress(size) as advance:
        while auditor.size < size:
            page = client.ledger_entries(auditor.size, min(_PAGE, size - auditor.size))
            if not page:
                auditor.add_finding(
                    "entry missing", "the broker serves no such entry", auditor.size
                )
                break
            for entry in page[: size - auditor.size]:
                seen(auditor.size, entry)
                auditor.entry(canonical_json(entry))
            advance(len(page))
    return auditor.finish()


def _read_cosigned(client: BrokerClient, size: int) -> Iterator[str]:
    """Every cosigned tree head that a broker serves; ends even where the pages never do."""
    start = 0
    while start <= size and (page := client.ledger_cosigned(start)):
        yield from page
        found = [re.match(r"[^\n]*\n([0-9]{1,16})\n", note) for note in page]
        largest = max((int(size[1]) for size in found if size), default=-1)
        if largest < start:
            return
        start = largest + 1
