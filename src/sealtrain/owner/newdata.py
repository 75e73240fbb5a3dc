"""Was data registered? One small question to a broker, by a process that has to stay small.

A scheduler at rest asks it every few seconds, so it loads neither ``base.http`` nor the forms of a
broker's answers. The answer is the broker's word and starts nothing: ``client.scheduling`` decides.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, urlencode, urlsplit

from sealtrain.base.outbound import outbound, trusting

MAX_ANSWER_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 16 << 10
_TIMEOUT_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 0.2


def question(broker_url: str, *, compose_hash: str, start: int) -> str:
    """The URL that answers whether a ledger has data of a deployment from an index on.

    Args:
        broker_url: Base URL of the broker.
        compose_hash: Of the deployment document.
        start: Least index of the entry.
    """
    asked = {"compose_hash": compose_hash, "kind": "dataset", "start": start, "limit": 1}
    return f"{broker_url.rstrip('/')}/v1/ledger/search?{urlencode(asked)}"


def is_registered(
    url: str,
    *,
    seconds: float = _TIMEOUT_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> bool | None:
    """Whether there is such an entry; ``None`` where the broker gave no answer that says so.

    Args:
        url: As ``question`` gives it.
        seconds: For the whole exchange.
        monotonic: Seconds that never go back.
    """
    parts = urlsplit(url)
    ends = monotonic() + seconds
    connection = _connection(parts)
    held: list[socket.socket] = []
    over = threading.Event()
    threading.Thread(target=_cut, args=(connection, held, over, seconds), daemon=True).start()
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers={"Connection": "close"})
        held.append(connection.sock)
        answer = connection.getresponse()
        body = bytearray()
        while piece := answer.read1(_PIECE_BYTES):
            body += piece
            if len(body) > MAX_ANSWER_BYTES or monotonic() > ends:
                return None
        found = json.loads(body) if answer.status == http.HTTPStatus.OK else None
    except (OSError, ValueError, http.client.HTTPException, RecursionError):
        return None
    finally:
        over.set()
        connection.close()
    entries = found.get("entries") if isinstance(found, dict) else None
    return bool(entries) if isinstance(entries, list) else None


def _cut(
    connection: http.client.HTTPConnection,
    held: list[socket.socket],
    over: threading.Event,
    seconds: float,
) -> None:
    """End an exchange that is not over in time: the library waits anew for each byte of a head.

    Args:
        connection: Has the socket until it is ``held``: one takes another's place in TLS, and none
            is there while an answer is read.
        held: The socket of the request, once it was sent.
        over: Set when the exchange is over.
        seconds: Until when.
    """
    while not over.wait(seconds):
        seconds = _AGAIN_SECONDS
        used = held[0] if held else connection.sock
        with suppress(OSError, ValueError):
            if used is not None:
                used.shutdown(socket.SHUT_RDWR)


def _connection(parts: SplitResult) -> http.client.HTTPConnection:
    """A connection to the broker, not made yet.

    A private authority that only the broker file names is not known here: there is no answer then,
    and the whole client asks.
    """
    host = parts.hostname or ""
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_SECONDS)
    by = outbound()
    context = trusting(ssl.create_default_context(), by.authorities)
    port = parts.port or 443
    proxy = by.proxy_for(host, port)
    if proxy is None or proxy.secured:
        # Nor is a proxy that speaks TLS itself spoken to here.
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS, context=context)
    connection = http.client.HTTPSConnection(
        proxy.host, proxy.port, timeout=_TIMEOUT_SECONDS, context=context
    )
    shown = {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}
    connection.set_tunnel(host, port, shown)
    return connection
