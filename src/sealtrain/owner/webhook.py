"""A webhook of an owner: called without any content.

1. The body is the same at every call: it names no recipe, owner, broker, hash, time or number.
2. HTTPS only, or plain HTTP on this machine. A private authority and a proxy are settings of the
   process (``base.outbound``). Redirects are refused.
3. A call has an ``Idempotency-Key``, random and the same when it is repeated. Tries are bounded,
   and the body of the answer is not read.
4. The URL is read from a file, because its path is often a secret; no message quotes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sealtrain.base.files import read_bounded
from sealtrain.base.http import Bounds, HttpClient, Problem
from sealtrain.base.outbound import is_this_machine
from sealtrain.errors import ConfigError, Unreachable

BODY: Final = b'{"event":"approval-pending","version":1}'
BOUNDS: Final = Bounds(connect=10.0, read=20.0, total=60.0, tries=4, pause=1.0)
_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Where an owner wants to be called.

    Attributes:
        url: A secret.
        bounds: Of one call.
    """

    url: str = field(repr=False)
    bounds: Bounds = BOUNDS

    def call(self, call_id: str) -> None:
        """Call.

        Args:
            call_id: 32 hex digits.

        Raises:
            Unreachable: No answer, or one that does not take the call.
            ConfigError: A setting of the network cannot be used.
        """
        secured = self.url.startswith("https:")
        with HttpClient(self.bounds, failed=_silent, tls=secured) as client:
            answer = client.ask(
                "POST",
                self.url,
                cap=_read_nothing,
                content=BODY,
                headers={"content-type": "application/json", "idempotency-key": call_id},
                idempotent=True,
            )
        if not 200 <= answer.status < 300:
            raise Unreachable(
                "the webhook does not take the call",
                check="webhook",
                got=f"HTTP {answer.status}",
                expected="HTTP 2xx; a redirect is not followed",
            )


def read_webhook(path: Path) -> Webhook:
    """A webhook from the file that holds its URL.

    Raises:
        ConfigError: The file holds no URL of a webhook.
        DataInvalid: There is no such file.
    """
    text = read_bounded(path, _MAX_BYTES).decode("ascii", "replace")
    text = text.removesuffix("\n").removesuffix("\r")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        parts, host = urlsplit(""), ""
    allowed = parts.scheme == "https" or (parts.scheme == "http" and is_this_machine(host))
    plain = text.isascii() and text.isprintable() and " " not in text
    if not allowed or not host or not plain or "@" in parts.netloc or parts.fragment:
        raise ConfigError(
            "the file holds no URL of a webhook",
            check="webhook",
            expected="one line, https://host/path, or http:// on this machine, without user",
        )
    return Webhook(url=text)


def _silent(problem: Problem) -> Unreachable:
    return Unreachable(
        "the webhook does not answer",
        check="webhook",
        got=problem.reason,
        hint=problem.remedy or "see that it runs, and that its name and port are right",
    )


def _read_nothing(*_: object) -> None:
    return None
