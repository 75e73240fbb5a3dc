"""Sealed states of a run, for another orchestrator that takes over (spec §6).

A state is one sealed blob: the transcript so far and the model state, bound to run and trip. What
follows the newest one is done again; nobody can put an older one in its place who does not also
hold back every newer one, and then the transcript is shorter than the holders' own count of trips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sealtrain.base.canonical import canonical_json, parse_canonical
from sealtrain.collab.travelling.program import MAX_STATE_BYTES
from sealtrain.collab.travelling.schedule import Plan
from sealtrain.errors import CheckpointRefused
from sealtrain.records.runlog import RunLog
from sealtrain.sealing.store import SealedStore

if TYPE_CHECKING:
    from pathlib import Path

    from sealtrain.sealing.datakey import DataKey

__all__ = ["Standby", "TakenOver"]

_LENGTH_BYTES = 8
_MAX_LOG_BYTES = 64 << 20
_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """Where a run stands: its plan, its transcript and its model state."""

    plan: Plan
    log: RunLog
    state: bytes


class Standby:
    """A folder of sealed states of one run.

    Args:
        folder: Where they lie.
        key: Who has it can take over.
        run_id: 32 hex digits.
    """

    def __init__(self, folder: Path, key: DataKey, run_id: str) -> None:
        self._store = SealedStore(folder, key.derive("travel-state"), label="travel")
        self._run_id = run_id

    def seal(self, log: RunLog, state: bytes) -> None:
        """Seal the present state and forget all but the newest two.

        Raises:
            StorageFailed: The disk is full or fails; older states are still whole.
        """
        entries = log.entries
        text = canonical_json({"entries": entries, "head": log.head})
        name = f"{len(entries):09d}"
        with self._store.write(name, self._binding(name)) as file:
            file.write(len(text).to_bytes(_LENGTH_BYTES, "big"))
            file.write(text)
            file.write(state)
        for old in self._store.names()[:-_KEPT]:
            self._store.remove(old)

    def newest(self) -> TakenOver:
        """The newest state that is whole.

        Raises:
            CheckpointRefused: There is none.
            SealRefused: It does not open under this key, or was made for another run.
        """
        names = self._store.names()
        if not names:
            raise CheckpointRefused("there is no sealed state to go on from", check="standby")
        with self._store.read(names[-1], self._binding(names[-1])) as file:
            size = int.from_bytes(file.read(_LENGTH_BYTES), "big")
            document = parse_canonical(file.read(size), max_bytes=_MAX_LOG_BYTES)
            state = file.read(MAX_STATE_BYTES)
        log = RunLog.restore(self._run_id, document["entries"], head=document["head"])
        return TakenOver(
            plan=Plan.from_dict(document["entries"][0]["fields"]["plan"]), log=log, state=state
        )

    def _binding(self, name: str) -> dict[str, str | int]:
        return {"run_id": self._run_id, "entries": int(name)}
