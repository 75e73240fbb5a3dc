"""``chain``: owners' decisions on a public chain (spec/chain.md). The extra ``chain``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.cli.approvals import confirm
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.review import review
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.connection import brokers_of_lock
from sealtrain.client.pin import load_pin
from sealtrain.consortium.chainfile import ChainFile, load_chain_file
from sealtrain.consortium.chainword import compose_slot, counts_until
from sealtrain.consortium.decisions import Decision
from sealtrain.consortium.errors import ApprovalsMissing
from sealtrain.consortium.members import Consortium
from sealtrain.errors import ChainRefused, UsageError
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.needs import needs_of
from sealtrain_chain import setup_commands
from sealtrain_chain.account import address, load_account
from sealtrain_chain.carrying import carry_out, execute_proposal
from sealtrain_chain.chain_condition import require_app, require_counting
from sealtrain_chain.decision import MAX_DECISION_BYTES, ChainDecision, decide
from sealtrain_chain.reading import open_reader
from sealtrain_chain.safe import SafeProposal
from sealtrain_chain.slots import COMPOSE, DEVICE, nonce_slot

ChainPath = setup_commands.ChainPath
KeyFile = setup_commands.KeyFile
PasswordFile = setup_commands.PasswordFile
Deployment = setup_commands.Deployment
ConsortiumFile = Annotated[Path, typer.Option(help="The consortium file.")]
Out = setup_commands.Out
Yes = setup_commands.Yes

_CARRIED_WITHIN = 14 * 86400


def status(
    chain: ChainPath,
    deployment: Annotated[
        Path | None, typer.Option(help="app-compose.json: is it allowed now?")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a contract says, proven under a block that enough nodes agree on.

    Leaves with 3 when the deployment is not allowed, with 4 when nothing can be known.
    """
    file = load_chain_file(chain)
    compose_hash, app_id = None, ""
    slots: list[bytes] = []
    if deployment is not None:
        target = LockedRecipe.load(deployment).target
        compose_hash, app_id = target.compose_hash, target.app_id
        slots.append(compose_slot(file.kind, compose_hash))
        if file.kind == "owners":
            slots.append(nonce_slot(COMPOSE, compose_hash))
    now = system_clock()
    with open_reader(file) as reader:
        read = reader.read(slots, now=now)
        shown: dict[str, Any] = {
            "chain_id": file.chain_id,
            "contract": file.contract,
            "kind": file.kind,
            "block": {"number": read.head.number, "at": to_rfc3339(read.head.time)},
            "agreed": list(read.agreed),
            "told": setup_commands.describe_contract(reader),
        }
    if compose_hash is not None:
        until = counts_until(file.kind, read.values[0])
        shown["deployment"] = {
            "compose_hash": compose_hash,
            "allowed": now <= until,
            "until": to_rfc3339(until) if file.kind == "owners" and until else None,
            "nonce": read.values[1] if file.kind == "owners" else None,
        }
    refusal = None
    if compose_hash is not None:
        try:
            require_app(file, app_id)
            require_counting(file, compose_hash, read.values[0], now)
        except ChainRefused as error:
            refusal = error
    if refusal is not None and as_json:  # one object says both
        shown["error"] = refusal.to_dict()
    emit(as_json, shown, _status_lines(shown))
    if refusal is not None and as_json:
        say(f"{refusal.label} [{refusal.code}]: {refusal.message}")
        raise typer.Exit(refusal.exit_code)
    if refusal is not None:
        raise refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningOptions:
    """The contract, and the account that signs for it."""

    chain: ChainPath
    key: KeyFile


def approve(
    deployment: Deployment,
    signing: SigningOptions,
    broker: Annotated[Path, typer.Option(help="Broker file: where your approval stands.")],
    out: Out,
    consortium: ConsortiumFile = Path("consortium.json"),
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Sign for your OwnersAppAuth the approval that you gave in the ledger (sealtrain approve).

    It is that very decision: what you pinned, what the recipe needs, and when it ends. Writes a
    file; nothing is sent. Enough owners' files together are sent by: chain execute.
    """
    locked = LockedRecipe.load(deployment)
    lock, target = locked.lock, locked.target
    needs, known = needs_of(lock.recipe), brokers_of_lock([broker], lock)
    if not (as_json and yes):
        review(lock, needs, known=known)
    confirm("APPROVE", yes)
    file = load_chain_file(signing.chain)
    members = Consortium.load(consortium)
    name = (
        file.owner_of(address(load_account(signing.key, password_file)))
        or "nobody in the chain file"
    )
    with BrokerClient.at(load_pin(broker)) as client:
        tally = client.approvals_status(target, members, system_clock(), needs=needs)
    own = [signed.decision for signed in tally.approvals if signed.owner.name == name]
    if not own:
        raise ApprovalsMissing(
            f"the ledger holds no approval of this recipe by {name}",
            check="ledger",
            owner=name,
            got=", ".join(tally.approved_by) or "nobody's",
            expected=f"{name}'s",
            hint="approve it there first: sealtrain approve; the chain only adds a condition",
        )
    vote = _vote(file, signing.key, password_file, "approve", target.compose_hash, decision=own[0])
    _write(vote, file, out, as_json)


def revoke(
    deployment: Deployment,
    chain: ChainPath,
    key: KeyFile,
    out: Out,
    consortium: ConsortiumFile = Path("consortium.json"),
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Sign a revocation for your OwnersAppAuth; it also voids approvals that still wait.

    Writes a file; send it with: chain execute.
    """
    locked = LockedRecipe.load(deployment)
    lock, target = locked.lock, locked.target
    confirm("REVOKE", yes)
    decision = Decision.revoke(
        consortium_id=Consortium.load(consortium).consortium_id,
        brokers=lock.brokers,
        target=target,
        signed_at=system_clock(),
    )
    file = load_chain_file(chain)
    vote = _vote(file, key, password_file, "revoke", target.compose_hash, decision=decision)
    _write(vote, file, out, as_json)


def device(
    device_id: Annotated[str, typer.Argument(help="Device id, 64 hex digits.")],
    chain: ChainPath,
    key: KeyFile,
    out: Out,
    revoked: Annotated[bool, typer.Option("--end", help="Revoke instead of approving.")] = False,
    days: Annotated[
        int,
        typer.Option(
            "--valid-for", click_type=Duration("d", least=1, most=3650), help="How long it holds."
        ),
    ] = 365,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Sign a decision on a machine for your OwnersAppAuth, where not every machine may run."""
    if len(device_id) != 64 or set(device_id) - set("0123456789abcdef"):
        raise UsageError("not a device id", got=device_id[:80], expected="64 hex digits")
    file = load_chain_file(chain)
    ends = system_clock() + days * 86400
    verdict: Literal["approve", "revoke"] = "revoke" if revoked else "approve"
    vote = _vote(file, key, password_file, verdict, device_id, ends=ends)
    _write(vote, file, out, as_json)


def execute(
    files: Annotated[list[Path], typer.Argument(help="Decisions, or copies of one proposal.")],
    chain: ChainPath,
    key: KeyFile,
    password_file: PasswordFile = None,
    max_fee_gwei: setup_commands.MaxFee = 100,
    as_json: Json = False,
) -> None:
    """Send what enough owners signed. The key only pays; any account's will do."""
    file = load_chain_file(chain)
    payer = setup_commands.payer_of(key, password_file, file.chain_id, max_fee_gwei)
    given = [read_bounded(path, MAX_DECISION_BYTES) for path in files]
    first = parse_json(given[0], max_bytes=MAX_DECISION_BYTES)
    proposed = isinstance(first, dict) and "safe" in first
    with open_reader(file) as reader:
        web3 = setup_commands.first_web3(reader.nodes, file.chain_id)
        if proposed:
            copies = [SafeProposal.from_bytes(data) for data in given]
            receipt = execute_proposal(web3, file, payer, copies)
        else:
            votes = [ChainDecision.from_bytes(data) for data in given]
            receipt = carry_out(web3, file, payer, votes)
    shown = {
        "transaction": f"0x{bytes(receipt['transactionHash']).hex()}",
        "block": int(receipt["blockNumber"]),
        "gas": int(receipt["gasUsed"]),
    }
    emit(as_json, shown, [f"{name:<12} {value}" for name, value in shown.items()])
    say(f"brokers see it once block {shown['block']} is {file.block}: sealtrain chain status")


def _vote(
    chain: ChainFile,
    key: Path,
    password_file: Path | None,
    verdict: Literal["approve", "revoke"],
    subject: str,
    *,
    decision: Decision | None = None,
    ends: int = 0,
) -> ChainDecision:
    """Sign a decision with the contract's proven nonce.

    Args:
        chain: The contract.
        key: The account's key file.
        password_file: Its password, where it is a keystore.
        verdict: On the subject.
        subject: Compose hash of a recipe, or a device id, 64 hex digits.
        decision: The owner's decision in the ledger; ``None`` for a device.
        ends: Last second of an approval of a device, seconds since the epoch.
    """
    setup_commands.require_kind(chain, "owners")
    now = system_clock()
    with open_reader(chain) as reader:
        slot = nonce_slot(DEVICE if decision is None else COMPOSE, subject)
        [nonce] = reader.read([slot], now=now).values
    return decide(
        load_account(key, password_file),
        chain,
        subject=subject,
        verdict=verdict,
        nonce=nonce,
        not_after=ends if decision is None else decision.ends or 0,
        deadline=now + _CARRIED_WITHIN,
        decision=decision,
    )


def _write(vote: ChainDecision, chain: ChainFile, out: Path, as_json: bool) -> None:
    atomic_write(out, vote.to_bytes())
    emit(
        as_json,
        {"decision": str(out), "owner": chain.owner_of(vote.owner)} | vote.to_dict(),
        [
            f"decision  {out}",
            f"owner     {chain.owner_of(vote.owner)}",
            f"verdict   {vote.verdict} {vote.subject}",
            f"nonce     {vote.nonce}",
            *([f"send by   {to_rfc3339(vote.deadline)}"] if vote.deadline is not None else []),
        ],
    )


def _status_lines(shown: dict[str, Any]) -> list[str]:
    block = shown["block"]
    lines = [
        f"contract    {shown['contract']} on chain {shown['chain_id']} ({shown['kind']})",
        f"block       {block['number']} of {block['at']}",
        f"agreed      {', '.join(shown['agreed'])}",
    ]
    if (named := shown.get("deployment")) is not None:
        allowed = "allowed" if named["allowed"] else "not allowed"
        until = f" until {named['until']}" if named["until"] else ""
        lines += [f"deployment  {named['compose_hash']}", f"proven      {allowed}{until}"]
        if named["nonce"] is not None:
            lines.append(f"nonce       {named['nonce']}")
    return lines + [f"told        {name}: {value}" for name, value in shown["told"].items()]
