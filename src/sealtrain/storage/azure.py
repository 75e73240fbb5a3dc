"""Azure's blobs as adlfs has them, with the errors that a store of ours has.

adlfs raises what Azure's library raises, which is no ``OSError`` and quotes requests; and that
library retries by itself for over a minute, so that six tries of ours took eight. Here an error is
judged by its status and Azure's short code alone, and ``retry.Patience`` alone tries again.

The account is reached as every other server is (``base.outbound``): by the packaged authorities and
those that a setting names, and through the proxy that a setting names. Azure's library would take
both from the environment, which the operator of a guest writes. Its sign-in by identity still does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import certifi

from sealtrain.base.hostport import write_host_and_port
from sealtrain.base.http import Problem, trust_packaged
from sealtrain.base.outbound import Outbound, outbound
from sealtrain.base.tunnel import PROXY_SILENT, reason_of, refuse_status
from sealtrain.errors import UsageError
from sealtrain.storage.errors import StorageRefused
from sealtrain.storage.rangestore import storage_error
from sealtrain.storage.retry import Busy

_LATER: Final = frozenset({408, 429, 500, 502, 503, 504})
_NOTHING_THERE: Final = 416
_OF_CREDENTIALS: Final = ("AzureSigningError", "ClientAuthenticationError")
_VARIABLES: Final = (
    "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, "
    "or AZURE_STORAGE_CONNECTION_STRING"
)


def open_azure(account: dict[str, str]) -> AzureFileSystem:
    """The filesystem of an account, without a request to it.

    Args:
        account: Its name by ``account_name``, where the URL names it.

    Raises:
        ImportError: adlfs is not installed.
        UsageError: The environment has no credentials of an account, or none of their form.
    """
    from adlfs import AzureBlobFileSystem

    try:
        return AzureFileSystem(AzureBlobFileSystem(**account, skip_instance_cache=True))
    except ValueError:  # its words may quote a key
        raise UsageError(
            "Azure's library takes no account from the environment",
            check="credentials",
            got="no name of an account, no credentials, or some of another form",
            hint=_VARIABLES,
        ) from None


class AzureFileSystem:
    """What ``RemoteFolder`` asks of a filesystem, asked of adlfs.

    Args:
        inner: adlfs's filesystem.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        # Azure's library offers no public way to a client that adlfs made.
        config = getattr(getattr(inner, "service_client", None), "_config", None)
        policy: Any = getattr(config, "retry_policy", None)
        if hasattr(policy, "total_retries"):
            policy.total_retries = 0
        transport: Any = getattr(config, "transport", None)
        if hasattr(transport, "send"):
            _reach_by(transport, outbound())

    def info(self, path: str) -> dict[str, Any]:
        """Size and time of a file; never what an earlier answer said."""
        with _own_errors():
            said: dict[str, Any] = self._inner.info(path, refresh=True)
        changed = said.get("last_modified")
        return said if changed is None else said | {"mtime": changed.timestamp()}

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        """Bytes ``start`` … ``end`` of a file, fewer where it ends before."""
        try:
            with _own_errors():
                found: bytes = self._inner.cat_file(path, start=start, end=end)
        except _NothingThere:
            return b""
        return found

    def put_file(self, local: str, path: str) -> None:
        """Send a local file in place of what was there."""
        with _own_errors():
            self._inner.put_file(local, path, overwrite=True)

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        with _own_errors():
            self._inner.rm_file(path)


def _reach_by(transport: Any, by: Outbound) -> None:
    """Have a transport of Azure's library reach servers as this process does.

    Args:
        transport: Sends each request of a client, and of those that are made from it.
        by: How servers are reached.
    """
    transport._use_env_settings = False  # else aiohttp takes proxies and passwords from variables
    send, context = transport.send, trust_packaged(certifi.where(), by.authorities)

    async def send_by_settings(request: Any, **options: Any) -> Any:
        parts = urlsplit(request.url)
        options.pop("proxies", None)
        if parts.scheme == "https":
            options["ssl"] = context
            proxy = by.proxy_for(parts.hostname or "", parts.port or 443)
            if proxy is not None:
                place = write_host_and_port(proxy.host, proxy.port)
                options["proxy"] = f"{'https' if proxy.secured else 'http'}://{place}"
                if proxy.authorization is not None:
                    options["proxy_headers"] = {"Proxy-Authorization": proxy.authorization}
        try:
            return await send(request, **options)
        except Exception as error:
            problem = _network_problem(error, tunnelled="proxy" in options)
            if problem is None:
                raise
            raise storage_error(problem) from None

    transport.send = send_by_settings


def _network_problem(error: BaseException, *, tunnelled: bool) -> Problem | None:
    """Why TLS or the proxy failed; ``None`` for what else happens on a network."""
    cause: BaseException | None = error
    # Azure's library and aiohttp, which need not be there, raise errors of their own from others.
    while cause is not None and type(cause).__module__.startswith(("azure.", "aiohttp.")):
        match type(cause).__name__:
            case "ClientHttpProxyError":
                return Problem("proxy", refuse_status(getattr(cause, "status", 0)))
            case "ClientProxyConnectionError":
                return Problem("connect", PROXY_SILENT)
        cause = cause.__cause__
    fault = None if cause is None else reason_of(cause, tunnelled=tunnelled)
    return None if fault is None else Problem("tls", fault)


class _NothingThere(Exception):  # an answer
    """The file ends before what was asked for."""


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("azure."):
            raise
        raise _judge(getattr(error, "status_code", None), _code(error)) from None


def _code(error: Exception) -> str:
    """Azure's short code; its message can quote the request and what was signed of it."""
    code = getattr(error, "error_code", None) or type(error).__name__
    return str(getattr(code, "value", code))[:64]


def _judge(status: int | None, code: str) -> Exception:
    """What an error of Azure's library is to a caller that asks again, or does not."""
    got = code if status is None else f"{status} {code}"
    if status == _NOTHING_THERE:
        return _NothingThere(got)
    if status == 404:
        return FileNotFoundError(got)
    if status in (401, 403) or code in _OF_CREDENTIALS:
        return StorageRefused(
            "the store does not accept these credentials, or not for this container",
            check="storage",
            got=got,
            hint=_VARIABLES,
        )
    if status in _LATER:
        return Busy(got)
    if status is None:
        return ConnectionError(got)
    return StorageRefused(
        "the store refuses the request",
        check="storage",
        got=got,
        hint="see Azure's page of error codes for this one",
    )
