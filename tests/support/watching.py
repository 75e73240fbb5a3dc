"""What others could notice of a process: files it opens for writing, calls, lines of logs."""

from __future__ import annotations

import logging
import os

OPENED: list[str] = []
CALLED: list[str] = []
LOGGED: list[str] = []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    """Note every file opened for writing, also by code that removes it again, and every call."""
    if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
        CALLED.append(f"{event} {arguments[:2]!r}")
    if event != "open":
        return
    path, _mode, flags = arguments
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) and isinstance(path, str):
        OPENED.append(path)


def listen(record: logging.LogRecord) -> bool:
    """Note what passes any handler's filter."""
    LOGGED.append(record.getMessage())
    return True
