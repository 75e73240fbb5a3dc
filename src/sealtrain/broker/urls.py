"""Where a broker is, by its own knowledge: what owners' signatures are made for."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from sealtrain.base.http import parts_of
from sealtrain.errors import SignatureInvalid, UsageError

__all__ = ["asked_url", "public_url"]


def public_url(text: str) -> str:
    """A URL under which a broker is reached, without a slash at its end.

    Raises:
        UsageError: Not ``http(s)://host`` with at most a port and a path.
    """
    url = parts_of(text)
    if url is None:
        raise UsageError(
            "not a URL under which a broker is reached",
            check="public URL",
            got=text.rpartition("@")[2][:200],
            expected="http(s)://host[:port][/path]",
        )
    return str(url).rstrip("/")


def asked_url(own: Sequence[str], *, host: str, target: str) -> str:
    """What was asked, by the broker's own knowledge of where it is.

    Args:
        own: URLs it is reached under.
        host: The request's ``Host``: it only chooses among ``own``.
        target: Path and query, as they came.

    Raises:
        SignatureInvalid: It is not reached under that host.
    """
    for base in own:
        if httpx.URL(base).netloc.decode("ascii") == host.lower():
            return base + target
    raise SignatureInvalid(
        "the request is for another broker, or the broker does not know this name of its own",
        check="request address",
        got=host[:200],
        expected=" or ".join(own),
        hint="use that URL, or start the broker with --public-url",
    )
