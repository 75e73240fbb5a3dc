"""What the buttons of a recipe's page do: carry an owner's wish to the agent, and its answer back.

The console adds nothing and keeps nothing: the agent writes the decision, the browser's passkey
signs its challenge, the agent checks and asks its owner, and signs.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain_console.web.agentlink import ask_agent
from sealtrain_console.web.rendering import part
from sealtrain_console.web.sources import sources_of

router = APIRouter()
Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
_STATE_SECONDS: Final = 3.0
_PREPARE_SECONDS: Final = 60.0
_SIGN_SECONDS: Final = 330.0
"""The owner reads and types meanwhile."""


@router.get("/agent/{compose_hash}")
def _agent(request: Request, compose_hash: Hash) -> Response:
    """The buttons, once the agent said for whom it signs."""
    state, error = None, None
    try:
        state = ask_agent(sources_of(request).agent, {"op": "state"}, seconds=_STATE_SECONDS)
    except SealtrainError as found:
        error = found
    elsewhere = state is not None and state.get("origin") != _origin(request)
    return part(
        "buttons.html",
        state=state,
        error=error,
        elsewhere=elsewhere,
        compose_hash=compose_hash,
        here=_origin(request),
    )


@router.post("/agent/{op}")
async def _act(request: Request, op: str) -> Response:
    """Carry a wish to the agent: ``prepare``, ``sign``, ``passkey`` or ``enroll``."""
    seconds = {"prepare": _PREPARE_SECONDS, "passkey": _STATE_SECONDS}.get(op, _SIGN_SECONDS)
    try:
        if op not in ("prepare", "sign", "passkey", "enroll"):
            raise DataInvalid("the agent takes no such request", check="request", got=op[:40])
        asked = _json(await request.body())
        agent = sources_of(request).agent
        told = await run_in_threadpool(ask_agent, agent, {**asked, "op": op}, seconds=seconds)
    except SealtrainError as error:
        return JSONResponse({"error": error.to_dict()}, status_code=error.http_status)
    return JSONResponse({"done": told})


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DataInvalid("the request is no JSON object", check="request")
    return found


def _origin(request: Request) -> str:
    return f"http://{request.headers.get('host', '')}"
