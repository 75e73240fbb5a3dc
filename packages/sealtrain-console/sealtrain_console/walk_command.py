"""``walk``: a sealed run, step by step, with each protection as a switch.

The run is prepared once (half a minute) and kept in a folder; each switch then answers in about a
second. Without an option the walk is a page on this machine; ``--all`` and a switch's name play it
in the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.base.extras import require_extras
from sealtrain.cli.output import Json, emit, say, table
from sealtrain.errors import ProtectionMissing, UsageError
from sealtrain_console.walk.claims import claims

if TYPE_CHECKING:
    from sealtrain_console.walk.prepared_run import Prepared
    from sealtrain_console.walk.switch import StepOutcome, Switch


def walk(
    switch: Annotated[
        list[str] | None,
        typer.Argument(help="Switches to play in the terminal; no page is opened then."),
    ] = None,
    *,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the switches; nothing is run.")
    ] = False,
    play_all: Annotated[
        bool,
        typer.Option("--all", help="Play every switch, on and off, and list what refused."),
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Folder of the prepared run; it is kept for the next walk.")
    ] = Path("walk-out"),
    anew: Annotated[
        bool, typer.Option("--anew", help="Prepare the run again, though one lies there.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page on this machine; 0 for any.")
    ] = 8601,
    as_json: Json = False,
) -> None:
    """Walk through a sealed run and switch one protection after the other off.

    SIMULATED — NOT ATTESTED. Owners, broker, guest and auditor run for real, on made-up records. A
    switch that is off takes its step with that protection attacked or left out, and shows the
    error that comes back, and which promise would fall.
    """
    if list_them + play_all + bool(switch) > 1:
        raise UsageError(
            "a switch, --list and --all do not go together", expected="at most one of them"
        )
    require_extras("a walk", "train", "broker", "simulator")
    from sealtrain_console.walk.table import SWITCHES, play, switch_named
    from sealtrain_console.walk_run import prepare_run

    if list_them:
        listed = [_describe_switch(switch_name) for switch_name in SWITCHES]
        emit(as_json, {"switches": listed}, _listing(SWITCHES))
        return
    chosen = SWITCHES if play_all else tuple(switch_named(name) for name in switch or ())
    say("SIMULATED — NOT ATTESTED")
    if not chosen:  # before half a minute is spent
        require_extras("the page of a walk", "console")
    run = prepare_run(out, anew=anew, on_step=say)
    if not chosen:
        _serve(run, port, as_json)
        return
    outcomes: list[StepOutcome] = []
    for chosen_switch in chosen:
        pair = [play(run, chosen_switch, off=off) for off in (False, True)]
        outcomes += pair
        if not play_all and not as_json:
            for line in _story(*pair):
                typer.echo(line)
    rows = _table(outcomes) if play_all else ()
    emit(
        as_json,
        {"simulated": True, "outcomes": [_describe_outcome(outcome) for outcome in outcomes]},
        rows,
    )
    broken = [outcome for outcome in outcomes if not outcome.as_promised]
    if broken:
        raise _missing(broken)


def _describe_switch(switch: Switch) -> dict[str, str]:
    return {**switch.to_dict(), "promise": claims()[switch.claim].promise}


def _describe_outcome(outcome: StepOutcome) -> dict[str, Any]:
    return {**outcome.to_dict(), "promise": claims()[outcome.switch.claim].promise}


def _listing(switches: Iterable[Switch]) -> Iterator[str]:
    from sealtrain_console.walk.table import TITLES

    step = ""
    for number, switch in enumerate(switches):
        if switch.step != step:
            step = switch.step
            yield from ([""] if number else [])
            yield f"{step}: {TITLES[switch.step]}"
        yield f"  {switch.name:<21} {switch.claim:<5} {switch.protection}"


def _story(on: StepOutcome, off: StepOutcome) -> Iterator[str]:
    """One switch, on and off, for a person."""
    switch, error = off.switch, off.refusal
    yield f"{switch.name}: {switch.protection}"
    yield f"  on       {on.passed or f'refused: {on.refusal}'}"
    yield f"  off      {switch.off}"
    if error is None:
        yield f"  nothing refused: {off.passed}"
        return
    yield f"  refused  [{error.code}] exit {error.exit_code}: {error.message}"
    for name in ("check", "owner", "got", "expected", "hint"):
        if value := getattr(error, name):
            yield f"  {name:<8} {value}"
    yield f"  else     {off.stake}"
    yield f"  promise  {switch.claim}: {claims()[switch.claim].promise}"


def _table(outcomes: Iterable[StepOutcome]) -> list[str]:
    """Every switch that was switched off, one a line."""
    rows = []
    for outcome in outcomes:
        if outcome.off:
            error = outcome.refusal
            refused = ("nothing", "", "") if error is None else _describe_refusal(error)
            rows.append((outcome.switch.step, outcome.switch.name, outcome.switch.claim, *refused))
    return table(rows, header=("step", "switched off", "promise", "refused with", "exit", "check"))


def _describe_refusal(error: Any) -> tuple[str, str, str]:
    return error.code, str(error.exit_code), error.check or "-"


def _missing(broken: list[StepOutcome]) -> ProtectionMissing:
    names = ", ".join(
        f"{outcome.switch.name} {'off' if outcome.off else 'on'}" for outcome in broken
    )
    return ProtectionMissing(
        "a step of the walk did not end as the promise says",
        check=broken[0].switch.name,
        got=names,
        expected="every step passes with its protection, and is refused without it",
        hint="sealtrain walk --anew prepares the run again; if it stays so, report it: SECURITY.md",
    )


def _serve(run: Prepared, port: int, as_json: bool) -> None:
    """Serve the page until Ctrl-C."""
    from sealtrain_console.web.app import console_app
    from sealtrain_console.web.serving import serve
    from sealtrain_console.web.walk import WALK

    def ready(url: str) -> None:
        say(f"walk ready {url}")
        emit(as_json, {"url": url, "folder": str(run.folder)})

    serve(console_app([WALK], {"walk": run}), port, ready)
