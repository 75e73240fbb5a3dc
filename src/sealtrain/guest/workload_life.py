"""The workload's life: close its border, load its libraries, say that it is ready, run the recipe.

All of that comes before the keeper gives it anything, and while the keeper attests. Its interpreter
begins anew, so that nothing in its memory is the keeper's. With several ranks the workload is the
first and forks the others, which live as it does. Of a run of several nodes each rank takes over
the connections that the keeper has made (``workload.company``), its border closed.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.errors import LeaseStale
from sealtrain.guest.sandbox.border import Room, Ways, enclose
from sealtrain.guest.sandbox.events import describe_failure, remember_errors
from sealtrain.guest.sandbox.files import readable_places
from sealtrain.guest.sandbox.imports import import_only_pinned
from sealtrain.guest.sandbox.landlock import leave_no_memory
from sealtrain.guest.sandbox.output import OutputTally
from sealtrain.guest.sandbox.users import give_up_capabilities
from sealtrain.guest.workload.channel import AskingEnd, ChannelEnds
from sealtrain.guest.workload.company import company_of
from sealtrain.guest.workload.messages import Ended, Failed, RankReady, Stopped
from sealtrain.guest.workload.new_interpreter import execute_anew
from sealtrain.recipe.backends import (
    UNDIVIDED,
    Division,
    divide_among,
    needs_group,
    processes_of,
)
from sealtrain.recipe.engines import builds_code
from sealtrain.recipe.importable import Importable
from sealtrain.recipe.lock import Lock, parse_lock
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.data.sources import Source
from sealtrain.training.distributed.machinery import connect_backend, connects_more
from sealtrain.training.distributed.ranks import gather_ranks
from sealtrain.training.silence import silence

if TYPE_CHECKING:
    from sealtrain.guest.sandbox.landlock import KernelBorder
    from sealtrain.guest.workload.company import WorkloadCompany
    from sealtrain.guest.workload.messages import WorkloadQuestion
    from sealtrain.guest.workload.stubs import WorkloadRun
    from sealtrain.recipe.recipe import PhaseRecipe

_STREAMS: Final = 3


@dataclass(slots=True, kw_only=True)
class Workload:
    """The life of a workload, from its fork on. See the module.

    Attributes:
        lock: The lock that the guest measured.
        lock_bytes: Its bytes.
        importable: Modules of the packages that the lock pins.
        base: Folder that the recipe's paths start from.
        copies: Folder of the copies of what the lock pins.
        out: The run's folder, which this process names and cannot open.
        shown: A rehearsal shows everything.
        division: Among how many the run goes on.
        first: Number of its first rank among those of all nodes.
    """

    lock: Lock
    lock_bytes: bytes
    importable: Importable
    base: Path
    copies: Path
    out: Path
    shown: bool
    division: Division = UNDIVIDED
    first: int = 0

    @property
    def recipe(self) -> PhaseRecipe:
        """The recipe of the lock, as the ranks of this run train it."""
        recipe: PhaseRecipe = divide_among(self.lock.recipe, self.division)
        return recipe

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.recipe.backend.ranks

    @property
    def world(self) -> int:
        """How many ranks all nodes have; as many as this guest where it is alone."""
        how = self.recipe.collaboration
        return self.ranks if how is None else processes_of(self.recipe)

    @property
    def readable(self) -> list[Path]:
        """Files and folders that it may read, there or not."""
        return readable_places(self.importable.roots, self.copies, self.importable.own)

    def live(self, ends: Sequence[ChannelEnds]) -> None:
        """All of it, in an interpreter that begins anew.

        So the memory that a fork copies is gone: also what the keeper's process or its supervisor
        had before, such as credentials of stores. A process that has the training libraries already
        goes on as it is; no keeper of a real run loads them.
        """
        if "torch" in sys.modules:
            self.work(ends)
            return
        given = {
            "lock": to_base64(self.lock_bytes),
            "packages": self.importable.listed,
            "own": self.importable.own,
            "base": str(self.base),
            "copies": str(self.copies),
            "out": str(self.out),
            "shown": self.shown,
            "division": list(self.division),
            "first": self.first,
            "ends": [[each.fileno() for each in end.all] for end in ends],
        }
        execute_anew("sealtrain.guest.workload_life", given, inherited=_list_inherited())

    def work(self, ends: Sequence[ChannelEnds]) -> None:
        """All of it in this image; reports how it ends over the first rank's channel."""
        recipe, tally = self.recipe, OutputTally()
        control = AskingEnd(ends[0].control)
        with ExitStack() as stack:
            compiles = builds_code(recipe)
            room = stack.enter_context(
                enclose(tally, alone=True, compiles=compiles, insecure_shown=self.shown)
            )
            os.environ["HOME"] = str(room.scratch.folder)
            give_up_capabilities()
            stack.enter_context(room.confine(Ways()))
            silence()
            rank = _Rank(self, room, tally)
            company = self._company(rank, ends, control)
            try:
                with gather_ranks(
                    recipe.backend.ranks,
                    group=needs_group(recipe.backend),
                    prepare=lambda: connect_backend(recipe.backend.name),
                    secure=rank.close_border,
                    work=lambda _: rank.run(ends, AskingEnd(ends[_place()].control)),
                    company=company,
                ) as ranks:
                    rank.close_border()
                    rank.load()
                    # The others ask for what they need themselves.
                    began = rank.begin(ends[0], control)
                    try:
                        with ranks.lead(None):
                            rank.work(began)
                    except LeaseStale as stale:
                        if self.first:  # the ranks stay until node 0 has what they sent last
                            _say(control, self._last_word(stale, tally))
                        raise
                    if self.first:  # node 0 waits for this word, its ranks for nothing any more
                        _say(control, Ended())
            except BaseException as error:
                if self.shown:
                    traceback.print_exception(error)
                blamed = None if company is None else company.explain_failure(error)
                control.ask(self._last_word(blamed or error, tally))
            else:
                control.ask(Ended())

    def _company(
        self, rank: _Rank, ends: Sequence[ChannelEnds], control: AskingEnd
    ) -> WorkloadCompany | None:
        """The ranks of all nodes; ``None`` where this guest has them all."""

        def prepare() -> None:
            if not connects_more(self.recipe.backend.name):  # and then closes its border later
                rank.close_border()
                rank.load()  # while the keeper meets the other nodes

        return company_of(
            self.recipe,
            first=self.first,
            ranks=self.ranks,
            world=self.world,
            line=lambda own: AskingEnd(ends[own].control) if own else control,
            prepare=prepare,
        )

    def _last_word(self, error: BaseException, tally: OutputTally) -> WorkloadQuestion:
        if self.first and type(error) is LeaseStale:
            return Stopped()  # all ranks stopped together, as node 0 said
        return self._describe_failure(error, tally)

    def _describe_failure(self, error: BaseException, tally: OutputTally) -> Failed:
        scripts = {str(self.base / path): path for path in self.lock.recipe.scripts}
        return Failed(**describe_failure(error, scripts), counts=tally.counts)


def begin_anew(given: dict[str, Any]) -> NoReturn:
    """The workload in its own interpreter, to its end.

    Args:
        given: What ``Workload.live`` wrote.
    """
    status = 1
    try:
        leave_no_memory()
        packages = {name: distribution(name) for name in given["packages"]}
        importable = Importable(packages, given["packages"], given["own"])
        import_only_pinned(importable)
        remember_errors()
        lock_bytes = from_base64(given["lock"])
        workload = Workload(
            lock=parse_lock(lock_bytes),
            lock_bytes=lock_bytes,
            importable=importable,
            base=Path(given["base"]),
            copies=Path(given["copies"]),
            out=Path(given["out"]),
            shown=given["shown"],
            division=Division(*given["division"]),
            first=given["first"],
        )
        sockets = [[socket.socket(fileno=number) for number in end] for end in given["ends"]]
        workload.work(
            [
                ChannelEnds(control=control, rows=rows, store=store)
                for control, rows, store in sockets
            ]
        )
        status = 0
    finally:
        os._exit(status)


def _say(control: AskingEnd, word: WorkloadQuestion) -> None:
    """Say the last word, after which the keeper ends this process."""
    with suppress(EOFError, OSError):
        control.ask(word)


def _list_inherited() -> list[int]:
    """The streams, and each descriptor that leads somewhere."""
    found = [*range(_STREAMS)]
    for place in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # of the listing itself
            number = int(place.name)
            if number >= _STREAMS and not _leads_nowhere(number):
                found.append(number)
    return found


def _leads_nowhere(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").readlink() == Path(os.devnull)


def _place() -> int:
    """Number of this rank within its guest."""
    return int(os.environ["LOCAL_RANK"])


@dataclass(slots=True)
class _Rank:
    """A rank of the workload, in its own process."""

    workload: Workload
    room: Room
    tally: OutputTally
    held: KernelBorder | None = None

    def close_border(self) -> None:
        """Have the kernel enforce it, before any code of the recipe runs here. Idempotent."""
        if self.held is not None:
            return
        readable = [path for path in self.workload.readable if path.exists()]
        self.held = self.room.lock(Ways(readable=readable, network=False))

    def load(self) -> None:
        """Import what the recipe's code will use, while the keeper attests."""
        if self.workload.lock.recipe.scripts:
            import sealtrain.guest.script

            # Two thirds of what a script takes to load; a loop of its own never needs it.
            if any("SealedRun" in text for text in self.workload.lock.scripts.values()):
                import sealtrain.guest.trainer  # noqa: F401
        else:
            from sealtrain.guest.phase import load_libraries

            load_libraries(self.workload.recipe)

    def run(self, ends: Sequence[ChannelEnds], control: AskingEnd) -> None:
        """Work as a rank other than the first."""
        self.load()
        self.work(self.begin(ends[_place()], control))

    def begin(self, ends: ChannelEnds, control: AskingEnd) -> WorkloadRun:
        """Say that this rank is ready, and wait until the keeper has what it will ask for."""
        from sealtrain.guest.workload.stubs import (
            KeptLease,
            KeptMetrics,
            KeptModel,
            KeptRecords,
            KeptStore,
            Slotted,
            WorkloadRun,
        )

        if self.held is None:
            raise AssertionError("the border closes first")
        ready = RankReady(**self.held.to_dict())  # type: ignore[arg-type]
        stated, _ = control.ask(ready)
        workload, leads = self.workload, stated["leads"]
        asking = AskingEnd(ends.store)
        slots, store = Slotted(AskingEnd(ends.rows)), KeptStore(asking)
        store.anchored = int(stated["anchored"])
        lease = KeptLease(control, store) if leads else None
        policy = workload.lock.recipe.release_policy
        resume, model, secret = stated["resume"], stated["model"], stated["secret"]
        return WorkloadRun(
            lock=workload.lock,
            recipe=workload.recipe,
            base=workload.base,
            memory=self.room.scratch.folder,
            manifest=workload.out / RUN_MANIFEST,
            run_id=stated["run_id"],
            resume=None if resume is None else CheckpointRef(**resume),
            sources=tuple(
                Source(
                    role=dataset["role"],
                    owner=dataset["owner"],
                    name=dataset["name"],
                    weight=float(dataset["weight"]),
                    max_records=dataset["max_records"],
                    dataset=KeptRecords(number, dataset, slots),
                )
                for number, dataset in enumerate(stated["datasets"])
            ),
            places=tuple(frozenset(dataset["places"]) for dataset in stated["datasets"]),
            model=None if model is None else KeptModel(tuple(model), asking),
            secret=None if secret is None else DataKey(from_base64(secret)),
            store=store,
            lease=lease,
            metrics=None if lease is None else KeptMetrics(policy, control, lease),
            tally=self.tally,
            control=control,
        )

    def work(self, run: WorkloadRun) -> None:
        """Run the recipe's script or phase. Relative names that it writes to lie in memory.

        The folder before it may be its keeper's alone, so this process does not go back there.
        """
        os.chdir(self.room.scratch.folder)
        if run.recipe.scripts:
            from sealtrain.guest.script import run_script

            run_script(run)
        else:
            from sealtrain.guest.phase import run_phase

            run_phase(run)
