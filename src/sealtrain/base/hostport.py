"""Addresses of servers, written ``HOST:PORT``."""

from __future__ import annotations

import re
from typing import Final

from sealtrain.errors import UsageError

_FORM: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([A-Za-z0-9_.-]+)):([0-9]{1,5})")
_MAX_PORT: Final = 65535


def host_and_port(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, or of ``[address]:port`` for IPv6.

    Raises:
        UsageError: It is neither.
    """
    found = _FORM.fullmatch(text)
    if found is None or int(found[3]) > _MAX_PORT:
        raise UsageError("not the address of a server", got=text[:80], expected="HOST:PORT")
    return found[1] or found[2], int(found[3])


def write_host_and_port(host: str, port: int) -> str:
    """The address as ``host_and_port`` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
