"""How this process reaches servers: authorities besides the packaged ones, and a proxy.

A bank's or a hospital's servers have certificates of a private authority, and its machines reach
the internet through a proxy. Both are settings of the command line (``cli.outbound``). What a
measured document starts reads none of them from its environment: a run ticket names them.

1. A private authority is added to the packaged ones. No setting leaves a check of certificates out.
2. Only ``https`` goes through the proxy, in a tunnel that the proxy cannot look into. This machine
   (``localhost``, loopback addresses), unix sockets and plain ``http`` are reached directly.
3. Trust never follows from TLS: brokers, guests and data are verified inside it as without it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from sealtrain.base.files import read_bounded
from sealtrain.base.hostport import write_host_and_port
from sealtrain.errors import ConfigError, DataInvalid, LimitExceeded

if TYPE_CHECKING:
    import ssl

CA_FILE: Final = "SEALTRAIN_CA_FILE"
"""Variable that names a file of further certificate authorities."""
PROXY: Final = "SEALTRAIN_PROXY"
"""Variable with the proxy's URL, or ``none``; it wins over ``HTTPS_PROXY``."""
_PROXY_OF_TOOLS: Final = ("HTTPS_PROXY", "https_proxy")
_NO_PROXY_OF_TOOLS: Final = ("NO_PROXY", "no_proxy")
_MAX_CA_BYTES: Final = 1 << 20
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_LOOPBACK: Final = ("localhost", "127.0.0.0/8", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyServer:
    """A proxy that makes tunnels (RFC 9110 §9.3.6).

    Attributes:
        host: Its name or address.
        port: TCP port.
        secured: It is spoken to over TLS.
        authorization: Value of ``Proxy-Authorization``; a secret.
    """

    host: str
    port: int
    secured: bool = False
    authorization: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """How servers are reached.

    Attributes:
        authorities: Certificates in PEM that are trusted besides the packaged ones.
        proxy: Makes tunnels to ``https`` servers.
        direct: Hosts, domains, addresses and networks that are reached without it.

    Raises:
        ConfigError: A word of ``direct`` ends in a port that no server has.
    """

    authorities: str = ""
    proxy: ProxyServer | None = None
    direct: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for pattern in self.direct:
            port = _port_of(pattern)[1]
            if port is not None and not (port.isascii() and len(port) < 6 and int(port) <= 65535):
                raise ConfigError(
                    "a server that is reached without the proxy has a port that no server has",
                    check="no_proxy",
                    got=pattern[:80],
                    expected="host, host:port, .domain, an address or a network",
                )

    def proxy_for(self, host: str, port: int) -> ProxyServer | None:
        """The proxy on the way to a server; ``None`` where it is reached directly."""
        if self.proxy is None or any(
            _matches(host, port, pattern) for pattern in (*_LOOPBACK, *self.direct)
        ):
            return None
        return self.proxy

    def places(self, urls: Iterable[str]) -> list[str]:
        """What a process connects to that reaches servers: the proxy in the place of some."""
        found: dict[str, None] = {}
        for url in urls:
            parts = urlsplit(url)
            proxy = None
            if parts.scheme == "https":
                proxy = self.proxy_for(parts.hostname or "", parts.port or 443)
            found[
                url if proxy is None else f"tcp://{write_host_and_port(proxy.host, proxy.port)}"
            ] = None
        return list(found)


DIRECT: Final = Outbound()


def reach_directly() -> Outbound:
    """Decide for no further authority and no proxy."""
    return DIRECT


_decide: Callable[[], Outbound] = reach_directly
_decided: Outbound | None = None


def reach_by(decide: Callable[[], Outbound]) -> Callable[[], Outbound]:
    """Have this process reach servers in another way from now on.

    Args:
        decide: Called once, before the first server is reached: a command that reaches none reads
            no setting.

    Returns:
        What decided before.
    """
    global _decide, _decided
    before = _decide
    _decide, _decided = decide, None
    return before


def outbound() -> Outbound:
    """How this process reaches servers.

    Raises:
        ConfigError: A setting cannot be used.
    """
    global _decided
    if _decided is None:
        _decided = _decide()
    return _decided


def from_variables(variables: Mapping[str, str], base: Outbound = DIRECT) -> Outbound:
    """What the environment says, over what a project file says.

    Args:
        variables: Of the environment.
        base: What holds where a variable is missing.

    Raises:
        ConfigError: The file of authorities or the proxy's URL cannot be used.
    """
    authorities, proxy, direct = base.authorities, base.proxy, base.direct
    if variables.get(CA_FILE):
        authorities = read_authorities(Path(variables[CA_FILE]), CA_FILE)
    name = PROXY if variables.get(PROXY) else _first(variables, _PROXY_OF_TOOLS)
    if name is not None and (name == PROXY or base.proxy is None):
        proxy = None if variables[name] == "none" else parse_proxy(variables[name], name)
    named = _first(variables, _NO_PROXY_OF_TOOLS)
    if named is not None:
        direct = (*direct, *(part.strip() for part in variables[named].split(",") if part.strip()))
    return Outbound(authorities=authorities, proxy=proxy, direct=direct)


_SOCKS_HINT: Final = "a proxy that speaks SOCKS needs one that speaks HTTP before it"
_PROXY_HINT: Final = (
    "write the host and port that the network's operator names, not the address of a .pac file"
)


def parse_proxy(url: str, name: str, *, secret: bool = True) -> ProxyServer:
    """A proxy from its URL; without a scheme it is spoken to in plain.

    Args:
        url: ``http://[user:password@]host:port``, or ``https://…``.
        name: Of the setting, for refusals. They quote nothing of the URL, which may hold a secret.
        secret: The setting may hold a user and a password.

    Raises:
        ConfigError: Not such a URL.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
        user, password = parts.username, parts.password
    except ValueError:
        host, port, user, password = None, None, None, None
        parts = urlsplit("")
    named = host is not None and (_HOST.fullmatch(host) is not None or ":" in host)
    whole = parts.scheme in ("http", "https") and named and parts.path in ("", "/")
    if not whole or host is None or parts.query or parts.fragment or not url.isascii():
        raise ConfigError(
            f"{name} is not the URL of a proxy",
            check="proxy",
            got=f"{parts.scheme or 'no scheme'}://…"[:40],
            expected="http://host:port or https://host:port",
            hint=_SOCKS_HINT if parts.scheme.startswith("socks") else _PROXY_HINT,
        )
    if user is not None and not secret:
        raise ConfigError(
            f"{name} holds credentials",
            check="proxy",
            expected="http://host:port",
            hint=f"name a proxy with a password in the variable {PROXY}",
        )
    authorization = None
    if user is not None:
        plain = f"{unquote(user)}:{unquote(password or '')}".encode()
        authorization = f"Basic {b64encode(plain).decode('ascii')}"
    secured = parts.scheme == "https"
    return ProxyServer(
        host=host,
        port=port or (443 if secured else 3128),
        secured=secured,
        authorization=authorization,
    )


def read_authorities(path: Path, name: str) -> str:
    """The certificates of a PEM file.

    Args:
        path: The file.
        name: Of the setting, for refusals.

    Raises:
        ConfigError: It cannot be read, or holds no certificate.
    """
    try:
        text = read_bounded(path, _MAX_CA_BYTES).decode("ascii", "replace")
    except (DataInvalid, LimitExceeded) as error:
        raise ConfigError(
            f"{name}: {error.message}", check="ca_file", got=str(path)[:200], hint=_CA_HINT
        ) from None
    return certificates_in(text, name)


_CA_HINT: Final = "name the PEM file of the private authority's certificates"


def certificates_in(text: str, name: str) -> str:
    """The certificates of a PEM text, and nothing that stands between them, such as a key.

    Raises:
        ConfigError: The text has no certificate, or OpenSSL cannot read one.
    """
    import ssl  # costs every command that reaches no server

    found = blocks_of(text)
    blocks = "".join(found)
    try:
        # OpenSSL refuses an empty text too.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=blocks or "-")
    except (ssl.SSLError, TypeError, ValueError):  # text that is not ASCII is a ``TypeError``
        raise ConfigError(
            f"{name} holds no certificate that can be read",
            check="ca_file",
            got=f"{len(found)} certificates",
            expected="certificates in PEM",
            hint=_CA_HINT,
        ) from None
    return blocks


def blocks_of(text: str) -> list[str]:
    """The certificates of a PEM text, each with its first and last line."""
    return [
        f"{_BEGIN}{part.partition(_END)[0]}{_END}\n"
        for part in text.split(_BEGIN)[1:]
        if _END in part
    ]


def trusting(context: ssl.SSLContext, *authorities: str) -> ssl.SSLContext:
    """Add authorities to those that a context trusts. It checks certificates as before."""
    for blocks in filter(None, authorities):
        context.load_verify_locations(cadata=blocks)
    return context


def is_this_machine(host: str) -> bool:
    """Whether a host of a URL is this machine: ``localhost`` or a loopback address."""
    return any(_matches(host, 0, pattern) for pattern in _LOOPBACK)


def _port_of(pattern: str) -> tuple[str, str | None]:
    """A word of ``NO_PROXY`` without its port, and the port's digits where it has one."""
    name, colon, port = pattern.rpartition(":")
    if colon and port.isdecimal() and (":" not in name or name.endswith("]")):
        return name, port
    return pattern, None


def _first(variables: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if variables.get(name)), None)


def _matches(host: str, port: int, pattern: str) -> bool:
    """Whether a word of ``NO_PROXY`` means a server: a host, a domain, an address or a network."""
    host, pattern = host.strip("[]").rstrip(".").lower(), pattern.lower()
    if pattern == "*":
        return True
    name, named_port = _port_of(pattern)
    if named_port is not None and int(named_port) != port:
        return False
    pattern = name.strip("[]").rstrip(".")
    try:
        address = ip_address(host)
    except ValueError:
        domain = pattern.removeprefix("*").lstrip(".")
        return bool(domain) and (host == domain or host.endswith(f".{domain}"))
    try:
        return address in ip_network(pattern, strict=False)
    except ValueError:
        return False
