"""``deploy credentials``: lend credentials of stores to guests of one document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final
from wsgiref.simple_server import WSGIServer

import typer

from sealtrain.attest.policy import load_policy
from sealtrain.base.canonical import canonical_json
from sealtrain.base.files import read_bounded
from sealtrain.base.hostport import host_and_port, write_host_and_port
from sealtrain.base.wsgi import App, ServerLimits, bind_server
from sealtrain.broker.errors import RequestTooLarge
from sealtrain.cli.output import say
from sealtrain.client.storecredentials import MAX_REQUEST_BYTES, Lender, parse_credentials
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.recipe.lock import LockedRecipe

LIMITS: Final = ServerLimits(body_bytes=MAX_REQUEST_BYTES)
_MAX_FILE_BYTES: Final = 64 << 10


def credentials(
    file: Annotated[Path, typer.Argument(help="JSON object: the names stores read, and values.")],
    deployment: Annotated[Path, typer.Option(help="Document of the guests (app-compose.json).")],
    policy: Annotated[Path, typer.Option(help="Policy that the guests' evidence must meet.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 for any.")
    ] = "127.0.0.1:8474",
) -> None:
    """Lend credentials of stores to guests that prove that they run a document.

    They go to a guest sealed to a key that its evidence names. Runs until it is ended.
    """
    compose_hash = LockedRecipe.load(deployment).compose_hash
    lender = Lender(
        parse_credentials(read_bounded(file, _MAX_FILE_BYTES)),
        compose_hash=compose_hash,
        policy=load_policy(policy),
    )
    with lending(lender, listen) as server:
        say(f"lends credentials to {compose_hash}")
        at = write_host_and_port(host_and_port(listen)[0], server.server_port)
        say(f"lender ready http://{at}")
        server.serve_forever()


def lending(lender: Lender, listen: str, *, limits: ServerLimits = LIMITS) -> WSGIServer:
    """A server of a lender, bound; it serves with ``serve_forever``.

    Args:
        lender: Answers.
        listen: ``HOST:PORT``, port 0 for any.
        limits: What it takes of callers, who have proven nothing before their request is whole.

    Raises:
        UsageError: The place cannot be listened at.
    """
    return bind_server(_page(lender), listen, limits=limits)


def _page(lender: Lender) -> App:
    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        status, body = "200 OK", b""
        try:
            asked = (request["REQUEST_METHOD"], request["PATH_INFO"])
            if asked == ("GET", "/v1/challenge"):
                body = lender.challenge()
            elif asked == ("POST", "/v1/credentials"):
                body = lender.lend(_body(request))
                say("lent credentials to a guest")
            else:
                status = "404 Not Found"
        except SealtrainError as error:
            say(f"{error.label} [{error.code}]: {error.message}")
            status = f"{error.http_status} {error.label}"
            body = canonical_json({"error": {"code": error.code}})
        start(status, [("content-type", "application/json"), ("content-length", str(len(body)))])
        return [body]

    return answer


def _body(request: dict[str, Any]) -> bytes:
    told = request.get("CONTENT_LENGTH") or "0"
    length = int(told) if told.isascii() and told.isdecimal() and len(told) < 10 else -1
    if not 0 <= length <= MAX_REQUEST_BYTES:
        raise RequestTooLarge("the request is too long", got=told[:20], expected=MAX_REQUEST_BYTES)
    data: bytes = request["wsgi.input"].read(length)
    if len(data) != length:
        raise DataInvalid("the request ended early", got=len(data), expected=length)
    request["sealtrain.received"]()
    return data
