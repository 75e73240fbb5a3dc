"""Whether a guest of our own works: one word, for the operator's monitor.

What a caller sends is read once, as far as a kilobyte, and looked at by no code. The answer is one
of few texts, whatever was asked, and callers are answered one after the other: the page says
nothing of data, keys or measurements, and a flood of callers costs one thread.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Final

from sealtrain.guest.boot.decisions import GuestState

HEALTH_PORT: Final = 8476
_READ_BYTES: Final = 1024
_SECONDS: Final = 1.0


class HealthPage:
    """Answers with the state of the guest.

    Attributes:
        state: What is answered from now on.
    """

    def __init__(self) -> None:
        self.state = GuestState.STARTING

    def answer(self) -> bytes:
        """The answer to any request: 200 while the document's command runs, 503 otherwise."""
        status = "200 OK" if self.state is GuestState.RUNNING else "503 Service Unavailable"
        body = f"{self.state}\n"
        head = f"HTTP/1.0 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n{body}".encode("ascii")

    def serve(self, listener: socket.socket) -> None:
        """Answer callers of a listening socket in the background, until the process ends."""
        threading.Thread(target=self._serve, args=(listener,), name="health", daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(_SECONDS)
                    connection.recv(_READ_BYTES)
                    connection.sendall(self.answer())
