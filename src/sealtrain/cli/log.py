"""``log witness`` and ``log audit``: watch that a ledger only grows, verify all of it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.broker.address import DATABASE, ledger_at
from sealtrain.broker.store.audit_reader import read_beside
from sealtrain.cli.brokers import BrokerFiles, exit_for, failures
from sealtrain.cli.ledgermemory import ConsortiumFile, StateFile, plain, read_given
from sealtrain.cli.output import Json, emit, progress_items, say
from sealtrain.consortium.members import Consortium
from sealtrain.errors import Refused, UsageError
from sealtrain.ledger.audit import Auditor, AuditReport
from sealtrain.ledger.reading import audit_stored, entries_in
from sealtrain.owner.ledger_audit import audit_broker
from sealtrain.owner.owner_files import OwnerFiles
from sealtrain.owner.witnessing import witness as watch
from sealtrain.release.messages import ledger_origin

if TYPE_CHECKING:
    from sealtrain.ledger.references import References
    from sealtrain.owner.ledger_audit import Progress

_MAX_SHOWN = 50


def witness(
    brokers: BrokerFiles,
    identity: Annotated[Path, typer.Option(help="Your private identity file.")],
    consortium: ConsortiumFile = Path("consortium.json"),
    state: StateFile = None,
    quorum: Annotated[
        int, typer.Option(min=0, help="Also demand a tree head that so many owners cosigned.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """See that the ledger of each broker only grew since last time, and cosign it.

    A ledger that is shorter than it was, rewritten or forked is refused, and both signed
    tree heads are kept beside the state file. Run it daily, and whenever something was approved.
    """
    owner = OwnerFiles(identity=identity, brokers=tuple(brokers), state=state)
    seen = failures(watch(owner, Consortium.load(consortium), quorum=quorum))
    ledgers: dict[str, dict[str, Any]] = {
        url: ledger.to_dict() for url, ledger in seen.done.items()
    }
    lines: list[str] = []
    for url, ledger in ledgers.items():
        was = "" if ledger["before"] is None else f" (was {ledger['before']})"
        cosigned = ledger["witnessed"]
        lines += [
            *([f"broker     {url}"] if len(brokers) > 1 else []),
            f"size       {ledger['size']} entries{was}",
            f"root       {ledger['root']}",
            f"witnessed  {cosigned['size']} entries by {', '.join(cosigned['by'])}",
        ]
    first = next(iter(ledgers.values()))
    emit(as_json, first | {"brokers": ledgers, "failed": list(seen.failed)}, lines)
    exit_for(seen)


def audit(
    consortium: ConsortiumFile = Path("consortium.json"),
    broker: Annotated[
        Path | None, typer.Option(help="Broker file: audit what the broker serves.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            help="ledger.sqlite: audit the file; broker.sqlite beside it is read too. Or a "
            "PostgreSQL database, as of broker serve."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--memory", help="Your memory of the ledger (see log witness): its key and tree head."
        ),
    ] = None,
    trust: Annotated[
        Path | None, typer.Option(help="Trust file: the ledger's key, instead of --memory.")
    ] = None,
    kept: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Tree head that was kept elsewhere (a signed note); repeat."),
    ] = None,
    quorum: Annotated[
        int, typer.Option(min=0, help="Demand that so many owners cosigned a tree head.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Verify the whole ledger again: every entry, hash, tree head, decision, release and budget.

    Names everything that does not hold, the first entry first, and exits 3.
    """
    if (broker is None) == (database is None):
        raise UsageError(
            "either a broker's ledger or a file's is audited",
            expected="either --broker or --database",
        )
    members = Consortium.load(consortium)
    key, notes = read_given(state, trust, kept or [])
    if broker is not None:
        report = audit_broker(broker, members, key, notes, progress=auditing(shown=not as_json))
    elif database is not None:
        if key is None:
            raise UsageError(
                "the ledger's key is missing",
                check="--memory or --trust",
                hint="take it from an owner's state file or an auditor's trust file",
            )
        report = _audit_database(database, members, key, notes, shown=not as_json)
    reached = sorted(report.witnessed.values(), reverse=True)
    lacking = quorum > len(reached)
    enough = reached[quorum - 1] if quorum and not lacking else None
    emit(
        as_json,
        report.to_dict() | {"quorum": quorum, "witnessed_by_quorum": enough},
        _report_lines(report, quorum, enough),
    )
    if lacking:
        say(f"refused: {len(reached)} owners cosigned a tree head of it, not {quorum}")
    if not report.holds or lacking:
        raise typer.Exit(Refused.exit_code)


def auditing(*, shown: bool) -> Progress:
    """A bar for the audit of a ledger, where it is shown."""
    return lambda size: progress_items("auditing", size, shown=shown)


def _audit_database(
    database: str, members: Consortium, key: bytes, notes: list[str], *, shown: bool
) -> AuditReport:
    place = ledger_at(database)
    beside = place.with_name(DATABASE) if isinstance(place, Path) else place
    references: References | None = None
    problem = None
    if not isinstance(beside, Path) or beside.is_file():
        read = read_beside(beside)
        references, problem = read.references, read.problem
        notes = [*notes, *read.checkpoints]
    else:
        say(f"note: there is no {beside.name} beside it; only the ledger is audited")
    auditor = _auditor(members, key, notes)
    if problem is not None:
        auditor.add_finding("database", problem)
    meta = {"origin": ledger_origin(members.consortium_id)}
    with progress_items("auditing", entries_in(place), shown=shown) as advance:
        audit_stored(place, auditor, meta, advance)
    return auditor.finish(references)


def _auditor(members: Consortium, key: bytes, notes: list[str]) -> Auditor:
    origin = ledger_origin(members.consortium_id)
    return Auditor(members, key, origin=origin, checkpoints=notes)


def _report_lines(report: AuditReport, quorum: int, enough: int | None) -> list[str]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.kinds.items())
    unknown = ", ".join(f"{count} {kind}" for kind, count in report.unknown.items())
    witnesses = ", ".join(f"{owner} to {size}" for owner, size in report.witnessed.items())
    lines = [
        f"entries      {report.size}" + (f" ({kinds})" if kinds else ""),
        f"root         {report.root}",
        f"tree heads   {report.checkpoints}, {report.cosignatures} cosignatures"
        + (f" ({witnesses})" if witnesses else ""),
    ]
    if enough is not None:
        lines.append(f"witnessed    {enough} entries by {quorum} owners")
    if unknown:
        lines.append(f"not judged   {unknown}")
    if report.holds:
        return [*lines, "holds        yes"]
    lines.append(f"holds        no: {len(report.findings)} findings")
    for finding in report.findings[:_MAX_SHOWN]:
        lines.append(f"  {finding.where}: {finding.check}: {plain(finding.problem)}")
    if len(report.findings) > _MAX_SHOWN:
        lines.append(f"  and {len(report.findings) - _MAX_SHOWN} more; --json has all")
    return lines
