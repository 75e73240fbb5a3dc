"""What auditors verify of a recipe that ran again and again: all of its manifests together.

The objects behind are those of ``sealtrain verify --chain`` (spec/schedule.md §5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sealtrain.base.canonical import parse_json
from sealtrain.broker.address import ledger_at
from sealtrain.errors import LedgerInconsistent, LimitExceeded, RunChainBroken, UsageError
from sealtrain.ledger.audit import Auditor, AuditReport
from sealtrain.ledger.reading import audit_stored
from sealtrain.manifest.chain import Chain
from sealtrain.manifest.chain import verify_chain as verify_links
from sealtrain.manifest.chainledger import Due, Recorded, require_whole
from sealtrain.manifest.files import examine_file
from sealtrain.manifest.trust import Trust, load_trust
from sealtrain.owner.ledger_audit import audit_broker
from sealtrain.release.messages import ledger_origin
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.signing.continues import MAX_CHAIN

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.manifest.verify import Report

_DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedChain:
    """A chain of runs that holds.

    Attributes:
        chain: Its runs, oldest first, and what they spent of owners' privacy together.
        due: How each due time of the schedule ended, oldest first; ``None`` without a ledger.
        limits: What the manifests do not prove.
    """

    chain: Chain
    due: tuple[Due, ...] | None
    limits: tuple[str, ...]


def verify_chain(
    manifests: Sequence[Path],
    trust: Path | Trust,
    *,
    broker: Path | None = None,
    database: str | None = None,
    artefacts: Literal["beside"] | None = "beside",
    now: int | None = None,
) -> VerifiedChain:
    """Return a chain whose manifests, links and, with a ledger, due times pass every check.

    Args:
        manifests: Manifests of all runs in any order, or folders that hold them.
        trust: What the auditor trusts, or the file (YAML).
        broker: Broker file: no run may be missing that the ledger of this broker knows.
        database: The same by a ledger's file or database, in place of ``broker``.
        artefacts: ``None`` leaves the sealed outputs beside each manifest unchecked.
        now: Seconds since 1970; the system's clock when ``None``.

    Raises:
        Refused: The first refusal in the order of the specification.
        RunChainBroken: They are no chain, or not all of it.
        LedgerInconsistent: The ledger itself does not hold.
        UsageError: Two ledgers are named, or the trust file names several brokers.
    """
    if broker is not None and database is not None:
        raise UsageError("one ledger is compared", expected="either --database or --broker")
    trusted = trust if isinstance(trust, Trust) else load_trust(trust)
    reports = [
        examine_file(path, trusted, artefacts=artefacts, now=now)
        for path in manifests_in(manifests)
    ]
    chain = verify_links(reports)
    limits = tuple(dict.fromkeys(limit for report in reports for limit in report.limits))
    if broker is None and database is None:
        return VerifiedChain(chain=chain, due=None, limits=limits)
    due = _with_ledger(reports[0], chain, trusted, broker, database)
    return VerifiedChain(chain=chain, due=due, limits=limits)


def manifests_in(places: Sequence[Path]) -> list[Path]:
    """The manifests that files and folders mean, each once, folders in the order of their names.

    Raises:
        LimitExceeded: More than one chain has.
        RunChainBroken: None at all.
    """
    found: list[Path] = []
    for place in places:
        inside = [place] if not place.is_dir() else list(_below(place, _DEPTH))
        found += [path for path in inside if path not in found]
        if len(found) > MAX_CHAIN:
            raise LimitExceeded("too many manifests", check="chain", expected=MAX_CHAIN)
    if not found:
        raise RunChainBroken(
            f"no {RUN_MANIFEST} lies there", check="members", got=0, expected="1 or more"
        )
    return found


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / RUN_MANIFEST).is_file():
        yield folder / RUN_MANIFEST
    elif depth > 0:
        for inner in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
            if not inner.is_symlink():
                yield from _below(inner, depth - 1)


def _with_ledger(
    first: Report, chain: Chain, trust: Trust, broker: Path | None, database: str | None
) -> tuple[Due, ...]:
    if first.manifest is None or first.facts.lock is None:
        raise AssertionError("a verified chain has manifests and a lock")
    recorded = Recorded(chain.recipe_hash)

    def on_entry(index: int, entry: Any) -> None:
        recorded.entry(index, entry)

    members = first.manifest.predicate.consortium
    key = _only_key(trust)
    if broker is not None:
        report = audit_broker(broker, members, key, [], seen=on_entry)
    else:
        report = _audit_database(database or "", members, key, on_entry)
    if not report.holds:
        raise LedgerInconsistent(
            "the ledger does not hold; read its findings with sealtrain log audit",
            check=report.findings[0].check,
            got=f"{len(report.findings)} findings",
            expected="none",
        )
    return require_whole(chain, recorded, first.facts.lock.recipe.schedule)


def _only_key(trust: Trust) -> bytes:
    key, *others = trust.brokers.by_key_id.values()
    if others:
        raise UsageError(
            "the trust file names several brokers, and each has a ledger of its own",
            check="--trust",
            expected="one broker",
        )
    return key


def _audit_database(
    database: str, members: Consortium, key: bytes, seen: Callable[[int, Any], None]
) -> AuditReport:
    origin = ledger_origin(members.consortium_id)
    auditor = _Seeing(members, key, origin=origin)
    auditor.seen = seen
    audit_stored(ledger_at(database), auditor, {"origin": origin})
    return auditor.finish(None)


class _Seeing(Auditor):
    """An audit that shows each entry."""

    seen: Callable[[int, Any], None]

    def entry(self, data: bytes) -> None:
        index, before = self.size, len(data)
        super().entry(data)
        if before:
            self.seen(index, parse_json(data))
