"""The recorder of a run: it appends each event to the log and measures the log's head."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sealtrain.base.clock import Clock, to_rfc3339
from sealtrain.guest.journal import Journal
from sealtrain.signing.runlog import RunLog

if TYPE_CHECKING:
    from sealtrain.attest.guest import Guest

RUN_LOG_EVENT = "sealtrain-run-log"
"""Name under which guests that measure events of apps keep the heads of the run log."""


class Recorder:
    """Journal of one run, and the guest that measures it. Thread-safe.

    Attributes:
        journal: The journal that the manifest is built from.
        lock: Held while an event is recorded: no evidence is collected meanwhile.
    """

    def __init__(self, guest: Guest, lock: threading.RLock, run_id: str, clock: Clock) -> None:
        """Begin an empty journal.

        Args:
            guest: Measures heads.
            lock: Held by the thread that collects evidence of the guest.
            run_id: 32 hex digits.
            clock: Source of the time.
        """
        self._guest = guest
        self._clock = clock
        self._measures = True
        self.lock = lock
        self.journal = Journal(log=RunLog(run_id), started_at=to_rfc3339(clock()))

    def record(self, event: str, fields: dict[str, Any]) -> None:
        """Append an event to the run log; measure its head if the guest measures app events."""
        with self.lock:
            head = self.journal.log.append(event, fields, self._clock())
            if self._measures:
                self._measures = self._guest.note(RUN_LOG_EVENT, bytes.fromhex(head))

    def record_resume(self, counter: int, step: int, digest: str) -> dict[str, Any]:
        """Record that the run continues from a sealed state; returns the recorded entry."""
        kept = {"counter": counter, "step": step, "checkpoint": digest}
        with self.lock:
            self.journal.resumes.append({"at": to_rfc3339(self._clock()), **kept})
        return kept
