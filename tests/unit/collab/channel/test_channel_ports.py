"""Where parties listen: how many at a time, and what is told of the others."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

from sealtrain_together.channel.ports import Caller, listening

WITHIN_S = 20.0


def test_a_full_port_says_so_once_and_serves_again_when_one_has_gone() -> None:
    said: list[str] = []
    served, leave = threading.Semaphore(0), threading.Event()

    def handle(sock: Caller) -> None:
        sock.mark_proven()
        served.release()
        leave.wait(WITHIN_S)
        sock.sendall(b"done")

    with (
        ExitStack() as stack,
        listening(
            ("127.0.0.1", 0), handle, what="accelerator", connections=2, say=said.append
        ) as at,
    ):

        def call() -> socket.socket:
            return stack.enter_context(socket.create_connection(at, timeout=WITHIN_S))

        first = [call(), call()]
        assert all(served.acquire(timeout=WITHIN_S) for _ in first)
        assert [call().recv(1) for _ in range(3)] == [b"", b"", b""]
        assert len(said) == 1
        assert "2 connections" in said[0]
        leave.set()
        assert [item.recv(4) for item in first] == [b"done", b"done"]
        assert _served_again(at)


def _served_again(at: tuple[str, int]) -> bool:
    for _ in range(100):  # the threads that served let go of their places a moment later
        with socket.create_connection(at, timeout=WITHIN_S) as sock:
            if sock.recv(4) == b"done":
                return True
    return False
