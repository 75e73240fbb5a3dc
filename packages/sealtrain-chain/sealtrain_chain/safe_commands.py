"""``chain propose`` and ``chain sign``: what a Safe is asked to do, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.cli.approvals import confirm
from sealtrain.cli.output import Json, emit, say
from sealtrain.cli.review import review
from sealtrain.consortium.chainfile import address_of, load_chain_file
from sealtrain.errors import UsageError
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.needs import needs_of
from sealtrain.signing.errors import StatementInvalid
from sealtrain_chain import setup_commands
from sealtrain_chain.account import load_account
from sealtrain_chain.safe import MAX_PROPOSAL_BYTES, SafeProposal, sign_proposal

ChainPath = setup_commands.ChainPath
KeyFile = setup_commands.KeyFile
PasswordFile = setup_commands.PasswordFile
Deployment = setup_commands.Deployment
Out = setup_commands.Out
Yes = setup_commands.Yes


def propose(
    deployment: Deployment,
    chain: ChainPath,
    safe: Annotated[str, typer.Option(help="Address of the Safe that owns the contract.")],
    out: Out,
    remove: Annotated[bool, typer.Option("--remove", help="Remove instead of adding.")] = False,
    as_json: Json = False,
) -> None:
    """Write a proposal to a Safe: add or remove a recipe's compose hash. It is not signed yet."""
    file = load_chain_file(chain)
    setup_commands.require_kind(file, "dstack-app")
    target = LockedRecipe.load(deployment).target
    where = address_of(safe, "Safe")
    proposal = SafeProposal(
        version=1,
        chain_id=file.chain_id,
        safe=where,
        contract=file.contract,
        action="remove" if remove else "add",
        compose_hash=target.compose_hash,
        nonce=setup_commands.safe_nonce(file, where),
        signatures=(),
    )
    atomic_write(out, proposal.to_bytes())
    emit(as_json, {"proposal": str(out)} | proposal.to_dict(), _proposal_lines(proposal, out))


def sign(
    proposal: Annotated[Path, typer.Argument(help="Proposal file.")],
    chain: ChainPath,
    key: KeyFile,
    out: Out,
    deployment: Annotated[
        Path | None, typer.Option(help="app-compose.json; needed to sign an addition.")
    ] = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Read what a proposal would allow, then add your signature to a copy of it."""
    file = load_chain_file(chain)
    read = SafeProposal.from_bytes(read_bounded(proposal, MAX_PROPOSAL_BYTES))
    if deployment is not None:
        locked = LockedRecipe.load(deployment)
        lock, target = locked.lock, locked.target
        if target.compose_hash != read.compose_hash:
            raise StatementInvalid(
                "the proposal is about another deployment than --deployment",
                check="compose hash",
                got=read.compose_hash,
                expected=target.compose_hash,
            )
        if not (as_json and yes):
            review(lock, needs_of(lock.recipe), known={})
    elif read.action == "add":
        raise UsageError(
            "a compose hash alone does not show what it allows",
            check="deployment",
            expected="--deployment app-compose.json",
        )
    for line in _proposal_lines(read, proposal):
        say(f"  {line}")
    confirm("SIGN", yes)
    signed = sign_proposal(load_account(key, password_file), read, file)
    atomic_write(out, signed.to_bytes())
    emit(as_json, {"proposal": str(out)} | signed.to_dict(), _proposal_lines(signed, out))


def _proposal_lines(proposal: SafeProposal, place: Path) -> list[str]:
    return [
        f"proposal    {place}",
        f"action      {proposal.action} {proposal.compose_hash}",
        f"contract    {proposal.contract} on chain {proposal.chain_id}",
        f"safe        {proposal.safe}, nonce {proposal.nonce}",
        f"signed by   {', '.join(signed.owner for signed in proposal.signatures) or '-'}",
    ]
