"""A party's side of a masked sum: what it gives, and what it never gives (spec/masked-sums.md §5).

An attempt goes through the states of ``_Stage`` in their order; the lead names the next step. What
the lead says of other parties counts only under a key that it does not have. Three rules keep a
lead that is not honest from a single update:

- of one party it gets the share that opens its own mask, or the one that opens its pairwise masks,
  never both;
- shares are given only for survivors on whom a threshold of parties agrees, and a threshold is more
  than half of all;
- of one round they are given for one set of survivors, also after an interruption: two sums of the
  same updates would differ by a single one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import Field

from sealtrain.base.canonical import parse_json
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.models import Hex32, Hex64, OwnerName, StrictModel, load_model
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import ChannelBroken, DataInvalid, MasksRefused, SealtrainError
from sealtrain.keys.shares import split_key
from sealtrain.release.messages import load_message
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.hpke import HpkePrivateKey, HpkePublicKey
from sealtrain_collab.federated.masks.introductions import members_digest
from sealtrain_collab.federated.masks.keys import (
    Pair,
    Place,
    half_info,
    pair_seed,
    public_of,
    self_seed,
)
from sealtrain_collab.federated.masks.messages import (
    Envelope,
    Halves,
    Introduction,
    Opened,
    Shared,
    Tags,
    Task,
)
from sealtrain_collab.federated.masks.ring import mask

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sealtrain_collab.channel.answers import Done

__all__ = ["PartyMasks", "Revealed", "Terms"]

_HALF_BYTES: Final = 32
_MAX_FILE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the recipe says of masked sums.

    Attributes:
        threshold: Shares that open a sum; more than half of all parties.
        least: Updates that a sum has to be of.
    """

    threshold: int
    least: int


class _File(StrictModel):
    version: Literal[1]
    run_id: Hex32
    round: Annotated[int, Field(ge=1)]
    state: Hex64
    survivors: tuple[OwnerName, ...]


class Revealed:
    """The newest round in which this party gave shares, and for whom; outlives its process.

    Args:
        path: Of the file; the party's own folder.
        run_id: Of the whole run.
        floor: Rounds up to this one are refused where there is no file: an earlier guest of this
            party, whose folder is not here, may have given shares in them.

    Raises:
        MasksRefused: The file is of another run.
        DataInvalid: It is none.
    """

    def __init__(self, path: Path, run_id: str, *, floor: int = 0) -> None:
        self._path, self._run_id, self._floor = path, run_id, floor
        self._last: _File | None = None
        if path.is_file():
            document = parse_json(read_bounded(path, _MAX_FILE_BYTES), max_bytes=_MAX_FILE_BYTES)
            self._last = load_model(_File, document, DataInvalid, path.name)
            if self._last.run_id != run_id:
                raise MasksRefused("the masked sums in the folder are of another run", check="run")

    def note(self, number: int, state: str, survivors: Sequence[str]) -> None:
        """Write down that shares are about to be given.

        Args:
            number: Of the round.
            state: Digest of the adapter that the round began with.
            survivors: Whose sum they open.

        Raises:
            MasksRefused: They were given for another sum of this round, or for a later round.
            StorageFailed: It cannot be written; then nothing is given.
        """
        last = self._last
        asked = _File(
            version=1, run_id=self._run_id, round=number, state=state, survivors=tuple(survivors)
        )
        if last == asked:
            return
        newest = self._floor if last is None else last.round
        if number <= newest:
            raise MasksRefused(
                "the sum of this round was opened already, or of a later one",
                check="second sum",
                got=f"round {number} of {', '.join(survivors)}",
                expected=f"a round after {newest}"
                if last is None or number < newest
                else f"round {number} of {', '.join(last.survivors)}",
                hint="two sums of one round would differ by single updates",
            )
        atomic_write(self._path, asked.to_bytes(), overwrite=True)
        self._last = asked


class _Stage(IntEnum):
    """The last step that was done; the next one is the only one that may follow."""

    BEGUN = 0
    INTRODUCED = 1
    SHARED = 2
    UPLOADED = 3
    AGREED = 4
    UNMASKED = 5


_STAGES: Final[Mapping[str, _Stage]] = {
    "introduce": _Stage.INTRODUCED,
    "share": _Stage.SHARED,
    "upload": _Stage.UPLOADED,
    "agree": _Stage.AGREED,
    "unmask": _Stage.UNMASKED,
}


@dataclass(slots=True)
class _Held:
    """The update of a round, until its sum is opened."""

    round: int
    state: str
    vector: NDArray[np.uint64]


@dataclass(slots=True)
class _Attempt:
    """One attempt, as far as it came."""

    place: Place
    stage: _Stage = _Stage.BEGUN
    members: str = ""
    peers: dict[str, HpkePublicKey] = field(default_factory=dict)
    halves: dict[str, Secret] = field(default_factory=dict)
    pairs: dict[str, Pair] = field(default_factory=dict)
    private: X25519PrivateKey | None = None
    own: Secret | None = None
    own_shares: dict[str, Secret] = field(default_factory=dict)
    envelopes: dict[str, Envelope] = field(default_factory=dict)
    survivors: tuple[str, ...] = ()
    given: tuple[Task, Opened] | None = None


class PartyMasks:
    """One party of one run.

    Args:
        me: Its name.
        run_id: Of the whole run.
        terms: Of the recipe.
        own: Its introduction.
        key: The private half of the key in it.
        peer_key: Verifies an introduction (``introductions.peer_key``).
        revealed: Which shares it gave before.
        random: Source of masks and keys.
    """

    def __init__(
        self,
        me: str,
        run_id: str,
        terms: Terms,
        *,
        own: Introduction,
        key: HpkePrivateKey,
        peer_key: Callable[[Introduction], HpkePublicKey],
        revealed: Revealed,
        random: Random,
    ) -> None:
        self._me, self._run_id, self._terms = me, run_id, terms
        self._own, self._key, self._peer_key = own, key, peer_key
        self._revealed = revealed
        self._random = random
        self._held: _Held | None = None
        self._attempt: _Attempt | None = None
        self.introduction = own
        """For the lead to bring to the others."""

    def hold(self, number: int, state: str, vector: NDArray[np.uint64]) -> None:
        """Keep an update until its sum is asked for.

        Args:
            number: Of the round.
            state: Digest of the adapter it was learned from.
            vector: As ``ring.encode`` makes it.
        """
        self._held, self._attempt = _Held(number, state, vector), None

    def holds(self, number: int, state: str) -> bool:
        """Whether the update of this round is here already: a lead that lost it asks again."""
        return self._held is not None and (self._held.round, self._held.state) == (number, state)

    def answer(self, number: int, body: bytes) -> Done:
        """Do a step.

        Args:
            number: Of the round.
            body: A ``Task``.

        Raises:
            MasksRefused: The lead asks for something that it may not have.
            ChannelBroken: What it brings of other parties was altered, or is no task.
        """
        task = Task.read(body)
        held = self._held
        if held is None or held.round != number:
            raise MasksRefused("this party holds no update of the round", check="round", got=number)
        attempt = self._attempt
        if task.step == "introduce":
            place = Place(run_id=self._run_id, round=number, attempt=task.attempt)
            if attempt is not None and attempt.place == place:
                raise _out_of_turn(task, attempt.stage)
            attempt = self._attempt = _Attempt(place)
        if attempt is None or attempt.place.attempt != task.attempt:
            raise MasksRefused("there is no such attempt", check="attempt", got=task.attempt)
        if attempt.given is not None and task == attempt.given[0]:
            return attempt.given[1].to_dict(), b""
        if _STAGES[task.step] != attempt.stage + 1:
            raise _out_of_turn(task, attempt.stage)
        attempt.stage = _STAGES[task.step]  # a step that was refused is not done again
        done = {
            "introduce": self._introduce,
            "share": self._share,
            "upload": self._upload,
            "agree": self._agree,
            "unmask": self._unmask,
        }[task.step](attempt, task, held)
        return done

    def _introduce(self, attempt: _Attempt, task: Task, held: _Held) -> Done:
        names = [one.party for one in task.members]
        if names != sorted(set(names)) or self._own not in task.members:
            raise MasksRefused(
                "the members of a masked sum are not in order, or this party is another there",
                check="members",
                got=", ".join(names),
            )
        self._enough(names, "members")
        attempt.members = members_digest(task.members)
        sealed = {}
        for one in task.members:
            if one.party == self._me:
                continue
            attempt.peers[one.party] = key = self._peer_key(one)
            attempt.halves[one.party] = half = Secret(self._random(_HALF_BYTES))
            info = half_info(attempt.place, attempt.members, sender=self._me, receiver=one.party)
            sealed[one.party] = to_base64(key.seal(half.reveal(), info=info))
        return Halves(sealed=sealed).to_dict(), b""

    def _share(self, attempt: _Attempt, task: Task, held: _Held) -> Done:
        for peer, text in task.sealed.items():
            attempt.pairs[peer] = self._pair(attempt, peer, text)
        names = sorted([self._me, *attempt.pairs])
        self._enough(names, "members")
        attempt.private = X25519PrivateKey.from_private_bytes(self._random(32))
        attempt.own = Secret(self._random(32))
        public = public_of(attempt.private).hex()
        own, pair = (
            split_key(
                DataKey(secret),
                threshold=self._terms.threshold,
                count=len(names),
                random=self._random,
            )
            for secret in (attempt.own.reveal(), attempt.private.private_bytes_raw())
        )
        sealed = {}
        for name, own_share, pair_share in zip(names, own, pair, strict=True):
            if name == self._me:
                attempt.own_shares = {"own": own_share, "pair": pair_share}
                continue
            envelope = Envelope(
                public_key=public,
                own=own_share.reveal().decode(),
                pair=pair_share.reveal().decode(),
            )
            sealed[name] = to_base64(attempt.pairs[name].seal(envelope.to_bytes()))
        return Shared(public_key=public, sealed=sealed).to_dict(), b""

    def _pair(self, attempt: _Attempt, peer: str, text: str) -> Pair:
        mine = attempt.halves.get(peer)
        if mine is None:
            raise MasksRefused("a half of a secret is of no member", check="members", got=peer)
        info = half_info(attempt.place, attempt.members, sender=peer, receiver=self._me)
        try:
            theirs = self._key.open(from_base64(text), info=info)
        except SealtrainError as error:
            raise ChannelBroken(
                "what the lead brought of another party does not open",
                owner=peer,
                check="mask half",
                hint="it was altered, or is of another party, round or attempt",
            ) from error
        halves = {self._me: mine.reveal(), peer: theirs.reveal()}
        secret = Secret(b"".join(halves[name] for name in sorted(halves)))
        return Pair(
            place=attempt.place, members=attempt.members, me=self._me, peer=peer, secret=secret
        )

    def _upload(self, attempt: _Attempt, task: Task, held: _Held) -> Done:
        if attempt.private is None or attempt.own is None:
            raise _out_of_turn(task, attempt.stage)
        for peer, text in task.sealed.items():
            if peer not in attempt.pairs:
                raise MasksRefused("an envelope is of no member", check="members", got=peer)
            plain = attempt.pairs[peer].open(from_base64(text))
            attempt.envelopes[peer] = load_message(Envelope, plain.reveal(), error=ChannelBroken)
        self._enough([self._me, *attempt.envelopes], "members")
        vector = held.vector.copy()
        mask(vector, self_seed(attempt.own, attempt.place, self._me), add=True)
        mine = self._me, public_of(attempt.private)
        for peer, envelope in attempt.envelopes.items():
            theirs = peer, bytes.fromhex(envelope.public_key)
            seed = pair_seed(attempt.private, mine, theirs, attempt.place)
            mask(vector, seed, add=self._me < peer)
        return {}, vector.astype("<u8", copy=False).tobytes()

    def _agree(self, attempt: _Attempt, task: Task, held: _Held) -> Done:
        names = list(task.survivors)
        here = {self._me, *attempt.envelopes}
        if names != sorted(set(names)) or self._me not in names or not set(names) <= here:
            raise MasksRefused(
                "the survivors of a masked sum are not among its members",
                check="survivors",
                got=", ".join(names),
            )
        self._enough(names, "survivors")
        attempt.survivors = task.survivors
        tags = {
            name: attempt.pairs[name].tag(names, sent=True) for name in names if name != self._me
        }
        return Tags(tags=tags).to_dict(), b""

    def _unmask(self, attempt: _Attempt, task: Task, held: _Held) -> Done:
        survivors = attempt.survivors
        for name, tag in task.tags.items():
            pair = attempt.pairs.get(name)
            expected = None if pair is None else pair.tag(survivors, sent=False)
            if name not in survivors or not hmac.compare_digest(tag, expected or ""):
                raise MasksRefused(
                    "another party was told of other survivors",
                    owner=name,
                    check="survivors",
                    hint="the lead asked for shares of two sums; no share was given",
                )
        if len(task.tags) + 1 < self._terms.threshold:
            raise MasksRefused(
                "too few parties agree on the survivors",
                check="threshold",
                got=len(task.tags) + 1,
                expected=f"at least {self._terms.threshold}",
            )
        self._revealed.note(held.round, held.state, survivors)
        shares: dict[str, dict[str, str]] = {"own": {}, "pair": {}}
        for name in sorted({self._me, *attempt.envelopes}):
            which = "own" if name in survivors else "pair"
            shares[which][name] = (
                attempt.own_shares[which].reveal().decode()
                if name == self._me
                else getattr(attempt.envelopes[name], which)
            )
        opened = Opened(**shares)
        attempt.given = task, opened
        return opened.to_dict(), b""

    def _enough(self, names: Sequence[str], check: str) -> None:
        if len(names) < self._terms.least:
            raise MasksRefused(
                "a masked sum would be of too few updates",
                check=check,
                got=len(names),
                expected=f"at least {self._terms.least}",
            )


def _out_of_turn(task: Task, stage: _Stage) -> MasksRefused:
    return MasksRefused(
        "the lead asks for a step of a masked sum out of turn",
        check="step",
        got=task.step,
        expected=f"what follows {stage.name.lower()}",
    )
