"""``consortium propose``, ``sign``, ``verify``, ``succeed``, ``follow``: its successor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.files import atomic_write
from sealtrain.cli.approvals import confirm
from sealtrain.cli.consortium import lines as consortium_lines
from sealtrain.cli.consortium import show_consortium as consortium_shown
from sealtrain.cli.durations import Duration
from sealtrain.cli.ledgermemory import ConsortiumFile, StateFile
from sealtrain.cli.output import Json, emit, say
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.connection import watch_ledger
from sealtrain.client.pin import load_pin
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.succession import (
    Succession,
    SuccessionFile,
    changes_between,
    read_succession,
    verify_succession,
    with_signature,
)
from sealtrain.consortium.succession import propose as write
from sealtrain.errors import (
    LedgerInconsistent,
    SealtrainError,
    SignatureInvalid,
    UsageError,
)
from sealtrain.keys.identity import Identity
from sealtrain.ledger.ledger import verify_extension
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.tree_head import verify_tree_head

SuccessionPath = Annotated[Path, typer.Argument(help="The succession file.", metavar="SUCCESSION")]
IdentityFile = Annotated[Path, typer.Option(help="Your private identity file.")]
Brokers = Annotated[
    list[Path] | None,
    typer.Option(help="Broker file of the consortium in force; repeat for each of its brokers."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """What the successor has that the consortium in force has not; ``None`` keeps it."""

    add: Annotated[
        list[Path] | None, typer.Option(help="Public identity of an owner who joins; repeat.")
    ] = None
    remove: Annotated[
        list[str] | None, typer.Option("--leaves", help="Name of an owner who leaves; repeat.")
    ] = None
    replace: Annotated[
        list[Path] | None,
        typer.Option(help="New public identity of an owner; repeat."),
    ] = None
    name: Annotated[str | None, typer.Option("--new-name", help="Another name.")] = None
    approve: Annotated[int | None, typer.Option(help="Another threshold.")] = None
    revoke: Annotated[int | None, typer.Option(help="Another threshold.")] = None
    amend_members: Annotated[int | None, typer.Option(help="Another threshold.")] = None
    amend_thresholds: Annotated[int | None, typer.Option(help="Another threshold.")] = None
    raise_logging: Annotated[int | None, typer.Option(help="Another threshold.")] = None
    export_model: Annotated[int | None, typer.Option(help="Another threshold.")] = None
    own_data_consent: Annotated[
        bool | None, typer.Option(help="Whether data is used only while its owner approves.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions:
    """The ledgers and the consortium in force."""

    broker: Brokers = None
    consortium: ConsortiumFile = Path("consortium.json")


def propose(
    identity: IdentityFile,
    ledgers: LedgerOptions,
    changes: ChangeOptions,
    days: Annotated[
        int,
        typer.Option(
            "--within",
            click_type=Duration("d", least=1, most=365),
            help="How soon to put it in force.",
        ),
    ] = 14,
    state: StateFile = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("succession.json"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Write down what is to take the consortium's place, and sign it first.

    What is not named stays as it is. The ledgers' newest tree heads go into it, so that everybody
    signs the same history; leave --broker out only where the ledgers are lost.
    """
    members = Consortium.load(ledgers.consortium)
    owner = Identity.load(identity)
    successor = _amend(members, changes)
    if not as_json:
        _say_changes([change.what for change in changes_between(members, successor)])
    confirm("AMEND", yes)
    notes = [_newest(path, members, identity, state) for path in ledgers.broker or ()]
    file = write(
        members,
        successor,
        owner.signer,
        ledgers=notes,
        not_after=system_clock() + days * 86400,
    )
    atomic_write(out, file.to_bytes())
    _tell(as_json, file.envelope, members, {"file": str(out)})


def sign(
    succession: SuccessionPath,
    identity: IdentityFile,
    consortium: ConsortiumFile = Path("consortium.json"),
    broker: Brokers = None,
    state: StateFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Read what would change, then add your signature to the file.

    With --broker it is first seen that the ledger you remember is the one the proposal names.
    """
    members = Consortium.load(consortium)
    file = SuccessionFile.load(succession)
    found = read_succession(file.envelope, members)
    if not as_json:
        _say_changes([change.what for change in found.changes])
    for path in broker or ():
        _saw(path, found, members, identity, state)
    confirm("AMEND", yes)
    signed = with_signature(file, Identity.load(identity).signer)
    atomic_write(succession, signed.to_bytes(), overwrite=True)
    _tell(as_json, signed.envelope, members, {"file": str(succession)})


def verify(
    succession: SuccessionPath,
    consortium: ConsortiumFile = Path("consortium.json"),
    as_json: Json = False,
) -> None:
    """Verify a succession of the consortium you hold: who signed, what changes, until when.

    Exits 3 when too few owners signed it.
    """
    members = Consortium.load(consortium)
    file = SuccessionFile.load(succession)
    found = verify_succession(file.envelope, members)
    found.in_time(system_clock())
    _tell(as_json, file.envelope, members, {"file": str(succession)})


def succeed(
    succession: SuccessionPath,
    consortium: ConsortiumFile = Path("consortium.json"),
    identity: Annotated[
        Path | None, typer.Option(help="Your private identity file, with --broker.")
    ] = None,
    broker: Brokers = None,
    out: Annotated[Path, typer.Option(help="The successor's file to write.")] = Path(
        "successor.json"
    ),
    as_json: Json = False,
) -> None:
    """Put a succession in force: end the consortium at its brokers, write the successor's file.

    A broker that took it releases and renews nothing any more. The successor's brokers begin with
    an empty state folder and: sealtrain broker serve --succeeds SUCCESSION.
    """
    members = Consortium.load(consortium)
    file = SuccessionFile.load(succession)
    found = verify_succession(file.envelope, members).in_time(system_clock())
    if broker and identity is None:
        raise UsageError("brokers take a succession from an owner", check="--identity")
    signer = None if identity is None else Identity.load(identity).signer
    pins = [load_pin(path) for path in broker or ()]
    atomic_write(out, found.successor.to_bytes())
    answers: list[dict[str, Any]] = []
    failed: list[SealtrainError] = []
    for pin in pins:
        url = pin.url
        try:
            with BrokerClient.at(pin, signer=signer) as client:
                answers.append(
                    {"broker": url, "index": client.hand_in("succession", file.envelope)}
                )
            say(f"{url} ended consortium {members.consortium_id}")
        except SealtrainError as error:
            failed.append(error)
            answers.append({"broker": url, "index": None, "error": error.to_dict()})
            say(f"{url} did not take it [{error.code}]: {error.message}")
    emit(
        as_json,
        {**consortium_shown(found.successor), "file": str(out), "brokers": answers},
        consortium_lines(found.successor),
    )
    if failed:
        raise typer.Exit(failed[0].exit_code)


def follow(
    succession: Annotated[
        list[Path], typer.Argument(help="Succession files you missed, oldest first.")
    ],
    identity: IdentityFile,
    broker: Annotated[Path, typer.Option(help="Broker file of the consortium in force.")],
    consortium: ConsortiumFile = Path("consortium.json"),
    state: StateFile = None,
    as_json: Json = False,
) -> None:
    """Take your memory of a ledger along over successions that you did not see happen.

    One step is followed by every command that looks at the ledger; this is for more than one.
    """
    members = Consortium.load(consortium)
    files = [SuccessionFile.load(path) for path in succession]
    with watch_ledger(broker, members, identity, state, between=files) as watch:
        own = watch.kept.head
    if own is None:
        raise AssertionError("a watched ledger has a tree head")
    emit(
        as_json,
        {"origin": own.origin, "size": own.size, "root": own.root},
        [f"origin  {own.origin}", f"size    {own.size} entries", f"root    {own.root}"],
    )


def _amend(members: Consortium, changes: ChangeOptions) -> Consortium:
    owners = {owner.name: owner for owner in members.owners}
    for name in changes.remove or ():
        members.owner(name)
        owners.pop(name, None)
    for path in changes.replace or ():
        other = PublicIdentity.load(path)
        members.owner(other.name)
        owners[other.name] = other
    for path in changes.add or ():
        new = PublicIdentity.load(path)
        if new.name in owners:
            raise UsageError(
                "an owner of this name is there already",
                check="--add",
                got=new.name,
                hint="--replace gives an owner other keys",
            )
        owners[new.name] = new
    thresholds = {
        "approve": changes.approve,
        "revoke": changes.revoke,
        "amend_members": changes.amend_members,
        "amend_thresholds": changes.amend_thresholds,
        "raise_logging": changes.raise_logging,
        "export_model": changes.export_model,
    }
    changed = {name: count for name, count in thresholds.items() if count is not None}
    consent = changes.own_data_consent
    return Consortium.from_dict(
        members.to_dict()
        | {
            "name": members.name if changes.name is None else changes.name,
            "owners": [owners[name].to_dict() for name in sorted(owners)],
            "thresholds": members.thresholds.to_dict() | changed,
            "own_data_consent": members.own_data_consent if consent is None else consent,
        }
    )


def _newest(broker: Path, members: Consortium, identity: Path, state: Path | None) -> str:
    """The newest tree head of a broker's ledger, which extends the remembered ledger."""
    with watch_ledger(broker, members, identity, state) as watch:
        if watch.kept.note is None:
            raise AssertionError("a watched ledger has a tree head")
        return watch.kept.note


def _saw(
    broker: Path, found: Succession, members: Consortium, identity: Path, state: Path | None
) -> None:
    """Verify that the proposal names a tree head of the ledger that this owner remembers."""
    with watch_ledger(broker, members, identity, state) as watch:
        key, own, note = watch.kept.public_key, watch.kept.head, watch.kept.note
        if key is None or own is None or note is None:
            raise AssertionError("a watched ledger has a tree head")
        for checkpoint in found.ledgers:
            try:
                seen = verify_tree_head(checkpoint, key, origin=own.origin)
            except SignatureInvalid:
                continue  # of another broker
            path: tuple[str, ...] = ()
            if 0 < seen.size < own.size:
                path = watch.client.ledger_consistency(seen.size, own.size)
            verify_extension(checkpoint, note, path, key, origin=own.origin)
            return
    raise LedgerInconsistent(
        "the proposal names no tree head of this broker's ledger",
        check="succession",
        got=f"{len(found.ledgers)} tree heads of other ledgers",
        hint="propose it again with --broker for every broker of the consortium",
    )


def _say_changes(changes: list[str]) -> None:
    say("You are about to put another consortium in the place of this one:")
    for change in changes:
        say(f"  {change}")


def _tell(as_json: bool, envelope: Any, members: Consortium, more: dict[str, Any]) -> None:
    found = read_succession(envelope, members)
    emit(
        as_json,
        {
            **more,
            "predecessor": members.consortium_id,
            "successor": consortium_shown(found.successor),
            "changes": [
                {"what": change.what, "takes": change.amendment} for change in found.changes
            ],
            "required": found.required,
            "signed_by": list(found.signed_by),
            "complete": found.complete,
            "not_after": to_rfc3339(found.not_after),
            "ledgers": len(found.ledgers),
            "digest": envelope.digest,
        },
        [
            *(f"change        {change.what}" for change in found.changes),
            f"successor     {found.successor.consortium_id}",
            f"signed        {', '.join(found.signed_by)} ({len(found.signed_by)} of "
            f"{found.required} needed)",
            f"in force by   {to_rfc3339(found.not_after)}",
        ],
    )
