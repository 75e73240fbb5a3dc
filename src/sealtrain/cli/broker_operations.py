"""``broker status``, ``backup``, ``restore``, ``openapi``, ``approve-kms``: for its operator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.cli.approvals import confirm
from sealtrain.cli.broker_tokens import read_token
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit, say
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.pin import load_pin
from sealtrain.consortium.decisions import KMS_NEEDS, Decision, kms_target, sign_decision
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, Unreachable
from sealtrain.keys.identity import Identity
from sealtrain.release.errors import AnswerInvalid

if TYPE_CHECKING:
    from sealtrain.release.messages import BrokerStatus


def status(
    broker: Annotated[Path, typer.Option(help="Broker file (made by: sealtrain broker pin).")],
    token_file: Annotated[
        Path | None, typer.Option(help="File of an operator's token, to see which part fails.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask a broker how it is. Leaves with 4 when it cannot decide; nothing here is verified."""
    with BrokerClient.at(load_pin(broker), timeout=10.0) as client:
        health = client.health()
        try:
            client.ready()
            ready = True
        except BrokerUnreachable:
            ready = False
        consortium = client.consortium(health.consortium_id)
        told = None if token_file is None else client.status(read_token(token_file))
        head = _head(client)
    shown = {
        "url": client.url,
        "version": health.version,
        "healthy": True,
        "ready": ready,
        "consortium": {
            "name": consortium.name,
            "id": health.consortium_id,
            "owners": len(consortium.owners),
            "approve": consortium.thresholds.approve,
        },
        "ledger": None if head is None else {"origin": head[0], "size": head[1], "root": head[2]},
        "operator": None if told is None else told.to_dict(),
    }
    emit(
        as_json,
        shown,
        [
            f"broker      {client.url}",
            f"version     {health.version}",
            f"ready       {'yes' if ready else 'no'}",
            f"consortium  {consortium.name} "
            f"({consortium.thresholds.approve} of {len(consortium.owners)})",
            f"ledger      {health.ledger_size} entries"
            + ("" if head is None else f", root {head[2]}"),
            *_operator_lines(told),
        ],
    )
    if not ready:
        raise typer.Exit(Unreachable.exit_code)


def _head(client: BrokerClient) -> list[str] | None:
    """Origin, size and root of the ledger; ``None`` where it cannot be read now."""
    try:
        head = client.ledger_checkpoint().splitlines()
    except BrokerUnreachable:
        return None
    if len(head) < 3:
        raise AnswerInvalid("the broker's tree head has fewer than three lines", check="checkpoint")
    return head


def _operator_lines(told: BrokerStatus | None) -> list[str]:
    if told is None:
        return []
    return [
        f"since       {told.started_at}",
        *(f"failing     {part}: {found}" for part, found in told.failing.items()),
        *(f"{name.replace('_', ' ')}: {value}" for name, value in told.sizes.items()),
    ]


def backup(
    state: Annotated[Path, typer.Option(help="Folder of the broker's state.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    as_json: Json = False,
) -> None:
    """Copy a broker's state while it runs. The root secret is not in it: keep that elsewhere."""
    from sealtrain.broker.store.backup import back_up

    made = back_up(state, out, now=system_clock())
    emit(
        as_json,
        {"backup": str(out), **made.to_dict()},
        [
            f"backup  {out}",
            f"ledger  {made.ledger_size} entries, root {made.ledger_root}",
        ],
    )


def restore(
    file: Annotated[Path, typer.Argument(help="The backup.")],
    state: Annotated[Path, typer.Option(help="Folder to fill; empty or absent.")],
    as_json: Json = False,
) -> None:
    """Put a backup back, verified, into an empty folder. Leases in it end: guests resume."""
    from sealtrain.broker.store.backup import restore as put_back

    done = put_back(file, state, now=system_clock())
    made = done.manifest
    say("compare the root with the newest tree head that an owner kept: sealtrain log audit")
    emit(
        as_json,
        {
            "state": str(state),
            "leases_ended": done.leases_ended,
            **made.to_dict(),
        },
        [
            f"state   {state}, as of {made.made_at}",
            f"ledger  {made.ledger_size} entries, root {made.ledger_root}",
            f"ended   {done.leases_ended} leases",
        ],
    )


def openapi(
    boot_auth: Annotated[
        bool, typer.Option("--boot-auth", help="With the paths for dstack's KMS.")
    ] = False,
) -> None:
    """Print the OpenAPI document of the service."""
    name = "openapi-boot.json" if boot_auth else "openapi.json"
    text = files("sealtrain.broker").joinpath(name).read_text("utf-8")
    typer.echo(json.dumps(json.loads(text), indent=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class KmsOptions:
    """The KMS, and the decision about it."""

    app_id: Annotated[
        str | None, typer.Option(help="Its app id, if not the start of its compose hash.")
    ] = None
    days: Annotated[
        int,
        typer.Option(
            "--valid-for", click_type=Duration("d", least=1, most=3650), help="How long it holds."
        ),
    ] = 30
    revoke: Annotated[bool, typer.Option("--end", help="Revoke it instead.")] = False


def approve_kms(
    deployment: Annotated[
        Path, typer.Argument(metavar="KMS", help="app-compose.json of the dstack KMS.")
    ],
    identity: Annotated[Path, typer.Option(help="Your private identity file.")],
    broker: Annotated[Path, typer.Option(help="Broker file (made by: sealtrain broker pin).")],
    *,
    consortium: Annotated[Path, typer.Option(help="The consortium file.")] = Path(
        "consortium.json"
    ),
    kms: KmsOptions,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Approve a dstack KMS that asks this broker who may boot (serve --boot-auth)."""
    compose_hash = _hash_of_compose(deployment)
    target = kms_target(app_id=kms.app_id or compose_hash[:40], compose_hash=compose_hash)
    word = "REVOKE" if kms.revoke else "APPROVE"
    if not yes:
        say(f"compose hash  {compose_hash}")
        say(f"app id        {target.app_id}")
    confirm(word, yes)
    members, now = Consortium.load(consortium), system_clock()
    pin = load_pin(broker)
    made = (
        Decision.revoke(
            consortium_id=members.consortium_id,
            brokers=[pin.broker_id],
            target=target,
            signed_at=now,
        )
        if kms.revoke
        else Decision.approve(
            consortium_id=members.consortium_id,
            brokers=[pin.broker_id],
            target=target,
            needs=KMS_NEEDS,
            signed_at=now,
            not_after=now + kms.days * 86400,
        )
    )
    signer = Identity.load(identity).signer
    with BrokerClient.at(pin, signer=signer) as client:
        client.hand_in("approval", sign_decision(made, signer))
        tally = client.approvals_status(target, members, now, needs=KMS_NEEDS)
    emit(
        as_json,
        tally.to_dict(),
        [
            f"approvals {tally.verdict()}",
            f"progress  {tally.in_words()}",
            f"approved  {', '.join(tally.approved_by) or '-'}",
        ],
    )


def _hash_of_compose(path: Path) -> str:
    """The compose hash of an ``app-compose.json`` of another program: it holds no lock."""
    data = read_bounded(path, MAX_DEPLOYMENT_BYTES)
    said = parse_json(data, max_bytes=MAX_DEPLOYMENT_BYTES)
    if not isinstance(said, dict) or not said.keys() >= {"manifest_version", "runner"}:
        raise DataInvalid(
            f"{path} is no deployment document",
            check="deployment document",
            expected="a JSON object with manifest_version and runner",
            hint="give the app-compose.json that the KMS was deployed with, byte for byte",
        )
    return sha256_hex(data)
