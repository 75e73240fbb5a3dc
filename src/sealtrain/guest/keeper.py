"""The keeper's side of a workload: it answers what the workload may ask, and ends it.

The keeper has the keys, the opened datasets, the brokers, the run log, the terminal and the run's
folder. It takes names and numbers from the workload and nothing else:

1. A record batch leaves with the columns that the recipe names.
2. A checkpoint follows the one before it; the keeper names, seals, records and anchors it.
3. Measurements pass the release policy here.
4. Files of a model have names that recipients open, and are copied once before anything reads them.
5. What ends the recipe's code is one of the known errors.

A question that is none, or comes out of order, ends the run. So does the end of the lease, and then
the workload with it: what it holds of the records is gone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from sealtrain.guest.delivered import DeliveredFiles
from sealtrain.guest.helper_machines import helper_desk
from sealtrain.guest.model_names import ModelNames, problem_of_file
from sealtrain.guest.other_guests import NoFellows
from sealtrain.guest.phase_messages import digests_tokens, tally_records, write_privacy
from sealtrain.guest.rank_connection import RankDesk
from sealtrain.guest.run_end import Outcome, close_run
from sealtrain.guest.sandbox.landlock import KernelBorder
from sealtrain.guest.stated_data import accelerators_here, environment_here, record_served
from sealtrain.guest.validating import record_counts
from sealtrain.guest.workload.channel import Misused, Refusal, Reply
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.messages import (
    ConnectHelper,
    Failed,
    FileDelivered,
    OfferMetrics,
    RankReady,
    Retire,
    Seal,
    SealShard,
    Sign,
    Step,
    Stop,
    TallyRecords,
    WorkloadQuestion,
)
from sealtrain.guest.workloadkeeper import WorkloadKeeper, lose_workload, shard_ref
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.basefiles import base_files_of
from sealtrain.training.checkpoints import checkpoint
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shards import retire_orphans, write_shard
from sealtrain.training.errors import ModelNotReloaded
from sealtrain.training.inputs.learnable import counts_records
from sealtrain.training.model_files import Trained
from sealtrain.training.telemetry.bar import Bar
from sealtrain.training.telemetry.metric_gate import MetricGate
from sealtrain.training.telemetry.monitor import TOKEN_COUNTS

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.guest.other_guests import Fellows
    from sealtrain.guest.workload.fork import WorkloadProcess
    from sealtrain.training.data.sources import Source
    from sealtrain.training.inputs.learnable import RecordTally
    from sealtrain.training.telemetry.monitor import Monitor

_MAX_RELEASES: Final = 1 << 20
_STRIDE: Final = 256
"""Steps between two messages at most. A trainer of several optimizers counts each."""
_LEAVING_SECONDS: Final = 60.0


def _show_nothing(_line: str) -> None:
    """Where there is no terminal."""


class Keeper(WorkloadKeeper):
    """Keeps the workload of a run. ``outcome`` is all of it.

    Attributes:
        storing: Held while something is stored; what is signed is complete before.
    """

    def __init__(  # noqa: PLR0913  # all but the first three have their usual value
        self,
        run: GuestRun,
        workload: WorkloadProcess,
        monitor: Monitor,
        *,
        held: KernelBorder,
        resume: CheckpointRef | None,
        fellows: Fellows | None = None,
        bar: Bar | None = None,
        say: Callable[[str], None] = _show_nothing,
        leaving_seconds: float = _LEAVING_SECONDS,
    ) -> None:
        """Answer nothing yet.

        Args:
            run: Holds its keys.
            workload: Waits, with its border closed, until it is given something.
            monitor: Watches.
            held: How far the kernel enforces the keeper's own border.
            resume: Checkpoint to continue from.
            fellows: The other guests of the run; ``None`` for a run of one.
            bar: Shows steps and released measurements.
            say: Takes a line for the operator's terminal.
            leaving_seconds: For the recipe's code to end once the manifest is signed.
        """
        self._others = NoFellows() if fellows is None else fellows
        super().__init__(
            run, workload, fellows=self._others, resume=resume, served=run.journal.served
        )
        self._run, self._monitor = run, monitor
        self._closed, self._leaving_seconds = self._opener.weaker(held), leaving_seconds
        self._bar, self._say = Bar() if bar is None else bar, say
        self.storing = threading.Lock()
        self._sign_seconds: float | None = None
        self._signing = False
        self._outcome: Outcome | None = None
        self._ready: RankReady | None = None
        self._newest = resume
        self._step = 0 if resume is None else resume.step
        self._files = DeliveredFiles(run.settings.out)
        self._releases = len(run.journal.history)
        recipe = run.recipe
        how = recipe.collaboration
        self._guests = 1 if how is None else how.guests
        self._tallied: list[tuple[Source, RecordTally]] = []
        self._untallied = resume is None and not recipe.scripts and counts_records(recipe)
        released = self._release, self._bar.take_metrics, monitor.take_metrics
        self._gate = MetricGate(run.recipe.release_policy, *released)
        self._gate.besides = monitor.measure
        self._gate.follow(run.journal.history)
        self._helpers = helper_desk(run)
        self._known = {*run.recipe.release_policy.metrics, "loss", *TOKEN_COUNTS}
        base = base_files_of(run.recipe, run.base, run.model)
        scripts = {path: run.lock.scripts[path] for path in run.recipe.scripts}
        self._names = ModelNames(scripts, () if base is None else base.names)

    def outcome(self) -> Outcome:
        """Answer until the recipe's code has ended; the workload is gone afterwards.

        Raises:
            Restated: What ended the recipe's code.
            RankLost: The workload ended without a word.
            SealtrainError: What ended the run here.
        """
        try:
            self.answer_all(
                [RankDesk(self, rank, leads=self) for rank in range(len(self._workload.ends))]
            )
        finally:
            self._files.close()
        if self._outcome is None:
            raise lose_workload(self._workload.status)
        return self._outcome

    def _must_end(self) -> bool:
        if not self._signing:
            return super()._must_end()
        # Brokers or nodes keep the manifest waiting, which is signed nevertheless if it still may
        # be. A run that closes ends its lease after it set the time, so the lease is looked at
        # first.
        lapsed = self._run.lease.seconds_left() <= 0
        if self._sign_seconds is not None:
            return time.monotonic() >= self._sign_seconds
        return lapsed

    @property
    def _reads(self) -> bool:
        return not self._signing and super()._reads

    # What the first rank says of the training.

    def begin(self, rank: int, ready: RankReady) -> Reply:
        """Answer a rank that is ready with what it may ask for."""
        run = self._run
        with self._lock:  # the log says how far the border of the weakest rank holds
            if self._signing:
                raise Misused("a rank is ready before the manifest is signed")
            before = self._closed
            self._closed = before.weaker(
                landlock=ready.landlock,
                seccomp=ready.seccomp,
                unbound=ready.unbound,
                memory=ready.memory,
            )
            if rank == 0 or self._closed != before:
                run.record_sandbox(self._closed)
            if rank == 0:
                self._ready = ready
        return Reply(self._state(leads=rank == 0, anchored=run.lease_keeper.anchored))

    def end_training(self) -> NoReturn:
        """Raise why training ended."""
        self._run.lease_keeper.end_training()

    def step(self, question: Step) -> Reply:
        """Note a step."""
        self._on_step(question.step)
        return Reply()

    def _on_step(self, step: int) -> None:
        self._require_tallied()
        recipe = self._run.recipe
        if not recipe.scripts and step > recipe.trainer.max_steps:
            raise Misused("a step beyond the last one")
        self._follow(step)
        self._bar.step(step, {})
        self._monitor.step(step, {})

    def _require_tallied(self) -> None:
        if self._untallied:
            raise Misused("the records are counted before the first step")

    def tally(self, question: TallyRecords) -> Reply:
        """Record what each training dataset leaves to learn, once, before the first step."""
        trained = [source for source in self._sources if source.role == "train"]
        if not self._untallied:
            raise Misused("no records are counted now")
        self._tallied += tally_records(question, trained[len(self._tallied) :])
        if len(self._tallied) == len(trained):
            self._untallied = False
            record_counts(self._run, self._tallied, self._say)
        return Reply()

    def help(self, question: WorkloadQuestion) -> Reply:
        """Connect the workload with a machine that multiplies for it, or note what was made."""
        if self._signing:
            raise Misused("no products after the manifest")
        answer = partial(self._helpers.answer, question)
        return self._await(answer) if isinstance(question, ConnectHelper) else answer()

    def stop(self, question: Stop) -> Reply:
        """Whether training ends after this step, which is done."""
        self._on_step(question.step)
        stop = self._run.lease_keeper.must_stop(
            question.step,
            ahead=question.ahead,
            span=question.span,
            sealing=question.sealing,
        )
        return Reply({"stop": stop})

    def _follow(self, step: int) -> None:
        """Count a step: checkpoints and pages show it, and any number could hold a record."""
        if not self._step <= step <= self._step + _STRIDE:
            raise Misused("not the next step")
        self._step = step

    def metrics(self, question: OfferMetrics) -> Reply:
        """Offer measurements to the release policy, at a step that was told or comes next."""
        if question.step > self._step + _STRIDE:
            raise Misused("no step of these measurements")
        self._gate.offer(question.step, self._numbers(question.values))
        return Reply()

    def _numbers(self, values: Mapping[str, float | None]) -> dict[str, float]:
        if not self._known.issuperset(values):
            raise Misused("a measurement that the recipe does not name")
        return {
            name: math.nan if number is None else float(number) for name, number in values.items()
        }

    def _release(self, step: int, values: dict[str, float | None]) -> None:
        self._releases += 1
        if self._releases > _MAX_RELEASES:
            raise Misused("more measurements than any training has")
        self._run.keep_metrics(step, values)

    def sign(self, question: Sign) -> Reply:
        """Sign the manifest over the files that came."""
        run = self._run
        with self.storing:  # what is being stored is finished first, and nothing comes after it
            if self._ready is None or self._signing or not self._files.names:
                raise Misused("nothing to sign")
            if question.steps > self._step + _STRIDE:
                raise Misused("steps that no training has got to")
            if not self._files.is_between or not self._names.are_whole(self._files.names):
                raise Misused("parts of weights are missing")
            self._require_tallied()
            self._helpers.require_told()
            privacy = write_privacy(question, run.recipe, self._sources)
            if question.tokens_sha256 is not None and not digests_tokens(run.recipe):
                raise Misused("a digest of tokens that this recipe does not take")
            self._signing = True
        self._helpers.log()
        self._served.close()
        run.tally.add(question.counts)
        record_served(run, self._served.rows)
        trained = Trained(
            files=dict(self._files.held),
            delivered=dict(self._files.waiting),
            steps=question.steps,
            samples_seen=question.samples,
            tokens=question.tokens,
            metrics=self._gate.filter(self._numbers(question.metrics)),
            environment=environment_here(len(self._workload.ends) * self._guests),
            accelerators=accelerators_here(),
            withheld=dict(self._gate.withheld),
            tokens_sha256=question.tokens_sha256,
            privacy=privacy,
        )
        self._others.finish()
        self._outcome = close_run(run, trained)
        self._sign_seconds = time.monotonic() + self._leaving_seconds
        run.close()
        return Reply({"manifest": str(self._outcome.manifest)})

    @property
    def _waits(self) -> Collection[str]:
        return (*super()._waits, *self._helpers.waits)

    def note_failure(self, question: Failed) -> None:
        """Take the workload's word for what ended it, as far as that is known here."""
        if not self._signing:
            self._run.tally.add(question.counts)
        self.fail(self._judge(question))

    # Checkpoints and files of the model.

    def seal(self, question: Seal, memory: SharedMemory | None) -> Reply:
        """Seal the next checkpoint out of the workload's memory, record and anchor it."""
        wanted = self._require_next(question)
        if memory is None or question.size > memory.size:
            raise Misused("no room for a checkpoint")
        run = self._run
        # The room that the workload asked for sets the length of all checkpoints, once.
        run.store.memory(memory.size)
        with self._refusing(), memory.view[: question.size] as part:
            ref = self._newest = checkpoint.write(run.store, run.run_id, wanted, (part,))
        self._helpers.log()
        run.anchor_checkpoint(ref)
        retire_orphans(run.store, ref.counter)
        return Reply({"digest": ref.digest, "anchored": run.lease_keeper.anchored})

    def seal_shard(self, rank: int, question: SealShard, memory: SharedMemory | None) -> Reply:
        """Seal a shard of the next checkpoint out of a rank's memory.

        It belongs to no checkpoint before the first rank has its digest sealed in one.
        """
        wanted = self._require_next(question)
        if memory is None or question.size > memory.size:
            raise Misused("no room for a shard")
        ranks = len(self._workload.ends)
        # So no two ranks write one file.
        if question.number % ranks != rank or question.count > ranks * self._guests:
            raise Misused("not a shard of this rank")
        run = self._run
        run.store.shard_memory(memory.size)
        with self._refusing(), memory.view[: question.size] as part:
            digest = write_shard(
                run.store, run.run_id, shard_ref(question), wanted.previous, (part,)
            )
        return Reply({"digest": digest})

    def _require_next(self, question: Seal | SealShard) -> CheckpointRef:
        """The next checkpoint, if that is what a question names.

        Raises:
            Misused: It is not, or comes too early or too late.
        """
        self._require_tallied()
        self._helpers.require_told()
        newest = self._newest
        wanted = CheckpointRef(
            counter=1 if newest is None else newest.counter + 1,
            step=question.step,
            previous="" if newest is None else newest.digest,
        )
        named = (question.counter, question.previous)
        if self._signing or named != (wanted.counter, wanted.previous):
            raise Misused("not the next checkpoint")
        # A checkpoint is sealed behind training: its step is one that was told, or the next.
        if not (newest.step if newest else 0) <= question.step <= self._step + _STRIDE:
            raise Misused("no step of this checkpoint")
        return wanted

    def names(self) -> Reply:
        """Names of the checkpoints."""
        return Reply({"names": list(self._run.store.names())})

    def retire(self, question: Retire) -> Reply:
        """Let a checkpoint go, unless it is the newest or leads back to the anchored one."""
        ref = CheckpointRef(counter=question.counter, step=question.step)
        newest = 0 if self._newest is None else self._newest.counter
        if ref.counter >= newest or ref.counter > self._run.lease_keeper.anchored:
            raise Refusal(CheckpointRefused("the checkpoint is needed", check="checkpoint"))
        self._run.store.retire(ref.name)
        retire_orphans(self._run.store, newest)
        return Reply()

    def sweep(self) -> Reply:
        """Delete what interrupted writes left."""
        self._run.store.sweep()
        return Reply()

    def take(self, question: FileDelivered, memory: SharedMemory | None) -> Reply:
        """Take a part of a file of the model out of the workload's memory."""
        length = question.length
        if self._signing or length > (0 if memory is None else memory.size):
            raise Misused("no room, or too late for a file")
        try:
            self._names.require([question.name])
        except ModelNotReloaded as error:
            self._refusals[error.code] = error  # told as it is where it ends the recipe's code
            raise Refusal(error) from None
        with self._refusing(), memoryview(b"" if memory is None else memory.map)[:length] as part:
            content = self._files.take(question, part)
        if content is None:
            return Reply()
        problem = problem_of_file(question.name, content, self._files.names)
        if problem is not None:
            self._files.drop()
            raise Refusal(
                ModelNotReloaded(
                    "a file of the model is not sealed", check="file kind", got=problem
                )
            )
        self._files.keep()
        return Reply()
