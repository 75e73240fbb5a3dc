"""From a URL to a folder: the filesystem behind each scheme."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from sealtrain.base.http import Bounds, parts_of
from sealtrain.errors import ExtraMissing, UsageError
from sealtrain.storage.address import AZURE, Address, parse_address
from sealtrain.storage.folder import RemoteFolder
from sealtrain.storage.retry import PATIENT, Patience

STORE_TOKEN: Final = "SEALTRAIN_STORE_TOKEN"  # noqa: S105  # the name of a variable
"""Environment variable with a bearer token for HTTP stores below ``STORE_URL``."""
_REMOTE: Final = "'sealtrain[remote]'"
_PACKAGES: Final = {"abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "gs": "gcsfs"}
"""Packages that bring the filesystems of schemes that ``remote`` does not bring."""
STORE_URL: Final = "SEALTRAIN_STORE_URL"
"""Environment variable with the URL below which the token is sent, and nowhere else."""


def open_folder(
    url: str,
    *,
    token: str | None = None,
    patience: Patience = PATIENT,
    bounds: Bounds | None = None,
) -> RemoteFolder:
    """The folder at a URL, without a request to its store.

    Args:
        url: ``https://``, ``http://``, ``s3://`` or another scheme that fsspec knows.
        token: Bearer token for HTTP, where the server wants one.
        patience: How often to ask again.
        bounds: Of one exchange over HTTP or S3 [those of a run].

    Raises:
        UsageError: The URL is not acceptable.
        ExtraMissing: Its filesystem is not installed.
    """
    address = parse_address(url)
    try:
        return _folder(address, token, patience, bounds)
    except ImportError as error:
        raise ExtraMissing(
            f"{address.scheme}:// needs a package that is not installed",
            got=error.name or _PACKAGES.get(address.scheme),
            hint=f"pip install {_PACKAGES.get(address.scheme, _REMOTE)}",
        ) from None
    except ValueError:
        raise UsageError(
            "no filesystem for this scheme",
            got=address.scheme,
            expected="http, https, s3, or another that fsspec knows",
        ) from None


def _folder(
    address: Address, token: str | None, patience: Patience, bounds: Bounds | None
) -> RemoteFolder:
    filesystem: Any
    hosts: tuple[str, ...]
    bounded = {} if bounds is None else {"bounds": bounds}
    if address.scheme in ("http", "https"):
        from sealtrain.storage.http import HttpFileSystem

        filesystem = HttpFileSystem(token=token or _token_for(address), **bounded)
        hosts = (address.url,)
    elif address.scheme == "s3":
        from sealtrain.storage.s3 import S3FileSystem

        filesystem = S3FileSystem(**bounded)
        hosts = (filesystem.endpoint(address.host),)
    elif address.scheme in AZURE:
        from sealtrain.storage.azure import open_azure

        filesystem = open_azure(_account(address))
        hosts = ()
    else:
        import fsspec

        filesystem = fsspec.filesystem(address.scheme)
        hosts = ()
    return RemoteFolder(filesystem, address, hosts=hosts, patience=patience)


def _account(address: Address) -> dict[str, str]:
    """The account in an ``abfs`` URL, which is ``CONTAINER@ACCOUNT.dfs.core.windows.net``."""
    container, at, host = urlsplit(address.url).netloc.partition("@")
    return {"account_name": host.partition(".")[0]} if at and container else {}


def is_token_safe(settings: Mapping[str, str]) -> bool:
    """Whether the URL that a token is for keeps it from the network: https, or this machine."""
    if STORE_URL not in settings:
        return True
    parts = parts_of(settings[STORE_URL])
    if parts is None:
        return False
    try:
        here = ip_address(parts.host).is_loopback
    except ValueError:
        here = False
    return parts.scheme == "https" or here


def _token_for(address: Address) -> str | None:
    """The environment's token, if it is for this address: another address gets none."""
    wanted, token = os.environ.get(STORE_URL, ""), os.environ.get(STORE_TOKEN)
    below = f"{address.url}/".startswith(f"{wanted.rstrip('/')}/")
    return token if wanted and below and is_token_safe(os.environ) else None
