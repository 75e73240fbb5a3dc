"""The console's side of the owner's agent: one request on its socket, within a bounded time."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any, Final

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.errors import SealtrainError
from sealtrain.release.errors import AnswerInvalid
from sealtrain_console.web.errors import AgentUnreachable

_MAX_BYTES: Final = 256 << 10


def ask_agent(path: Path | None, asked: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """Ask the agent at a socket.

    Args:
        path: Of the socket; ``None`` where the console was given none.
        asked: The request.
        seconds: For all of it.

    Raises:
        AgentUnreachable: There is no agent, or it does not answer in time.
        SealtrainError: What it refused with.
    """
    if path is None:
        raise _away("the console was started without an agent")
    ends = time.monotonic() + seconds
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            connection.sendall(canonical_json(asked) + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                left = ends - time.monotonic()
                if left <= 0 or len(data) > _MAX_BYTES:
                    raise TimeoutError
                connection.settimeout(left)
                more = connection.recv(65536)
                if not more:
                    break
                data += more
    except OSError as error:
        raise _away("the owner's agent does not answer") from error
    return _parse_answer(data)


def _parse_answer(data: bytes) -> dict[str, Any]:
    found = parse_json(data, max_bytes=_MAX_BYTES) if data else None
    match found:
        case {"done": dict(done)}:
            return done
        case {"error": {"code": str(), "message": str()} as error}:
            raise SealtrainError.from_dict(error)
    raise AnswerInvalid("the agent's answer is none", check="agent")


def _away(message: str) -> AgentUnreachable:
    return AgentUnreachable(
        message,
        check="--agent",
        hint="start it in a terminal of its own: sealtrain console agent",
    )
