"""The lead's side of one attempt at a masked sum (spec/masked-sums.md §4, §6).

It brings sealed messages from party to party, adds up masked vectors, and takes off the masks whose
secrets a threshold of parties gave shares of. It opens the sum of those who survived, and nothing
else: parties refuse the rest (``masks.party``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sealtrain.base.models import StrictModel, load_model
from sealtrain.base.secret import Secret
from sealtrain.errors import ChannelBroken, Refused, UpdateRefused
from sealtrain.keys.shares import join_key
from sealtrain_collab.federated.masks.keys import Place, pair_seed, public_of, self_seed
from sealtrain_collab.federated.masks.messages import (
    Halves,
    Introduction,
    Opened,
    Shared,
    Tags,
    Task,
)
from sealtrain_collab.federated.masks.ring import Summed, decode, mask, words_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Summing"]

Bodies = dict[str, bytes]
"""What each party is asked, by name."""


class Summing:
    """One attempt.

    Args:
        place: Run, round and name of the attempt.
        numbers: That each update has.
        introductions: Of the members, by name.
    """

    def __init__(
        self,
        place: Place,
        numbers: int,
        introductions: Mapping[str, Introduction],
    ) -> None:
        self._place, self._length = place, numbers + 1
        self._introductions = dict(sorted(introductions.items()))
        self._halves: dict[str, Halves] = {}
        self._shared: dict[str, Shared] = {}
        self._vectors: dict[str, NDArray[np.uint64]] = {}
        self._survivors: tuple[str, ...] = ()
        self._tags: dict[str, Tags] = {}
        self._opened: dict[str, Opened] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """Who shared secrets of their masks."""
        return tuple(sorted(self._shared))

    @property
    def opened_by(self) -> tuple[str, ...]:
        """Who gave shares."""
        return tuple(sorted(self._opened))

    def introduce(self) -> Bodies:
        """The first step, for every member."""
        members = tuple(self._introductions.values())
        body = self._task("introduce", members=members)
        return dict.fromkeys(self._introductions, body)

    def share(self) -> Bodies:
        """The second, for those who sealed halves."""
        return {
            party: self._task("share", sealed=self._for(party, self._halves))
            for party in self._halves
        }

    def upload(self) -> Bodies:
        """The third, for those who shared secrets."""
        return {
            party: self._task("upload", sealed=self._for(party, self._shared))
            for party in self._shared
        }

    def agree(self, present: frozenset[str]) -> Bodies:
        """The fourth: who survived, from now on for good.

        Args:
            present: Parties that are there; others do not survive, whatever they sent.
        """
        self._survivors = tuple(sorted(set(self._vectors) & present))
        body = self._task("agree", survivors=self._survivors)
        return dict.fromkeys(self._survivors, body)

    def unmask(self) -> Bodies:
        """The last, for those who agreed."""
        return {
            party: self._task(
                "unmask",
                tags={
                    other: said.tags[party]
                    for other, said in self._tags.items()
                    if party in said.tags
                },
            )
            for party in self._tags
        }

    def take(self, step: str, party: str, words: Mapping[str, Any], data: bytes) -> None:
        """A party's answer.

        Raises:
            DataInvalid, Refused: It is none, or a vector of another length; it does not count.
        """
        if step == "upload":
            self._vectors[party] = words_of(data, self._length, party=party)
            return
        kinds: dict[str, tuple[type[StrictModel], dict[str, Any]]] = {
            "introduce": (Halves, self._halves),
            "share": (Shared, self._shared),
            "agree": (Tags, self._tags),
            "unmask": (Opened, self._opened),
        }
        kind, kept = kinds[step]
        kept[party] = load_model(kind, dict(words), ChannelBroken, "an answer about masks")

    @property
    def answered(self) -> Mapping[str, int]:
        """How many gave a usable answer, by step."""
        return {
            "introduce": len(self._halves),
            "share": len(self._shared),
            "upload": len(self._vectors),
            "agree": len(self._tags),
            "unmask": len(self._opened),
        }

    @property
    def survivors(self) -> tuple[str, ...]:
        """Whose updates are in the sum."""
        return self._survivors

    def summed(self, weights: Mapping[str, int]) -> Summed:
        """The sum of the survivors' updates.

        Args:
            weights: Records of each party, as it told the lead.

        Raises:
            UpdateRefused: Shares do not fit together or open another key than was shared, or what
                comes out is no sum of updates. Then nothing is merged.
        """
        total = sum(self._vectors[party] for party in self._survivors[1:])
        total = total + self._vectors[self._survivors[0]]
        for party in self._survivors:
            seed = self_seed(self._secret("own", party), self._place, party)
            mask(total, seed, add=False)
        for party in self.members:
            if party not in self._survivors:
                self._take_off_pairs(party, total)
        weight = sum(weights[party] for party in self._survivors)
        return decode(total, weight, len(self._survivors))

    def _take_off_pairs(self, gone: str, total: NDArray[np.uint64]) -> None:
        """Masks that survivors have in common with one that did not survive."""
        private = X25519PrivateKey.from_private_bytes(self._secret("pair", gone).reveal())
        public = public_of(private)
        if public.hex() != self._shared[gone].public_key:
            raise _shares_refused(gone, "another key")
        for party in self._survivors:
            theirs = party, bytes.fromhex(self._shared[party].public_key)
            try:
                seed = pair_seed(private, (gone, public), theirs, self._place)
            except Refused as error:
                raise _shares_refused(party, error.code) from error
            mask(total, seed, add=gone < party)  # what the survivor did is undone

    def _secret(self, which: str, party: str) -> Secret:
        documents = {
            giver: Secret(shares[party].encode())
            for giver, said in self._opened.items()
            if party in (shares := getattr(said, which))
        }
        joined = join_key(documents)
        if joined.key is None:
            raise _shares_refused(party, ", ".join(joined.wrong) or "too few shares")
        return Secret(joined.key.reveal())

    def _for(self, party: str, said: Mapping[str, Halves] | Mapping[str, Shared]) -> dict[str, str]:
        return {
            sender: one.sealed[party]
            for sender, one in said.items()
            if sender != party and party in one.sealed
        }

    def _task(self, step: Any, **fields: Any) -> bytes:
        return Task(step=step, attempt=self._place.attempt, **fields).to_bytes()


def _shares_refused(party: str, got: str) -> UpdateRefused:
    return UpdateRefused(
        "the shares of a party's secret open no mask of it",
        owner=party,
        check="mask shares",
        got=got,
        hint="a party gave another share than it was given; nothing was merged",
    )
