"""Which records are there more than once, within an owner and across owners, in bounded memory.

Records are compared by a keyed hash whose key is drawn here and forgotten with this object: what is
kept in memory tells nothing about a record, not even whether a guess is right. Beyond a bound, only
hashes below a threshold are kept, the same for every owner, so that shares stay estimates of the
whole.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from sealtrain.base.secret import Random

MAX_KEPT = 1 << 22
_TOP = 1 << 64


@dataclass(frozen=True, slots=True)
class RepeatedShare:
    """A part of records that were compared."""

    found: int
    of: int

    @property
    def value(self) -> float:
        """``found / of``; 0 of nothing."""
        return self.found / self.of if self.of else 0.0


class Repeats:
    """Counts equal records. Owners are numbers from 0."""

    def __init__(self, *, most: int = MAX_KEPT, random: Random = os.urandom) -> None:
        """Begin with no record.

        Args:
            most: Different records to remember.
            random: Source of the key.
        """
        self._key = random(32)
        self._most = most
        self._below = _TOP
        self._seen: dict[int, dict[int, int]] = {}

    def add(self, owner: int, record: bytes) -> None:
        """Count one record of an owner; ``record`` is not kept."""
        digest = hashlib.blake2b(record, digest_size=16, key=self._key).digest()
        place = int.from_bytes(digest[:8], "big")
        if place >= self._below:
            return
        holders = self._seen.setdefault(int.from_bytes(digest, "big"), {})
        holders[owner] = holders.get(owner, 0) + 1
        while len(self._seen) > self._most:
            self._below //= 2
            self._seen = {
                digest: holders
                for digest, holders in self._seen.items()
                if digest >> 64 < self._below
            }

    @property
    def sampled(self) -> bool:
        """Whether shares are estimates."""
        return self._below < _TOP

    def within(self, owner: int) -> RepeatedShare:
        """Records of an owner that repeat an earlier one of the same owner."""
        counts = [holders[owner] for holders in self._seen.values() if owner in holders]
        return RepeatedShare(sum(counts) - len(counts), sum(counts))

    def across(self, owner: int) -> RepeatedShare:
        """Records of an owner that another owner has too."""
        mine = [holders for holders in self._seen.values() if owner in holders]
        shared = sum(holders[owner] for holders in mine if len(holders) > 1)
        return RepeatedShare(shared, sum(holders[owner] for holders in mine))
