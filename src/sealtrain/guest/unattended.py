"""An unattended run: it brings its inputs, outlives crashes, and leaves its outputs.

1. ask for credentials of stores, which are lent to guests that prove themselves;
2. bring the models that the run ticket names, piece by piece; and, where the run begins with the
   model of the run before, that run's outputs;
3. bring the run's sealed states from the output store, if this guest takes a run over;
4. run in a process of its own, and start it again (``guest.supervision``);
5. leave each checkpoint in the store before it is anchored, and in the end model and manifest.

How far the run is stands in ``status.json`` beside the run's folder, and in the store's index.
Nothing here holds a key, and everything that comes from outside is checked where it is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from sealtrain.base.canonical import canonical_json
from sealtrain.base.files import atomic_write
from sealtrain.client.storecredentials import ask_lender
from sealtrain.errors import INTERNAL, SealtrainError, UsageError
from sealtrain.guest.series import note, note_counters
from sealtrain.guest.settings import RunSettings, read_held_run, save_run
from sealtrain.guest.supervision import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Beside,
    Endurance,
    Work,
    supervise,
)
from sealtrain.recipe.compose import compose_hash
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.storage.address import is_url
from sealtrain.storage.connect import open_folder
from sealtrain.storage.errors import OutputStoreInvalid, StorageRefused
from sealtrain.storage.outputs import OutputStore, State
from sealtrain.storage.pieces import fetch
from sealtrain.storage.retry import Patience

if TYPE_CHECKING:
    from sealtrain.attest.guest import Guest
    from sealtrain.client.ticket import ModelPlace, RunTicket
    from sealtrain.guest.run_end import Outcome

STATUS_NAME: Final = "status.json"
PREVIOUS_FOLDER: Final = "previous"
"""Where the outputs of the run before are brought, beside the run's folder."""
_IN_RUN: Final = Patience(attempts=3, longest=5.0)
"""While training goes on, the next checkpoint brings the next try."""
_TRY_AGAIN_SECONDS: Final = 15.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Called with what an operator wants to know.

    Attributes:
        waits: Why the run is paused, and for how many seconds.
        missed: What kept the store from taking something; the run goes on.
    """

    waits: Callable[[SealtrainError, float], None]
    missed: Callable[[SealtrainError], None]


def run_unattended(
    settings: RunSettings,
    ticket: RunTicket,
    *,
    begin: Work,
    again: Work,
    guest: Callable[[], Guest],
    reports: Reports,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome | None:
    """Run to the end.

    Args:
        settings: Where everything is.
        ticket: Names store and models, and says how long to wait and how often to start again.
        begin: Starts the run; called in a process of its own.
        again: Resumes it; called in a process of its own.
        guest: Reaches the guest's own interface, which collects evidence.
        reports: See there.
        monotonic: Clock that counts seconds.
        sleep: Waits so many seconds.

    Returns:
        ``None`` where the run was finished before.

    Raises:
        SealtrainError: The run's last error.
        OutputStoreInvalid: The store holds something else than a run of this document.
        ModelInvalid: A model's files are others than the ticket says.
        StorageUnreachable: A store did not answer for ``ticket.wait_seconds``.
    """
    if (settings.out / RUN_MANIFEST).is_file() and ticket.store is None:
        return None
    ends = monotonic() + ticket.wait_seconds

    def patiently(work: Callable[[], Answer]) -> Answer:
        pause = FIRST_PAUSE
        while True:
            try:
                return work()
            except SealtrainError as error:
                rest = min(pause, ends - monotonic())
                if error.retry != "again" or rest <= 0:
                    raise
                reports.waits(error, rest)
                sleep(rest)
                pause = min(2 * pause, LONGEST_PAUSE)

    if ticket.credentials is not None:
        os.environ.update(patiently(partial(_ask_lender, ticket.credentials, guest)))
    for path, place in sorted(ticket.models.items()):
        patiently(partial(_bring, settings.base / path, place))
    if ticket.previous is not None and is_url(ticket.previous):
        patiently(partial(_bring_outputs, ticket.previous, settings.previous, guest))
    store = None
    if ticket.store is not None:
        there = open_folder(ticket.store, patience=_IN_RUN)
        store = OutputStore(there, patiently(lambda: compose_hash(guest().app_compose())))
        if patiently(partial(_take_over, store, settings)) == "completed":
            return None
    beside = _Unattended(settings.out, store, reports, monotonic)
    if (settings.out / RUN_MANIFEST).is_file():  # what it made may not be in the store yet
        patiently(partial(beside.tell, "completed"))
        return None
    held = read_held_run(settings.out)
    if held is not None:  # the ticket may name other places than the one it began with
        save_run(settings, held)
    try:
        outcome = supervise(
            begin if held is None else again,
            again,
            out=settings.out,
            endures=Endurance(
                seconds=ticket.wait_seconds, restarts=ticket.restarts, before_run=True
            ),
            beside=beside,
            monotonic=monotonic,
            sleep=sleep,
        )
    except SealtrainError as error:
        with suppress(StorageRefused, UsageError):  # the reason why it ended may be just that
            beside.note("failed", error.code)
        raise
    except Exception:  # a bug, whose text could quote a record
        with suppress(StorageRefused, UsageError):
            beside.note("failed", INTERNAL)
        raise
    patiently(partial(beside.tell, "completed"))
    return outcome


def _ask_lender(url: str, guest: Callable[[], Guest]) -> dict[str, str]:
    here = guest()
    return ask_lender(url, here.evidence, compose_hash(here.app_compose()))


def _bring(folder: Path, place: ModelPlace) -> None:
    there = open_folder(place.address)
    try:
        for name, pieces in sorted(place.files.items()):
            fetch(there, name, pieces, folder / name, refused=ModelInvalid)
    finally:
        there.close()


def _bring_outputs(address: str, folder: Path | None, guest: Callable[[], Guest]) -> None:
    """Bring manifest and sealed model of the run before out of its own store."""
    if folder is None:
        raise AssertionError("settings name the folder of what the ticket brings")
    there = open_folder(address)
    try:
        store = OutputStore(there, compose_hash(guest().app_compose()))
        index = store.read()
        if index is None or index.state != "completed":
            raise OutputStoreInvalid(
                "the output store of the run before holds no finished run",
                check="previous",
                got="nothing" if index is None else index.state,
                expected="completed",
                hint="name the store of the newest run of the chain",
            )
        store.take_outputs(folder)
    finally:
        there.close()


def _take_over(store: OutputStore, settings: RunSettings) -> State | None:
    """How far the store's run is; where it goes on, its sealed states are here then."""
    out = settings.out
    index = store.read()
    if index is None or index.run_id is None:
        return None
    if read_held_run(out) not in (None, index.run_id):
        return None  # this guest has begun another one, which the store shows soon
    if index.state != "completed":
        # Also without a checkpoint: another run would reserve its privacy once more.
        store.take(out)
        out.mkdir(exist_ok=True)
        note(out, index.series)
        save_run(settings, index.run_id)
    return index.state


class _Unattended(Beside):
    """Leaves sealed states in the store, and tells how far the run is."""

    def __init__(
        self,
        out: Path,
        store: OutputStore | None,
        reports: Reports,
        monotonic: Callable[[], float],
    ) -> None:
        self._out = out
        self._store = store
        self._reports = reports
        self._monotonic = monotonic
        self._attempts = 0
        self._told: tuple[State, str | None] = ("waiting", None)
        self._try_at: float | None = None
        self.stores = store is not None

    def starts(self, attempt: int) -> None:
        """As ``Beside``. What the folder holds is in the store before the run can anchor it."""
        self._attempts = attempt
        sealed = any((self._out / "checkpoints").glob("checkpoint-*"))
        self.note("checkpointed" if sealed else "started")

    def tick(self) -> None:
        """As ``Beside``. Tries again what the store did not take."""
        if self._try_at is not None and self._monotonic() >= self._try_at:
            self.note(*self._told)

    def has_stored(self, counter: int) -> bool:
        """As ``Beside``."""
        if self._try_at is None or self._monotonic() >= self._try_at:
            self.note("checkpointed")
        return self._store is not None and self._store.index.holds_checkpoint(counter)

    def waits(self, error: SealtrainError, seconds: float) -> None:
        """As ``Beside``."""
        self.note("waiting", error.code)
        self._reports.waits(error, seconds)

    def note(self, state: State, code: str | None = None) -> None:
        """Tell how far the run is; a store that does not take it is tried again later.

        Raises:
            StorageRefused, UsageError: The store never will, so the run would end without outputs.
        """
        try:
            self.tell(state, code)
            self._try_at = None
        except (StorageRefused, UsageError):
            raise  # it never will: the run ends with this reason
        except SealtrainError as error:
            self._try_at = self._monotonic() + _TRY_AGAIN_SECONDS
            self._reports.missed(error)

    def tell(self, state: State, code: str | None = None) -> None:
        """Tell how far the run is, here and in the store.

        Raises:
            SealtrainError: The store does not take it.
        """
        self._told = (state, code)
        run_id = read_held_run(self._out)
        told = {
            "version": 1,
            "run_id": run_id,
            "state": state,
            "code": code,
            "attempts": self._attempts,
        }
        atomic_write(self._out.parent / STATUS_NAME, canonical_json(told), overwrite=True)
        if self._store is not None:
            self._store.leave(
                self._out,
                run_id=run_id,
                state=state,
                code=code,
                attempts=self._attempts,
                series=note_counters(self._out),
            )
