"""Challenges that cost the broker nothing until they are used (spec/key-release.md §3).

A challenge says when it expires and is authenticated by a key that only this broker's root secret
gives, so every process of the broker knows its own challenges and keeps none. Used ones are
remembered until an hour after they expired. A forgotten challenge never serves again, even if the
clock goes back: a challenge that expires before the newest forgotten one counts as used; if new
challenges would count as used too, a new generation begins.
"""

from __future__ import annotations

from collections.abc import Callable

from sealtrain.base.secret import Random, Secret
from sealtrain.broker.store.memory import Store
from sealtrain.broker.store.nonces import UsedChallenges
from sealtrain.release.challenge_code import expiry_of, make_challenge
from sealtrain.release.facts import ChallengeState
from sealtrain.release.messages import ChallengePurpose

Key = Callable[[ChallengePurpose, str], Secret]
"""The key of challenges for one purpose, of one generation."""


class Challenges:
    """Makes and burns a broker's challenges. Thread-safe.

    Args:
        key: Keys of challenges.
        store: Remembers used ones.
        random: Makes them differ.
    """

    def __init__(self, key: Key, store: Store, random: Random) -> None:
        self._key = key
        self._store = store
        self._random = random
        with store.reading() as transaction:
            self._memory = transaction.challenges.memory()

    def writes(self, *, expires_at: int) -> bool:
        """Whether making a challenge that expires then must write first, as the clock went back."""
        return expires_at <= self._memory.forgotten_before

    def issue(self, purpose: ChallengePurpose, *, expires_at: int) -> str:
        """Make a fresh challenge. Writes only if the clock went back by an hour.

        Raises:
            Unreachable: The clock went back and the database cannot be written.
        """
        memory = self._memory
        if self.writes(expires_at=expires_at):
            with self._store.transaction() as transaction:
                memory = transaction.challenges.memory()
                if expires_at <= memory.forgotten_before:
                    memory = transaction.challenges.begin_anew(self._random)
            self._memory = memory
        key = self._key(purpose, memory.generation)
        return make_challenge(key, expires_at=expires_at, random=self._random)

    def burn(
        self, used: UsedChallenges, challenge: str, purpose: ChallengePurpose, *, now: int
    ) -> ChallengeState | None:
        """Burn a challenge and return its former state; ``None`` if not made here for this purpose.

        Args:
            used: The used challenges, in a transaction that writes.
            challenge: 64 hex digits.
            purpose: What it is used for.
            now: The broker's time, seconds since the epoch.
        """
        memory = self._memory = used.forget(used.memory(), now=now)
        expires_at = expiry_of(challenge, self._key(purpose, memory.generation))
        if expires_at is None:
            return None
        forgotten = expires_at < memory.forgotten_before
        fresh = not forgotten and used.use(challenge, expires_at=expires_at)
        return ChallengeState(purpose=purpose, expires_at=expires_at, used=not fresh)
