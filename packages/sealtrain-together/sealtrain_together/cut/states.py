"""Sealed states of a cut run: the server seals them, its owners open them together (spec §5).

No broker releases a key to the server, so each owner gives a share of one. The share follows from
the owner's data keys: an owner that was started again gives the same one and keeps no secret for
it. Each owner keeps which state it heard of last and refuses a server that holds an older one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from sealtrain.base.canonical import canonical_json, parse_canonical
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.models import Hex32, Hex64, OwnerName, StrictModel, load_model
from sealtrain.errors import DataInvalid
from sealtrain.guest.journal import Journal, JournalStore
from sealtrain.keys.derive import run_key
from sealtrain.sealing.checkpointstore import CheckpointStore
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.errors import CheckpointRefused, SealRefused
from sealtrain.sealing.store import SealedStore
from sealtrain.signing.parties import party_run_id

if TYPE_CHECKING:
    from sealtrain.signing.target import Target
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef

STATE_PURPOSE: Final = "cut-state"
"""What an owner's share is for (``LeadRun.joint_key``)."""
_NOTE: Final = "cut.json"
_MAX_NOTE_BYTES: Final = 1 << 16
_MAX_ARRIVED_BYTES: Final = 256 << 20
_KEPT: Final = 3
_FORM: Final = re.compile(r"arrived-[0-9]{8,}")
_Count = Annotated[int, Field(ge=0, le=2**53 - 1)]


class SealedCutState(StrictModel):
    """A sealed checkpoint of the server as both sides name it.

    Attributes:
        counter: 1 for the first of the run, increasing by one.
        step: Optimizer steps done.
        digest: File root of the sealed checkpoint, which binds the other fields.
        previous: Digest of the one before; ``None`` for the first.
    """

    counter: Annotated[int, Field(ge=1, le=2**53 - 1)]
    step: _Count
    digest: Hex64
    previous: Hex64 | None = None

    @classmethod
    def of(cls, ref: CheckpointRef) -> SealedCutState:
        """The state of a sealed checkpoint."""
        return cls(
            counter=ref.counter, step=ref.step, digest=ref.digest, previous=ref.previous or None
        )


def require_agreement(
    server: SealedCutState | None, known: SealedCutState | None, owner: str
) -> None:
    """Let both sides go on only from the same state.

    A server asks every owner to note a state before it seals the next one. So an owner knows the
    server's state or the one before it; an owner on a machine without a note knows none.

    Args:
        server: The state that the server goes on from.
        known: The newest state that the owner noted.
        owner: Its name.

    Raises:
        CheckpointRefused: One of the two was put back to an older state, or to another run's.
    """
    if known is None or server == known:
        return
    if server is not None:
        follows = (known.counter + 1, known.digest)
        if (server.counter, server.previous) == follows and server.step >= known.step:
            return
    raise CheckpointRefused(
        "server and owner know different sealed states of this run",
        check="sealed state",
        owner=owner,
        got=f"the server's is {_name_file(server)}",
        expected=f"{_name_file(known)}, which the owner noted, or the one after it",
        hint="put the newest folder of the side that was put back in its place again",
    )


def _name_file(state: SealedCutState | None) -> str:
    return "none" if state is None else f"{state.counter} of step {state.step}, {state.digest}"


def owner_share(
    data_keys: Mapping[str, DataKey], *, owner: str, target: Target, run_id: str
) -> bytes:
    """An owner's share of the key of the run's states, 32 bytes.

    Args:
        data_keys: Of the owner's datasets in the run, by dataset id.
        owner: Its name.
        target: The deployment that the owner approved.
        run_id: Of the whole run.
    """
    key = run_key(
        data_keys,
        app_id=target.app_id,
        compose_hash=target.compose_hash,
        run_id=party_run_id(run_id, owner),
    )
    return key.derive("lead-share", STATE_PURPOSE).reveal()


class _NoteFile(StrictModel):
    version: Literal[1]
    run_id: Hex32
    sealed: SealedCutState | None


@dataclass(slots=True)
class Note:
    """What an owner keeps of a run that it consented to. All of it is public.

    Attributes:
        path: Where it lies; ``None`` keeps it in memory only.
        run_id: Of the run consented to; ``None`` before.
        sealed: The newest state that the owner heard of.
    """

    path: Path | None = None
    run_id: str | None = None
    sealed: SealedCutState | None = None

    @classmethod
    def load(cls, folder: Path) -> Note:
        """The note in an owner's folder, or an empty one.

        Raises:
            DataInvalid: The file there is no note.
        """
        path = folder / _NOTE
        if not path.is_file():
            return cls(path)
        document = parse_canonical(read_bounded(path, _MAX_NOTE_BYTES), max_bytes=_MAX_NOTE_BYTES)
        found = load_model(_NoteFile, document, DataInvalid, _NOTE)
        return cls(path, found.run_id, found.sealed)

    def keep(self, run_id: str, sealed: SealedCutState | None) -> None:
        """Write down a run and its newest state; both are on disk afterwards.

        Raises:
            StorageFailed: The disk refuses it.
        """
        self.run_id, self.sealed = run_id, sealed
        if self.path is not None:
            document = _NoteFile(version=1, run_id=run_id, sealed=sealed).to_dict()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.path, canonical_json(document), overwrite=True)


class _Came(StrictModel):
    digests: dict[str, Hex64]
    size: _Count


class Arrived(StrictModel):
    """What had arrived of the owners when a state was sealed.

    Attributes:
        joined: When each owner joined first, seconds since the epoch.
        datasets: By dataset id, SHA-256 of each message by its number, and bytes in all.
    """

    joined: dict[OwnerName, _Count]
    datasets: dict[Hex32, _Came]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """An opened state: where a server goes on."""

    checkpoint: CheckpointRef
    journal: Journal
    arrived: Arrived


class ServerStates:
    """The sealed states in a server's folder.

    Attributes:
        newest: The newest whole state that the folder held; ``None`` where a run begins.
        store: Holds the checkpoints, once the states are open.
    """

    def __init__(self, out: Path, run_id: str) -> None:
        """Look for states; no key is needed for that.

        Args:
            out: The server's folder.
            run_id: 32 hex digits.

        Raises:
            CheckpointRefused: One does not follow the state before it.
        """
        from sealtrain.training.checkpoints.checkpoint import newest

        self._out, self._run_id = out, run_id
        self._set(DataKey(bytes(32)))  # reads names and hashes only
        there = (out / "checkpoints").is_dir() and (out / "journal").is_dir()
        self._found = (
            newest(self.store, None, complete=self._journals.counters()) if there else None
        )
        self.newest = None if self._found is None else SealedCutState.of(self._found)

    def _set(self, key: DataKey) -> None:
        self.store = CheckpointStore(
            self._out / "checkpoints", key.derive("checkpoints"), label=self._run_id
        )
        self._journals = JournalStore(self._out / "journal", key, self._run_id)
        self._arrived = SealedStore(
            self._out / "arrived", key.derive("arrived"), label=self._run_id
        )

    def open(self, key: DataKey) -> Continued | None:
        """Open the newest state; ``None`` where there is none.

        Args:
            key: Of all owners together (``LeadRun.joint_key``).

        Raises:
            CheckpointRefused: It is not of this run and these owners, or was altered.
        """
        self._set(key)
        for folder in ("checkpoints", "journal", "arrived"):
            (self._out / folder).mkdir(exist_ok=True)
        ref = self._found
        if ref is None:
            return None
        try:
            with self.store.read(ref.name, ref.binding(self._run_id), root=ref.digest) as file:
                file.read(1)
            journal = self._journals.load(ref.counter)
            with self._arrived.read(_name_arrived(ref.counter), _binding(ref)) as file:
                document = parse_canonical(
                    file.read(_MAX_ARRIVED_BYTES), max_bytes=_MAX_ARRIVED_BYTES
                )
        except (SealRefused, DataInvalid) as error:
            raise CheckpointRefused(
                "the sealed state does not open for this run and its owners",
                check="sealed state",
                got=error.code,
            ) from error
        arrived = load_model(Arrived, document, CheckpointRefused, "a sealed state")
        return Continued(checkpoint=ref, journal=journal, arrived=arrived)

    def seal(self, ref: CheckpointRef, arrived: Arrived) -> Callable[[Journal, float], None]:
        """Seal what belongs to a checkpoint, in the order that makes it whole.

        Returns:
            Seals the journal, called with it and the seconds of work so far. A state without a
            journal does not count.

        Raises:
            StorageFailed: The disk refuses it.
        """
        with self._arrived.write(_name_arrived(ref.counter), _binding(ref)) as file:
            file.write(canonical_json(arrived.to_dict()))
        for old in [name for name in self._arrived.names() if _FORM.fullmatch(name)][:-_KEPT]:
            self._arrived.remove(old)

        def journal(journal: Journal, wall_s: float) -> None:
            self._journals.save(journal, ref.counter, ref.step, wall_s)

        return journal


def _name_arrived(counter: int) -> str:
    return f"arrived-{counter:08d}"


def _binding(ref: CheckpointRef) -> dict[str, str | int]:
    return {"counter": ref.counter, "checkpoint": ref.digest}
