"""``run schedule``: the scheduler beside a broker, which submits a recipe's due times."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.cli.durations import Duration
from sealtrain.cli.output import Json, emit, say
from sealtrain.errors import Unreachable, UsageError
from sealtrain.owner.insecure_clock import clock_of, require_simulated, waiting
from sealtrain.recipe.errors import RecipeInvalid

if TYPE_CHECKING:
    from sealtrain.owner.scheduled_runs import Scheduled
    from sealtrain.owner.scheduling import Decided, ScheduleWait
    from sealtrain.recipe.schedule import Schedule

_RETRY_SECONDS: Final = (1, 2, 5, 10, 30, 60)
_LOOK_SECONDS: Final = 15
"""How soon a scheduler that waits for data sees that some was registered."""
_ANEW_SECONDS: Final = 3600
"""How often it decides while there is none: whether the schedule is over, and the broker there."""


def schedule(  # noqa: PLR0913  # the options of the command
    deployment: Annotated[Path, typer.Argument(help="app-compose.json of the recipe.")],
    broker: Annotated[Path, typer.Option(help="Broker file of the broker to submit to.")],
    identity: Annotated[
        Path, typer.Option(help="Private identity file: a submitter and a runner of the broker.")
    ],
    ticket: Annotated[Path, typer.Option(help="Run ticket of every run (see: deploy ticket).")],
    runs: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            help="With continue: last: the runner's folder (run serve --folder), where a run finds "
            "the model of the run before.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Decide what is due now, and end.")] = False,
    claim_within: Annotated[
        int,
        typer.Option(
            click_type=Duration("s", least=60), help="How long a runner may take to claim a run."
        ),
    ] = 3600,
    insecure_simulated_clock: Annotated[
        Path | None,
        typer.Option(
            help="For rehearsals of recipes on the simulator: a file that holds the time by which "
            "due times are reached. It proves nothing about time."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Submit a run for each due time of a recipe's schedule, or record why there is none.

    Stop it and start it again at any time, also twice: a due time is submitted once. It opens no
    key and approves nothing; owners' approvals decide at each run.
    """
    if once:
        decided, following, watch = _decide(
            deployment, broker, identity, ticket, claim_within, runs, insecure_simulated_clock
        )
        emit(as_json, _as_json(decided, following, watch), [])
        return
    if insecure_simulated_clock is not None:
        say("SIMULATED CLOCK: due times are reached as a file says")
    clock, wait = clock_of(insecure_simulated_clock), waiting(insecure_simulated_clock)
    failures, ready = 0, False
    while True:
        found = _once()
        if isinstance(found, int):
            time.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
            failures += 1
            continue
        failures = 0
        if found["next"] is None:
            say("the schedule is over")
            return
        if not ready:
            what = "" if found["watch"] is None else "data that is registered, from "
            say(f"scheduler ready for {what}{found['next']}")
            ready = True
        following = from_rfc3339(found["next"])
        while (left := following - clock()) > 0:
            wait(left)
        if found["watch"] is not None:
            _await_data(found["watch"], wait, time.monotonic)


def _await_data(url: str, wait: Callable[[float], None], monotonic: Callable[[], float]) -> None:
    """Return when data was registered, the broker gives no answer, or it is time to decide anew."""
    from sealtrain.owner.newdata import is_registered

    until = monotonic() + _ANEW_SECONDS
    while monotonic() < until:
        wait(_LOOK_SECONDS)
        if is_registered(url) is not False:
            return


def _once() -> dict[str, Any] | int:
    """Decide what is due in a process of its own; what it loads is gone while this one waits.

    Returns:
        Its answer; its exit code where the broker did not answer.

    Raises:
        Exit: It ended otherwise; it said why.
    """
    from sealtrain.base.processes import end_with_starter
    from sealtrain.cli.programs import program

    done = subprocess.run(  # noqa: S603 - our own program with the words that this one was given
        program([*sys.argv[1:], "--once", "--json"]),
        stdout=subprocess.PIPE,
        preexec_fn=end_with_starter(),
    )
    if done.returncode == Unreachable.exit_code:
        return done.returncode
    if done.returncode != 0:
        raise typer.Exit(done.returncode)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _decide(
    deployment: Path,
    broker: Path,
    identity: Path,
    ticket: Path,
    claim_within: int,
    runs: Path | None,
    insecure_file: Path | None,
) -> tuple[list[Decided], int | None, str | None]:
    from sealtrain.client.pin import load_pin
    from sealtrain.client.ticket import load_ticket
    from sealtrain.owner.newdata import question
    from sealtrain.owner.scheduled_runs import Scheduled, require_first_broker
    from sealtrain.recipe.lock import LockedRecipe

    locked = LockedRecipe.load(deployment)
    lock, target = locked.lock, locked.target
    if lock.recipe.schedule is None:
        raise RecipeInvalid(
            "the recipe has no schedule", check="schedule", hint="write one, and lock it anew"
        )
    if (lock.recipe.schedule.continues == "last") != (runs is not None):
        raise UsageError(
            "the runner's folder is for a schedule whose runs begin with the model before",
            check="--folder",
            got=None if runs is None else str(runs),
            expected="--folder FOLDER with continue: last, and none with continue: base",
        )
    require_first_broker(broker, lock)
    if insecure_file is not None:
        require_simulated(lock)
    scheduled = Scheduled(
        lock=lock,
        target=target,
        template=load_ticket(ticket),
        claim_within=claim_within,
        runs=None if runs is None else runs.absolute(),
    )
    decided: list[Decided] = []
    now = clock_of(insecure_file)()
    following = _step(lock.recipe.schedule, scheduled, broker, identity, now, decided)
    if following is None:
        return decided, None, None
    watch = None
    if following.watch is not None:
        watch = question(
            load_pin(broker).url, compose_hash=target.compose_hash, start=following.watch
        )
    return decided, following.at, watch


def _step(
    schedule: Schedule,
    scheduled: Scheduled,
    broker: Path,
    identity: Path,
    now: int,
    decided: list[Decided],
) -> ScheduleWait | None:
    from sealtrain.client.broker_api import BrokerClient
    from sealtrain.client.pin import load_pin
    from sealtrain.keys.identity import Identity
    from sealtrain.owner.scheduled_runs import BrokerBoard
    from sealtrain.owner.scheduling import advance, describe_decision

    def on_decided(decision: Decided) -> None:
        decided.append(decision)
        say(describe_decision(decision))

    def on_clock_back(newest: int) -> None:
        say(f"this clock says {to_rfc3339(now)}, and {to_rfc3339(newest)} was decided already")

    pin = load_pin(broker)
    signer = Identity.load(identity).signer
    with BrokerClient.at(pin, signer=signer) as client:
        return advance(
            schedule,
            scheduled.target.recipe_hash,
            BrokerBoard(client, pin, scheduled, signer),
            now=now,
            on_decided=on_decided,
            on_clock_back=on_clock_back,
        )


def _as_json(decided: list[Decided], following: int | None, watch: str | None) -> dict[str, Any]:
    return {
        "decided": [
            {"due": to_rfc3339(decision.due), "name": decision.name, "code": decision.code}
            for decision in decided
        ],
        "next": None if following is None else to_rfc3339(following),
        "watch": watch,
    }
