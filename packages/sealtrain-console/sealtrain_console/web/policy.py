"""What every answer of the console says to a browser, and which requests it takes.

1. A request names this machine in ``Host``: a name that another site points at loopback does not
   reach a page (DNS rebinding).
2. A request that another site makes is refused, unless a person follows a link: what a frame, an
   object or a script would load is none.
3. What changes something (any method but ``GET`` and ``HEAD``) comes from a page of this very
   origin, and its body has a cap.
4. Every answer forbids inline scripts and styles, other hosts, frames and caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sealtrain.broker.errors import RequestTooLarge
from sealtrain.errors import SealtrainError
from sealtrain_console.web.errors import CrossSiteRefused

MAX_BODY_BYTES: Final = 64 << 10
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_HERE: Final = ("localhost", "127.0.0.1", "[::1]")
_READS: Final = ("GET", "HEAD")

Refuse = Callable[[Scope, SealtrainError], ASGIApp]
"""Makes the answer to a request that is refused."""


def is_here(host: str) -> bool:
    """Whether a ``Host`` header names this machine's loopback."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "80"
    return name.lower() in _HERE and port.isascii() and port.isdigit()


class Guarded:
    """An application behind checks 1 to 4.

    Args:
        app: The application.
        refuse: Makes the answer to a request that is refused.
    """

    def __init__(self, app: ASGIApp, refuse: Refuse) -> None:
        self.app = app
        self.refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():  # (4)
                    headers.setdefault(name, value)
            await send(message)

        try:
            _require_own(scope)
            body = None if scope["method"] in _READS else await _read_body(receive)
        except SealtrainError as error:
            await self.refuse(scope, error)(scope, receive, send_guarded)
            return
        await self.app(scope, receive if body is None else _replay(body, receive), send_guarded)


def _require_own(scope: Scope) -> None:
    """Checks 1 to 3, but for the body."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not is_here(host):  # (1)
        raise CrossSiteRefused(
            "the console answers under the names of this machine only",
            check="host",
            got=host[:100],
            expected="localhost or 127.0.0.1",
            hint="open the address that sealtrain console printed",
        )
    reads = scope["method"] in _READS
    site = headers.get("sec-fetch-site", "same-origin")
    whole = headers.get("sec-fetch-dest", "document") == "document"
    followed = reads and whole and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("same-origin", "none") and not followed:  # (2)
        raise CrossSiteRefused(
            "a page of another site asked the console",
            check="site",
            got=site[:100],
            expected="same-origin",
            hint="open the page itself",
        )
    if not reads and headers.get("origin") != f"http://{host}":  # (3)
        raise CrossSiteRefused(
            "this did not come from a page of the console",
            check="origin",
            got=headers.get("origin", "none")[:100],
            expected=f"http://{host}",
            hint="press the button on the page itself",
        )


async def _read_body(receive: Receive) -> bytes:
    """The body of a request.

    Raises:
        RequestTooLarge: It is longer than ``MAX_BODY_BYTES``.
    """
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            raise RequestTooLarge(
                "the request is longer than any of a page",
                check="body",
                got=f"over {MAX_BODY_BYTES} bytes",
                expected=f"at most {MAX_BODY_BYTES} bytes",
            )
    return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives a body that was read already."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
