"""Merkle trees as in RFC 6962 and RFC 9162 §2: roots, proofs, and their verification.

A tree is over leaf *hashes*; ``leaf_hash`` makes one of an entry. Hashes are 32 raw bytes here and
hex in documents. Both verifiers follow RFC 9162 §2.1.3.2 and §2.1.4.2 and refuse

1. an index outside the tree, a first size of zero, or a first size beyond the second,
2. a hash that is not 32 bytes long,
3. a path with one hash too few or too many, and
4. a path that leads to another root.

A consistency proof from the empty tree says nothing, hence the refusal of size zero.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import NoReturn

from sealtrain.signing.errors import ProofInvalid

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root of the tree without leaves."""

Subtree = Callable[[int, int], bytes]
"""``subtree(start, end)`` is the root over the leaves ``start … end-1``."""


def leaf_hash(entry: bytes) -> bytes:
    """Hash of an entry: ``SHA-256(0x00 ‖ entry)``."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node: ``SHA-256(0x01 ‖ left ‖ right)``."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def split(size: int) -> int:
    """The largest power of two below ``size`` (at least 2): where a tree divides."""
    return 1 << ((size - 1).bit_length() - 1)


def root_of(leaf_hashes: Sequence[bytes]) -> bytes:
    """Root of the tree over ``leaf_hashes``, 32 bytes each."""
    _leaves(leaf_hashes)
    return _subtree_of(leaf_hashes)(0, len(leaf_hashes))


def inclusion_proof(leaf_hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Path from leaf ``index`` to the root of the tree over ``leaf_hashes``.

    Raises:
        ProofInvalid: There is no such leaf.
    """
    _leaves(leaf_hashes)
    return inclusion_path(index, len(leaf_hashes), _subtree_of(leaf_hashes))


def consistency_proof(leaf_hashes: Sequence[bytes], first: int) -> list[bytes]:
    """Proof that the tree over ``leaf_hashes`` extends the one over its ``first`` leaves.

    Raises:
        ProofInvalid: ``first`` is zero or beyond the tree.
    """
    _leaves(leaf_hashes)
    return consistency_path(first, len(leaf_hashes), _subtree_of(leaf_hashes))


def inclusion_path(index: int, size: int, subtree: Subtree) -> list[bytes]:
    """Inclusion proof (RFC 9162 §2.1.3.1) from a tree that knows the roots of its parts.

    Args:
        index: Leaf, ``0 ≤ index < size``.
        size: Leaves of the tree.
        subtree: Root of a range of leaves.

    Raises:
        ProofInvalid: ``index`` is outside the tree.
    """
    if not 0 <= index < size:
        _refuse("index lies outside the tree", index, f"0 to {size - 1}")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + split(end - start)
        if index < middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(start, middle))
            start = middle
    return path[::-1]


def consistency_path(first: int, second: int, subtree: Subtree) -> list[bytes]:
    """Consistency proof (RFC 9162 §2.1.4.1) from a tree that knows the roots of its parts.

    Args:
        first: Leaves of the earlier tree, ``1 ≤ first ≤ second``.
        second: Leaves of the later tree.
        subtree: Root of a range of leaves of the later tree.

    Raises:
        ProofInvalid: The sizes cannot be compared.
    """
    if not 1 <= first <= second:
        _refuse("sizes cannot be compared", f"{first} and {second}", "1 ≤ first ≤ second")
    path: list[bytes] = []
    start, end = 0, second
    while first != end:
        middle = start + split(end - start)
        if first <= middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(start, middle))
            start = middle
    if start:  # the earlier root is not itself a part of the later tree
        path.append(subtree(start, end))
    return path[::-1]


def verify_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes
) -> bytes:
    """Return ``root`` when ``path`` leads from the leaf to it.

    Args:
        leaf: Leaf hash, 32 bytes.
        index: Position of the leaf.
        size: Leaves of the tree.
        path: Sibling hashes, lowest first.
        root: Root of the tree, 32 bytes.

    Raises:
        ProofInvalid: A check of the module's list fails.
    """
    if not 0 <= index < size:
        _refuse("index lies outside the tree", index, f"0 to {size - 1}")
    _lengths([leaf, root, *path])
    current, position, last = leaf, index, size - 1
    for sibling in path:
        if last == 0:
            _refuse("inclusion proof is too long", len(path), "fewer hashes")
        if position & 1 or position == last:
            current = node_hash(sibling, current)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            current = node_hash(current, sibling)
        position, last = position >> 1, last >> 1
    if last != 0:
        _refuse("inclusion proof is too short", len(path), "more hashes")
    _same(current, root, "inclusion proof")
    return root


def verify_consistency(
    first: int, second: int, path: Sequence[bytes], first_root: bytes, second_root: bytes
) -> bytes:
    """Return ``second_root`` when the later tree only appends to the earlier one.

    Args:
        first: Leaves of the earlier tree, at least 1.
        second: Leaves of the later tree, at least ``first``.
        path: The proof; empty exactly when the sizes are equal.
        first_root: Root of the earlier tree.
        second_root: Root of the later tree.

    Raises:
        ProofInvalid: A check of the module's list fails.
    """
    if not 1 <= first <= second:
        _refuse("sizes cannot be compared", f"{first} and {second}", "1 ≤ first ≤ second")
    if first == second:
        if path:
            _refuse("consistency proof is too long", len(path), "no hash for equal sizes")
        _same(first_root, second_root, "consistency proof")
        return second_root
    if not path:
        _refuse("consistency proof is too short", 0, "at least one hash")
    _lengths([first_root, second_root, *path])
    # A first tree that fills its subtree is itself the start of the path, so it is left out there.
    start, *rest = path if first & (first - 1) else (first_root, *path)
    position, last = first - 1, second - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    old = new = start
    for sibling in rest:
        if last == 0:
            _refuse("consistency proof is too long", len(path), "fewer hashes")
        if position & 1 or position == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        position, last = position >> 1, last >> 1
    if last != 0:
        _refuse("consistency proof is too short", len(path), "more hashes")
    _same(old, first_root, "consistency proof (earlier tree)")
    _same(new, second_root, "consistency proof (later tree)")
    return second_root


def _subtree_of(leaf_hashes: Sequence[bytes]) -> Subtree:
    def subtree(start: int, end: int) -> bytes:
        if end == start:
            return EMPTY_ROOT
        if end - start == 1:
            return leaf_hashes[start]
        middle = start + split(end - start)
        return node_hash(subtree(start, middle), subtree(middle, end))

    return subtree


def _leaves(leaf_hashes: Sequence[bytes]) -> None:
    if any(len(hash_) != HASH_BYTES for hash_ in leaf_hashes):
        raise ValueError("a tree is over leaf hashes of 32 bytes: apply leaf_hash to each entry")


def _lengths(hashes: Sequence[bytes]) -> None:
    for hash_ in hashes:
        if len(hash_) != HASH_BYTES:
            _refuse("hash has the wrong length", f"{len(hash_)} bytes", f"{HASH_BYTES} bytes")


def _same(got: bytes, expected: bytes, what: str) -> None:
    if not hmac.compare_digest(got, expected):
        _refuse(f"{what} leads to another root", got.hex(), expected.hex())


def _refuse(message: str, got: object, expected: object) -> NoReturn:
    raise ProofInvalid(
        message,
        check="merkle proof",
        got=got,
        expected=expected,
        hint="the entry is not in the log that was signed, or the log was rewritten",
    )
