"""URLs of sealed folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from sealtrain.errors import UsageError

_URL = re.compile(r"[a-z][a-z0-9+.-]+://|file:")
_OF_THIS_MACHINE = ("file", "local")
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
AZURE: Final = ("abfs", "abfss", "az")
_SIGNED = re.compile(r"(?i)(^|&)(x-amz-signature|x-goog-signature|signature|sig)=")


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
        UsageError: It carries a secret (user, query), names no folder, or one of this machine.
    """
    try:
        parts = urlsplit(url)
        found = parts.username, parts.password, parts.port
    except ValueError as error:
        raise UsageError(
            "not a URL",
            check="address",
            got=f"{url.partition(':')[0][:20]}:…",  # what follows may be a secret
            expected="https://host/folder",
        ) from error
    if parts.scheme in _OF_THIS_MACHINE:
        raise UsageError(
            "a file: URL names a folder of this machine, and no store",
            check="address",
            got=f"{parts.scheme}:",
            expected="https://host/folder or s3://bucket/folder",
            hint="write a folder of this machine as a plain path; a run's store is a server's URL",
        )
    if _SIGNED.search(parts.query):
        raise UsageError(
            "a presigned URL opens one file, to all who see it",
            check="address",
            got=f"{parts.scheme}://{parts.hostname or ''}…",
            expected="the folder's URL, without a query",
            hint="give the process credentials of the store (AWS_ACCESS_KEY_ID, "
            "AZURE_STORAGE_SAS_TOKEN or SEALTRAIN_STORE_TOKEN); guests get them by "
            "sealtrain deploy credentials",
        )
    container = found[0] if parts.scheme in AZURE and found[1] is None else None
    if container is not None:
        # abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/… names a container, and no user.
        found = (None, None, found[2])
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
    if parts.scheme == "s3" and (found[2] is not None or not _BUCKET.fullmatch(parts.netloc)):
        raise UsageError(
            "an s3:// URL names a bucket, and no server",
            check="address",
            got=f"s3://{parts.netloc[:60]}",
            expected="s3://bucket/folder",
            hint="name the server in AWS_ENDPOINT_URL_S3=https://host:port",
        )
    return Address(parts.scheme, parts.hostname or parts.netloc, url.rstrip("/"))
