"""The broker over HTTP (spec/key-release.md): bounded bodies in, typed errors out, nothing else.

1. The broker reads a body only after the request's head was admitted (``http.admission``), up to
   its cap, and parses it strictly, once; FastAPI parses none.
2. Work runs in threads, apart for each class of callers (``http.lanes``); the event loop moves
   bytes, verifies heads and makes challenges.
3. A ``SealtrainError`` is answered with its class's status, and with its text where that is below
   500. Any other exception is answered as ``internal`` without a reason; the log names its kind and
   place, never a value.
4. Answers are never cached.
5. Answers to unauthenticated callers are bounded in bytes and in work.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Annotated, Any, Literal, NoReturn

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, StringConstraints
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as StarletteMessage

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.filenames import OWNER_NAME
from sealtrain.base.version import VERSION
from sealtrain.broker.http.admission import Admission, caller_of
from sealtrain.broker.http.bodies import NO_STORE, answer, error_answer, internal_answer, raw_answer
from sealtrain.broker.http.boot_routes import add_boot_routes
from sealtrain.broker.http.lanes import Lanes
from sealtrain.broker.http.metrics import Metrics
from sealtrain.broker.http.openapi import describe
from sealtrain.broker.http.posts import Serving, add_posts
from sealtrain.broker.http.watching import WatchMiddleware
from sealtrain.broker.service.bootauth import BootAuthority
from sealtrain.broker.service.run_control import MAX_PAGE
from sealtrain.broker.service.service import Broker
from sealtrain.broker.service.witnessing import MAX_COSIGNED_PAGE
from sealtrain.consortium.members import MAX_OWNERS, Consortium
from sealtrain.consortium.series_block import MAX_MEMBERS
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.ledger.ledger import KIND, LedgerProof
from sealtrain.release.messages import (
    MAX_NAMED_IDS,
    BrokerIdentity,
    BrokerKeys,
    BrokerStatus,
    CosignedPage,
    Health,
    LedgerCheckpoint,
    LedgerConsistency,
    LedgerPage,
    LedgerRotations,
    OwnerPolicies,
    Ready,
    RegisteredDatasets,
    SeriesPage,
    TallyAnswer,
)
from sealtrain.release.run_control import SearchPage, SubmissionAnswer, SubmissionPage
from sealtrain.release.sealing_key import SignedSealingKey
from sealtrain.signing.target import Target

_log = logging.getLogger("sealtrain.broker")

_AppId = Annotated[str, Query(pattern="^[0-9a-f]{40}$")]
_Hash = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
_ID = "^[0-9a-f]{32}$"
_Index = Annotated[int, Query(ge=0, le=2**53 - 1)]
_CosignedLimit = Annotated[int, Query(ge=1, le=MAX_COSIGNED_PAGE)]


def broker_app(broker: Broker, metrics: Metrics, *, public_urls: tuple[str, ...] = ()) -> FastAPI:
    """ASGI application of one broker, without any page: it serves nothing that loads anything.

    Args:
        broker: The broker that answers.
        metrics: Counts requests.
        public_urls: URLs under which owners reach it; none for the address of the connection.
    """
    boot = broker.boot
    app = _application(
        lambda: broker, lambda: metrics, None if boot is None else lambda: boot, public_urls
    )
    app.add_middleware(WatchMiddleware, now=broker.now, metrics=metrics, random=os.urandom)
    return app


def describe_service(*, boot_auth: bool) -> dict[str, Any]:
    """OpenAPI document of a broker's service, without a broker.

    Args:
        boot_auth: Whether it answers dstack's KMS.
    """

    def nobody() -> NoReturn:
        raise RuntimeError("this application is described, not served")

    return _application(nobody, nobody, nobody if boot_auth else None, ()).openapi()


def _application(
    broker: Serving,
    metrics: Callable[[], Metrics],
    boot: Callable[[], BootAuthority] | None,
    public_urls: tuple[str, ...],
) -> FastAPI:
    app = FastAPI(
        title="sealtrain broker",
        version=VERSION,
        summary="Releases data keys to guests that prove themselves, while owners approve.",
        docs_url=None,
        redoc_url=None,
    )
    admission, lanes = Admission(broker, public_urls), Lanes()
    _add_reads(app, broker, admission, lanes)
    _add_ledger(app, broker, lanes)
    _add_runs(app, broker, lanes)
    add_posts(app, broker, admission, lanes)
    _add_operators(app, broker, metrics, lanes)
    if boot is not None:
        add_boot_routes(app, boot, admission, lanes)
    _add_errors(app)
    describe(app)
    return app


def _add_reads(app: FastAPI, broker: Serving, admission: Admission, lanes: Lanes) -> None:
    read = partial(_read, app, lanes)

    @read("/v1/health", Health)
    def health() -> Response:
        """Whether the broker answers, and for which consortium."""
        return answer(
            Health(
                status="ok",
                version=VERSION,
                consortium_id=broker().consortium.consortium_id,
                ledger_size=broker().condition.ledger_size,
            )
        )

    @read("/v1/ready", Ready)
    def ready() -> Response:
        """Whether the broker can decide now: its databases, its disk, its collateral."""
        broker().condition.require()
        return answer(Ready(status="ready"))

    @read("/v1/consortium", Consortium)
    def consortium() -> Response:
        """The consortium document it serves."""
        return answer(broker().consortium)

    @app.get("/v1/identity", response_model=BrokerIdentity)
    async def identity(request: Request, nonce: _Hash) -> Response:
        """Which broker it is, under fresh evidence of its own."""
        admission.stranger(request)

        def act() -> Response:
            return answer(broker().identity(nonce))

        return await lanes.guests.run(caller_of(request), act)

    @app.get("/v1/keys", response_model=BrokerKeys)
    async def keys(request: Request, app_id: _AppId, compose_hash: _Hash, nonce: _Hash) -> Response:
        """Its public keys for one recipe, under fresh evidence of its own."""
        admission.stranger(request)

        def act() -> Response:
            return answer(broker().keys(app_id=app_id, compose_hash=compose_hash, nonce=nonce))

        return await lanes.guests.run(caller_of(request), act)

    @app.get("/v1/keys/signed", response_model=SignedSealingKey)
    async def sealing_key(
        request: Request, app_id: _AppId, compose_hash: _Hash, owner_id: _Hash, nonce: _Hash
    ) -> Response:
        """Its public key for one owner's data and one recipe, under its signature."""
        admission.stranger(request)

        def act() -> Response:
            return answer(
                broker().sealing_key(
                    app_id=app_id, compose_hash=compose_hash, owner_id=owner_id, nonce=nonce
                )
            )

        return await lanes.guests.run(caller_of(request), act)

    @read("/v1/datasets/registered", RegisteredDatasets)
    def registered(
        app_id: _AppId,
        compose_hash: _Hash,
        owner_id: _Hash,
        dataset_id: Annotated[
            list[Annotated[str, StringConstraints(pattern=_ID)]], Query(max_length=MAX_NAMED_IDS)
        ] = [],  # noqa: B006  # nothing changes it
        after: Annotated[str | None, Query(pattern=_ID)] = None,
    ) -> Response:
        """Which datasets of an owner are registered here for one deployment."""
        found = broker().registry.list_registered(
            app_id=app_id,
            compose_hash=compose_hash,
            owner_id=owner_id,
            dataset_ids=dataset_id,
            after=after,
        )
        return answer(found)

    @read("/v1/datasets/series", SeriesPage)
    def series(
        app_id: _AppId,
        compose_hash: _Hash,
        owner: Annotated[str, Query(pattern=OWNER_NAME)],
        name: Annotated[str, Query(pattern=OWNER_NAME)],
        after: Annotated[int, Query(ge=0, le=MAX_MEMBERS)] = 0,
    ) -> Response:
        """Members of a series of an owner that are registered here for a deployment."""
        found = broker().registry.series(
            app_id=app_id, compose_hash=compose_hash, owner=owner, name=name, after=after
        )
        return answer(found)

    @read("/v1/policies", OwnerPolicies)
    def policies() -> Response:
        """What owners ask of guests that read their data, beyond what this broker asks of all."""
        return answer(broker().registry.policies())

    @read("/v1/approvals", TallyAnswer)
    def approvals(app_id: _AppId, compose_hash: _Hash, recipe_hash: _Hash) -> Response:
        """Where the approval of one recipe stands."""
        target = Target(app_id=app_id, compose_hash=compose_hash, recipe_hash=recipe_hash)
        return answer(broker().registry.tally(target))


def _add_ledger(app: FastAPI, broker: Serving, lanes: Lanes) -> None:
    read = partial(_read, app, lanes)

    @read("/v1/ledger/checkpoint", LedgerCheckpoint)
    def checkpoint() -> Response:
        """Signed head of the ledger."""
        return answer(LedgerCheckpoint(checkpoint=broker().ledger.checkpoint()))

    @read("/v1/ledger/entries", LedgerPage)
    def entries(start: _Index = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        """Consecutive entries of the ledger, fewer than asked for where they are long."""
        found = broker().ledger.page(start, limit)
        return raw_answer(b'{"entries":[%b],"start":%d}' % (b",".join(found), start))

    @read("/v1/ledger/proof", LedgerProof)
    def proof(index: _Index) -> Response:
        """Proof that an entry is in the ledger."""
        return answer(broker().ledger.proof(index))

    @read("/v1/ledger/consistency", LedgerConsistency)
    def consistency(first: _Index, second: _Index) -> Response:
        """Proof that the ledger only grew between two sizes."""
        return answer(LedgerConsistency(path=broker().ledger.consistency(first, second)))

    @read("/v1/ledger/rotations", LedgerRotations)
    def rotations() -> Response:
        """Every change of the ledger's key."""
        return answer(broker().rotations())

    @read("/v1/ledger/cosigned", CosignedPage)
    def cosigned(start: _Index = 0, limit: _CosignedLimit = MAX_COSIGNED_PAGE) -> Response:
        """Tree heads that owners cosigned, smallest first, fewer where they are long."""
        return answer(broker().registry.witnessing.page(start, limit))

    @read("/v1/ledger/cosigned/latest", CosignedPage)
    def latest(quorum: Annotated[int, Query(ge=1, le=MAX_OWNERS)] = 1) -> Response:
        """The newest tree head that so many owners cosigned."""
        return answer(broker().registry.witnessing.newest(quorum))


def _add_runs(app: FastAPI, broker: Serving, lanes: Lanes) -> None:
    read = partial(_read, app, lanes)

    @read("/v1/submissions", SubmissionPage)
    def submissions(
        state: Literal["open", "all"] = "all",
        name: Annotated[str | None, Query(pattern=OWNER_NAME)] = None,
        compose_hash: _Hash | None = None,
        before: _Index | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    ) -> Response:
        """Submissions, newest first, and where each stands."""
        return answer(
            broker().run_control.newest(
                state=state, name=name, compose_hash=compose_hash, before=before, limit=limit
            )
        )

    @read("/v1/submissions/{submission_id}", SubmissionAnswer)
    def submission(submission_id: Annotated[str, Path(pattern=_ID)]) -> Response:
        """One submission as it was signed, and where it stands."""
        return answer(broker().run_control.one(submission_id))

    @read("/v1/ledger/search", SearchPage)
    def search(
        run_id: Annotated[str | None, Query(pattern=_ID)] = None,
        submission_id: Annotated[str | None, Query(pattern=_ID)] = None,
        compose_hash: _Hash | None = None,
        kind: Annotated[str | None, Query(pattern=f"^{KIND.pattern}$")] = None,
        start: _Index = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    ) -> Response:
        """Entries of the ledger that name a run, a submission or a document, or of one kind."""
        asked = {"run_id": run_id, "submission_id": submission_id, "compose_hash": compose_hash}
        named = {name: value for name, value in asked.items() if value is not None}
        found, end = broker().run_control.search(named, kind=kind, start=start, limit=limit)
        entries = b",".join(b'{"entry":%b,"index":%d}' % (data, index) for index, data in found)
        last = b"null" if end is None else b"%d" % end
        return raw_answer(b'{"end":%b,"entries":[%b]}' % (last, entries))


def _read(
    app: FastAPI, lanes: Lanes, path: str, answered: type[BaseModel], **more: Any
) -> Callable[[Callable[..., Response]], None]:
    """Add a ``GET`` whose work is done in the lane of reads."""

    def add(show: Callable[..., Response]) -> None:
        @wraps(show)
        async def endpoint(request: Request, **asked: Any) -> Response:
            return await lanes.reads.run(caller_of(request), partial(show, **asked))

        # FastAPI reads the query from a signature: that of ``show``, and the request.
        plain = inspect.signature(show)
        extra = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
        endpoint.__signature__ = plain.replace(  # type: ignore[attr-defined]
            parameters=[*plain.parameters.values(), extra]
        )
        app.get(path, response_model=answered, **more)(endpoint)

    return add


def _add_operators(
    app: FastAPI, broker: Serving, metrics: Callable[[], Metrics], lanes: Lanes
) -> None:
    text = {"text/plain": {"schema": {"type": "string"}}}

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"description": "Numbers", "content": text}},
        openapi_extra=_BY_TOKEN,
    )
    async def numbers(request: Request) -> Response:
        """Numbers for Prometheus; asks for a token of scope metrics."""

        def act() -> Response:
            broker().operators.admit(request.headers.get("authorization", ""), "metrics")
            return Response(metrics().text(), headers=dict(NO_STORE), media_type=Metrics.MEDIA_TYPE)

        return await lanes.reads.run(caller_of(request), act)

    @app.get("/v1/status", response_model=BrokerStatus, openapi_extra=_BY_TOKEN)
    async def status(request: Request) -> Response:
        """How the broker is; asks for a token of scope status."""

        def act() -> Response:
            asked = broker()
            asked.operators.admit(request.headers.get("authorization", ""), "status")
            failing, sizes = asked.condition.failing(), asked.condition.sizes()
            return answer(
                BrokerStatus(
                    version=VERSION,
                    consortium_id=asked.consortium.consortium_id,
                    now=to_rfc3339(asked.now()),
                    started_at=to_rfc3339(asked.operators.began),
                    ready=not failing,
                    failing=failing,
                    sizes={name: value for name, (_, value) in sizes.items()},
                )
            )

        return await lanes.reads.run(caller_of(request), act)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(SealtrainError)
    async def ours(request: Request, error: SealtrainError) -> Response:
        request.state.error = type(error)
        if error.http_status == 500:
            _log_bug(error)
            return internal_answer()
        if error.http_status > 500:
            _log.warning(
                "cannot answer code=%s check=%s got=%s", error.code, error.check, error.got
            )
        return error_answer(error)

    @app.exception_handler(RequestValidationError)
    async def query(request: Request, error: RequestValidationError) -> Response:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        return await ours(request, DataInvalid(f"the request has a wrong {where}", check="query"))

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        answered = await ours(request, DataInvalid("no such path or method", check="path"))
        answered.status_code = error.status_code
        if error.status_code == 405:
            answered.headers["allow"] = ", ".join(_methods(app, request.url.path))
        return answered

    app.add_middleware(_Shield)


def _methods(app: FastAPI, path: str) -> list[str]:
    """Every method of a path; the framework names those of its first route only."""
    routes = [
        route for route in app.routes if isinstance(route, Route) and route.path_regex.match(path)
    ]
    return sorted({method for route in routes for method in route.methods or ()})


class _Shield:
    """Answers ``internal`` to any other exception; the framework would log it with its values."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: StarletteMessage) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            _log_bug(error)
            if not started:
                await internal_answer()(scope, receive, send)


_BY_TOKEN: dict[str, Any] = {"security": [{"operator": []}]}


def _log_bug(error: Exception) -> None:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f"{place.tb_frame.f_globals.get('__name__')}:{place.tb_lineno}" if place else "unknown"
    _log.error("internal error=%s at=%s", type(error).__name__, where)
