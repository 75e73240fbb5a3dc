"""Sealed states of a federation's lead, which its parties open together (spec §8).

The lead keeps no key. Each state has a key of its own, split among the parties: more than half of
them give it back to a lead that attests. Parties know counter and digest of the newest state, and
their brokers anchor it; a lead that holds an older state, or another one, is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sealtrain.base.canonical import canonical_json, parse_canonical
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid
from sealtrain.keys.shares import MAX_DOCUMENT_BYTES, MAX_SHARES, join_key, split_key
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused, SealRefused, WrongKey
from sealtrain.sealing.store import SealedStore
from sealtrain.signing.parties import party_run_id
from sealtrain_together.errors import UpdateRefused
from sealtrain_together.federated.messages import MAX_STATE_BYTES, Count, PartyJoined, SealedState

SHARE_PURPOSE: Final = "federated-state"
"""What a party's share is for (``PartyRun.share``)."""
_STATE = re.compile(r"state-([0-9]{8,})")
_SHARE = re.compile(r"share-([0-9]{8,})-[0-9a-f]{32}")
_LENGTH_BYTES: Final = 8
_MAX_WORDS_BYTES: Final = 256 << 20
_KEPT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationStanding:
    """Where a federation stands after a merge.

    Attributes:
        round: The last one that was merged; 0 before the first.
        state: The merged adapter.
        reports: Newest report of each party whose update was merged, JSON-ready.
        steps: Optimizer steps of all updates that were merged.
        loss: Mean loss of the last round, ``None`` where there is none.
        memory: Of the rule that merges; empty for a rule that remembers nothing.
    """

    round: int = 0
    state: bytes
    reports: dict[str, dict[str, Any]]
    steps: int = 0
    loss: float | None = None
    memory: bytes = b""


class _Words(StrictModel):
    """What stands before the adapter in a state."""

    version: Literal[2]
    adapter: Annotated[int, Field(ge=1, le=MAX_STATE_BYTES)]
    round: Count
    steps: Count
    loss: float | None
    reports: dict[str, dict[str, Any]]
    digests: tuple[Hex64, ...]
    journal: dict[str, Any]


class LeadStates:
    """The sealed states of one run, and the shares of the parties that are there.

    Attributes:
        newest: The newest state that this lead sealed or opened; ``None`` before the first.
        waiting: Whether there is a state that has to be opened first.
        present: Parties that were present when the opened state was sealed.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        *,
        min_parties: int,
        journal: Callable[[], dict[str, Any]],
        take_up: Callable[[dict[str, Any], SealedState, FederationStanding], None],
        random: Random = os.urandom,
    ) -> None:
        """Look for a state to go on from.

        Args:
            folder: Where the states lie; made by the first.
            run_id: 32 hex digits.
            min_parties: Fewer never open a state.
            journal: What the lead wrote down so far, JSON-ready; ``log`` are its entries.
            take_up: Goes on with the journal of an opened state.
            random: Source of keys.
        """
        self._folder = folder
        self._run_id = run_id
        self._least = min_parties
        self._journal = journal
        self._take_up = take_up
        self._random = random
        self._shares: dict[str, DataKey] = {}
        self._known: dict[str, SealedState] = {}
        self._opening: dict[str, Secret] = {}
        self._digests: tuple[str, ...] = ()
        self._found = self._newest_whole()
        self.waiting = self._found is not None
        self.newest: SealedState | None = None
        self.present: tuple[str, ...] = ()

    def admit(self, joined: PartyJoined) -> None:
        """Take the share of a party that proved itself, and see what it knows.

        Raises:
            CheckpointRefused: It knows a state that this lead has not: an older one was put in its
                place, or another lead went on.
            UpdateRefused: Its share is not the one that the state was sealed to.
        """
        if joined.sealed is not None:
            if not self.waiting:
                self._refuse_rollback(joined.party, joined.sealed)
            self._known[joined.party] = joined.sealed
        if joined.share is None:
            raise UpdateRefused("a party gave no share", owner=joined.party, check="share")
        key = DataKey(bytes.fromhex(joined.share))
        if self._found is not None and self.waiting:
            document = self._share_of(joined.party, key, self._found.counter)
            if document is not None:
                self._opening[joined.party] = document
        self._shares[joined.party] = key

    def open_standing(self) -> FederationStanding | None:
        """The state to go on from, once enough parties are there to open it.

        Raises:
            CheckpointRefused: It is not of this run, does not open, or a party knows a newer one.
        """
        found = self._found
        joined = join_key(self._opening)
        if found is None or joined.key is None:
            return None
        words, state, memory = self._read(found, joined.key)
        self._digests = (*words.digests, found.digest)
        self.newest, self.waiting = found, False
        for party, known in self._known.items():
            self._refuse_rollback(party, known)
        standing = FederationStanding(
            round=words.round,
            state=state,
            reports=words.reports,
            steps=words.steps,
            loss=words.loss,
            memory=memory,
        )
        self._take_up(words.journal, found, standing)
        self.present = present_after(words.journal["log"])
        return standing

    def seal(self, standing: FederationStanding) -> None:
        """Seal where the run stands, and forget all but the newest two states.

        Raises:
            StorageFailed: The disk is full or fails; the state before is still whole.
        """
        counter = len(self._digests) + 1
        holders = sorted(self._shares)[:MAX_SHARES]
        threshold = min(max(self._least, len(holders) // 2 + 1), len(holders))
        key = DataKey(self._random(32))
        documents = split_key(key, threshold=threshold, count=len(holders), random=self._random)
        for party, document in zip(holders, documents, strict=True):
            store = self._share_store(self._shares[party])
            name = self._share_name(counter, party)
            with store.write(name, self._binding(counter)) as file:
                file.write(document.reveal())
        text = canonical_json({
            "version": 2, "round": standing.round, "steps": standing.steps, "loss": standing.loss,
            "reports": standing.reports, "digests": list(self._digests), "journal": self._journal(),
            "adapter": len(standing.state),
        })  # fmt: skip
        states = self._state_store(key)
        with states.write(f"state-{counter:08d}", self._binding(counter)) as file:
            file.write(len(text).to_bytes(_LENGTH_BYTES, "big"))
            file.write(text)
            file.write(standing.state)
            file.write(standing.memory)
        digest = states.root(f"state-{counter:08d}")
        self._digests = (*self._digests, digest)
        self.newest = SealedState(counter=counter, digest=digest)
        for name in states.names():
            form = _STATE.fullmatch(name) or _SHARE.fullmatch(name)
            if form is not None and int(form[1]) <= counter - _KEPT:
                states.remove(name)

    def _refuse_rollback(self, party: str, known: SealedState) -> None:
        mine = self._digests[known.counter - 1] if known.counter <= len(self._digests) else None
        if mine != known.digest:
            raise CheckpointRefused(
                "a party knows a sealed state of this run that its lead has not",
                check="sealed state",
                owner=party,
                got="none" if mine is None else f"{known.counter} {mine}",
                expected=f"{known.counter} {known.digest}",
                hint="put the newest states of the lead's folder back; another lead may go on",
            )

    def _newest_whole(self) -> SealedState | None:
        store = self._state_store(DataKey(bytes(32)))  # reads names and hashes only
        if not self._folder.is_dir():
            return None
        found = [form for name in store.names() if (form := _STATE.fullmatch(name))]
        for form in reversed(found):
            try:
                return SealedState(counter=int(form[1]), digest=store.verify(form[0]))
            except (SealRefused, DataInvalid):
                continue  # as a torn write leaves it
        if found:
            raise CheckpointRefused("no sealed state of this run is whole", check="sealed state")
        return None

    def _read(self, found: SealedState, key: DataKey) -> tuple[_Words, bytes, bytes]:
        name = f"state-{found.counter:08d}"
        try:
            binding = self._binding(found.counter)
            with self._state_store(key).read(name, binding, root=found.digest) as file:
                size = int.from_bytes(file.read(_LENGTH_BYTES), "big")
                document = parse_canonical(
                    file.read(min(size, _MAX_WORDS_BYTES)), max_bytes=_MAX_WORDS_BYTES
                )
                words = load_model(_Words, document, CheckpointRefused, "a sealed state")
                state = file.read(words.adapter)
                memory = file.read()  # whole, as it was sealed: a bound would be taken at once
        except (SealRefused, DataInvalid) as error:
            raise CheckpointRefused(
                "the sealed state does not open for this run",
                check="sealed state",
                got=error.code,
            ) from error
        if len(words.digests) != found.counter - 1:
            raise CheckpointRefused("a sealed state has another counter", check="sealed state")
        return words, state, memory

    def _share_of(self, party: str, key: DataKey, counter: int) -> Secret | None:
        try:
            name = self._share_name(counter, party)
            with self._share_store(key).read(name, self._binding(counter)) as file:
                return Secret(file.read(MAX_DOCUMENT_BYTES))
        except WrongKey as error:
            raise UpdateRefused(
                "a party is not the one that the state was sealed to", owner=party, check="share"
            ) from error
        except (SealRefused, DataInvalid):
            return None  # it joined later, or its share was lost: others open the state

    def _share_store(self, key: DataKey) -> SealedStore:
        return SealedStore(self._folder, key, label="federated-share", random=self._random)

    def _state_store(self, key: DataKey) -> SealedStore:
        key = key.derive(SHARE_PURPOSE)
        return SealedStore(self._folder, key, label="federated", random=self._random)

    def _share_name(self, counter: int, party: str) -> str:
        return f"share-{counter:08d}-{party_run_id(self._run_id, party)}"

    def _binding(self, counter: int) -> dict[str, str | int]:
        return {"run_id": self._run_id, "counter": counter}


def present_after(entries: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Parties that are there at the end of a run log, in the order in which they joined."""
    there: dict[str, None] = {}
    for entry in entries:
        if entry["event"] == "party.joined":
            there[entry["fields"]["party"]] = None
        elif entry["event"] == "party.left":
            there.pop(entry["fields"]["party"], None)
    return tuple(there)
