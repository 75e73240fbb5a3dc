"""Was data registered? One small question to a broker, by a process that has to stay small.

A scheduler at rest asks it every few seconds, so it loads neither ``base.http`` nor the forms of a
broker's answers. The answer is the broker's word and starts nothing: ``client.scheduling`` decides.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlencode, urlsplit

__all__ = ["MAX_ANSWER_BYTES", "is_registered", "question"]

MAX_ANSWER_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 16 << 10
_TIMEOUT_SECONDS: Final = 10.0


def question(broker_url: str, *, compose_hash: str, start: int) -> str:
    """The URL that answers whether a ledger has data of a deployment from an index on.

    Args:
        broker_url: Base URL of the broker.
        compose_hash: Of the deployment document.
        start: Least index of the entry.
    """
    asked = {"compose_hash": compose_hash, "kind": "dataset", "start": start, "limit": 1}
    return f"{broker_url.rstrip('/')}/v1/ledger/search?{urlencode(asked)}"


def is_registered(url: str, *, monotonic: Callable[[], float] = time.monotonic) -> bool | None:
    """Whether there is such an entry; ``None`` where the broker gave no answer that says so.

    Args:
        url: As ``question`` gives it.
        monotonic: Seconds that never go back.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    connected = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    ends = monotonic() + _TIMEOUT_SECONDS
    connection = connected(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers={"Connection": "close"})
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
        connection.close()
    entries = found.get("entries") if isinstance(found, dict) else None
    return bool(entries) if isinstance(entries, list) else None
