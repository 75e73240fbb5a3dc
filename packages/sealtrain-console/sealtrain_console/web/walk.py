"""The page of a walk: the five steps of a sealed run, each protection of which is a switch.

A press plays the step on the prepared run, on the server, and shows what came back. One step is
played at a time; the page keeps nothing, so a switch that is loaded again is on.
"""

from __future__ import annotations

import threading
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from sealtrain_console.walk.claims import claims
from sealtrain_console.walk.prepared_run import Prepared
from sealtrain_console.walk.switch import STEPS, StepOutcome
from sealtrain_console.walk.table import TITLES, of_step, play, switch_named
from sealtrain_console.web.app import NavigationPage
from sealtrain_console.web.rendering import is_part, page, part

_router = APIRouter()
WALK = NavigationPage(path="/walk", title="Walk a run", router=_router)
_ONE_AT_A_TIME: Final = threading.Lock()

Name = Annotated[str, Path(max_length=80)]


@_router.get("/walk")
def _walk(request: Request) -> Response:
    return _page(request)


@_router.post("/walk/{name}/{position}")
def _switch_step(request: Request, name: Name, position: Literal["on", "off"]) -> Response:
    switch = switch_named(name)
    with _ONE_AT_A_TIME:
        outcome = play(_run_of(request), switch, off=position == "off")
    if is_part(request):
        promise = claims()[switch.claim].promise
        return part("walk_switch.html", switch=switch, outcome=outcome, promise=promise)
    return _page(request, outcome)


def _page(request: Request, outcome: StepOutcome | None = None) -> Response:
    run = _run_of(request)
    promises = {switch.claim: claims()[switch.claim].promise for step in STEPS
                for switch in of_step(step)}  # fmt: skip
    return page(
        request,
        "walk.html",
        steps=[(step, TITLES[step], of_step(step)) for step in STEPS],
        shown=outcome,
        promises=promises,
        recipe=run.locked.lock.recipe,
        records=run.records,
    )


def _run_of(request: Request) -> Prepared:
    found = request.app.state.walk
    if not isinstance(found, Prepared):
        raise TypeError("the page of the walk was made without a prepared run")
    return found
