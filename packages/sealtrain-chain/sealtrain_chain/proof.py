"""What ``eth_getProof`` proves under a state root. Pure: no node, no clock (spec/chain.md §2).

1. The account's proof leads from the state root to Keccak-256 of the address, or shows that there
   is no such account.
2. Each slot's proof leads from the account's storage root to Keccak-256 of the slot, or shows 0.
3. A value stated beside a proof that proves another one is refused: that node lies.
4. At most 64 nodes of at most 4 KiB a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sealtrain.base.canonical import JsonValue
from sealtrain.base.extras import extra_missing
from sealtrain.base.models import load_model
from sealtrain.consortium.patricia import proof_path
from sealtrain.signing.errors import ProofInvalid

_NODE_DIGITS = 2 * 4096
_NODES = 64

_Bytes = Annotated[
    str, StringConstraints(pattern=r"^0x([0-9a-f]{2})*$", max_length=2 + _NODE_DIGITS)
]
_Quantity = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{1,64}$")]
_Nodes = Annotated[tuple[_Bytes, ...], Field(max_length=_NODES)]


class _ProofAnswer(BaseModel):
    # Nodes add fields of their own, and what they state besides is not read.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _SlotProof(_ProofAnswer):
    value: _Quantity
    proof: _Nodes


class _AccountProof(_ProofAnswer):
    account: _Nodes = Field(alias="accountProof")
    storage: tuple[_SlotProof, ...] = Field(alias="storageProof", max_length=16)


@dataclass(frozen=True, slots=True)
class ProvenContract:
    """A contract at one block, proven."""

    code_hash: str
    """Keccak-256 of its code, 64 hex digits."""
    values: tuple[int, ...]
    """Of the slots, in the order they were asked for."""
    nodes: tuple[str, ...]
    """From the state root to the account, in hex."""
    slot_nodes: tuple[tuple[str, ...], ...]
    """Of each slot, from the storage root to its value."""


def prove_account(
    answer: JsonValue, *, state_root: bytes, address: str, slots: Sequence[bytes]
) -> ProvenContract | None:
    """What a node's answer proves of a contract.

    Args:
        answer: The result of ``eth_getProof``.
        state_root: Of the block, from its header.
        address: Of the contract.
        slots: 32 bytes each, in the order they were asked for.

    Returns:
        The account, ``None`` where the proof shows that there is none.

    Raises:
        ProofInvalid: The answer is malformed or does not lead to the root.
        ExtraMissing: The ``chain`` extra is not installed.
    """
    given = load_model(_AccountProof, answer, ProofInvalid, "proof of the chain's node")
    if len(given.storage) != len(slots):
        raise _invalid("it proves other slots than were asked for")
    raw = _look_up(state_root, bytes.fromhex(address[2:]), given.account)
    if raw is None:
        return None
    fields = _decode(raw)
    if not isinstance(fields, list) or len(fields) != 4 or len(fields[2]) != 32:
        raise _invalid("its proof does not lead to an account")
    values = tuple(
        _value(fields[2], slot, proof) for slot, proof in zip(slots, given.storage, strict=True)
    )
    return ProvenContract(
        fields[3].hex(),
        values,
        _path(state_root, bytes.fromhex(address[2:]), given.account),
        tuple(
            _path(fields[2], slot, entry.proof)
            for slot, entry in zip(slots, given.storage, strict=True)
        ),
    )


def _path(root: bytes, key: bytes, nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes that a reader without libraries needs, by the rules that it reads them by."""
    found = proof_path(root, key, [bytes.fromhex(node[2:]) for node in nodes])
    return tuple(node.hex() for node in found)


def _value(storage_root: bytes, slot: bytes, given: _SlotProof) -> int:
    raw = _look_up(storage_root, slot, given.proof)
    content = b"" if raw is None else _decode(raw)
    if not isinstance(content, bytes) or len(content) > 32:
        raise _invalid("its proof does not lead to a slot's value")
    value = int.from_bytes(content, "big")
    stated = int(given.value, 16)
    if stated != value:
        raise ProofInvalid(
            "the chain's node states another value than its proof shows",
            check="chain proof",
            got=hex(stated),
            expected=hex(value),
            hint="remove this node from the chain file: its proof is false",
        )
    return value


def _look_up(root: bytes, key: bytes, nodes: Sequence[str]) -> bytes | None:
    """The value at Keccak-256 of ``key``, ``None`` where the nodes show that there is none."""
    require_extra()
    from eth_utils.crypto import keccak
    from trie.hexary import HexaryTrie

    given = [bytes.fromhex(node[2:]) for node in nodes]
    try:
        found = HexaryTrie({keccak(node): node for node in given}, root).get(keccak(key))
    except Exception as error:  # the library meets hostile nodes here and raises many kinds
        raise _invalid(f"it does not lead to the root ({type(error).__name__})") from None
    if not isinstance(found, bytes):
        raise _invalid("it does not lead to a value")
    return found or None


def _decode(data: bytes) -> bytes | list[bytes]:
    import rlp

    try:
        content: bytes | list[bytes] = rlp.decode(data)
    except rlp.exceptions.RLPException as error:
        raise _invalid("it leads to something that is not RLP") from error
    if isinstance(content, list) and not all(isinstance(item, bytes) for item in content):
        raise _invalid("it leads to something nested")
    return content


def _invalid(why: str) -> ProofInvalid:
    return ProofInvalid(
        f"the proof of the chain's node does not hold: {why}",
        check="chain proof",
        hint="ask other nodes; remove nodes that cannot prove their answers",
    )


def require_extra() -> None:
    """Return if what proofs need is installed.

    Raises:
        ExtraMissing: It is not.
    """
    try:
        import eth_utils
        import rlp
        import trie
    except ImportError as error:
        raise extra_missing("the chain", "chain", error) from error
    _ = (eth_utils, rlp, trie)
