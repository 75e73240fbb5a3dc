"""Ports that a rehearsal chooses before its servers listen."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from sealtrain_rehearsal.rehearsal import free_ports

CHOSEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.parametrize("count", [1, 3])
def test_free_ports_are_free_in_a_row_and_none_that_the_kernel_gives_away(count: int) -> None:
    lowest = int(CHOSEN_BY_KERNEL.read_text().split()[0])
    if lowest < 20_000:
        pytest.skip(f"this kernel gives ports away from {lowest} on")
    with ExitStack() as stack:
        for _ in range(50):  # all are held: none is given twice
            first = free_ports(count)
            for port in range(first, first + count):
                assert 1024 < port < lowest
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
