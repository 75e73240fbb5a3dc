"""Sealed states of a run, for another orchestrator that takes over (spec §6).

A state is one sealed blob: plan, journal so far and model state, bound to run and trip. What
follows the newest one is done again; an attacker who puts an older one in its place has to hold
back every newer one, and then holders count more trips than can be lost and refuse (``holder``).

The key is made of a share of each holder, so no orchestrator keeps it: one that takes over asks all
of them, proving itself anew, and a holder whose lease has ended has no share to give.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.canonical import canonical_json, parse_canonical
from sealtrain.sealing.store import SealedStore
from sealtrain_together.travelling.schedule import TravelPlan

if TYPE_CHECKING:
    from pathlib import Path

    from sealtrain.sealing.datakey import DataKey

STANDBY_PURPOSE: Final = "travel-standby"
"""What the joint key of a run's holders is for."""
_LENGTH_BYTES = 8
_MAX_JOURNAL_BYTES = 256 << 20
_KEPT = 2
_FORM = re.compile(r"[0-9]{9,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """Where a run stands.

    Attributes:
        plan: What to do.
        journal: As it was sealed; its ``log`` are the entries of the run log.
        state: Model state, safetensors bytes.
        counter: Entries of that log, from 1; names the state.
        root: File root of the sealed state, 64 hex digits.
    """

    plan: TravelPlan
    journal: dict[str, Any]
    state: bytes
    counter: int
    root: str


class Standby:
    """A folder of sealed states of one run.

    Args:
        folder: Where they lie.
        key: A standby that has it can take over.
        run_id: 32 hex digits.
    """

    def __init__(self, folder: Path, key: DataKey, run_id: str) -> None:
        self._store = SealedStore(folder, key.derive("travel-state"), label="travel")
        self._run_id = run_id

    def seal(self, plan: TravelPlan, journal: dict[str, Any], state: bytes) -> None:
        """Seal the present state and forget all but the newest two.

        Args:
            plan: Of the run.
            journal: What is known of the run, JSON-ready; ``log`` are its entries so far.
            state: Model state.

        Raises:
            StorageFailed: The disk is full or fails; older states are still whole.
        """
        text = canonical_json({"plan": plan.to_dict(), "journal": journal})
        name = f"{len(journal['log']):09d}"
        with self._store.write(name, self._binding(name)) as file:
            file.write(len(text).to_bytes(_LENGTH_BYTES, "big"))
            file.write(text)
            file.write(state)
        for old in self._names()[:-_KEPT]:
            self._store.remove(old)

    def newest(self) -> TakenOver | None:
        """The newest state; ``None`` before the first.

        Raises:
            SealRefused: It does not open under this key, or was made for another run.
        """
        names = self._names()
        if not names:
            return None
        newest = names[-1]
        root = self._store.verify(newest)
        with self._store.read(newest, self._binding(newest), root=root) as file:
            size = int.from_bytes(file.read(_LENGTH_BYTES), "big")
            document = parse_canonical(file.read(size), max_bytes=_MAX_JOURNAL_BYTES)
            state = file.read()
        return TakenOver(
            plan=TravelPlan.from_dict(document["plan"]),
            journal=document["journal"],
            state=state,
            counter=int(newest),
            root=root,
        )

    def _names(self) -> list[str]:
        """Of the states, oldest first; the folder is the operator's and may hold other files."""
        return [name for name in self._store.names() if _FORM.fullmatch(name)]

    def _binding(self, name: str) -> dict[str, str | int]:
        return {"run_id": self._run_id, "entries": int(name)}
