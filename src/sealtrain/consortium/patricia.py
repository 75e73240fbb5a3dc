"""RLP and proofs of Ethereum's Merkle-Patricia trie (Yellow Paper, appendices B and D).

A proof is the list of the nodes from the root to the value, each once and in this order: so a value
has one proof, and a byte that no check reads is refused. The extra ``chain`` has libraries for what
nodes of a chain answer; a manifest is verified without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.signing.errors import ProofInvalid

Item = bytes | list["Item"]

_MAX_DEPTH: Final = 8
"""Lists inside lists: a node embeds only nodes of less than 32 bytes."""
_SHORT: Final = 55
_BRANCH: Final = 17
_HASH: Final = 32
_EMPTY: Final = keccak256(b"\x80")
"""Root of a trie without values."""


def rlp_decoded(data: bytes) -> Item:
    """The item that ``data`` is, in the one canonical form.

    Raises:
        ProofInvalid: It is no item, or one in another form, or nested too deeply.
    """
    item, end = _item(data, 0, len(data), 0)
    if end != len(data):
        raise _invalid("bytes follow an RLP item")
    return item


def value_at(root: bytes, key: bytes, nodes: Sequence[bytes]) -> bytes | None:
    """The value at Keccak-256 of ``key``; ``None`` where the nodes show that there is none.

    Args:
        root: Of the trie, 32 bytes.
        key: As the trie is asked for it.
        nodes: From the root on, exactly those that are needed.

    Raises:
        ProofInvalid: They do not lead from the root, or one of them is not needed.
    """
    value, used = _walk(root, key, {keccak256(node): node for node in nodes})
    if used != list(nodes):
        raise _invalid("its nodes are not those from the root to the value, each once")
    return value


def proof_path(root: bytes, key: bytes, nodes: Sequence[bytes]) -> list[bytes]:
    """Of the nodes that a chain's node gave, those that ``value_at`` takes.

    Raises:
        ProofInvalid: They do not lead from the root.
    """
    _, used = _walk(root, key, {keccak256(node): node for node in nodes})
    return used


def _walk(root: bytes, key: bytes, nodes: dict[bytes, bytes]) -> tuple[bytes | None, list[bytes]]:
    path = keccak256(key).hex()
    used: list[bytes] = []
    if root == _EMPTY:
        return None, used
    reference: Item = root
    while True:
        if reference == b"":
            return None, used
        node = reference
        if isinstance(reference, bytes):
            raw = nodes.get(reference) if len(reference) == _HASH else None
            if raw is None:
                raise _invalid("a node is missing")
            used.append(raw)
            node = rlp_decoded(raw)
        if not isinstance(node, list) or len(node) not in (2, _BRANCH):
            raise _invalid("a node is neither a branch nor a path")
        if len(node) == _BRANCH:
            if not path:
                return _value(node[16]), used
            reference, path = node[int(path[0], 16)], path[1:]
            continue
        shared, is_leaf = _path(node[0])
        if is_leaf:
            return (_value(node[1]) if shared == path else None), used
        if not shared or not path.startswith(shared):
            return None, used
        reference, path = node[1], path[len(shared) :]


def _value(item: Item) -> bytes | None:
    if not isinstance(item, bytes):
        raise _invalid("a value is a list")
    return item or None


def _path(packed: Item) -> tuple[str, bool]:
    """Hex digits of a compact path, and whether it ends in a value (appendix C)."""
    if not isinstance(packed, bytes) or not packed or packed[0] >> 4 > 3:
        raise _invalid("a path inside a node is malformed")
    digits = packed.hex()
    is_odd = packed[0] >> 4 & 1
    if not is_odd and digits[1] != "0":
        raise _invalid("a path inside a node is malformed")
    return digits[1 if is_odd else 2 :], packed[0] >> 4 >= 2


def _item(data: bytes, at: int, end: int, depth: int) -> tuple[Item, int]:
    if at >= end or depth > _MAX_DEPTH:
        raise _invalid("an RLP item is cut off, or nested too deeply")
    first = data[at]
    if first < 0x80:
        return data[at : at + 1], at + 1
    is_list = first >= 0xC0
    length, begin = _length(data, at, end, first - (0xC0 if is_list else 0x80))
    stop = begin + length
    if stop > end:
        raise _invalid("an RLP item is cut off")
    if not is_list:
        if length == 1 and data[begin] < 0x80:
            raise _invalid("an RLP item is not in its one form")
        return data[begin:stop], stop
    items: list[Item] = []
    while begin < stop:
        item, begin = _item(data, begin, stop, depth + 1)
        items.append(item)
    return items, stop


def _length(data: bytes, at: int, end: int, given: int) -> tuple[int, int]:
    """Length of a payload, and where it begins."""
    if given <= _SHORT:
        return given, at + 1
    digits = data[at + 1 : min(end, at + 1 + given - _SHORT)]
    length = int.from_bytes(digits, "big")
    if len(digits) != given - _SHORT or digits[0] == 0 or length <= _SHORT:
        raise _invalid("an RLP item is not in its one form")
    return length, at + 1 + len(digits)


def _invalid(why: str) -> ProofInvalid:
    return ProofInvalid(f"the chain's proof does not hold: {why}", check="chain proof")
