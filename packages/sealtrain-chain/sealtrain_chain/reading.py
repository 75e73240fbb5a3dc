"""Read a pinned contract's storage without believing a node (spec/chain.md §2).

1. Nodes that answer for another chain, or not at all, do not count.
2. ``agree`` nodes name one block: hash, state root and time, at a height that as many have reached.
3. The block is recent by the caller's clock and not below one that was read before.
4. Values come with proofs from that state root; the first agreeing node whose proof holds serves.
5. The contract's code, and of a proxy the implementation, are those of the chain file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import load_model
from sealtrain.consortium.chainfile import ChainFile
from sealtrain.consortium.chainword import IMPLEMENTATION, ChainWord
from sealtrain.errors import ChainRefused, ChainUnreachable
from sealtrain.signing.errors import ProofInvalid
from sealtrain_chain.header import header_of
from sealtrain_chain.node import Node
from sealtrain_chain.proof import ProvenContract, prove_account, require_extra

CLOCK_SKEW = 300

_Word = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{64}$")]
_Number = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{1,13}$")]

Told = TypeVar("Told")


class _Block(BaseModel):
    # A header has many fields, and every chain adds some.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    number: _Number
    hash: _Word
    state_root: _Word = Field(alias="stateRoot")
    timestamp: _Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A block as a node names it."""

    number: int
    hash: str
    state_root: bytes
    time: int
    header: bytes | None = field(compare=False)
    """Its RLP; ``None`` where the node's fields are not those that its hash is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractReading:
    """Slots of the pinned contract at one agreed block."""

    head: Head
    agreed: tuple[str, ...]
    """Hosts of the nodes that named this block."""
    values: tuple[int, ...]
    word: ChainWord | None
    """Of the first slot; ``None`` without one, and where the block's header is not known."""


class Reader:
    """The nodes of one chain file. One thread at a time; close it."""

    def __init__(self, chain: ChainFile) -> None:
        require_extra()
        self.chain = chain
        self.nodes = [Node(url, float(chain.timeout_seconds)) for url in chain.rpc]
        self._pool = ThreadPoolExecutor(len(self.nodes), thread_name_prefix="chain-node")
        self._highest = 0

    def close(self) -> None:
        """Close connections."""
        self._pool.shutdown()
        for node in self.nodes:
            node.close()

    def read(self, slots: Sequence[bytes], *, now: int) -> ContractReading:
        """Proven values of the contract's slots.

        Args:
            slots: 32 bytes each, at most 8.
            now: The caller's time, seconds since the epoch.

        Raises:
            ChainUnreachable: Too few nodes agree on a recent block, or none gives a proof.
            ProofInvalid: No agreeing node gives a proof that holds.
            ChainRefused: The contract is not the one that was pinned.
        """
        proxied = self.chain.kind == "dstack-app"
        head, agreed, account = self.account([*slots, *([IMPLEMENTATION] if proxied else [])], now)
        _require_pinned(account, self.chain)
        self._highest = head.number
        return ContractReading(
            head=head,
            agreed=tuple(node.host for node in agreed),
            values=account.values[: len(slots)],
            word=self._word(head, account) if slots and account.values[0] else None,
        )

    def _word(self, head: Head, account: ProvenContract) -> ChainWord | None:
        if head.header is None:
            return None
        proxied = self.chain.kind == "dstack-app"
        return ChainWord(
            chain_id=self.chain.chain_id,
            contract=self.chain.contract,
            kind=self.chain.kind,
            header=head.header.hex(),
            account=account.nodes,
            slot=account.slot_nodes[0],
            implementation=account.slot_nodes[-1] if proxied else None,
        )

    def account(self, slots: Sequence[bytes], now: int) -> tuple[Head, list[Node], ProvenContract]:
        """The contract as it is, not compared with what was pinned. Errors as ``read``."""
        head, agreed = self._agree()
        self._require_recent(head, now)
        return head, agreed, self._prove(head, agreed, slots)

    def _agree(self) -> tuple[Head, list[Node]]:
        reached = self._ask_nodes(self.nodes, self._height)
        heights = sorted((height for _, height in reached), reverse=True)
        if len(heights) < self.chain.agree:
            raise self._too_few(f"{len(heights)} of {len(self.nodes)} answered")
        number = heights[self.chain.agree - 1]
        there = [node for node, height in reached if height >= number]
        heads = self._ask_nodes(there, lambda node: _head(node, hex(number)))
        for head, count in Counter(head for _, head in heads).most_common(1):
            if count >= self.chain.agree and head.number == number:
                same = [(node, named) for node, named in heads if named == head]
                known = next((named for _, named in same if named.header is not None), head)
                return known, [node for node, _ in same]
        raise self._too_few(f"{len(there)} named {len({h for _, h in heads})} blocks {number}")

    def _height(self, node: Node) -> int:
        told = node.ask("eth_chainId")
        if told != hex(self.chain.chain_id):
            raise ChainUnreachable(
                f"the node {node.host} is of another chain",
                check="chain id",
                got=str(told)[:66],
                expected=hex(self.chain.chain_id),
            )
        return _head(node, self.chain.block).number

    def _ask_nodes(
        self, nodes: Sequence[Node], ask: Callable[[Node], Told]
    ) -> list[tuple[Node, Told]]:
        """Answers of the nodes that answer; all are asked at once."""
        pending = [(node, self._pool.submit(ask, node)) for node in nodes]
        told: list[tuple[Node, Told]] = []
        failures: list[ChainUnreachable] = []
        for node, future in pending:
            try:
                told.append((node, future.result()))
            except ChainUnreachable as failure:
                failures.append(failure)
        if not told:
            raise failures[0]
        return told

    def _require_recent(self, head: Head, now: int) -> None:
        if not now - self.chain.max_age_seconds <= head.time <= now + CLOCK_SKEW:
            raise ChainUnreachable(
                "the block that the chain's nodes agree on is stale",
                check="block age",
                got=f"{now - head.time} s old",
                expected=f"-{CLOCK_SKEW} to {self.chain.max_age_seconds} s",
                hint="check nodes and clock: an old block hides revocations",
            )
        if head.number < self._highest:
            raise ChainUnreachable(
                "the chain's nodes agree on a lower block than was read before",
                check="block height",
                got=head.number,
                expected=f"at least {self._highest}",
                hint="wait until more nodes have caught up",
            )

    def _prove(self, head: Head, nodes: Sequence[Node], slots: Sequence[bytes]) -> ProvenContract:
        keys: list[JsonValue] = [f"0x{slot.hex()}" for slot in slots]
        last: ChainUnreachable | ProofInvalid | None = None
        for node in nodes:
            try:
                answer = node.ask("eth_getProof", self.chain.contract, keys, hex(head.number))
                account = prove_account(
                    answer,
                    state_root=head.state_root,
                    address=self.chain.contract,
                    slots=slots,
                )
            except (ChainUnreachable, ProofInvalid) as error:
                last = error
                continue
            if account is None:
                raise ChainRefused(
                    "there is no such contract on the chain",
                    check="chain contract",
                    got=self.chain.contract,
                    hint="compare the chain file's contract and chain id",
                )
            return account
        if last is None:
            raise AssertionError("at least one node agreed")
        raise last

    def _too_few(self, got: str) -> ChainUnreachable:
        return ChainUnreachable(
            "too few of the chain's nodes name the same block",
            check="chain nodes",
            got=got,
            expected=f"{self.chain.agree} of {len(self.nodes)} that agree",
            hint="check the nodes of the chain file; nothing is released meanwhile",
        )


@contextmanager
def open_reader(chain: ChainFile) -> Iterator[Reader]:
    """A reader, closed at the end. Raises ``ExtraMissing``."""
    reader = Reader(chain)
    try:
        yield reader
    finally:
        reader.close()


def _head(node: Node, block: str) -> Head:
    told = node.ask("eth_getBlockByNumber", block, False)
    one = load_model(_Block, told, ChainUnreachable, f"block of {node.host}")
    return Head(
        number=int(one.number, 16),
        hash=one.hash,
        state_root=bytes.fromhex(one.state_root[2:]),
        time=int(one.timestamp, 16),
        header=header_of(told, one.hash),
    )


def _require_pinned(account: ProvenContract, chain: ChainFile) -> None:
    if account.code_hash != chain.code_hash:
        raise ChainRefused(
            "the contract on the chain has other code than was pinned",
            check="contract code",
            got=account.code_hash,
            expected=chain.code_hash,
            hint="find out what is there before you write a new chain file",
        )
    if chain.kind == "dstack-app" and account.values[-1] != int(chain.implementation, 16):
        raise ChainRefused(
            "the contract's proxy leads to another implementation than was pinned",
            check="implementation",
            got=f"0x{account.values[-1]:040x}",
            expected=chain.implementation,
            hint="its owner upgraded it: review the new code before you pin it",
        )
