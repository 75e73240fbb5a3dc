"""The chain's word: the proof by which a broker knew that the owners' contract allows a deployment.

A receipt carries it (spec/chain.md §8), so it can be checked later, without a node and without the
extra ``chain``:

1. The header hashes to a block, and states its height, time and state root.
2. The account's proof leads from the state root to the contract, with its code and storage root.
3. The slot's proof leads from the storage root to the value at the slot of the compose hash, which
   the reader computes; of a proxy, another one to its implementation.

That the block is one of the chain, only a reader's trust file says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.base.models import StrictModel
from sealtrain.consortium.patricia import Item, rlp_decoded, value_at
from sealtrain.signing.errors import ProofInvalid

IMPLEMENTATION: Final = bytes.fromhex(
    "360894a13ba1a3210667c828492db98dca3e2076cc3735a920a3ca505d382bbc"
)
"""Slot of an ERC-1967 proxy: Keccak-256 of ``eip1967.proxy.implementation``, less one."""

_MAX_HEADER_DIGITS: Final = 2 * 4096
_MAX_NODE_DIGITS: Final = 2 * 4096
_MAX_NODES: Final = 64
_MAX_NUMBER: Final = 2**53 - 1
_FOR_EVER: Final = 2**63
_STATE_ROOT, _NUMBER, _TIME = 3, 8, 11
_FIELDS: Final = range(15, 33)
"""Fields of a header: 15 at first, and each change of the chains' rules adds some."""

_Hex = StringConstraints(pattern=r"^([0-9a-f]{2})+$")
_Header = Annotated[str, _Hex, StringConstraints(max_length=_MAX_HEADER_DIGITS)]
_Node = Annotated[str, _Hex, StringConstraints(max_length=_MAX_NODE_DIGITS)]
_Nodes = Annotated[tuple[_Node, ...], Field(min_length=1, max_length=_MAX_NODES)]


class ChainWord(StrictModel):
    """What a broker read of the owners' contract before it decided.

    Attributes:
        kind: Of the contract, as in the chain file.
        header: Of the block, its RLP in hex.
        account: Proof of the contract, from the state root; nodes in hex.
        slot: Proof of the compose hash's slot, from the contract's storage root.
        implementation: Of a ``dstack-app``, the same of the slot that names its implementation.
    """

    chain_id: int = Field(ge=1, le=_MAX_NUMBER)
    contract: Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{40}$")]
    kind: Literal["owners", "dstack-app"]
    header: _Header
    account: _Nodes
    slot: _Nodes
    implementation: _Nodes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenWord:
    """What a word proves, if its block is one of the chain.

    Attributes:
        block: Hash, 64 hex digits.
        number: Height.
        time: Of the block, seconds since the epoch.
        code_hash: Keccak-256 of the contract's code.
        until: Last second at which the compose hash counts; 0 for not at all.
        implementation: Where a proxy leads, ``0x`` and 40 hex digits; ``none`` of another contract.
    """

    block: str
    number: int
    time: int
    code_hash: str
    until: int
    implementation: str


def read_word(word: ChainWord, compose_hash: str) -> ProvenWord:
    """What a word proves of a deployment.

    Raises:
        ProofInvalid: A header or proof is malformed, or does not lead to the value.
    """
    header = bytes.fromhex(word.header)
    number, time, state_root = header_facts(header)
    account = _find(state_root, bytes.fromhex(word.contract[2:]), word.account)
    fields = rlp_decoded(account)
    if not isinstance(fields, list) or len(fields) != 4:
        raise _invalid("it does not lead to an account")
    storage_root, code_hash = _hash(fields[2]), _hash(fields[3])
    value = _number(storage_root, compose_slot(word.kind, compose_hash), word.slot)
    implementation = "none"
    if (word.kind == "dstack-app") != (word.implementation is not None):
        raise _invalid("it has a proof of an implementation where there is none, or lacks it")
    if word.implementation is not None:
        implementation = f"0x{_number(storage_root, IMPLEMENTATION, word.implementation):040x}"
    return ProvenWord(
        block=keccak256(header).hex(),
        number=number,
        time=time,
        code_hash=code_hash.hex(),
        until=counts_until(word.kind, value),
        implementation=implementation,
    )


def header_facts(header: bytes) -> tuple[int, int, bytes]:
    """Height, time and state root that a block's header states.

    Raises:
        ProofInvalid: It is no header.
    """
    fields = rlp_decoded(header)
    if not isinstance(fields, list) or len(fields) not in _FIELDS:
        raise _invalid("the header is none of a block")
    return (_integer(fields[_NUMBER]), _integer(fields[_TIME]), _hash(fields[_STATE_ROOT]))


def compose_slot(kind: Literal["owners", "dstack-app"], compose_hash: str) -> bytes:
    """Slot that says whether a compose hash counts, by the kind of contract (spec/chain.md §3)."""
    subject = bytes.fromhex(compose_hash)
    if kind == "dstack-app":
        return keccak256(subject + bytes(32))
    return keccak256(subject + keccak256(bytes(64)))


def counts_until(kind: Literal["owners", "dstack-app"], value: int) -> int:
    """Last second at which a compose hash counts, by the value of its slot; 0 for not at all."""
    if kind == "owners":
        return value
    return _FOR_EVER if value & 0xFF == 1 else 0


def _number(root: bytes, slot: bytes, nodes: tuple[str, ...]) -> int:
    content = rlp_decoded(_find(root, slot, nodes))
    if not isinstance(content, bytes) or not 0 < len(content) <= 32 or content[0] == 0:
        raise _invalid("it does not lead to a slot's value")
    return int.from_bytes(content, "big")


def _find(root: bytes, key: bytes, nodes: tuple[str, ...]) -> bytes:
    value = value_at(root, key, [bytes.fromhex(node) for node in nodes])
    if value is None:
        raise _invalid("it shows that there is no value")
    return value


def _hash(item: Item) -> bytes:
    if not isinstance(item, bytes) or len(item) != 32:
        raise _invalid("a hash is missing")
    return item


def _integer(item: Item) -> int:
    if not isinstance(item, bytes) or len(item) > 7 or item[:1] == b"\0":
        raise _invalid("a number in the header is malformed")
    value = int.from_bytes(item, "big")
    if value > _MAX_NUMBER:
        raise _invalid("a number in the header is malformed")
    return value


def _invalid(why: str) -> ProofInvalid:
    return ProofInvalid(f"the chain's proof does not hold: {why}", check="chain proof")
