"""Pages of runs: all that are known here, one as it goes on, and chains of continuous runs."""

from __future__ import annotations

import pathlib as filesystem
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import StringConstraints
from starlette.responses import JSONResponse, Response

from sealtrain.errors import SealtrainError
from sealtrain.manifest import form
from sealtrain.manifest.comparison_page import sections_of
from sealtrain.manifest.files import manifest_bytes
from sealtrain.manifest.markup import Part, join
from sealtrain.manifest.trainedrecords import read_stated
from sealtrain.recipe.privacy import spendings
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.storage.errors import OutputStoreInvalid
from sealtrain_console.web.app import NavigationPage
from sealtrain_console.web.curves import Curve, Curves
from sealtrain_console.web.errors import PageUnknown
from sealtrain_console.web.ledgerview import RunEntries, entries_of
from sealtrain_console.web.outputstores import StoreContents
from sealtrain_console.web.rendering import page, part
from sealtrain_console.web.runfolders import (
    METRICS_FILE,
    LocalRun,
    alerts_of,
    chains_of,
    checkpoints_of,
    run_paths,
)
from sealtrain_console.web.sources import BrokerAnswer, Sources, sources_of
from sealtrain_console.web.verified_manifests import ManifestVerdict, decline_verdict

if TYPE_CHECKING:
    from sealtrain.client.broker_api import BrokerClient
    from sealtrain.client.pin import BrokerPin
    from sealtrain.release.run_control import ShownSubmission
    from sealtrain.signing.target import Target

_router = APIRouter()
RUNS = NavigationPage(path="/runs", title="Runs", router=_router)
RunId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
ComparedIds = Annotated[
    Sequence[Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]], Query(max_length=100)
]
PageNumber = Annotated[int, Query(alias="page", ge=1, le=1000)]
_SHOWN_AT_ONCE = 50
_RUNS_OF_A_PAGE = 25
_JUDGE_SECONDS = 4.0
"""Of one page of many runs; a run's own page verifies its manifest however long that takes."""


@_router.get("/runs")
def _runs(request: Request, number: PageNumber = 1) -> Response:
    sources = sources_of(request)
    paths = run_paths(sources.runs)
    shown = sources.reader.summaries(_of_page(paths, number))
    return page(
        request,
        "runs.html",
        runs=shown,
        number=number,
        pages_of_runs=-(-len(paths) // _RUNS_OF_A_PAGE),
        count=len(paths),
        judged={},
        judging=bool(sources.trusts),
        trusted=bool(sources.trusts),
        chains=chains_of(shown) if len(paths) <= _RUNS_OF_A_PAGE else None,
        brokers=len(sources.brokers),
        stores=sources.reads_stores,
        documents=[document for document in sources.documents() if document.locked is not None],
    )


@_router.get("/runs/judged")
def _judge_runs(request: Request, number: PageNumber = 1) -> Response:
    """The table of runs with a verdict on each manifest, as a part of the page of all runs."""
    sources = sources_of(request)
    shown = sources.reader.summaries(_of_page(run_paths(sources.runs), number))
    until = time.monotonic() + _JUDGE_SECONDS
    judged: Mapping[str, ManifestVerdict] = {
        str(run.path): _verdict(sources, run.path)
        for run in shown
        if run.completed is not None and time.monotonic() < until
    }
    return part("here.html", runs=shown, judged=judged, judging=False, trusted=bool(sources.trusts))


@_router.get("/runs/running")
def _list_running(request: Request) -> Response:
    """Runs that go on, the newest, as a part of the page of all runs."""
    sources = sources_of(request)
    summaries = (
        run
        for path in run_paths(sources.runs)
        if not (path / RUN_MANIFEST).is_file() and path.is_dir()
        for run in sources.reader.summaries([path])
    )
    running = [*islice((run for run in summaries if run.running), _RUNS_OF_A_PAGE)]
    rows = [(run, sources.progresses.of(run.path)) for run in running]
    return part("running.html", rows=rows)


@_router.get("/runs/chains")
def _chains(request: Request) -> Response:
    """Chains among all runs here, as a part of the page of all runs."""
    sources = sources_of(request)
    return part("chains.html", chains=chains_of(sources.reader.summaries(run_paths(sources.runs))))


def _of_page(paths: Sequence[filesystem.Path], number: int) -> Sequence[filesystem.Path]:
    return paths[(number - 1) * _RUNS_OF_A_PAGE : number * _RUNS_OF_A_PAGE]


@_router.get("/runs/compared")
def _compare(request: Request, run: ComparedIds = ()) -> Response:
    """Completed runs side by side, as ``sealtrain run compare`` shows them."""
    sources = sources_of(request)
    chosen = {_find_completed(sources, run_id).path: run_id for run_id in dict.fromkeys(run)}
    shown: list[Part] = []
    if chosen:
        shown = sections_of(
            sources.compare([*chosen]),
            advice="Start the console with the trust files of these recipes (--trust).",
            href=lambda compared: f"/runs/{chosen[compared.place]}",
        )
    return page(request, "compared.html", count=len(chosen), sections=join(shown))


def _find_completed(sources: Sources, run_id: str) -> LocalRun:
    """The run of an id that has a manifest here.

    Raises:
        PageUnknown: No run here has this id, or its run is not over.
    """
    run = _local(sources, run_id)
    if run is None or run.manifest is None:
        raise PageUnknown(
            "no manifest of this run is shown here: only completed runs are compared",
            check="run",
            got=run_id,
            hint="choose completed runs on the page of all runs",
        )
    return run


@_router.get("/runs/stores")
def _stores(request: Request) -> Response:
    """Which run each output store holds, as a part of the page of all runs."""
    return part("stores.html", held=sources_of(request).list_contents())


@_router.get("/runs/submitted")
def _list_submitted(request: Request) -> Response:
    """Submissions at brokers, as a part of the page of all runs."""

    def at(client: BrokerClient, _pin: BrokerPin) -> tuple[ShownSubmission, ...]:
        return client.submissions(limit=_SHOWN_AT_ONCE)

    return part("submitted.html", asked=sources_of(request).ask(at))


@_router.get("/runs/series")
def _series(request: Request) -> Response:
    """Series of owners that the shown recipes read, as brokers list them."""
    sources = sources_of(request)
    rows: list[tuple[str, BrokerAnswer[Any]]] = []
    for document in sources.documents():
        if document.locked is None:
            continue
        lock, target = document.locked.lock, document.locked.target
        if all(dataset.series is None for dataset in lock.recipe.datasets):
            continue
        named = [
            (dataset.owner, dataset.name)
            for dataset in lock.recipe.datasets
            if dataset.series is not None
        ]
        asked = sources.ask(partial(_list_series, target, named))
        rows += [(lock.recipe.name, answered) for answered in asked]
    return part("series.html", rows=rows)


def _list_series(
    target: Target, named: Sequence[tuple[str, str]], client: BrokerClient, _pin: BrokerPin
) -> list[tuple[str, str, int]]:
    """Owner, name and number of members of each series that a recipe reads, where it has any."""
    where = {"app_id": target.app_id, "compose_hash": target.compose_hash}
    found = [(*key, len(client.series(*key, **where))) for key in named]
    return [row for row in found if row[2]]


@_router.get("/runs/{run_id}")
def _run(request: Request, run_id: RunId) -> Response:
    sources = sources_of(request)
    found = sources.reader.find(sources.runs, run_id)
    run = next(iter(found), None)
    return page(
        request,
        "run.html",
        run_id=run_id,
        run=run,
        twice=[local.path.name for local in found[1:]],
        trusted=bool(sources.trusts),
        judged=decline_verdict(),
        records=None
        if run is None or run.manifest is None
        else read_stated(run.manifest.predicate),
        stores=sources.reads_stores,
        brokers=len(sources.brokers),
        live=run is not None and run.folder is not None,
        **_states(run),
    )


@_router.get("/runs/{run_id}/ledger")
def _ledger(request: Request, run_id: RunId) -> Response:
    """Releases, leases and events of a run, as brokers show them."""
    sources = sources_of(request)

    def at(client: BrokerClient, _pin: BrokerPin) -> tuple[RunEntries, ShownSubmission | None]:
        mine = next(
            (
                submission
                for submission in client.submissions(limit=100)
                if run_id in _run_ids(submission)
            ),
            None,
        )
        named = None if mine is None else mine.submission_id
        return entries_of(client, run_id=run_id, submission_id=named), mine

    asked = sources.ask(at)
    hashes = {answered.answer[0].compose_hash for answered in asked if answered.answer is not None}
    run = _local(sources, run_id)
    return part(
        "ledger.html",
        asked=asked,
        reserved=_list_reserved(sources, hashes),
        digest_here=_digest(run),
    )


@_router.get("/runs/{run_id}/checks")
def _checks(request: Request, run_id: RunId) -> Response:
    """Every check of the run's manifest on this machine."""
    sources = sources_of(request)
    run = _local(sources, run_id)
    if run is None or run.manifest is None:
        raise PageUnknown("no manifest of this run is shown here", check="run", got=run_id)
    return part("checks.html", judged=_verdict(sources, run.path))


@_router.get("/runs/{run_id}/store")
def _store(request: Request, run_id: RunId) -> Response:
    """What output stores hold of a run."""
    sources = sources_of(request)
    run = _local(sources, run_id)
    rows = [
        (held, _find_contradictions(held, run), _judge_stored(sources, held))
        for held in sources.list_contents()
        if held.run_id in (None, run_id)
    ]
    return part("store.html", rows=rows, digest_here=_digest(run))


def _verdict(sources: Sources, path: filesystem.Path) -> ManifestVerdict:
    """What the trust files say of the manifest of a run's folder, or of a manifest by itself."""
    folder = path if path.is_dir() else None
    try:
        data = manifest_bytes(path if folder is None else path / RUN_MANIFEST)
        return sources.judge(data, form.read(data), folder)
    except SealtrainError as error:
        return decline_verdict(error)


def _digest(run: LocalRun | None) -> str | None:
    return None if run is None or run.manifest is None else run.manifest.digest


def _judge_stored(sources: Sources, held: StoreContents) -> ManifestVerdict | None:
    """The same of the manifest in a store; ``None`` where there is none of its run."""
    if held.data is None or held.manifest is None:
        return None
    return sources.judge(held.data, held.manifest, None)


def _find_contradictions(held: StoreContents, run: LocalRun | None) -> list[SealtrainError]:
    """What is wrong with a store, also beside what lies on this machine."""
    found = list(held.problems)
    here = None if run is None else run.manifest
    if here is not None and held.manifest is not None and held.manifest.digest != here.digest:
        found.append(
            OutputStoreInvalid(
                "the store holds another manifest of this run than this machine",
                check="manifest",
                got=held.manifest.digest,
                expected=here.digest,
                hint="the ledger of a broker has the digest of the run's own",
            )
        )
    return found


@_router.get("/runs/{run_id}/files")
def _files(request: Request, run_id: RunId) -> Response:
    """Checkpoints and alerts of a run on this machine."""
    return part("files.html", **_states(_local(sources_of(request), run_id)))


@_router.get("/runs/{run_id}/curves")
def _curves(request: Request, run_id: RunId) -> Response:
    """Released metrics, thinned to what a chart can show."""
    sources = sources_of(request)
    run = _local(sources, run_id)
    if run is None:
        raise PageUnknown("no folder of this run is shown here", check="run", got=run_id)
    if run.folder is not None and (run.folder / METRICS_FILE).is_file():
        curves: Curves = request.app.state.curves
        drawn = curves.of(run.folder / METRICS_FILE).to_dict()
        if run.manifest is None:
            drawn["progress"] = sources.progresses.of(run.folder).to_dict()
        return JSONResponse(drawn)
    return JSONResponse(_from_manifest(run))


def _from_manifest(run: LocalRun) -> dict[str, Any]:
    """The curves that a manifest holds, in the form of ``CurveFile.to_dict``."""
    curves: dict[str, Curve] = {}
    step = 0
    for point in () if run.manifest is None else run.manifest.predicate.run.history:
        step = point.step
        for name, value in point.values.items():
            curves.setdefault(name, Curve()).add(point.step, value)
    drawn = {name: curve.to_dict() for name, curve in sorted(curves.items())}
    return {"step": step, "left_out": 0, "curves": drawn}


def _local(sources: Sources, run_id: str) -> LocalRun | None:
    return next(iter(sources.reader.find(sources.runs, run_id)), None)


def _states(run: LocalRun | None) -> dict[str, Any]:
    """Checkpoints and alerts, each with its error where they cannot be read."""
    found: dict[str, Any] = {"checkpoints": [], "alerts": [], "problems": []}
    if run is None:
        return found
    for name, read in (("checkpoints", checkpoints_of), ("alerts", alerts_of)):
        try:
            found[name] = read(run)
        except SealtrainError as error:
            found["problems"].append(error)
    return found


def _run_ids(shown: ShownSubmission) -> Sequence[str]:
    said = (shown.runner and shown.runner.run_id, shown.broker and shown.broker.run_id)
    return [run_id for run_id in said if run_id]


def _list_reserved(sources: Sources, hashes: set[str | None]) -> list[tuple[str, str, float]]:
    """What a run of these deployments reserves of each dataset, as its recipe says."""
    return [
        (spending.owner, spending.name, spending.epsilon)
        for document in sources.documents()
        if document.locked is not None and document.locked.compose_hash in hashes
        for spending in spendings(document.locked.recipe)
    ]
