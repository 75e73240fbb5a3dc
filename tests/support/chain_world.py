"""A chain inside the test: py-evm executes, a loopback server answers JSON-RPC with real proofs.

``eth_getProof``, which eth-tester lacks, is answered from py-evm's own state trie. A node may be
told to lie about the answer to a method.
"""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import rlp
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_tester import EthereumTester, PyEVMBackend
from eth_utils.crypto import keccak
from http_server import Handler, http_served
from trie.hexary import HexaryTrie
from typer.testing import CliRunner
from web3 import EthereumTesterProvider, Web3

from sealtrain.cli import app
from sealtrain.consortium.chainfile import ChainFile
from sealtrain.errors import SealtrainError
from sealtrain_chain.account import address
from sealtrain_chain.contracts import Payer, connect, deploy, owners_app_auth
from sealtrain_chain.node import Node

OWNERS = ("hospital-a", "hospital-b", "hospital-c")
OS_IMAGE = "22" * 32
DEVICE = "55" * 32
_STAND_INS = Path(__file__).parent / "contracts" / "stand_ins.json"

_GAS = 4_000_000

_QUANTITIES = {
    *("difficulty", "number", "gasLimit", "gasUsed", "timestamp"),
    *("baseFeePerGas", "blobGasUsed", "excessBlobGas"),
}
_HEADER = (
    *("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot"),
    *("logsBloom", "difficulty", "number", "gasLimit", "gasUsed", "timestamp", "extraData"),
    *("mixHash", "nonce", "baseFeePerGas", "withdrawalsRoot", "blobGasUsed", "excessBlobGas"),
    *("parentBeaconBlockRoot", "requestsHash"),
)

Lie = Callable[[list[Any], Any], Any]


def owner_account(name: str) -> LocalAccount:
    """An owner's account, the same in every test."""
    account: LocalAccount = Account.from_key(keccak(text=f"tests only: {name}"))
    return account


@cache
def stand_ins() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_STAND_INS.read_text("utf-8"))
    return found


@dataclass
class TestChain:
    """One py-evm chain, and who pays on it."""

    __test__ = False

    tester: EthereumTester
    web3: Web3
    """In this process, for what a test arranges."""
    wire: Web3 | None = None
    """Over JSON-RPC, where a test opened it."""
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def now(self) -> int:
        return int(self.tester.get_block_by_number("latest")["timestamp"])

    @property
    def payer(self) -> Payer:
        """Somebody with money and no say."""
        return Payer(
            account=owner_account("payer"),
            chain_id=self.web3.eth.chain_id,
            max_fee_gwei=100,
            timeout=10,
        )

    def fund(self) -> None:
        rich = self.web3.eth.accounts[0]
        self.web3.eth.send_transaction(
            {"from": rich, "to": owner_account("payer").address, "value": 10**20}
        )

    def deploy(self, name: str, *arguments: Any) -> Any:
        """A stand-in, deployed; its web3 contract."""
        return deployed(self.web3, self.web3.eth.accounts[0], name, *arguments)

    def code_hash(self, where: str) -> str:
        return keccak(self.web3.eth.get_code(Web3.to_checksum_address(where))).hex()

    def answer(self, method: str, params: list[Any]) -> Any:
        """What an honest node answers."""
        with self.turn:
            if method == "eth_getProof":
                return self._proof(*params)
            if method == "eth_getBlockByNumber":
                return self._block(params[0])
            provider = EthereumTesterProvider(self.tester)
            ask = provider.request_func(self.web3, self.web3.middleware_onion)
            if method == "eth_estimateGas":
                # eth-tester searches for the least; whether it runs at all is what tests ask.
                ask("eth_call", [*params[:1], "latest"])
                return hex(_GAS)
            told = ask(method, params)
        if "error" in told:
            raise ValueError(told["error"])
        return told["result"]

    def _block(self, block: str) -> dict[str, Any]:
        """With every field of the header, some of which eth-tester leaves out."""
        chain = self.tester.backend.chain
        number = self.tester.get_block_by_number("latest")["number"]
        if block.startswith("0x"):
            number = int(block, 16)
        header = chain.get_canonical_block_header_by_number(number)
        values = rlp.decode(rlp.encode(header))
        told = dict(zip(_HEADER, values, strict=False))
        return {"hash": f"0x{header.hash.hex()}"} | {
            name: hex(int.from_bytes(value, "big")) if name in _QUANTITIES else f"0x{value.hex()}"
            for name, value in told.items()
        }

    def _proof(self, where: str, keys: list[str], block: str) -> dict[str, Any]:
        chain = self.tester.backend.chain
        header = chain.get_canonical_block_header_by_number(int(block, 16))
        accounts = HexaryTrie(chain.chaindb.db, header.state_root)
        account_key = keccak(bytes.fromhex(where[2:]))
        raw = accounts.get(account_key)
        storage = HexaryTrie(chain.chaindb.db, rlp.decode(raw)[2]) if raw else HexaryTrie({})
        return {
            "address": where,
            "accountProof": _nodes(accounts, account_key),
            "storageProof": [
                {
                    "key": key,
                    "value": hex(int.from_bytes(rlp.decode(found), "big") if found else 0),
                    "proof": _nodes(storage, slot),
                }
                for key in keys
                for slot in [keccak(bytes.fromhex(key[2:]))]
                for found in [storage.get(slot)]
            ],
        }


def _nodes(trie: HexaryTrie, key: bytes) -> list[str]:
    return [f"0x{rlp.encode(node).hex()}" for node in trie.get_proof(key)]


def deployed(web3: Web3, payer: str, name: str, *arguments: Any) -> Any:
    """A stand-in on any chain, paid by an unlocked account; its web3 contract."""
    made = stand_ins()[name]
    factory = web3.eth.contract(abi=made["abi"], bytecode=made["bytecode"])
    sent = factory.constructor(*arguments).transact({"from": payer})
    where = web3.eth.wait_for_transaction_receipt(sent)["contractAddress"]
    return web3.eth.contract(address=where, abi=made["abi"])


@contextmanager
def served(chain: TestChain, lies: dict[str, Lie] | None = None) -> Iterator[str]:
    """One node of the chain; yields its URL. ``lies`` change what it answers to a method."""

    class Node(Handler):
        def do_POST(self) -> None:
            asked = json.loads(self.body())
            method, params = asked["method"], asked["params"]
            answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
            try:
                told = hexed(chain.answer(method, params))
                lie = (lies or {}).get(method)
                answer["result"] = told if lie is None else lie(params, told)
            except Exception as error:
                answer["error"] = _failure(error)
            self.answer(200, json.dumps(answer).encode())

    with http_served(Node) as url:
        yield url


def _failure(error: Exception) -> dict[str, Any]:
    """As a node tells it: a contract's own error as data, which eth-tester puts into its words."""
    words = str(error).removeprefix("execution reverted: ")
    raw = ast.literal_eval(words) if words.startswith(("b'", 'b"')) else b""
    return {"code": 3, "message": f"execution reverted: {words}", "data": f"0x{raw.hex()}"}


def hexed(value: Any) -> Any:
    """As JSON-RPC writes it."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return hex(value)
    if isinstance(value, bytes):
        return f"0x{bytes(value).hex()}"
    if isinstance(value, list | tuple):
        return [hexed(each_value) for each_value in value]
    return {name: hexed(each_value) for name, each_value in dict(value).items()}


def new_chain() -> TestChain:
    tester = EthereumTester(PyEVMBackend())
    chain = TestChain(tester, Web3(EthereumTesterProvider(tester)))
    chain.fund()
    return chain


@contextmanager
def connected_to(chain: TestChain) -> Iterator[Web3]:
    """The chain as the product sees it: over JSON-RPC."""
    with served(chain) as url:
        node = Node(url, 10)
        try:
            yield connect(node)
        finally:
            node.close()


def owners_contract(
    chain: TestChain,
    *,
    names: Sequence[str] = OWNERS,
    approve: int = 2,
    revoke: int = 1,
    any_device: bool = True,
) -> str:
    """An OwnersAppAuth of the three owners; its address."""
    with connected_to(chain) as web3:
        return deploy(
            web3,
            chain.payer,
            owners=[address(owner_account(name)) for name in names],
            approve=approve,
            revoke=revoke,
            require_tcb_up_to_date=True,
            allow_any_device=any_device,
        )


def chain_file(chain: TestChain, contract: str, *urls: str, **changed: Any) -> ChainFile:
    """A chain file of nodes of this chain."""
    fields: dict[str, Any] = {
        "version": 1,
        "chain_id": chain.web3.eth.chain_id,
        "rpc": urls,
        "agree": len(urls) // 2 + 1,
        "block": "latest",
        "max_age_seconds": 600,
        "cache_seconds": 0,
        "timeout_seconds": 10,
        "contract": contract,
        "kind": "owners",
        "code_hash": chain.code_hash(contract),
        "implementation": "none",
        "app_id": "any",
        "kms": "none",
        "owners": {name: address(owner_account(name)) for name in OWNERS},
    }
    return ChainFile(**(fields | changed))


@contextmanager
def served_by(chain: TestChain, *lies: dict[str, Lie] | None) -> Iterator[list[str]]:
    """Several nodes, each with its lies; yields their URLs."""
    with ExitStack() as stack:
        yield [stack.enter_context(served(chain, lie)) for lie in lies]


def contract_of(chain: TestChain, where: str) -> Any:
    """An OwnersAppAuth over JSON-RPC where a test opened it."""
    return owners_app_auth(chain.wire or chain.web3, where)


def key_file(folder: Path, name: str) -> str:
    """Path of the key file of an owner, or of whoever else is named."""
    path = folder / f"{name}.key"
    if not path.exists():
        path.write_text(bytes(owner_account(name).key).hex())
        path.chmod(0o600)
    return str(path)


def command(*words: str, fails: type[SealtrainError] | None = None) -> dict[str, Any]:
    """``sealtrain chain``: its JSON, or the error that it must end in."""
    done = CliRunner().invoke(app, ["chain", *words, "--json"])
    if fails is not None:
        if isinstance(done.exception, SystemExit):  # the one object shows more than the error
            told: dict[str, Any] = json.loads(done.stdout)["error"]
            assert (done.exit_code, told["code"]) == (fails.exit_code, fails.code), done.output
            return told
        assert isinstance(done.exception, fails), (done.output, done.exception)
        return done.exception.to_dict()
    assert done.exception is None, (done.output, done.exception)
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown
