"""A run that holds released keys: its log, its metrics, its checkpoints and its lease.

``GuestRun.begin`` and ``GuestRun.again`` make it; they take steps 1 to 4 of ``guest.holding``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from sealtrain.base.canonical import canonical_json
from sealtrain.base.files import atomic_write, make_folder
from sealtrain.errors import AlreadyExists
from sealtrain.guest.guest import Surroundings
from sealtrain.guest.inventory import ANCHOR_FILE
from sealtrain.guest.journal import Journal, JournalStore
from sealtrain.guest.key_holder import Asking, DataGuest
from sealtrain.guest.recorder import Recorder
from sealtrain.guest.series import remember
from sealtrain.guest.settings import RunSettings, holds_run, save_run
from sealtrain.manifest.condense import NeededReleases
from sealtrain.manifest.limits import BORDER_CLOSED
from sealtrain.recipe.backends import UNDIVIDED, Division, divide_among
from sealtrain.sealing.errors import CheckpointRefused

if TYPE_CHECKING:
    from sealtrain.guest.sandbox.landlock import KernelBorder
    from sealtrain.guest.workload.fork import WorkloadProcess
    from sealtrain.guest.workload.opener import Opener
    from sealtrain.sealing.checkpointstore import CheckpointStore
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef

Stored = Callable[[int, float], bool]
"""Whether checkpoint ``counter`` is in the output store; waits for it at most so many seconds."""


_INNER: Final = ("checkpoints", "journal")
_PROBE_BYTES: Final = 64 << 10


class GuestRun(DataGuest):
    """See the module. ``guest.closing.close_run`` ends it.

    Attributes:
        workload: The process that runs the recipe's script or phase; ``None`` before it is forked.
        opener: The process that opens records for it.
    """

    workload: WorkloadProcess | None = None
    opener: Opener | None = None

    def __init__(
        self,
        settings: RunSettings,
        run_id: str,
        around: Surroundings,
        *,
        resuming: bool,
        stored: Stored | None = None,
        division: Division = UNDIVIDED,
    ) -> None:
        """Do nothing yet; ``begin`` and ``again`` prepare it, too.

        Args:
            settings: Where everything is.
            run_id: Of the run, under which the brokers know it.
            around: What else it is given.
            resuming: The brokers know the run.
            stored: As the type; ``None`` where there is no output store.
            division: Other numbers of ranks and nodes than the recipe's, which the recipe names.
        """
        super().__init__(
            settings, Asking(run_id=run_id, resuming=resuming), around, shared_out=False
        )
        self.run_id = run_id
        self._stored = stored
        self._division = division
        self._counter = 0
        self._needed: NeededReleases | None = None  # once the journal they belong to is loaded
        self._renewals: list[dict[str, Any]] = []  # of the time before

    def prepare(self) -> Self:
        """As ``DataGuest``, for a recipe of one guest; then lay out the folder of the run."""
        from sealtrain.sealing.checkpointstore import CheckpointStore

        self._began = time.monotonic()
        super().prepare()
        out = self.settings.out
        out.mkdir(exist_ok=True)
        for inner in _INNER:
            (out / inner).mkdir(exist_ok=True)
        self.store: CheckpointStore = CheckpointStore(
            out / "checkpoints", self.checkpoint_key, label=self.run_id
        )
        self._journals = JournalStore(out / "journal", self.grant.run_key, self.run_id)
        self._recorder = Recorder(self.admitted.guest, self._measuring, self.run_id, self._clock)
        self._released = self.grant.fresh
        return self

    def _before_keys(self, undoing: ExitStack) -> None:
        """Fork workload and opener: what they inherit has seen no broker yet."""
        from sealtrain.guest.side_processes import start_beside

        self.workload, self.opener = start_beside(self, undoing, division=self._division)

    def admit(self) -> Self:
        """As ``AttestedGuest``; the recipe is then as the ranks of this run train it."""
        super().admit()
        self.recipe = divide_among(self.lock.recipe, self._division)
        return self

    @classmethod
    def begin(
        cls, settings: RunSettings, around: Surroundings, *, stored: Stored | None = None
    ) -> GuestRun:
        """Start a new run in ``settings.out``, which must not hold one. Arguments as ``GuestRun``.

        Raises:
            AlreadyExists: The folder holds a run.
            SealtrainError: As ``prepare``; the folder is then left as it was.
        """
        if settings.out.exists() and any(settings.out.iterdir()):
            raise AlreadyExists(
                f"{settings.out} is not empty", hint="choose another --out, or resume this run"
            )
        with _prove_writable(settings.out):
            run_id = os.urandom(16).hex()
            run = cls(settings, run_id, around, resuming=False, stored=stored).prepare()
            save_run(settings, run.run_id)
            remember(settings.out, run.series)
            run.record("run.started", {"platform": settings.platform, "phase": run.recipe.phase})
            run.note_release()
            return run

    @classmethod
    def again(
        cls,
        settings: RunSettings,
        run_id: str,
        around: Surroundings,
        *,
        stored: Stored | None = None,
        division: Division = UNDIVIDED,
    ) -> GuestRun:
        """Continue a run under its own id (``load_run``). Arguments as ``GuestRun``.

        Raises:
            SealtrainError: As ``prepare``.
        """
        run = cls(settings, run_id, around, resuming=True, stored=stored, division=division)
        return run.prepare()

    def newest_checkpoint(self) -> CheckpointRef | None:
        """Load the journal of the newest checkpoint and return it; ``None`` to begin again.

        Raises:
            CheckpointRefused: The folder holds an older state than the broker anchored.
        """
        from sealtrain.training.checkpoints.checkpoint import newest

        anchor = self.grant.latest_checkpoint
        known = None if anchor is None else (anchor.counter, anchor.digest)
        ref = newest(self.store, known, complete=self._journals.counters())
        if ref is None:
            self.record("run.restarted", {})
        else:
            self._recorder.journal = self._journals.load(ref.counter)
            self._counter = ref.counter
            # Later checkpoints have this one's length, whatever training asks for.
            self.store.read(ref.name, ref.binding(self.run_id), root=ref.digest).close()
            kept = self._recorder.record_resume(ref.counter, ref.step, ref.digest)
            self.record("run.resumed", kept)
        self.note_release()
        # Only now: receipts of renewals follow the receipt of the release in the journal.
        self.lease_keeper.goes_on_from(ref, anchored=0 if anchor is None else anchor.counter)
        return ref

    @property
    def checkpoint_key(self) -> DataKey:
        """The key of the run's sealed checkpoints, the same after a resume."""
        return self.grant.run_key.derive("checkpoints")

    @property
    def journal(self) -> Journal:
        """The journal that the manifest is built from."""
        return self._recorder.journal

    def record(self, event: str, fields: dict[str, Any]) -> None:
        """Append an event to the run log, and measure its head where the guest can."""
        self._recorder.record(event, fields)

    def record_sandbox(self, held: KernelBorder) -> None:
        """Record it in the run log, from which the manifest's limits follow."""
        self.record(BORDER_CLOSED, held.to_dict())

    def note_release(self) -> None:
        """Keep the release, then the renewals since, for the manifest; its leases in the log.

        Raises:
            LimitExceeded: As ``keep_receipts``.
        """
        for receipted in self._released:
            lease = receipted.receipt.lease
            self.record("keys.released", {"lease_id": lease.lease_id, "not_after": lease.not_after})
        self._needed = NeededReleases(self.journal.releases)
        self.keep_receipts(
            [*(receipted.to_dict() for receipted in self._released), *self._renewals]
        )

    def keep_metrics(self, step: int, values: dict[str, float | None]) -> None:
        """Keep metrics that passed the release policy, unless the lease has ended.

        Raises:
            LeaseStale: The keys must not be used any longer.
        """
        self.journal.history.append({"step": step, "values": values})
        self.lease.require()

    def anchor_checkpoint(self, ref: CheckpointRef) -> None:
        """Write the journal of a checkpoint, anchor it at the brokers and renew the lease.

        The thread that sealed the checkpoint calls it once the checkpoint is complete, and waits
        for the anchoring only while the brokers answer.

        Raises:
            CheckpointRefused: The counter does not increase.
        """
        if ref.counter <= self._counter:
            raise CheckpointRefused(
                "the checkpoint counter does not increase",
                check="checkpoint counter",
                got=ref.counter,
                expected=f"above {self._counter}",
            )
        self._counter = ref.counter
        with self._measuring:
            self.record(
                "checkpoint.sealed",
                {"counter": ref.counter, "step": ref.step, "digest": ref.digest},
            )
            self._journals.save(self.journal, ref.counter, ref.step, self.wall())
        # Another guest continues from the store, and from nothing older than the anchor.
        if self._stored is None or self._stored(ref.counter, self.lease.seconds_left() / 4):
            self.lease_keeper.anchor_checkpoint(ref)

    def renew(self, checkpoint: tuple[int, str] | None = None) -> None:
        """As ``DataGuest.renew``; keeps the receipt of an anchored checkpoint in the folder."""
        super().renew(checkpoint)
        if checkpoint is not None:
            receipt = self.grant.fresh[-1].to_dict()
            # For the operator who looks into the folder; only the brokers' record counts.
            with contextlib.suppress(OSError):
                atomic_write(
                    self.settings.out / ANCHOR_FILE, canonical_json(receipt), overwrite=True
                )

    def wall(self) -> float:
        """Seconds of work so far, including earlier processes of this run."""
        return self.journal.wall_s + time.monotonic() - self._began

    def keep_receipts(self, receipts: Sequence[dict[str, Any]]) -> None:
        """Keep receipts, this guest's or another one's of the run, for the manifest.

        Raises:
            LimitExceeded: Their manifest would not hold them and the renewals to come.
        """
        if self._needed is None:
            raise AssertionError("receipts follow that of the release")
        with self._measuring:
            # A journal is sealed at every checkpoint, and a receipt comes with each.
            self._needed.add(receipts)
            self.journal.releases = self._needed.listed
            self._needed.require_room()

    def _keep(self, receipts: Sequence[dict[str, Any]]) -> None:
        if self._needed is None:
            self._renewals += receipts
        else:
            self.keep_receipts(receipts)


@contextlib.contextmanager
def _prove_writable(out: Path) -> Iterator[None]:
    """See that a run's folder takes files, before keys are asked for and privacy is reserved.

    Where the run does not begin, the folder is left as it was.
    """
    with make_folder(out):
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
        try:
            yield
        except BaseException:
            if not holds_run(out):
                for inner in _INNER:
                    with contextlib.suppress(OSError):
                        (out / inner).rmdir()
            raise
