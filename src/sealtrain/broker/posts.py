"""Every ``POST`` under ``/v1``: of guests by evidence, of owners by a signature on the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from sealtrain.base.models import StrictModel
from sealtrain.broker.bodies import answer, read_body
from sealtrain.broker.service import Broker
from sealtrain.broker.urls import asked_url
from sealtrain.release.messages import (
    MAX_MANIFEST_BYTES,
    MAX_REQUEST_BYTES,
    Accepted,
    Challenge,
    ChallengeRequest,
    CosignedCheckpoint,
    CosignedPage,
    EnvelopeDocument,
    ReleaseAnswer,
    ReleaseRequest,
    RenewalAnswer,
    RenewalRequest,
    load_message,
)

__all__ = ["Serving", "add_posts"]

Serving = Callable[[], Broker]
"""Who answers; asked for with each request, so that the service can be described without one."""

Asked = TypeVar("Asked", bound=StrictModel)


def add_posts(app: FastAPI, broker: Serving, public_urls: tuple[str, ...]) -> None:
    """Add them.

    Args:
        app: What answers.
        broker: Who does.
        public_urls: URLs under which owners reach it; none for the address of the connection.
    """

    def post(
        path: str,
        asked: type[Asked],
        answered: type[StrictModel],
        act: Callable[[Asked], StrictModel],
        summary: str,
        admit: Callable[[Request, bytes], object] | None = None,
    ) -> None:
        async def endpoint(request: Request) -> Response:
            body = await read_body(request, MAX_REQUEST_BYTES, broker().caps.body_seconds)

            def acted() -> Response:
                if admit is not None:
                    admit(request, body)
                return answer(act(load_message(asked, body)))

            return await run_in_threadpool(acted)

        app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=answered,
            summary=summary,
            openapi_extra={
                "x-body": asked.__name__,
                **({} if admit is None else {"security": [{"owner": []}]}),
            },
        )

    def owned(
        path: str,
        asked: type[Asked],
        answered: type[StrictModel],
        act: Callable[[Asked], StrictModel],
        summary: str,
    ) -> None:
        """A path for what owners hand in: their signature on the request comes first."""

        def admit(request: Request, body: bytes) -> None:
            broker().owners.admit(
                method=request.method,
                url=_own_url(request, public_urls),
                headers=request.headers.items(),
                body=body,
            )

        post(path, asked, answered, act, summary, admit)

    post(
        "/v1/challenges",
        ChallengeRequest,
        Challenge,
        lambda asked: broker().challenge(asked),
        "Issue a challenge",
    )
    post(
        "/v1/releases",
        ReleaseRequest,
        ReleaseAnswer,
        lambda asked: broker().release(asked),
        "Release keys to a guest",
    )
    post(
        "/v1/renewals",
        RenewalRequest,
        RenewalAnswer,
        lambda asked: broker().renew(asked),
        "Renew a lease",
    )
    owned(
        "/v1/approvals",
        EnvelopeDocument,
        Accepted,
        lambda asked: broker().registry.submit_decision(asked),
        "Submit an approval or revocation",
    )
    owned(
        "/v1/datasets",
        EnvelopeDocument,
        Accepted,
        lambda asked: broker().registry.register_dataset(asked),
        "Register a dataset",
    )
    owned(
        "/v1/withdrawals",
        EnvelopeDocument,
        Accepted,
        lambda asked: broker().registry.withdraw(asked),
        "Withdraw datasets for good",
    )
    owned(
        "/v1/policies",
        EnvelopeDocument,
        Accepted,
        lambda asked: broker().registry.set_policy(asked),
        "Set what guests must show that read an owner's data",
    )
    owned(
        "/v1/successions",
        EnvelopeDocument,
        Accepted,
        lambda asked: broker().registry.succeed(asked),
        "End this consortium: its owners put another one in its place",
    )
    owned(
        "/v1/ledger/cosignatures",
        CosignedCheckpoint,
        CosignedPage,
        lambda asked: broker().registry.witnessing.submit(asked),
        "Submit a cosignature of the ledger's checkpoint",
    )

    # No model: the manifest is a file whose bytes count.
    body = {"application/json": {"schema": {"type": "object"}}}

    @app.post(
        "/v1/manifests",
        response_model=Accepted,
        summary="Record a run manifest",
        openapi_extra={"requestBody": {"required": True, "content": body}},
    )
    async def manifests(request: Request) -> Response:
        body = await read_body(request, MAX_MANIFEST_BYTES, broker().caps.body_seconds)
        broker().throttle.take(broker().now())
        return await run_in_threadpool(lambda: answer(broker().registry.submit_manifest(body)))


def _own_url(request: Request, public_urls: tuple[str, ...]) -> str:
    """What was asked, at the address the broker knows itself by."""
    scope = request.scope
    host, port = scope["server"]
    listening = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    query = scope["query_string"].decode("latin-1")
    return asked_url(
        public_urls or (listening,),
        host=request.headers.get("host", ""),
        target=scope["raw_path"].decode("latin-1") + (f"?{query}" if query else ""),
    )
