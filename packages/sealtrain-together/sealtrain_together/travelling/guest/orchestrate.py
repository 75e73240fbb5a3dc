"""The orchestrator as a guest that leads: no data, no data key, the model only at the end.

1. prove itself to every holder and have it join; with their shares, the key of sealed states;
2. where another orchestrator began the run: open its newest state, or begin anew before the first;
3. travel (``travelling.orchestrator``), every event measured into the run log, a state
   sealed now and then, each holder's report kept for every chunk it gave;
4. have the model, which was compared with its measurement; seal it, write the manifest;
5. tell the holders that it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TextIO

from sealtrain.base.hostport import write_host_and_port
from sealtrain.errors import AlreadyExists, SealtrainError, UsageError
from sealtrain.guest.guest import Surroundings, run_secluded
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.travelling import Travelling
from sealtrain.training.model_files import Trained
from sealtrain.training.telemetry.bar import Bar, progress_bar
from sealtrain.training.telemetry.facts import environment
from sealtrain.training.telemetry.metric_gate import MetricGate
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.parties.joint import check_report, close_joint
from sealtrain_together.parties.lead import LeadRun
from sealtrain_together.parties.party import PartyReport
from sealtrain_together.travelling.guest.standby_folder import StandbyStatus, await_run, leading
from sealtrain_together.travelling.history import first_open
from sealtrain_together.travelling.orchestrator import Hooks, Orchestrator, TravelLog
from sealtrain_together.travelling.parties import Parties, join_holder
from sealtrain_together.travelling.programs import AnySettings, build_program, settings_of
from sealtrain_together.travelling.schedule import HolderPlan, TravelPlan
from sealtrain_together.travelling.standby import STANDBY_PURPOSE, Standby, TakenOver
from sealtrain_together.travelling.trainer_program import Training

if TYPE_CHECKING:
    from sealtrain.guest.run_end import Outcome
    from sealtrain.guest.settings import RunSettings
    from sealtrain.signing.runlog import RunLog
    from sealtrain_together.travelling.holder_client import HolderLane
    from sealtrain_together.travelling.schedule import Trip

Address = tuple[str, int]
Place = Literal["first", "take-over", "standby"]
_NO_TRIP: Final = (1 << 53) - 1
"""As first trip without a record: forgives nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """Whom an orchestrator talks to, and how it takes its place.

    Attributes:
        accelerator: Its control port.
        writes: Its write port.
        holders: Where each waits, by owner.
        states: Folder of sealed states; another orchestrator takes over from it.
        place: ``first`` to begin a run, ``take-over`` to go on with one whose orchestrator is gone,
            ``standby`` to wait until it is.
        wait: Seconds a standby waits.
        timeout: Seconds a holder may be silent.
        patience: Seconds an operation of the accelerator may take.
        device: Where the accelerator computes.
    """

    accelerator: Address
    writes: Address
    holders: Mapping[str, Address]
    states: Path
    place: Place = "first"
    wait: float = 3600.0
    timeout: float = 60.0
    patience: float = 600.0
    device: Literal["cpu", "cuda"] = "cpu"


def orchestrate(
    settings: RunSettings,
    how: Leading,
    around: Surroundings,
    *,
    progress: bool,
    say: Callable[[str], None],
) -> Outcome | None:
    """Lead a run to its end.

    Args:
        settings: Where everything is; ``data`` is not read.
        how: With whom, and from where on.
        around: What else the guest is given.
        progress: Show a bar on stderr.
        say: Called with a line when a standby waits and when it takes over.

    Returns:
        Where everything is; ``None`` for a standby whose run another orchestrator finished.

    Raises:
        UsageError: The recipe does not travel, or the holders are not its owners.
        AlreadyExists: The folder of states holds a run, or another orchestrator leads it.
        SealtrainError: Whatever step refused.
    """
    wait = how.wait if how.place == "standby" else 0.0
    waiting = partial(say, "standing by: another orchestrator leads")
    if how.place == "standby":
        none_yet = partial(say, "standing by: no orchestrator has begun")
        await_run(how.states, wait=how.wait, waiting=none_yet)
    with leading(how.states, wait=wait, waiting=waiting), ExitStack() as stack:
        before = StandbyStatus.read(how.states)
        if how.place == "first":
            if before is not None:
                raise AlreadyExists(
                    f"{how.states} holds sealed states of a run",
                    hint="name another folder: states in the run ticket",
                )
            lead = LeadRun.begin(settings, around)
        elif before is None:
            raise UsageError(f"{how.states} holds no run to take over")
        elif before.finished:
            return None
        else:
            say(f"taking over run {before.run_id}")
            lead = LeadRun.again(settings, before.run_id, around)
            settings.out.mkdir(exist_ok=True)
        stack.callback(lead.close)
        work = _OrchestratorWork(lead, how)
        StandbyStatus(run_id=lead.run_id).write(how.states)
        outcome = run_secluded(
            lead,
            lambda terminal: work.perform(terminal if progress else None, before is not None),
            peers=[
                f"tcp://{write_host_and_port(*place)}"
                for place in (how.accelerator, *how.holders.values())
            ],
            writable=[how.states],
        )
        StandbyStatus(run_id=lead.run_id, finished=True).write(how.states)
        return outcome


@dataclass(slots=True)
class _ReleasedProgress:
    """What leaves while it trains: losses as the release policy says, and a bar."""

    gate: MetricGate
    bar: Bar
    step_bytes: int
    silent: bool
    steps: int = 0
    last: dict[str, float] = field(default_factory=dict)

    def __call__(self, trip: Trip, loss: float) -> None:
        self.steps += trip.size // self.step_bytes
        # The noise that hides sequences covers no loss.
        self.last = {} if self.silent else {"loss": loss}
        self.gate.offer(self.steps, self.last)
        self.bar.step(self.steps, {})


class _OrchestratorWork:
    """What is done once the process is secluded."""

    def __init__(self, lead: LeadRun, how: Leading) -> None:
        travelling = of_kind(lead.recipe, Travelling)
        if set(how.holders) != set(lead.recipe.owners):
            raise UsageError(
                "the holders are not the owners that the recipe names",
                check="holders",
                got=", ".join(sorted(how.holders)) or "none",
                expected=", ".join(lead.recipe.owners),
                hint="give --holder OWNER=HOST:PORT once for each",
            )
        self._lead = lead
        self._how = how
        self._random = lead.around.random
        self._travelling = travelling
        self._parties = Parties(
            proof=ProveGuest.of(lead),
            accelerator=how.accelerator,
            writes=how.writes,
            holders=how.holders,
            accept_accelerator=AcceptGuest.of(lead),
            accept_holder=dict.fromkeys(how.holders, AcceptGuest.of(lead)),
            timeout=how.timeout,
            patience=how.patience,
        )
        self._reports: dict[str, PartyReport] = {}

    def perform(self, terminal: TextIO | None, taking_over: bool) -> Outcome:
        """Steps 1 to 5."""
        lead, lanes = self._lead, {}
        sizes, shares = {}, {}
        with ExitStack() as stack:
            for name in sorted(self._parties.holders):
                # Without a trip yet: which one is next stands in the state that the shares open.
                lanes[name], said = join_holder(
                    self._parties, lead.run_id, name, _NO_TRIP, self._random
                )
                stack.callback(lanes[name].close)
                sizes[name], shares[name] = said.size, said.share.reveal()
            key = lead.joint_key(STANDBY_PURPOSE, shares)
            shares.clear()
            states = Standby(self._how.states, key, lead.run_id)
            plan, state = self._plan(sizes), b""
            if taking_over:
                state = self._take_up(states.newest(), plan)
            begins_with = first_open(lead.journal.log)
            for name, lane in lanes.items():
                lane.join(lead.run_id, begins_with)
                self._keep_report(name, lane.report())
            with progress_bar(terminal, plan.steps) as bar:
                told = self._telling(plan, bar)
                orchestrator = self._orchestrator(plan, lanes, states, told)
                with orchestrator:
                    model = orchestrator.run(state)
                    self._ask_all(orchestrator, self._last_report)
                    trained = self._train(orchestrator, model, told)
                    outcome = close_joint(lead, trained, tuple(self._reports.values()))
                    self._ask_all(orchestrator, lambda _name, lane: lane.finish())
            return outcome

    def _plan(self, sizes: Mapping[str, int]) -> TravelPlan:
        travelling, recipe = self._travelling, self._lead.recipe
        program = settings_of(recipe, self._how.device)
        return TravelPlan(
            program=program,
            holders=tuple(
                HolderPlan(
                    name=name,
                    tokens=size // program.token_bytes,
                    max_tokens=travelling.limit_of(name) or size // program.token_bytes,
                )
                for name, size in sizes.items()
            ),
            buffer_bytes=travelling.buffer_bytes,
            seal_every=travelling.seal_every,
            max_steps=recipe.trainer.max_steps,
        )

    def _take_up(self, taken: TakenOver | None, plan: TravelPlan) -> bytes:
        """The model state to go on from; the lead goes on with the journal beside it.

        An orchestrator that died before it sealed a state leaves none: the run begins anew, and
        holders forgive what they gave to it.
        """
        if taken is None:
            self._lead.begin_log()
            return b""
        if taken.plan != plan:
            raise ClaimContradicted(
                "the holders have other data than when the run began",
                check="holders",
                hint="a run goes on with the data it began with",
            )
        self._lead.take_up(taken.journal)
        steps = _steps(self._lead.journal.log, plan.program)
        self._lead.record_resume(taken.counter, steps, taken.root)
        return taken.state

    def _telling(self, plan: TravelPlan, bar: Bar) -> _ReleasedProgress:
        lead = self._lead
        gate = MetricGate(lead.recipe.release_policy, lead.keep_metrics, bar.take_metrics)
        step_bytes = plan.program.step_bytes
        steps = _steps(lead.journal.log, plan.program)
        bar.step(steps, {})
        silent = plan.program.privacy is not None
        return _ReleasedProgress(
            gate=gate, bar=bar, step_bytes=step_bytes, silent=silent, steps=steps
        )

    def _orchestrator(
        self,
        plan: TravelPlan,
        lanes: dict[str, HolderLane],
        states: Standby,
        told: _ReleasedProgress,
    ) -> Orchestrator:
        lead = self._lead

        def seal(state: bytes) -> None:
            journal = lead.journal.to_dict() | {"wall_s": round(lead.wall(), 3)}
            states.seal(plan, journal, state)

        return Orchestrator(
            plan,
            self._parties,
            TravelLog(lead.run_id, log=lead.journal.log, record=lead.record),
            holders=lanes,
            random=self._random,
            hooks=Hooks(sealed=seal, on_trip=told, reported=self._keep_report),
        )

    def _keep_report(self, name: str, report: bytes) -> None:
        """Keep the newest report of a holder, if it is its own."""
        found = check_report(self._lead, PartyReport.from_bytes(report))
        if found.name != name:
            raise ClaimContradicted(
                "a holder reports as another party", check="parties", owner=name, got=found.name
            )
        self._reports[name] = found

    def _last_report(self, name: str, lane: HolderLane) -> None:
        self._keep_report(name, lane.report())

    def _ask_all(
        self, orchestrator: Orchestrator, question: Callable[[str, HolderLane], None]
    ) -> None:
        """Ask every holder that is still there; what the others said before stands."""
        for name in self._parties.holders:
            try:
                orchestrator.ask(name, partial(question, name))
            except SealtrainError as error:
                self._lead.tally.note(f"holder.{error.code}")

    def _train(self, orchestrator: Orchestrator, state: bytes, told: _ReleasedProgress) -> Trained:
        """The model, if it is the one that was measured after the last trip."""
        # ``run`` compared it with the last measurement.
        settings = orchestrator.plan.program.model_copy(update={"device": "cpu"})
        training = Training(recipe=self._lead.recipe, base_dir=self._lead.base)
        program = build_program(settings, state, training)
        tokens = _tokens(self._lead.journal.log)
        return Trained(
            files=program.files(),
            steps=_steps(self._lead.journal.log, settings),
            samples_seen=tokens // settings.seq_len,
            tokens=tokens,
            metrics=told.gate.filter(told.last),
            environment=environment(),
            accelerators=orchestrator.accelerators,
            withheld=dict(told.gate.withheld),
        )


def _steps(log: RunLog, program: AnySettings) -> int:
    """Optimizer steps so far."""
    return _tokens(log) * program.token_bytes // program.step_bytes


def _tokens(log: RunLog) -> int:
    """Trained on so far."""
    return sum(
        entry["fields"]["tokens"] for entry in log.entries if entry["event"] == "trip.trained"
    )
