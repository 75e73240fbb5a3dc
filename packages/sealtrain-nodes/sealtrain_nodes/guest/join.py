"""Another node of a run: it meets the lead, gets keys of its own, and trains its part of each step.

1. admit, as every guest (``guest.guest``); start the workload that will train (``guest.besides``),
   prove itself to the lead, and learn run and session;
2. obtain keys under its own run id and open the data (``guest.holding``);
3. tell the lead where its ranks listen, and learn where all others do;
4. connect its ranks, close the sandbox, and take the checkpoint to begin from;
5. keep the workload while it trains (``nodes.guest.nodekeeper``). The node keeps nothing; the lead
   has its receipts as they come.

A node that its owners or its operator stop says so, and the run seals a checkpoint first.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from sealtrain.base.files import make_folder
from sealtrain.errors import NodeLost, SealtrainError
from sealtrain.guest.errors import RunStopped
from sealtrain.guest.key_holder import Asking, DataGuest
from sealtrain.guest.sandbox.border import Room, Ways, enclose, telling
from sealtrain.guest.sandbox.events import Named, Restated, run_telling
from sealtrain.guest.sandbox.files import evidence_devices
from sealtrain.guest.sandbox.rehearsal import shows_insecurely
from sealtrain.guest.signals import softly
from sealtrain.recipe.backends import (
    UNDIVIDED,
    Division,
    divide_among,
    numbers_of,
    numbers_of_guests,
    processes_of,
)
from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.nodes import Nodes
from sealtrain.sealing.checkpointstore import CheckpointStore
from sealtrain.sealing.datakey import DataKey
from sealtrain.signing.parties import node_run_id
from sealtrain.training.checkpoints.checkpoint import CheckpointRef
from sealtrain.training.errors import RankLost
from sealtrain_nodes.company import NodeCompany
from sealtrain_nodes.errors import NodeRefused
from sealtrain_nodes.guest.leadchannel import LeadChannel
from sealtrain_nodes.guest.nodekeeper import NodeKeeper
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest

if TYPE_CHECKING:
    from sealtrain.guest.guest import AttestedGuest, Surroundings
    from sealtrain.guest.settings import RunSettings
    from sealtrain.guest.workload.fork import WorkloadProcess
    from sealtrain.guest.workload.opener import Opener

_BYTE_SECONDS: Final = 60.0
_WATCH_SECONDS: Final = 0.5
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A node's place in a run.

    Attributes:
        node: Its number, from 1.
        lead: Host and port at which the lead listens for nodes.
        listen: Host and first port at which this node's ranks listen; port 0 for any.
    """

    node: int
    lead: tuple[str, int]
    listen: tuple[str, int]


def join(
    settings: RunSettings,
    joining: Joining,
    around: Surroundings,
) -> dict[str, Any]:
    """Train as one of the nodes of a run until it ends.

    Args:
        settings: Where everything is; ``out`` takes the sealed checkpoint that the run begins from.
        joining: Which node this is.
        around: What else it is given.

    Returns:
        ``{run_id, session, node}``.

    Raises:
        UsageError: The recipe has no nodes.
        NodeRefused: The lead expects no such node, or trains otherwise than the recipe says.
        NodeLost: The run ended, because this or another node is gone.
        SealtrainError: Whatever else fails; no plaintext is left anywhere.
    """
    with ExitStack() as stack:
        guest = _prepare(settings, joining, around)
        stack.callback(guest.close)
        company = stack.enter_context(guest.meet())
        _JoinWork(guest, company).perform()
        return {"run_id": guest.run_id, "session": guest.session, "node": joining.node}


def _prepare(settings: RunSettings, joining: Joining, around: Surroundings) -> _JoiningGuest:
    """Steps 1 and 2, among as many as the lead says.

    The workload is started before the lead is asked, so that it inherits nothing of what the lead
    says. Where the run goes on among others than the recipe's own numbers, the node begins anew.

    Raises:
        NodeRefused: The lead names other numbers each time.
        SealtrainError: As ``join``.
    """
    guest = _JoiningGuest(settings, joining, around, UNDIVIDED)
    try:
        return guest.prepare()
    except _OtherDivision as other:
        guest.admitted.taken.close()
        division = other.division
    try:
        return _JoiningGuest(settings, joining, around, division).prepare()
    except _OtherDivision as other:
        raise NodeRefused(
            "the lead names other numbers of nodes and ranks each time",
            check="nodes",
            got=f"{other.division.nodes} nodes of {other.division.ranks} ranks",
            expected=f"{division.nodes} nodes of {division.ranks} ranks",
        ) from None


class _OtherDivision(Exception):
    """The run goes on among others than this node has started its workload for.

    Attributes:
        division: As the lead says, and the recipe allows.
    """

    def __init__(self, division: Division) -> None:
        self.division = division


class _JoiningGuest(DataGuest):
    """Steps 1 to 3.

    Attributes:
        run_id: Of the whole run.
        session: Of the meeting.
        lead: The conversation with the lead.
        workload: The process that trains.
        opener: The process that opens records for it.
    """

    run_id: str
    workload: WorkloadProcess
    opener: Opener | None = None

    def __init__(
        self,
        settings: RunSettings,
        joining: Joining,
        around: Surroundings,
        division: Division,
    ) -> None:
        asking = Asking(run_id=self._greet, resuming=False)
        super().__init__(settings, asking, around, shared_out=False)
        self._joining, self._division = joining, division
        self._undoing = ExitStack()
        self._untold: list[dict[str, Any]] | None = []  # None once the lead listens

    def prepare(self) -> Self:
        with self._undoing, make_folder(self.settings.out):
            super().prepare()
            (self.settings.out / "checkpoints").mkdir(exist_ok=True)
            self._undoing = self._undoing.pop_all()
        return self

    def admit(self) -> Self:
        """As ``AttestedGuest``; the recipe is then as the ranks of this run train it."""
        super().admit()
        self.recipe = divide_among(self.lock.recipe, self._division)
        return self

    def _before_keys(self, undoing: ExitStack) -> None:
        """Start workload and opener: what they inherit has met neither lead nor broker."""
        from sealtrain.guest.side_processes import start_beside

        first = self._joining.node * self.recipe.backend.ranks
        self.workload, self.opener = start_beside(
            self, undoing, division=self._division, first=first
        )

    def _greet(self, guest: AttestedGuest) -> str:
        """Steps 1 and 3.1: the run id under which this node asks for keys."""
        joining, how = self._joining, of_kind(guest.recipe, Nodes)
        with self.around.on_stage("proving this node to the lead, and the lead to this node"):
            self.lead = LeadChannel.dial(
                joining.lead,
                node=joining.node,
                proof=ProveGuest.of(guest),
                accept=AcceptGuest.of(guest),
                seconds=max(_BYTE_SECONDS, float(how.join_seconds)),
                source=None if joining.listen[0] in _EVERY_ADDRESS else joining.listen[0],
            )
            self._undoing.callback(self.lead.close)
            welcome = self.lead.welcome(
                nodes=numbers_of_guests(guest.lock.recipe),
                ranks=numbers_of(guest.lock.recipe.backend),
            )
        if (welcome.nodes, welcome.ranks) != (how.nodes, guest.recipe.backend.ranks):
            raise _OtherDivision(Division(ranks=welcome.ranks, nodes=welcome.nodes))
        self.run_id, self.session = welcome.run_id, welcome.session
        return node_run_id(welcome.run_id, welcome.session, joining.node)

    @property
    def secret(self) -> DataKey:
        """The run's, which the lead sent, lent as long as this node's lease."""
        return DataKey(self._secret, self.lease.require)

    @property
    def store(self) -> CheckpointStore:
        """The checkpoint that the run begins from, sealed as the lead has it."""
        key = DataKey(self._checkpoint_key, self.lease.require)
        return CheckpointStore(self.settings.out / "checkpoints", key, label=self.run_id)

    @contextmanager
    def meet(self) -> Iterator[NodeCompany]:
        """Step 3: where all ranks are, while the block lasts."""
        joining, ranks = self._joining, self.recipe.backend.ranks
        with NodeCompany.open(
            joining.listen,
            ranks=ranks,
            first=joining.node * ranks,
            carries=bool(self.recipe.scripts),
        ) as mine:
            self.lease_keeper.begin()
            with self.around.on_stage("waiting for the other nodes"):
                introduced = self.lead.introduce(
                    mine,
                    [receipted.to_dict() for receipted in self.grant.fresh],
                    since=self.now(),
                    world=processes_of(self.recipe),
                    meanwhile=self._tend,
                )
            self._secret, self._checkpoint_key = introduced.secret, introduced.checkpoint_key
            mine.meet(introduced.places, run_id=self.run_id, session=self.session)
            yield mine

    def _tend(self) -> None:
        """Renew the lease where it is time to; raises why it is not renewed."""
        self.lease_keeper.tend()
        try:
            self.lease_keeper.require()
        except SealtrainError as error:
            raise self.lease_keeper.explain_end(error) from None

    def take_checkpoint(self, company: NodeCompany) -> CheckpointRef | None:
        """What the run begins from, once the lead says so; from now on the lead takes receipts."""
        self.drop_checkpoint()  # of the meeting before
        found = self.lead.take_checkpoint(self.store, company.sharing().receive)
        untold, self._untold = self._untold or [], None
        self._keep(untold)
        return found

    def drop_checkpoint(self) -> None:
        """Delete what the run began from: this node keeps nothing.

        Not where the run breaks off: by its name the supervisor knows how far it had got, and waits
        anew (``guest.supervision``).
        """
        for path in (self.settings.out / "checkpoints").iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _keep(self, receipts: Sequence[dict[str, Any]]) -> None:
        if self._untold is not None:
            self._untold += receipts
        elif receipts:  # none, where no broker answered
            self.lead.tell("releases", {"releases": list(receipts)})

    @property
    def why_it_stops(self) -> SealtrainError | None:
        """Why its own lease is not renewed: refused, or short and unanswered."""
        return self.lease_keeper.refused or self.lease_keeper.unheard

    def close(self) -> None:
        """As ``DataGuest``, and end the conversation with the lead."""
        self.workload.end()
        if self.opener is not None:
            self.opener.end()
        self.lead.close()
        super().close()


class _JoinWork:
    """Steps 4 and 5."""

    def __init__(self, guest: _JoiningGuest, company: NodeCompany) -> None:
        self._guest = guest
        self._company = company
        self._asked = threading.Event()

    def perform(self) -> None:
        guest = self._guest
        shown = shows_insecurely(guest.settings.platform)
        platform = guest.admitted.guest
        ways = Ways(
            urls=[*guest.urls, *self._company.urls],
            folders=[guest.settings.out, *platform.writable],
            sockets=platform.sockets,
            signals=True,
            devices=evidence_devices(),
        )
        with (
            enclose(
                guest.tally, alone=guest.around.alone, accelerated=False, insecure_shown=shown
            ) as room,
            room.confine(ways),
        ):
            guest.report_failures(telling(room.terminal))
            run_telling(
                lambda: self._keep(room, ways),
                guest.recipe.release_policy.logs,
                lambda: guest.tally.counts,
                scripts={str(guest.base / path): path for path in guest.recipe.scripts},
                insecure_shown=shown,
                named=Named.in_recipe(guest.recipe),
            )

    def _keep(self, room: Room, ways: Ways) -> None:
        """Keep the workload until its ranks are done."""
        from sealtrain.guest.side_processes import hand_keys_over

        guest, opener = self._guest, self._guest.opener
        if opener is None:
            raise AssertionError("a node starts its opener before it meets the lead")
        self._company.connect()
        try:
            room.lock(ways)
            hand_keys_over(guest, opener)
            with guest.lease_keeper:
                checkpoint = guest.take_checkpoint(self._company)
                keeper = NodeKeeper(
                    guest,
                    guest.workload,
                    self._company,
                    resume=checkpoint,
                    await_lead=guest.lead.await_word,
                )
                with self._watch():
                    keeper.keep()
        except Restated as judged:
            ended = self._explain_end(judged.error)
            raise judged if ended is judged.error else ended from None
        except Exception as error:
            raise self._explain_end(self._company.explain_failure() or error) from None
        guest.lease.require()
        guest.lead.tell("done", {})
        guest.drop_checkpoint()

    def _explain_end(self, error: Exception) -> Exception:
        """What this node ends with: why its own lease ended, what it asked for, or the lead's."""
        guest = self._guest
        if isinstance(error, SealtrainError) and guest.lease.seconds_left() <= 0:
            return guest.lease_keeper.explain_end(error)
        if isinstance(error, RankLost):  # a library may end a process whose peer is gone
            error = NodeLost("a rank of this node ended without a report", check="node")
        if not isinstance(error, NodeLost):
            if isinstance(error, SealtrainError):
                with contextlib.suppress(SealtrainError):
                    guest.lead.tell("stopping", {"code": error.code})
            return error
        if (why := guest.why_it_stops) is not None:
            guest.lease.end()
            return why
        if self._asked.is_set():
            return RunStopped("the process was told to end", check="signal")
        return guest.lead.why(error)

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """Tell the lead once that this node has to stop, so that the run seals a checkpoint."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_WATCH_SECONDS):
                why = self._guest.why_it_stops
                if why is None and not self._asked.is_set():
                    continue
                code = "run-stopped" if why is None else why.code
                with contextlib.suppress(SealtrainError):
                    self._guest.lead.tell("stopping", {"code": code})
                return

        watching = threading.Thread(target=watch, name="stopping", daemon=True)
        watching.start()
        try:
            with softly(self._asked.set) if self._guest.around.alone else nullcontext():
                yield
        finally:
            over.set()
            watching.join()
