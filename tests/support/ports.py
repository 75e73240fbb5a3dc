"""Ports of this machine."""

from __future__ import annotations

from sealtrain_rehearsal.rehearsal import free_ports


def free_port() -> int:
    """A port that no program listens on at this moment, nor takes unless it asks for it."""
    return free_ports(1)
