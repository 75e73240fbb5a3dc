"""Every ``POST`` under ``/v1``: guests show evidence, owners sign the request.

The broker admits each by its head, reads its body, then parses and decides it in the threads of
that class of callers (``http.admission``, ``http.lanes``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

from sealtrain.base.digests import sha256_hex
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.base.models import StrictModel
from sealtrain.broker.http.admission import Admission, caller_of
from sealtrain.broker.http.bodies import answer, read_body
from sealtrain.broker.http.lanes import Lanes
from sealtrain.broker.service.controllers import SignerRole
from sealtrain.broker.service.service import Broker
from sealtrain.consortium.documents import list_handed_in
from sealtrain.consortium.runevents import RunEvent
from sealtrain.consortium.submissions import RunStop, Submission
from sealtrain.errors import SignatureInvalid
from sealtrain.release.errors import LeaseUnknown
from sealtrain.release.lease_code import LeaseShown
from sealtrain.release.messages import (
    MAX_CHALLENGE_BYTES,
    MAX_REQUEST_BYTES,
    MAX_REQUEST_VALUES,
    Accepted,
    Challenge,
    ChallengeRequest,
    CosignedCheckpoint,
    CosignedPage,
    EnvelopeDocument,
    FailureReport,
    ReleaseAnswer,
    ReleaseRequest,
    RenewalAnswer,
    RenewalRequest,
    load_message,
)
from sealtrain.release.run_control import Posted

Serving = Callable[[], Broker]
"""The broker, looked up with each request so that OpenAPI can be described without one."""

Asked = TypeVar("Asked", bound=StrictModel)


def add_posts(app: FastAPI, broker: Serving, admission: Admission, lanes: Lanes) -> None:
    """Add the paths.

    Args:
        app: The application.
        broker: Returns the broker.
        admission: Authenticates callers.
        lanes: Threads to work in.
    """
    _add_guests(app, broker, admission, lanes)
    _add_owners(app, broker, admission, lanes)
    _add_manifests(app, broker, admission, lanes)


def _add_guests(app: FastAPI, broker: Serving, admission: Admission, lanes: Lanes) -> None:
    def body(asked: type[StrictModel]) -> dict[str, str]:
        return {"x-body": asked.__name__}

    @app.post("/v1/challenges", response_model=Challenge, openapi_extra=body(ChallengeRequest))
    async def challenges(request: Request) -> Response:
        """Issue a challenge."""
        data = await read_body(request, MAX_CHALLENGE_BYTES, broker().caps.body_seconds)
        asked = load_message(ChallengeRequest, data, max_bytes=MAX_CHALLENGE_BYTES)

        def act() -> Response:
            return answer(broker().challenge(asked))

        # Made at once where nothing must be written: it waits for no thread.
        if not broker().challenge_writes:
            return act()
        return await lanes.guests.run(caller_of(request), act)

    @app.post("/v1/releases", response_model=ReleaseAnswer, openapi_extra=body(ReleaseRequest))
    async def releases(request: Request) -> Response:
        """Release keys to a guest."""
        admission.stranger(request)
        data = await read_body(request, MAX_REQUEST_BYTES, broker().caps.body_seconds)

        def act() -> Response:
            return answer(broker().release(_parse(ReleaseRequest, data)))

        return await lanes.guests.run(caller_of(request), act)

    @app.post("/v1/renewals", response_model=RenewalAnswer, openapi_extra=body(RenewalRequest))
    async def renewals(request: Request) -> Response:
        """Renew a lease."""
        shown = admission.holder(request)
        if shown is None:
            admission.stranger(request)
        data = await read_body(request, MAX_REQUEST_BYTES, broker().caps.body_seconds)

        def act() -> Response:
            asked = _parse(RenewalRequest, data)
            if shown is None:
                return answer(broker().renew(asked))
            _check_holder(shown, data, asked.lease_id)
            return answer(broker().renew(asked, holder=shown.lease_id))

        if shown is None:
            return await lanes.guests.run(caller_of(request), act)
        return await lanes.holders.run(shown.lease_id, act)

    @app.post("/v1/failures", response_model=Accepted, openapi_extra=body(FailureReport))
    async def failures(request: Request) -> Response:
        """Record that a run failed, and end its lease."""
        shown = admission.holder(request)
        if shown is None:
            admission.stranger(request)
            raise LeaseUnknown("the request shows no lease", check="lease", hint="show the lease")
        data = await read_body(request, MAX_CHALLENGE_BYTES, broker().caps.body_seconds)

        def act() -> Response:
            asked = _parse(FailureReport, data)
            _check_holder(shown, data, asked.lease_id)
            return answer(broker().registry.record_failure(asked))

        return await lanes.holders.run(shown.lease_id, act)


def _add_owners(app: FastAPI, broker: Serving, admission: Admission, lanes: Lanes) -> None:
    """Paths for owners' submissions: the broker verifies the request's signature first."""

    def add_route(
        path: str,
        asked: type[Asked],
        answered: type[StrictModel],
        act: Callable[[Asked], StrictModel],
        summary: str,
        role: SignerRole = "owner",
    ) -> None:
        async def endpoint(request: Request) -> Response:
            found = admission.owner(request, role)
            data = await read_body(request, MAX_REQUEST_BYTES, broker().caps.body_seconds)

            def act_and_answer() -> Response:
                broker().owners.admit(found, data)
                return answer(act(_parse(asked, data)))

            lane = lanes.owners if found.is_owner else lanes.controllers
            return await lane.run(found.owner, act_and_answer)

        app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=answered,
            summary=summary,
            openapi_extra={"x-body": asked.__name__, "security": [{role: []}]},
        )

    def handing_in(entry_kind: str) -> Callable[[EnvelopeDocument], Accepted]:
        return lambda asked: broker().registry.hand_in(entry_kind, asked)

    for entry_kind, kind in list_handed_in().items():
        add_route(kind.path, EnvelopeDocument, Accepted, handing_in(entry_kind), kind.summary)
    add_route(
        "/v1/ledger/cosignatures",
        CosignedCheckpoint,
        CosignedPage,
        lambda asked: broker().registry.witnessing.submit(asked),
        "Submit a cosignature of the ledger's checkpoint",
    )
    add_route(
        Submission.path,
        EnvelopeDocument,
        Posted,
        lambda asked: broker().run_control.submit(asked),
        "Submit a run",
        "submitter",
    )
    add_route(
        RunStop.path,
        EnvelopeDocument,
        Posted,
        lambda asked: broker().run_control.stop(asked),
        "Stop a submitted run",
        "submitter",
    )
    add_route(
        RunEvent.path,
        EnvelopeDocument,
        Posted,
        lambda asked: broker().run_control.report(asked),
        "Claim a submission, or report on it",
        "runner",
    )


def _add_manifests(app: FastAPI, broker: Serving, admission: Admission, lanes: Lanes) -> None:
    # No model: the manifest is a file whose bytes count.
    body = {"application/json": {"schema": {"type": "object"}}}

    @app.post(
        "/v1/manifests",
        response_model=Accepted,
        summary="Record a run manifest",
        openapi_extra={"requestBody": {"required": True, "content": body}},
    )
    async def manifests(request: Request) -> Response:
        shown = admission.closer(request)
        if shown is None:
            admission.stranger(request)
            raise LeaseUnknown(
                "no guest that this broker released keys to sent this manifest",
                check="lease",
                hint="a guest hands in the manifest of its own run",
            )
        lease_id = shown.lease_id
        known_run = partial(broker().registry.run_of, lease_id)
        run_id = await lanes.holders.run(lease_id, known_run)
        data = await read_body(request, MAX_MANIFEST_BYTES, broker().caps.body_seconds)

        def admit() -> Accepted | None:
            _check_holder(shown, data, lease_id)
            recorded = broker().registry.find_manifest(data)
            if recorded is None:
                broker().manifest_shares.take(run_id, broker().now())
            return recorded

        recorded = await lanes.holders.run(lease_id, admit)
        if recorded is None:
            verify = partial(broker().registry.submit_manifest, data, run_id)
            recorded = await lanes.manifests.run(run_id, verify)
        return answer(recorded)


def _check_holder(shown: LeaseShown, data: bytes, lease_id: str) -> None:
    if sha256_hex(data) != shown.digest.hex() or lease_id != shown.lease_id:
        raise SignatureInvalid(
            "the body does not match the digest that the lease's holder authenticated",
            check="lease",
            hint="the body was altered or cut on the way: ask again",
        )


def _parse(asked: type[Asked], data: bytes) -> Asked:
    return load_message(asked, data, max_values=MAX_REQUEST_VALUES)
