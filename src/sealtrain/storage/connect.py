"""From a URL to a folder: the filesystem behind each scheme."""

from __future__ import annotations

from typing import Any

from sealtrain.errors import ExtraMissing, UsageError
from sealtrain.storage.address import Address, parse_address
from sealtrain.storage.folder import RemoteFolder
from sealtrain.storage.patience import PATIENT, Patience

__all__ = ["open_folder"]


def open_folder(
    url: str, *, token: str | None = None, patience: Patience = PATIENT
) -> RemoteFolder:
    """The folder at a URL, without a request to its store.

    Args:
        url: ``https://``, ``http://``, ``s3://`` or another scheme that fsspec knows.
        token: Bearer token for HTTP, where the server wants one.
        patience: How often to ask again.

    Raises:
        UsageError: The URL is not acceptable.
        ExtraMissing: Its filesystem is not installed.
    """
    address = parse_address(url)
    try:
        return _folder(address, token, patience)
    except ImportError as error:
        raise ExtraMissing(
            f"{address.scheme}:// needs a package that is not installed",
            got=error.name,
            hint="pip install 'sealtrain[remote]'",
        ) from None
    except ValueError:
        raise UsageError(
            "no filesystem for this scheme",
            got=address.scheme,
            expected="http, https, s3, or another that fsspec knows",
        ) from None


def _folder(address: Address, token: str | None, patience: Patience) -> RemoteFolder:
    filesystem: Any
    hosts: tuple[str, ...]
    if address.scheme in ("http", "https"):
        from sealtrain.storage.http import HttpFileSystem

        filesystem = HttpFileSystem(token=token)
        hosts = (address.url,)
    elif address.scheme == "s3":
        from sealtrain.storage.s3 import S3FileSystem

        filesystem = S3FileSystem()
        hosts = (filesystem.endpoint(address.host),)
    else:
        import fsspec

        filesystem = fsspec.filesystem(address.scheme)
        hosts = ()
    return RemoteFolder(filesystem, address, hosts=hosts, patience=patience)
