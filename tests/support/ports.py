"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that no program listens on at this moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
