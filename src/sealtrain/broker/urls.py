"""A broker's own URLs: owners sign requests for them."""

from __future__ import annotations

from collections.abc import Sequence

import httpx2

from sealtrain.base.http import parts_of
from sealtrain.errors import SignatureInvalid, UsageError


def public_url(text: str) -> str:
    """A URL under which a broker is reached, without a slash at its end.

    Raises:
        UsageError: It is not ``http(s)://host`` with at most a port and a path.
    """
    url = parts_of(text)
    if url is None:
        raise UsageError(
            "the URL is not one under which a broker can be reached",
            check="public URL",
            got=text.rpartition("@")[2][:200],
            expected="http(s)://host[:port][/path]",
        )
    return str(url).rstrip("/")


def resolve_asked_url(own: Sequence[str], *, host: str, target: str) -> str:
    """The URL of a request, under the broker's own address.

    Args:
        own: URLs it is reached under.
        host: The request's ``Host``, which only selects one of ``own``.
        target: Path and query, as they came.

    Raises:
        SignatureInvalid: The broker has no URL with that host.
    """
    for base in own:
        if httpx2.URL(base).netloc.decode("ascii") == host.lower():
            return base + target
    raise SignatureInvalid(
        "the request is for another broker, or for a host name unknown to this broker",
        check="request address",
        got=host[:200],
        expected=" or ".join(own),
        hint="use that URL, or start the broker with --public-url",
    )
