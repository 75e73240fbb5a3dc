"""``verify --chain``: verify the manifests of a chain of runs, with or without a ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.broker.address import ledger_at
from sealtrain.cli.ledgermemory import given
from sealtrain.cli.output import progress_items
from sealtrain.client.auditing import audit_broker
from sealtrain.errors import LedgerInconsistent, LimitExceeded, RunChainBroken, UsageError
from sealtrain.ledger.audit import Auditor, AuditReport
from sealtrain.ledger.reading import audit_stored, entries_in
from sealtrain.manifest.chain import Chain, verify_chain
from sealtrain.manifest.chainledger import Due, Recorded, require_whole
from sealtrain.release.messages import ledger_origin
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.signing.continues import MAX_CHAIN

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.manifest.verify import Report

__all__ = ["ChainOptions", "chain_lines", "manifests_in", "verified_chain"]

_DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """A chain of runs, and the ledger that it is compared with."""

    chain: Annotated[
        bool,
        typer.Option(
            "--chain",
            help="The manifests are one chain of runs, all of it; a folder means those in it.",
        ),
    ] = False
    database: Annotated[
        str | None,
        typer.Option(
            help="With --chain: ledger.sqlite, or a PostgreSQL database as of broker serve; no run "
            "may be missing and every due time has ended."
        ),
    ] = None
    broker: Annotated[
        Path | None, typer.Option(help="With --chain: broker file; the ledger that it serves.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a ledger that nothing is compared with, or two of them."""
        if not self.chain and (self.database or self.broker):
            raise UsageError("a ledger is compared with a chain", expected="--chain")
        if self.database and self.broker:
            raise UsageError("one ledger is compared", expected="either --database or --broker")


def manifests_in(places: Sequence[Path]) -> list[Path]:
    """The manifests that files and folders mean, each once, folders in the order of their names.

    Raises:
        LimitExceeded: More than one chain has.
        RunChainBroken: None at all.
    """
    found: list[Path] = []
    for place in places:
        inside = [place] if not place.is_dir() else list(_below(place, _DEPTH))
        found += [one for one in inside if one not in found]
        if len(found) > MAX_CHAIN:
            raise LimitExceeded("too many manifests", check="chain", expected=MAX_CHAIN)
    if not found:
        raise RunChainBroken(
            f"no {RUN_MANIFEST} lies there", check="members", got=0, expected="1 or more"
        )
    return found


def _below(folder: Path, depth: int) -> list[Path]:
    if (folder / RUN_MANIFEST).is_file():
        return [folder / RUN_MANIFEST]
    inner = sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
    return [] if depth == 0 else [found for one in inner for found in _below(one, depth - 1)]


def verified_chain(
    reports: Sequence[Report], trust: Path, options: ChainOptions
) -> tuple[Chain, tuple[Due, ...] | None]:
    """A chain that holds, and how each due time ended where a ledger is given.

    Raises:
        Refused: As ``verify_chain`` and ``require_whole``.
        LedgerInconsistent: The ledger itself does not hold.
    """
    chain = verify_chain(reports)
    if options.database is None and options.broker is None:
        return chain, None
    first = reports[0]
    if first.manifest is None or first.facts.lock is None:
        raise AssertionError("a verified chain has manifests and a lock")
    recorded = Recorded(chain.recipe_hash)
    report = _audited(options, first.manifest.predicate.consortium, trust, recorded.entry)
    if not report.holds:
        raise LedgerInconsistent(
            "the ledger does not hold; read its findings with sealtrain log audit",
            check=report.findings[0].check,
            got=f"{len(report.findings)} findings",
            expected="none",
        )
    return chain, require_whole(chain, recorded, first.facts.lock.recipe.schedule)


def _audited(
    options: ChainOptions,
    members: Consortium,
    trust: Path,
    seen: Callable[[int, Any], None],
) -> AuditReport:
    key, notes = given(None, trust, [])
    if options.broker is not None:
        return audit_broker(options.broker, members, key, notes, seen=seen)
    if options.database is None or key is None:
        raise AssertionError("a trust file names a key")
    origin = ledger_origin(members.consortium_id)
    auditor = _Seeing(members, key, origin=origin, checkpoints=notes)
    auditor.seen = seen
    place = ledger_at(options.database)
    with progress_items("auditing", entries_in(place), shown=False) as advance:
        audit_stored(place, auditor, {"origin": origin}, advance)
    return auditor.finish(None)


class _Seeing(Auditor):
    """An audit that shows each entry."""

    seen: Callable[[int, Any], None]

    def entry(self, data: bytes) -> None:
        from sealtrain.base.canonical import parse_json

        index, before = self.size, len(data)
        super().entry(data)
        if before:
            self.seen(index, parse_json(data))


def chain_lines(chain: Chain, dues: Sequence[Due] | None) -> list[str]:
    """A chain for people: runs, days and what was spent."""
    lines = [
        f"run {link.number:<5} {link.finished_at}  {link.digest}  {len(link.data)} datasets"
        for link in chain.links
    ]
    if chain.begins_with == "last":
        lines.append("each run but the first began with the model of the run before")
    for due in dues or ():
        how = due.state if due.code is None else f"{due.state}: {due.code}"
        run = "" if due.number is None else f"  run {due.number}"
        lines.append(f"due {due.at}  {how}{run}")
    for one in chain.spent:
        spent = (
            "epsilon unbounded: a run promised no privacy"
            if one.epsilon is None
            else f"epsilon {one.epsilon:g}, delta {one.delta:g}"
        )
        lines.append(f"spent of {one.owner}/{one.name} by {one.runs} runs: {spent}")
    return lines
