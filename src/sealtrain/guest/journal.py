"""The journal of a run: log, receipts and history, kept sealed beside the checkpoints.

The guest writes a journal before the broker anchors its checkpoint, under the same counter, so a
resumed run continues the log of exactly the checkpoint it continues from. Metrics of later steps,
which may exist while the checkpoint is being sealed, are left out: the resumed run measures them
again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sealtrain.base.canonical import JsonValue, canonical_json, parse_json
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.store import SealedStore
from sealtrain.signing.runlog import RunLog

_MAX_BYTES = 256 << 20
_KEPT = 3
_PADDING = "bucket"
_FORM = re.compile(r"journal-[0-9]{8,}")


@dataclass(slots=True, kw_only=True)
class Journal:
    """The growing record of one run.

    Attributes:
        log: Hash chain of events.
        started_at: RFC 3339 time of the first start.
        releases: Receipts and ledger proofs, as they go into the manifest.
        resumes: One entry per resumption, as it goes into the manifest.
        history: Released metrics: ``{"step": int, "values": {name: number | null}}``.
        served: Rows that a workload was given, by dataset id.
        wall_s: Seconds of work in earlier processes of this run.
    """

    log: RunLog
    started_at: str
    releases: list[dict[str, JsonValue]] = field(default_factory=list)
    resumes: list[dict[str, JsonValue]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "log": self.log.entries,
            "started_at": self.started_at,
            "releases": self.releases,
            "resumes": self.resumes,
            "history": self.history,
            "served": dict(self.served),
            "wall_s": round(self.wall_s, 3),
        }

    @classmethod
    def from_dict(cls, run_id: str, document: Mapping[str, Any]) -> Journal:
        """Restore a journal from the document that ``to_dict`` made.

        Raises:
            RunLogBroken: The log belongs to another run, or is broken.
        """
        return cls(
            log=RunLog.restore(run_id, document["log"]),
            started_at=document["started_at"],
            releases=list(document["releases"]),
            resumes=list(document["resumes"]),
            history=list(document["history"]),
            served=dict(document["served"]),
            wall_s=document["wall_s"],
        )


class JournalStore:
    """Sealed journals of one run, one per checkpoint counter."""

    def __init__(self, folder: Path, key: DataKey, run_id: str) -> None:
        self._run_id = run_id
        self._store = SealedStore(folder, key.derive("journal"), label=run_id)

    def save(self, journal: Journal, counter: int, step: int, wall_s: float) -> None:
        """Write the journal that belongs to checkpoint ``counter`` of ``step``.

        Raises:
            StorageFailed: The disk refuses it.
        """
        document = journal.to_dict() | {
            "history": [point for point in journal.history if point["step"] <= step],
            "wall_s": round(wall_s, 3),
        }
        with self._store.write(_name(counter), _binding(counter), padding=_PADDING) as file:
            file.write(canonical_json(document))
        for old in self._names()[:-_KEPT]:
            self._store.remove(old)

    def counters(self) -> set[int]:
        """Checkpoint counters that have a journal."""
        return {int(name.removeprefix("journal-")) for name in self._names()}

    def load(self, counter: int) -> Journal:
        """Read the journal of checkpoint ``counter``.

        Raises:
            SealRefused: It is missing, damaged or of another run.
        """
        with self._store.read(_name(counter), _binding(counter), padding=_PADDING) as file:
            document: Mapping[str, Any] = parse_json(file.read(), max_bytes=_MAX_BYTES)
        return Journal.from_dict(self._run_id, document)

    def _names(self) -> list[str]:
        """Names of the journals, oldest first; the operator's folder may hold other files."""
        return [name for name in self._store.names() if _FORM.fullmatch(name)]


def _name(counter: int) -> str:
    return f"journal-{counter:08d}"


def _binding(counter: int) -> dict[str, str | int]:
    return {"counter": counter}
