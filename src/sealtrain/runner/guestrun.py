"""A run that holds released keys: what it may do with them, and what it records.

Made by ``GuestRun.begin`` or ``GuestRun.again``, which take the steps

1. admit: the measured deployment holds this lock, and the environment is the locked one;
2. find the sealed datasets the recipe names, signed by their owners;
3. attest to the brokers and obtain data keys and lease; the run's key follows from them;
4. open the datasets as streams: plaintext exists in memory only.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import Clock, system_clock, to_rfc3339
from sealtrain.base.files import atomic_write
from sealtrain.consortium.decisions import Target
from sealtrain.errors import AlreadyExists, CheckpointRefused
from sealtrain.records.runlog import RunLog
from sealtrain.runner.admission import Admitted, admit
from sealtrain.runner.datasets import FoundDataset, find_datasets
from sealtrain.runner.hush import Tally
from sealtrain.runner.inventory import ANCHOR_FILE
from sealtrain.runner.journal import Journal, JournalStore
from sealtrain.runner.lease import Lease
from sealtrain.runner.leasekeeper import LeaseKeeper
from sealtrain.runner.settings import RunSettings, load_run, save_run

if TYPE_CHECKING:
    from sealtrain.attest.evidence import Evidence
    from sealtrain.attest.report_data import Binding
    from sealtrain.consortium.members import Consortium
    from sealtrain.release.grants import Grants
    from sealtrain.release.quorum import Quorum, Told
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.sealing.dataset import SealedDataset
    from sealtrain.sealing.store import SealedStore
    from sealtrain.training.checkpoint import CheckpointRef
    from sealtrain.training.sources import Source

__all__ = ["GuestRun"]

Random = Callable[[int], bytes]
RUN_LOG_EVENT = "sealtrain-run-log"
"""Name under which guests that measure events of apps keep the heads of the run log."""


class GuestRun:
    """See the module. ``runner.closing.close_run`` ends it."""

    def __init__(
        self,
        settings: RunSettings,
        run_id: str,
        *,
        resuming: bool,
        told: Told,
        clock: Clock = system_clock,
        random: Random = os.urandom,
    ) -> None:
        """Steps 1 to 4.

        Args:
            settings: Where everything is.
            run_id: 32 hex digits.
            resuming: Continue a run the brokers know.
            told: Hears of each broker that did not help while the others suffice.
            clock: Source of the time.
            random: Source of nonces and ephemeral keys.

        Raises:
            Refused: Any check of steps 1 to 4 fails; its class says which.
            Unreachable: Too few brokers answered, or the guest API did not.
        """
        from sealtrain.release.pin import load_pin
        from sealtrain.release.quorum import Quorum
        from sealtrain.sealing.dataset import SealedDataset
        from sealtrain.sealing.store import SealedStore

        self.settings = settings
        self.run_id = run_id
        self._clock = clock
        self._began = time.monotonic()
        self._renewing = threading.Lock()
        self._recording = threading.RLock()
        self.admitted: Admitted = admit(settings)
        lock = self.admitted.lock
        self.recipe = lock.recipe

        self.quorum: Quorum = Quorum(
            [load_pin(path) for path in settings.brokers],
            consortium_id=lock.consortium_id,
            app_id=self.admitted.app_id,
            compose_hash=self.admitted.compose_hash,
            clock=clock,
            told=told,
            random=random,
        )
        self.consortium: Consortium = self.quorum.meet()
        self.found: tuple[FoundDataset, ...] = find_datasets(
            settings.data, self.recipe, self.consortium
        )
        self.lease = Lease(clock)
        self.keeper = LeaseKeeper(self.lease, self.renew)
        self.grant: Grants = self._obtained(resuming=resuming)
        self.sealed = [
            SealedDataset.open(
                one.folder, self.grant.data_keys[one.manifest.dataset_id], root=one.manifest.root
            )
            for one in self.found
        ]
        settings.out.mkdir(exist_ok=True)
        for inner in ("checkpoints", "journal"):
            (settings.out / inner).mkdir(exist_ok=True)
        self.store: SealedStore = SealedStore(
            settings.out / "checkpoints", self.grant.run_key.derive("checkpoints"), label=run_id
        )
        self._journals = JournalStore(settings.out / "journal", self.grant.run_key, run_id)
        self.journal = Journal(log=RunLog(run_id), started_at=to_rfc3339(clock()))
        self._counter = 0
        self._measures = True
        self.tally = Tally()

    @classmethod
    def begin(cls, settings: RunSettings, *, told: Told, clock: Clock = system_clock) -> GuestRun:
        """Start a new run in ``settings.out``, which must not hold one.

        Raises:
            AlreadyExists: The folder holds a run.
            SealtrainError: As the constructor; then nothing is left behind.
        """
        if settings.out.exists() and any(settings.out.iterdir()):
            raise AlreadyExists(
                f"{settings.out} is not empty", hint="choose another --out, or resume this run"
            )
        run = cls(settings, os.urandom(16).hex(), resuming=False, told=told, clock=clock)
        save_run(settings, run.run_id)
        run.record("run.started", {"platform": settings.platform, "phase": run.recipe.phase})
        run.note_release()
        return run

    @classmethod
    def again(cls, out: Path, *, told: Told, clock: Clock = system_clock) -> GuestRun:
        """Continue the run in ``out`` under its own id.

        Raises:
            UsageError: The folder holds no run.
            SealtrainError: As the constructor.
        """
        settings, run_id = load_run(out)
        return cls(settings, run_id, resuming=True, told=told, clock=clock)

    def newest_checkpoint(self) -> CheckpointRef | None:
        """The checkpoint to continue from, with its journal taken up; ``None`` to begin again.

        Raises:
            CheckpointRefused: The folder holds an older state than the broker knows of.
        """
        from sealtrain.training.checkpoint import newest

        anchor = self.grant.latest_checkpoint
        known = None if anchor is None else (anchor.counter, anchor.digest)
        ref = newest(self.store, known, complete=self._journals.counters())
        if ref is None:
            self.record("run.restarted", {})
        else:
            self.journal = self._journals.load(ref.counter)
            self._counter = ref.counter
            kept = {"counter": ref.counter, "step": ref.step, "checkpoint": ref.digest}
            self.journal.resumes.append({"at": to_rfc3339(self._clock()), **kept})
            self.record("run.resumed", kept)
        self.note_release()
        # Only now: what is renewed after the release comes after it in the journal.
        self.keeper.goes_on_from(ref, anchored=0 if anchor is None else anchor.counter)
        return ref

    @property
    def target(self) -> Target:
        """What the owners approved."""
        return Target(
            app_id=self.admitted.app_id,
            compose_hash=self.admitted.compose_hash,
            recipe_hash=self.admitted.lock.recipe_hash,
        )

    def now(self) -> int:
        """Seconds since the epoch."""
        return self._clock()

    @property
    def simulated(self) -> bool:
        """The guest proves nothing about hardware."""
        return self.settings.platform == "simulator"

    @property
    def sources(self) -> list[Source]:
        """The opened records as training takes them."""
        from sealtrain.training.loaders.renamed import renamed
        from sealtrain.training.sources import Source

        return [
            Source(
                role=one.role,
                owner=one.manifest.owner,
                name=one.manifest.name,
                weight=one.weight,
                dataset=renamed(
                    dataset, one.columns, owner=one.manifest.owner, name=one.manifest.name
                ),
                max_records=one.max_records,
            )
            for one, dataset in zip(self.found, self.sealed, strict=True)
            if one.role != "model"
        ]

    @property
    def model(self) -> SealedDataset | None:
        """The opened model, where the recipe names a sealed one."""
        opened = zip(self.found, self.sealed, strict=True)
        return next((dataset for one, dataset in opened if one.role == "model"), None)

    @property
    def stores(self) -> tuple[str, ...]:
        """URLs of the servers that hold sealed data of this run, beside this machine."""
        return tuple(host for one in self.found for host in getattr(one.folder, "hosts", ()))

    @property
    def secret(self) -> DataKey:
        """What only this run on this data has, the same after a resume: noise comes from it.

        The run's key is another one for each run id, and brokers charge each id's privacy once, so
        no two runs share noise, and one run cannot have two draws of it.
        """
        roots = sorted(f"{one.manifest.dataset_id} {one.manifest.root}" for one in self.found)
        return self.grant.run_key.derive("training-secret", *roots)

    def record(self, event: str, fields: dict[str, Any]) -> None:
        """Append an event to the run log, and measure its head where the guest can."""
        with self._recording:
            head = self.journal.log.append(event, fields, self._clock())
            if self._measures:
                self._measures = self.admitted.guest.note(RUN_LOG_EVENT, bytes.fromhex(head))

    def note_release(self) -> None:
        """Keep the latest receipts for the manifest and their leases in the log."""
        for one in self.grant.fresh:
            lease = one.receipt.lease
            self.journal.releases.append(one.to_dict())
            self.record("keys.released", {"lease_id": lease.lease_id, "not_after": lease.not_after})

    def released_metrics(self, step: int, values: dict[str, float | None]) -> None:
        """Keep metrics that passed the release policy; stop when the lease has ended.

        Raises:
            LeaseStale: The keys must not be used any longer.
        """
        self.journal.history.append({"step": step, "values": values})
        self.lease.require()

    def checkpointed(self, ref: CheckpointRef) -> None:
        """Write the journal of a checkpoint, anchor it at the brokers and renew the lease.

        Called once the checkpoint is complete, by the thread that sealed it, which waits for the
        anchoring only while the brokers answer.

        Raises:
            CheckpointRefused: The counter does not grow.
        """
        if ref.counter <= self._counter:
            raise CheckpointRefused(
                "checkpoint counter does not grow",
                check="checkpoint counter",
                got=ref.counter,
                expected=f"above {self._counter}",
            )
        self._counter = ref.counter
        with self._recording:
            self.record(
                "checkpoint.sealed",
                {"counter": ref.counter, "step": ref.step, "digest": ref.digest},
            )
            self._journals.save(self.journal, ref.counter, ref.step, self.wall())
        self.keeper.sealed(ref)

    def renew(self, checkpoint: tuple[int, str] | None = None) -> None:
        """Ask for a later end of the lease; may be called by several threads, one asks at a time.

        Args:
            checkpoint: (counter, digest) of a sealed checkpoint to anchor on the way.

        Raises:
            Refused: Not renewed by enough brokers: approvals revoked, lease stale, counter too low.
            Unreachable: Too few brokers answered, or the guest API did not; the lease is as it was.
        """
        with self._renewing:
            asked = self.lease.moment()
            self.grant, problem = self.quorum.renew(self.grant, self.collect, checkpoint)
            with self._recording:
                self.journal.releases += [one.to_dict() for one in self.grant.fresh]
            if problem is not None:
                raise problem
            self._take_lease(self.grant, asked)
        if checkpoint is not None:
            receipt = self.grant.fresh[-1].to_dict()
            # For people who look into the folder; what counts lies with the brokers.
            with contextlib.suppress(OSError):
                atomic_write(
                    self.settings.out / ANCHOR_FILE, canonical_json(receipt), overwrite=True
                )

    def collect(self, binding: Binding) -> Evidence:
        """Evidence of this guest for one conversation; no event is measured meanwhile."""
        with self._recording:
            return self.admitted.guest.evidence(binding)

    def wall(self) -> float:
        """Seconds of work so far, earlier processes of this run included."""
        return self.journal.wall_s + time.monotonic() - self._began

    def close(self) -> None:
        """End the use of the keys and let go of the opened datasets."""
        self.lease.end()
        self.quorum.close()
        for dataset in self.sealed:
            dataset.close()

    def _obtained(self, *, resuming: bool) -> Grants:
        """The keys of the run, lent until the lease ends."""
        from sealtrain.release.grants import Wanted

        asked = self.lease.moment()
        grants = self.quorum.obtain(
            self.collect,
            run_id=self.run_id,
            recipe_hash=self.admitted.lock.recipe_hash,
            datasets=[
                Wanted(
                    dataset_id=one.manifest.dataset_id,
                    root=one.manifest.root,
                    owner=one.manifest.owner,
                    owner_id=one.manifest.owner_id,
                    stanzas=one.stanzas,
                )
                for one in self.found
            ],
            resume=resuming,
        )
        self._take_lease(grants, asked)
        return grants.lent(self.lease.require)

    def _take_lease(self, grants: Grants, asked: float) -> None:
        self.lease.extend(grants.lease_ends, float(grants.lease_seconds), asked)
