"""The contracts as web3 sees them, over nodes whose answers are bounded.

What is read here is a node's word: good enough to show and to estimate gas. What decides is proven
(``sealtrain_chain.reading``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.base.canonical import parse_json
from sealtrain.base.visible_text import escape_hidden
from sealtrain.errors import ChainRefused, ChainUnreachable, SealtrainError
from sealtrain_chain.node import Node
from sealtrain_chain.proof import require_extra

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from web3 import Web3
    from web3.contract import Contract

_GAS_MARGIN = 1.2
_MAX_GAS = 8_000_000
"""Ours need less: an OwnersAppAuth of 64 owners is deployed with some 4 million."""
_BOOT_INFO = {
    "appId": "address",
    "composeHash": "bytes32",
    "instanceId": "address",
    "deviceId": "bytes32",
    "mrAggregated": "bytes32",
    "mrSystem": "bytes32",
    "osImageHash": "bytes32",
    "tcbStatus": "string",
    "advisoryIds": "string[]",
}


def artefact() -> dict[str, Any]:
    """ABI, bytecode and compiler of the shipped OwnersAppAuth."""
    text = resources.files(__package__).joinpath("OwnersAppAuth.json").read_text("utf-8")
    contract: dict[str, Any] = json.loads(text)["OwnersAppAuth"]
    return contract


def connect(node: Node) -> Web3:
    """A web3 over one node of ours, which bounds what it answers.

    Raises:
        ExtraMissing: The ``chain`` extra is not installed.
    """
    require_extra()
    from web3 import Web3
    from web3.providers.base import JSONBaseProvider
    from web3.types import RPCEndpoint, RPCResponse

    class Bounded(JSONBaseProvider):
        def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
            asked: Any = parse_json(self.encode_rpc_request(method, params))
            answer: Any = node.exchange(method, asked["params"])
            return answer  # type: ignore[no-any-return]

    return Web3(Bounded())


def owners_app_auth(web3: Web3, address: str) -> Contract:
    """An OwnersAppAuth."""
    return web3.eth.contract(address=web3.to_checksum_address(address), abi=artefact()["abi"])


def app(web3: Web3, address: str) -> Contract:
    """What both kinds of contract answer dstack's KMS, and dstack's own administration."""
    return web3.eth.contract(
        address=web3.to_checksum_address(address),
        abi=[
            _describe_is_app_allowed(),
            _view("allowedComposeHashes", ["bytes32"], "bool"),
            _view("owner", [], "address"),
            _view("requireTcbUpToDate", [], "bool"),
            _view("allowAnyDevice", [], "bool"),
        ],
    )


def kms(web3: Web3, address: str) -> Contract:
    """Dstack's KMS contract."""
    return web3.eth.contract(
        address=web3.to_checksum_address(address),
        abi=[_describe_is_app_allowed(), _view("registeredApps", ["address"], "bool")],
    )


def kms_allows(
    contract: Contract, *, app_id: str, compose_hash: str, os_image_hash: str, device_id: str
) -> tuple[bool, str]:
    """``isAppAllowed`` of an up-to-date guest; its answer and reason, as the node tells them."""
    zero = bytes(32)
    info: Any = (
        contract.w3.to_checksum_address(f"0x{app_id}"),
        bytes.fromhex(compose_hash),
        "0x" + "00" * 20,
        bytes.fromhex(device_id),
        zero,
        zero,
        bytes.fromhex(os_image_hash),
        "UpToDate",
        [],
    )
    allowed, reason = translate_errors(lambda: contract.functions.isAppAllowed(info).call())
    return bool(allowed), str(reason)


def safe(web3: Web3, address: str) -> Contract:
    """A Safe, 1.3 and later."""
    executed = ["address", "uint256", "bytes", "uint8", "uint256", "uint256", "uint256"]
    executed += ["address", "address", "bytes"]
    return web3.eth.contract(
        address=web3.to_checksum_address(address),
        abi=[
            _view("nonce", [], "uint256"),
            _view("getThreshold", [], "uint256"),
            _view("getOwners", [], "address[]"),
            _function(
                "getModulesPaginated",
                ["address", "uint256"],
                [_plain("address[]"), _plain("address")],
                "view",
            ),
            _function("execTransaction", executed, [_plain("bool")], "payable"),
        ],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Payer:
    """The payer of transactions, the chain, and the largest fee."""

    account: LocalAccount
    chain_id: int
    """Signed: the transaction is worth nothing on another chain."""
    max_fee_gwei: int
    """For one unit of gas. Nodes name the price, and could name any."""
    timeout: float
    """Seconds to wait for its block."""


def send(web3: Web3, payer: Payer, call: Any) -> dict[str, Any]:
    """Carry a call out as a transaction and wait for it.

    Args:
        web3: Of the node it is handed to.
        payer: Pays for the transaction; it needs no right of any kind.
        call: A bound function or a constructor.

    Returns:
        The receipt.

    Raises:
        ChainRefused: The contract refuses; nothing happened.
        ChainUnreachable: The node failed or asks too much, or it is in no block in time.
    """
    from web3.exceptions import TimeExhausted

    account = payer.account

    def send_once() -> dict[str, Any]:
        gas = int(call.estimate_gas({"from": account.address}) * _GAS_MARGIN)
        transaction = call.build_transaction(
            {
                "from": account.address,
                "nonce": web3.eth.get_transaction_count(account.address),
                "gas": gas,
                "chainId": payer.chain_id,
            }
        )
        _require_affordable(transaction, payer)
        raw = account.sign_transaction(transaction).raw_transaction
        receipt = web3.eth.wait_for_transaction_receipt(
            web3.eth.send_raw_transaction(raw), timeout=payer.timeout
        )
        return dict(receipt)

    try:
        receipt: dict[str, Any] = translate_errors(send_once)
    except TimeExhausted as error:
        raise ChainUnreachable(
            "the transaction is in no block yet",
            check="transaction",
            expected=f"a block within {payer.timeout:g} s",
            hint="see later with: sealtrain chain status; sending it again is harmless",
        ) from error
    if receipt["status"] != 1:
        raise _refuse("the transaction was undone")
    return receipt


def deploy(
    web3: Web3,
    payer: Payer,
    *,
    owners: Sequence[str],
    approve: int,
    revoke: int,
    require_tcb_up_to_date: bool,
    allow_any_device: bool,
) -> str:
    """Deploy an OwnersAppAuth; returns its address. Errors as ``send``."""
    made = artefact()
    factory = web3.eth.contract(abi=made["abi"], bytecode=made["bytecode"])
    ascending = [web3.to_checksum_address(owner) for owner in sorted(owners)]
    call = factory.constructor(ascending, approve, revoke, require_tcb_up_to_date, allow_any_device)
    return str(send(web3, payer, call)["contractAddress"]).lower()


def _require_affordable(transaction: Any, payer: Payer) -> None:
    # Chains from before EIP-1559 have one price instead.
    fee = int(transaction["maxFeePerGas" if "maxFeePerGas" in transaction else "gasPrice"])
    gas = int(transaction["gas"])
    if fee > payer.max_fee_gwei * 10**9 or gas > _MAX_GAS:
        raise ChainUnreachable(
            "the chain's node asks for more than may be paid",
            check="fee",
            got=f"{gas} gas at {fee / 10**9:g} gwei",
            expected=f"at most {_MAX_GAS} gas at {payer.max_fee_gwei} gwei",
            hint="compare with other nodes; then raise --max-fee-gwei",
        )


def require_chain(web3: Web3, chain_id: int) -> None:
    """Return if the node is of that chain.

    Raises:
        ChainUnreachable: It is of another, or does not answer.
    """
    named = translate_errors(lambda: web3.eth.chain_id)
    if named != chain_id:
        raise ChainUnreachable(
            "the node is of another chain",
            check="chain id",
            got=named,
            expected=chain_id,
        )


def translate_errors(ask: Callable[[], Any]) -> Any:
    """A call's answer, with what web3 raises turned into our errors.

    Raises:
        ChainRefused: The contract refuses the call.
        ChainUnreachable: The node failed or answered something else.
    """
    from eth_abi.exceptions import DecodingError
    from web3.exceptions import (
        ContractCustomError,
        ContractLogicError,
        TimeExhausted,
        Web3Exception,
    )

    try:
        return ask()
    except SealtrainError:
        raise
    except TimeExhausted:
        raise
    except ContractCustomError as error:
        raise _refuse(_name_error(str(error.data or ""))) from None
    except ContractLogicError as error:
        raise _refuse(str(error.message)) from None
    except (Web3Exception, DecodingError, ValueError, TypeError, KeyError) as error:
        raise ChainUnreachable(
            "the chain's node answers something that cannot be used",
            check="chain node",
            got=type(error).__name__,
            hint="check the node, the address and, to send, that the account can pay",
        ) from None


def _refuse(why: str) -> ChainRefused:
    return ChainRefused(
        "the contract on the chain refuses this",
        check="chain contract",
        got=escape_hidden(why, 300),
        hint="nothing was changed: sealtrain chain status shows nonces, owners and thresholds",
    )


def _name_error(data: str) -> str:
    """Name of a custom error of the shipped contract or of those it is used with."""
    known = {
        "OwnableUnauthorizedAccount(address)": "OwnableUnauthorizedAccount",
        **{
            f"{member['name']}({','.join(part['type'] for part in member['inputs'])})": member[
                "name"
            ]
            for member in artefact()["abi"]
            if member["type"] == "error"
        },
    }
    for signature, name in known.items():
        if data.startswith("0x" + keccak256(signature.encode())[:4].hex()):
            return str(name)
    return data[:74]


def _describe_is_app_allowed() -> dict[str, Any]:
    info = {
        "name": "info",
        "type": "tuple",
        "components": [{"name": name, "type": kind} for name, kind in _BOOT_INFO.items()],
    }
    made = _function("isAppAllowed", [], [_plain("bool"), _plain("string")], "view")
    return {**made, "inputs": [info]}


def _view(name: str, takes: Sequence[str], gives: str) -> dict[str, Any]:
    return _function(name, takes, [_plain(gives)], "view")


def _function(
    name: str, takes: Sequence[str], gives: Sequence[dict[str, str]], mutability: str
) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "stateMutability": mutability,
        "inputs": [_plain(kind) for kind in takes],
        "outputs": list(gives),
    }


def _plain(kind: str) -> dict[str, str]:
    return {"name": "", "type": kind}
