"""A guest in software: its own PKI in place of Intel's, the dstack guest API, and a loud label.

It proves nothing about hardware. It exists so that the same client, the same verifier and the same
broker run on any laptop; only the root of trust differs, and that root calls itself SIMULATED.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["serve"]


def serve(
    socket: Path, compose: Path, state: Path, ready: Callable[[], None] | None = None
) -> None:
    """Serve one simulated guest until SIGTERM or SIGINT; see ``simulator.server.serve``."""
    from sealtrain_rehearsal.simulator.server import serve as serve_guest

    serve_guest(socket, compose, state, ready)
