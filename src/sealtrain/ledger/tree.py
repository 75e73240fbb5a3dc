"""The Merkle tree of a ledger as it is stored: the roots of full subtrees, by level and place.

Pure: where entries and roots lie is the caller's affair (``ledger.store``).
Node ``(level, i)`` is the root over the entries ``i << level … ((i + 1) << level) - 1``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from sealtrain.errors import LedgerInconsistent
from sealtrain.signing import merkle

Node = Callable[[int, int], bytes]
"""``node(level, i)`` is a stored root."""

Nodes = dict[tuple[int, int], bytes]
"""Roots by level and place."""


_KEPT_NODES: Final = 1 << 14
_KEPT_ENTRIES: Final = 256


class KeptTree:
    """The part of a tree that was used last, in memory: what is on disk never changes.

    Any thread may call.

    Args:
        read: Gives a root that is not kept.
    """

    def __init__(self, read: Node) -> None:
        self.size = 0
        """Entries that are on disk, at least."""
        self._read = read
        self._nodes: Nodes = {}
        self._entries: dict[int, bytes] = {}
        self._keeping = threading.Lock()

    def node(self, level: int, position: int) -> bytes:
        """A stored root. Errors as ``read``."""
        kept = self._nodes.get((level, position))
        if kept is None:
            kept = self._read(level, position)
            with self._keeping:
                _keep(self._nodes, {(level, position): kept}, _KEPT_NODES)
        return kept

    def entry(self, index: int) -> bytes | None:
        """An entry that was written a moment ago; ``None`` for any other."""
        return self._entries.get(index)

    def remember(self, growth: Growth) -> None:
        """Remember what was committed."""
        with self._keeping:
            _keep(self._nodes, growth.nodes, _KEPT_NODES)
            _keep(self._entries, dict(enumerate(growth.entries, growth.first)), _KEPT_ENTRIES)
            self.size = max(self.size, growth.first + len(growth.entries))


def _keep(kept: dict[Any, bytes], more: dict[Any, bytes], most: int) -> None:
    kept.update(more)
    for place in list(islice(kept, max(0, len(kept) - most))):
        del kept[place]


@dataclass(frozen=True, slots=True)
class Growth:
    """What a tree gains.

    Attributes:
        first: Index of the first new entry.
        entries: New entries.
        nodes: New roots by level and place.
    """

    first: int
    entries: tuple[bytes, ...]
    nodes: Nodes


def grow(first: int, entries: Sequence[bytes], node: Node) -> Growth:
    """What a tree of ``first`` entries gains with more of them.

    Args:
        first: Entries it has.
        entries: Entries to add.
        node: Gives stored roots.
    """
    made: Nodes = {}
    for index, data in enumerate(entries, start=first):
        level, position, value = 0, index, merkle.leaf_hash(data)
        made[level, position] = value
        while position & 1:  # a right child: its parent is full now
            left = made.get((level, position - 1)) or node(level, position - 1)
            value = merkle.node_hash(left, value)
            level, position = level + 1, position >> 1
            made[level, position] = value
    return Growth(first, tuple(entries), made)


def subtree(start: int, end: int, node: Node) -> bytes:
    """Root over the entries ``start … end-1``, a range as a Merkle tree divides it."""
    width = end - start
    if width == 0:
        return merkle.EMPTY_ROOT
    if width & (width - 1) == 0:
        return node(width.bit_length() - 1, start // width)
    middle = start + merkle.split(width)
    return merkle.node_hash(subtree(start, middle, node), subtree(middle, end, node))


def recompute(
    entries: Iterable[tuple[int, bytes]], stored: Iterator[tuple[int, int, bytes]]
) -> int:
    """Compare every stored root with the entries.

    Args:
        entries: Index and bytes, in order.
        stored: Level, place and root, in the order of ``(i + 1) << level``, then of the level: as
            appending wrote them.

    Returns:
        Number of entries.

    Raises:
        LedgerInconsistent: An entry or root is missing, extra or changed.
    """

    def compare(level: int, position: int, value: bytes) -> None:
        found = next(stored, None)
        if found is None or (found[0], found[1]) != (level, position):
            raise report_tampering(f"stored hash {(level, position)} is missing or superfluous")
        if found[2] != value:
            raise report_tampering(
                f"stored hash {(level, position)} does not follow from the entries"
            )

    count = 0
    heads: list[tuple[int, bytes]] = []  # roots of the full subtrees so far, tallest first
    for index, data in entries:
        if index != count:
            raise report_tampering(f"entry {count} is missing")
        level, value = 0, merkle.leaf_hash(data)
        compare(level, index, value)
        while heads and heads[-1][0] == level:
            value = merkle.node_hash(heads.pop()[1], value)
            level += 1
            compare(level, index >> level, value)
        heads.append((level, value))
        count += 1
    if next(stored, None) is not None:
        raise report_tampering("it holds hashes of entries it does not have")
    return count


def fitting(lengths: Iterable[int], max_bytes: int) -> int:
    """How many of the first of these are no more than ``max_bytes`` together; one in any case."""
    count = total = 0
    for length in lengths:
        total += length
        if count and total > max_bytes:
            break
        count += 1
    return count


def report_tampering(why: str) -> LedgerInconsistent:
    """The error for a ledger that is not as appending left it."""
    return LedgerInconsistent(
        f"the ledger was changed from outside: {why}",
        check="stored ledger",
        hint="compare with the last tree head an owner kept, and restore it from a backup",
    )


def another_meta(where: str, name: str, got: object, expected: object) -> LedgerInconsistent:
    """The error for a ledger of another origin or key."""
    return LedgerInconsistent(
        f"the ledger in {where} has another {name}",
        check=f"ledger {name}",
        got=got,
        expected=expected,
        hint="open it with the origin and key it was made with",
    )
