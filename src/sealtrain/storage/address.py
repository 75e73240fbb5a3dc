"""URLs of sealed folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from sealtrain.errors import UsageError

__all__ = ["Address", "is_url", "parse_address"]

_URL = re.compile(r"([a-z][a-z0-9+.-]+)://")


@dataclass(frozen=True, slots=True)
class Address:
    """A folder's URL, taken apart.

    Attributes:
        scheme: ``https``, ``s3``, …
        host: Server, or bucket.
        url: Without a slash at its end.
    """

    scheme: str
    host: str
    url: str

    @property
    def name(self) -> str:
        """Last part of the path."""
        return unquote(self.url.rsplit("/", 1)[-1])

    def of(self, name: str) -> str:
        """URL of a file in the folder."""
        return f"{self.url}/{quote(name)}"


def is_url(text: str) -> bool:
    """Whether the text is a URL and not a path."""
    return _URL.match(text) is not None


def parse_address(url: str) -> Address:
    """Take a folder's URL apart.

    Raises:
        UsageError: It carries a secret (user, query), or names no folder.
    """
    try:
        parts = urlsplit(url)
        found = parts.username, parts.password, parts.port
    except ValueError as error:
        raise UsageError("not a URL", got=url[:60], expected="https://host/folder") from error
    if found[0] is not None or found[1] is not None or parts.query or parts.fragment:
        raise UsageError(
            "a URL of sealed data carries no user, query or fragment",
            check="address",
            got=f"{parts.scheme}://{parts.hostname or ''}…",
            hint="it is kept in the run's folder; secrets belong in the store's configuration",
        )
    if not parts.netloc or not parts.path.strip("/"):
        raise UsageError(
            "URL names no folder",
            got=url[:60],
            expected="https://host/folder or s3://bucket/folder",
        )
    return Address(parts.scheme, parts.hostname or parts.netloc, url.rstrip("/"))
