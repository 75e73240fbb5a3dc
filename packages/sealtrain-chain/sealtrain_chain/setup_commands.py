"""``chain deploy`` and ``chain pin``: make a contract, and write down which one decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.base.clock import system_clock
from sealtrain.base.files import atomic_write
from sealtrain.base.models import load_model
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit
from sealtrain.consortium.chainfile import ChainFile, address_of
from sealtrain.consortium.chainword import IMPLEMENTATION
from sealtrain.errors import ChainRefused, ChainUnreachable, UsageError
from sealtrain_chain import contracts
from sealtrain_chain.account import load_account
from sealtrain_chain.node import Node
from sealtrain_chain.reading import Reader, open_reader

if TYPE_CHECKING:
    from web3 import Web3

_WAIT_SECONDS = 180.0
_NODE_SECONDS = 30.0
_FIRST_MODULE = "0x0000000000000000000000000000000000000001"

KeyFile = Annotated[
    Path, typer.Option("--ethereum-key", help="Ethereum key: 64 hex digits or a keystore.")
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", help="Password of the keystore.")
]
ChainPath = Annotated[Path, typer.Option("--chain", help="The chain file.")]
Deployment = Annotated[Path, typer.Option("--deployment", help="app-compose.json of the recipe.")]
Out = Annotated[Path, typer.Option(help="File to write.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]
Owners = Annotated[
    list[str], typer.Option("--owner-address", help="name=0x…, of each owner; repeat.")
]
Nodes = Annotated[list[str], typer.Option("--rpc", help="URL of a node; repeat.")]
MaxFee = Annotated[int, typer.Option(min=1, help="Most to pay for a unit of gas, in gwei.")]
ChainId = Annotated[int, typer.Option(help="The chain's id.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """The chain, its nodes and the owners there."""

    owner: Owners
    rpc: Nodes
    chain_id: ChainId


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractMachineOptions:
    """Which machines the contract lets boot."""

    any_tcb: Annotated[
        bool, typer.Option("--any-tcb", help="Let machines boot that are not up to date.")
    ] = False
    any_device: Annotated[bool, typer.Option("--any-device", help="Let every machine boot.")] = (
        False
    )


def deploy(
    chain: ChainOptions,
    approve: Annotated[int, typer.Option(min=1, help="Owners that must approve.")],
    key: KeyFile,
    *,
    revoke: Annotated[int, typer.Option(min=1, help="Owners that suffice to revoke.")] = 1,
    machines: ContractMachineOptions,
    password_file: PasswordFile = None,
    max_fee_gwei: MaxFee = 100,
    as_json: Json = False,
) -> None:
    """Deploy an OwnersAppAuth; nothing about it can be changed. Then write it down: chain pin."""
    owners = _owners(chain.owner)
    nodes = [Node(url, _NODE_SECONDS) for url in chain.rpc]
    try:
        where = contracts.deploy(
            first_web3(nodes, chain.chain_id),
            payer_of(key, password_file, chain.chain_id, max_fee_gwei),
            owners=list(owners.values()),
            approve=approve,
            revoke=revoke,
            require_tcb_up_to_date=not machines.any_tcb,
            allow_any_device=machines.any_device,
        )
    finally:
        for node in nodes:
            node.close()
    emit(as_json, {"contract": where}, [f"contract  {where}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How the contract is read, and how long an answer counts."""

    agree: Annotated[int, typer.Option(help="Nodes that must agree: more than half.")]
    block: Annotated[str, typer.Option(help="finalized, safe or latest.")] = "finalized"
    max_age_seconds: Annotated[
        int, typer.Option(click_type=Duration("s", least=0), help="How old that block may be.")
    ] = 1800
    cache_seconds: Annotated[
        int, typer.Option(click_type=Duration("s", least=0), help="How long a permission is kept.")
    ] = 10
    timeout_seconds: Annotated[
        int,
        typer.Option(
            click_type=Duration("s", least=0, most=3600), help="For one answer of a node."
        ),
    ] = 10


def pin(
    contract: Annotated[str, typer.Option(help="The contract's address.")],
    kind: Annotated[str, typer.Option(help="owners or dstack-app.")],
    chain: ChainOptions,
    read: ReadingOptions,
    app_id: Annotated[str, typer.Option(help="contract, or any.")] = "contract",
    kms: Annotated[str, typer.Option(help="dstack's KMS contract, or none.")] = "none",
    out: Annotated[Path, typer.Option(help="Chain file to write.")] = Path("chain.yaml"),
    as_json: Json = False,
) -> None:
    """Write a chain file: which contract decides, with the code it has now, and whom to ask.

    Review the code, and of dstack's app its implementation, before you rely on the file.
    """
    proxied = kind == "dstack-app"
    fields = {
        "version": 1,
        "chain_id": chain.chain_id,
        "rpc": chain.rpc,
        "agree": read.agree,
        "block": read.block,
        "max_age_seconds": read.max_age_seconds,
        "cache_seconds": read.cache_seconds,
        "timeout_seconds": read.timeout_seconds,
        "contract": address_of(contract, "contract"),
        "kind": kind,
        "code_hash": "00" * 32,
        "implementation": "0x" + "00" * 20 if proxied else "none",
        "app_id": app_id,
        "kms": kms if kms == "none" else address_of(kms, "kms"),
        "owners": _owners(chain.owner),
    }
    draft = load_model(ChainFile, fields, UsageError, "chain file")
    with open_reader(draft) as reader:
        _, _, account = reader.account([IMPLEMENTATION] if proxied else [], system_clock())
        told = describe_contract(reader)
    found = {"code_hash": account.code_hash}
    if proxied:
        found["implementation"] = f"0x{account.values[0]:040x}"
    elif told.get("owners") != sorted(draft.owners.values()):
        raise UsageError(
            "the contract has other owners than were given",
            check="owners",
            got=", ".join(told.get("owners", ())),
            expected=", ".join(sorted(draft.owners.values())),
        )
    file = draft.model_copy(update=found)
    atomic_write(out, file.to_yaml().encode(), mode=0o600)  # URLs of nodes may hold access keys
    emit(
        as_json,
        {"chain": str(out)} | found | {"told": told},
        [f"chain file  {out}", *(f"{name}  {value}" for name, value in (found | told).items())],
    )


def payer_of(
    key: Path, password_file: Path | None, chain_id: int, max_fee_gwei: int
) -> contracts.Payer:
    """The account that pays for a transaction."""
    return contracts.Payer(
        account=load_account(key, password_file),
        chain_id=chain_id,
        max_fee_gwei=max_fee_gwei,
        timeout=_WAIT_SECONDS,
    )


def first_web3(nodes: Sequence[Node], chain_id: int) -> Web3:
    """Connect to the first node that is on the chain.

    Raises:
        ChainUnreachable: No node is.
    """
    for node in nodes[:-1]:
        web3 = contracts.connect(node)
        try:
            contracts.require_chain(web3, chain_id)
        except ChainUnreachable:
            continue
        return web3
    web3 = contracts.connect(nodes[-1])
    contracts.require_chain(web3, chain_id)
    return web3


def require_kind(chain: ChainFile, kind: str) -> None:
    """Require that decisions reach the contract in this way.

    Raises:
        UsageError: It is of another kind.
    """
    if chain.kind != kind:
        other = "chain approve and revoke" if chain.kind == "owners" else "chain propose and sign"
        raise UsageError(
            "owners decide on this contract by other commands",
            check="kind",
            got=chain.kind,
            expected=kind,
            hint=f"use: sealtrain {other}",
        )


def safe_nonce(chain: ChainFile, where: str) -> int:
    """The Safe's nonce, which no proof covers: every node must state the same.

    Raises:
        ChainUnreachable: They do not, or a node does not answer.
    """
    with open_reader(chain) as reader:
        calls = [
            contracts.safe(contracts.connect(node), where).functions.nonce()
            for node in reader.nodes
        ]
        named = {int(contracts.translate_errors(call.call)) for call in calls}
    if len(named) != 1:
        raise ChainUnreachable(
            "the chain's nodes state different nonces of the Safe",
            check="Safe nonce",
            got=", ".join(map(str, sorted(named))),
            hint="wait until all nodes have caught up, and try again",
        )
    return named.pop()


def describe_contract(reader: Reader) -> dict[str, Any]:
    """The contract's rules as a single node states them: shown, and never decided on."""
    chain = reader.chain
    web3 = first_web3(reader.nodes, chain.chain_id)
    shown: dict[str, Any] = {}
    if chain.kind == "owners":
        rules = contracts.owners_app_auth(web3, chain.contract).functions
        shown["owners"] = sorted(
            str(owner).lower() for owner in contracts.translate_errors(rules.owners().call)
        )
        shown["approve"] = contracts.translate_errors(rules.approveThreshold().call)
        shown["revoke"] = contracts.translate_errors(rules.revokeThreshold().call)
        shown["TCB up to date"] = contracts.translate_errors(rules.requireTcbUpToDate().call)
        shown["any device"] = contracts.translate_errors(rules.allowAnyDevice().call)
    else:
        rules = contracts.app(web3, chain.contract).functions
        shown["owner"] = str(contracts.translate_errors(rules.owner().call)).lower()
        shown["TCB up to date"] = contracts.translate_errors(rules.requireTcbUpToDate().call)
        shown["any device"] = contracts.translate_errors(rules.allowAnyDevice().call)
        try:
            rules = contracts.safe(web3, shown["owner"]).functions
            shown["Safe threshold"] = contracts.translate_errors(rules.getThreshold().call)
            shown["Safe owners"] = sorted(
                str(owner).lower() for owner in contracts.translate_errors(rules.getOwners().call)
            )
            modules, _ = contracts.translate_errors(
                rules.getModulesPaginated(_FIRST_MODULE, 64).call
            )
            shown["Safe modules"] = [str(module).lower() for module in modules]
        except (ChainRefused, ChainUnreachable):
            shown["Safe threshold"] = "none: the owner is no Safe"
    if chain.kms != "none":
        where = web3.to_checksum_address(chain.contract)
        registered = contracts.kms(web3, chain.kms).functions.registeredApps(where)
        shown["registered with the KMS"] = contracts.translate_errors(registered.call)
    return shown


def _owners(given: Sequence[str]) -> dict[str, str]:
    owners: dict[str, str] = {}
    for word in given:
        name, mark, where = word.partition("=")
        if not mark or name in owners:
            raise UsageError("not an address of one owner", got=word[:100], expected="name=0x…")
        owners[name] = address_of(where, f"address of {name}")
    return owners
