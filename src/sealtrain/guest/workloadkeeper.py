"""What the keepers of all workloads answer: records, the base model, checkpoints, connections.

``guest.keeper`` keeps the workload of a run. Of a run of several nodes that is node 0's; the others
have a keeper that answers no more than this (kind ``nodes``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid, LimitExceeded, SealtrainError, StorageFailed
from sealtrain.guest.errors import ScriptFailed, TrainingFailed
from sealtrain.guest.phase_messages import draws, in_memory
from sealtrain.guest.sandbox.events import Named, Restated, restate_failure
from sealtrain.guest.stated_data import ServedRows, state_datasets
from sealtrain.guest.workload.channel import Misused, Refusal, Reply, answer_all
from sealtrain.guest.workload.memory import SharedMemory
from sealtrain.guest.workload.opening import SLOT_MARGIN
from sealtrain.sealing.errors import CheckpointRefused, SchemaMismatch, SealRefused
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.checkpoints.shardnames import ShardRef
from sealtrain.training.checkpoints.shards import open_shard
from sealtrain.training.data.columns import Projection
from sealtrain.training.errors import DecryptionLost, RankLost

if TYPE_CHECKING:
    from sealtrain.guest.datasets import FoundDataset
    from sealtrain.guest.lease import RunLease
    from sealtrain.guest.leasekeeper import LeaseKeeper
    from sealtrain.guest.other_guests import HandedLinks
    from sealtrain.guest.rank_connection import OpenedShard, RankDesk
    from sealtrain.guest.sandbox.output import OutputTally
    from sealtrain.guest.workload.fork import WorkloadProcess
    from sealtrain.guest.workload.messages import (
        Failed,
        LayBatch,
        Open,
        OpenModel,
        ReadShard,
        ShardName,
        TakeLink,
    )
    from sealtrain.guest.workload.opener import Opener
    from sealtrain.recipe.lock import Lock
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.sealing.checkpointstore import CheckpointStore
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.sealing.reader import SealedFile
    from sealtrain.training.data.sources import SealedFolder, Source

_SLOTS: Final = 16
_SLOTS_BYTES: Final = 512 << 20
_TICK_SECONDS: Final = 0.25
_REFUSED: Final = (CheckpointRefused, DataInvalid, SealRefused, LimitExceeded, StorageFailed)


class KeptGuest(Protocol):
    """The guest whose workload is kept: it has keys, and opened the recipe's data."""

    run_id: str
    recipe: PhaseRecipe
    lease: RunLease
    lease_keeper: LeaseKeeper
    sealed_datasets: tuple[FoundDataset, ...]
    tally: OutputTally
    opener: Opener | None

    @property
    def lock(self) -> Lock:
        """The lock that the guest measured."""

    @property
    def sources(self) -> list[Source]:
        """The opened records."""

    @property
    def model(self) -> SealedFolder | None:
        """The opened model that training begins with, where it is sealed."""

    @property
    def secret(self) -> DataKey:
        """The secret of the run."""

    @property
    def store(self) -> CheckpointStore:
        """The run's sealed checkpoints."""


class WorkloadKeeper:
    """See the module."""

    def __init__(
        self,
        guest: KeptGuest,
        workload: WorkloadProcess,
        *,
        fellows: HandedLinks,
        resume: CheckpointRef | None,
        served: dict[str, int],
    ) -> None:
        """Answer nothing yet.

        Args:
            guest: Holds the keys.
            workload: Waits, with its border closed, until it is given something.
            fellows: Has the connections to the ranks of other nodes.
            resume: Checkpoint to continue from.
            served: Rows served so far, by dataset id; counted on.
        """
        self._guest, self._workload, self._fellows = guest, workload, fellows
        if guest.opener is None:
            raise AssertionError("a guest with a workload has an opener")
        self._opener = guest.opener
        self._resume = resume
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._ended = False
        self._refusals: dict[str, SealtrainError] = {}
        self._sources = guest.sources
        self._model = None if guest.recipe.scripts else guest.model
        self._served = ServedRows(served)
        self._projections = [self._projection(source) for source in self._sources]

    def answer_all(self, desks: Sequence[RankDesk]) -> None:
        """Answer until the recipe's code has ended; the workload is gone afterwards.

        Args:
            desks: Of each rank.

        Raises:
            Restated: What ended the recipe's code.
            SealtrainError: What ended the run here.
        """
        threads = []
        for rank, (ends, desk) in enumerate(zip(self._workload.ends, desks, strict=True)):
            threads += [
                threading.Thread(
                    target=self._serve,
                    args=(partial(answer_all, name, end, answer),),
                    name=f"keeper-{name}-{rank}",
                    daemon=True,
                )
                for name, end, answer in (
                    ("control", ends.control, desk.control),
                    ("rows", ends.rows, desk.rows),
                    ("store", ends.store, desk.store),
                )
            ]
        for thread in threads:
            thread.start()
        try:
            self._wait()
        finally:
            self._over.set()
            self._workload.end()
            self._opener.end()
        for thread in threads:
            thread.join()
        self._workload.close()
        self._opener.close()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        """Until the workload has said its last word, died, or may not live any longer."""
        while not self._over.wait(_TICK_SECONDS):
            if self._workload.status is not None or self._must_end():
                return

    def _must_end(self) -> bool:
        """Whether the workload may not live any longer; ``fail`` knows why."""
        if self._opener.status is not None:
            self.fail(self._opener.loss_error())
        elif self._guest.lease.seconds_left() <= 0:
            self.fail(self._guest.lease_keeper.explain_end(lose_workload(None)))
        return self._over.is_set()

    @property
    def _reads(self) -> bool:
        """Whether records are read: then the end of the opener ends the run."""
        return not self._over.is_set() and self._workload.status is None

    def _serve(self, answer: Callable[[], None]) -> None:
        try:
            answer()
        except Misused as broken:
            if not self._over.is_set() and self._workload.status is None:
                self.fail(_restate_misuse(broken, scripts=bool(self._guest.recipe.scripts)))
        except DecryptionLost as gone:  # which ends with the workload too
            if self._reads:
                self.fail(gone)
        except BaseException as error:  # raised where the run ends
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the run with an error, unless another one came first."""
        with self._lock:
            if self._error is None and not self._ended:
                self._error = error
        self._over.set()

    def end(self) -> None:
        """The recipe's code came to its end."""
        with self._lock:
            self._ended = self._error is None
        self._over.set()

    def _await(self, answer: Callable[[], Reply]) -> Reply:
        """An answer that waits for another machine, and no longer than the workload may live.

        Raises:
            Misused: The workload is gone, or may not live any longer.
        """
        found: Future[Reply] = Future()

        def work() -> None:
            try:
                found.set_result(answer())
            except BaseException as error:  # raised where the answer is awaited
                found.set_exception(error)

        threading.Thread(target=work, name="keeper-awaits", daemon=True).start()
        while not wait([found], _TICK_SECONDS).done:
            if self._over.is_set():
                found.add_done_callback(_drop)
                raise Misused("the workload is gone")
        return found.result()

    # Connections to ranks of other nodes.

    def link(self, rank: int, question: TakeLink) -> Reply:
        """Hand a rank its connection to another one, which this process then has no more."""
        handed = self._fellows.link(rank, question.rank)
        if handed is None:
            raise Misused("no connection to this rank, or it was handed over")
        ways = {"sends": handed.sends, "receives": handed.receives}
        stated = {
            name: {"key": to_base64(way.key.reveal()), "number": way.number}
            for name, way in ways.items()
        }
        return Reply(stated, handed.sock.detach())

    # Records.

    def slots(self, rank: int) -> tuple[SharedMemory, int, Reply]:
        """New slots for a rank: the memory, the bytes of a slot and the answer that passes it."""
        largest = max(
            (
                getattr(source.dataset, "largest_batch", 0) * (1 if read is None else read.growth)
                for source, read in zip(self._sources, self._projections, strict=True)
            ),
            default=0,
        )
        # In wider types, a batch takes more than it did when it was sealed.
        slot_bytes = largest + largest // 8 + 2 * SLOT_MARGIN
        count = max(2, min(_SLOTS, _SLOTS_BYTES // slot_bytes))
        memory, descriptor = SharedMemory.create(count * slot_bytes)
        self._opener.take_slots(rank, descriptor, slot_bytes)
        return memory, slot_bytes, Reply({"slot_bytes": slot_bytes}, descriptor)

    def lay(self, rank: int, question: LayBatch, memory: SharedMemory, slot_bytes: int) -> Reply:
        """Have the opener lay a record batch into a slot."""
        number = question.dataset
        if (
            number >= len(self._sources)
            or question.batch >= len(self._sources[number].dataset.batch_rows)
            or question.slot >= memory.size // slot_bytes
        ):
            raise Misused("no such record batch or slot")
        if self._projections[number] is None:
            raise Refusal(self._refusals[SchemaMismatch.code])
        self._guest.lease.require()
        source = self._sources[number]
        rows = source.dataset.batch_rows[question.batch]
        with self._refusing(), self._served.serving(source.dataset.dataset_id, rows):
            length = self._opener.lay(
                rank,
                dataset=number,
                batch=question.batch,
                slot=question.slot,
                slot_bytes=slot_bytes,
            )
        return Reply({"length": length})

    # Checkpoints and files of the base model.

    def open(self, question: Open) -> tuple[SharedMemory, Reply]:
        """Decrypt a checkpoint of this run into new memory."""
        ref = CheckpointRef(
            counter=question.counter,
            step=question.step,
            digest=question.digest,
            previous=question.previous,
        )
        guest = self._guest
        with (
            self._refusing(),
            guest.store.read(ref.name, ref.binding(guest.run_id), root=ref.digest) as file,
        ):
            size = file.size
            memory, descriptor = SharedMemory.create_filled(size, partial(file.pread_into, 0))
        return memory, Reply({"size": size}, descriptor)

    def read_shard(
        self, question: ReadShard, memory: SharedMemory | None, opened: OpenedShard
    ) -> Reply:
        """Decrypt a range of a checkpoint's shard into a rank's memory."""
        size = question.size
        if memory is None or size > memory.size:
            raise Misused("no room for a part of a shard")
        ref, guest = shard_ref(question), self._guest
        checkpoint = CheckpointRef(
            counter=question.counter, step=question.step, previous=question.previous
        )

        def open_it() -> SealedFile:
            return open_shard(guest.store, guest.run_id, checkpoint, ref, question.digest)

        key = (ref, question.previous, question.digest)
        with self._refusing():
            try:
                with memory.view[:size] as view:
                    there = opened.read_into(key, open_it, question.offset, view)
            except BaseException:
                opened.close()
                raise
            if there != size:
                raise CheckpointRefused("a shard ends before its part", check="shards")
        return Reply()

    def open_model(self, question: OpenModel) -> Reply:
        """Decrypt a file of the sealed base model into new memory."""
        model = self._model
        if model is None or question.name not in model.file_names:
            raise Misused("no file of the base model")
        with self._refusing():
            size, descriptor = in_memory(model, question.name)
        return Reply({"size": size}, descriptor)

    # What both kinds of keeper share.

    def _state(self, *, leads: bool, anchored: int) -> dict[str, Any]:
        """What a rank that is ready may ask for."""
        guest, resume, model = self._guest, self._resume, self._model
        return {
            "run_id": guest.run_id,
            "leads": leads,
            "anchored": anchored,
            "resume": None
            if resume is None
            else {
                "counter": resume.counter,
                "step": resume.step,
                "digest": resume.digest,
                "previous": resume.previous,
            },
            "datasets": state_datasets(guest.sealed_datasets, self._sources, self._projections),
            "model": None if model is None else list(model.file_names),
            "secret": to_base64(guest.secret.reveal()) if draws(guest.recipe) else None,
        }

    def _judge(self, question: Failed) -> BaseException:
        """What ended the recipe's code: of its words, as far as they are known here."""
        guest = self._guest
        refusal = self._refusals.get(question.code)
        if refusal is not None:
            return refusal
        recipe = guest.recipe
        scripts = {path: guest.lock.scripts[path] for path in recipe.scripts}
        return Restated(
            restate_failure(
                question.to_dict(),
                recipe.release_policy.logs,
                guest.tally.counts,
                scripts,
                named=Named() if scripts else Named.in_recipe(recipe),
                metrics=recipe.release_policy.metrics,
                waits=self._waits,
            )
        )

    @property
    def _waits(self) -> Collection[str]:
        """Codes of errors that a runner waits for and the workload may raise."""
        return self._fellows.waits

    def _projection(self, source: Source) -> Projection | None:
        """The recipe's columns of a dataset; ``None`` where it does not have them."""
        try:
            return Projection([source], self._guest.recipe.columns.names)
        except SchemaMismatch as error:
            self._refusals[error.code] = error
            return None

    def _refusing(self) -> _Refusing:
        return _Refusing(self._refusals)


def shard_ref(question: ShardName) -> ShardRef:
    """The shard that a question names.

    Raises:
        Misused: No shard has this number.
    """
    if question.number >= question.count:
        raise Misused("no shard has this number")
    return ShardRef(
        counter=question.counter,
        step=question.step,
        number=question.number,
        count=question.count,
    )


class _Refusing:
    """Turns what data and disk refuse into refusals, and remembers them as they were."""

    def __init__(self, refusals: dict[str, SealtrainError]) -> None:
        self._refusals = refusals

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Refuse instead of failing."""
        if isinstance(error, _REFUSED):
            self._refusals[error.code] = error
            raise Refusal(error) from None


def _drop(found: Future[Reply]) -> None:
    """Close what an answer carries that comes too late."""
    if found.exception() is None and (descriptor := found.result().descriptor) is not None:
        os.close(descriptor)


def _restate_misuse(broken: BaseException, *, scripts: bool) -> Restated:
    kind = ScriptFailed if scripts else TrainingFailed
    return Restated(
        kind(
            "the recipe's code broke the rules of its channel",
            check="channel",
            got=type(broken).__name__.strip("_"),
            hint="a script speaks by sealtrain's functions only" if scripts else None,
        )
    )


def lose_workload(status: int | None) -> RankLost:
    """The workload ended without a word, or has to end."""
    return RankLost(
        "the process of the recipe's code ended without a report",
        check="process",
        got=f"status {status}",
        hint="check whether the machine ran out of memory, then: sealtrain resume",
    )
