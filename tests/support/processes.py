"""Processes that a test watches, and whether they still run."""

from __future__ import annotations

import psutil


def below(process: psutil.Process) -> list[psutil.Process]:
    """What a process started, and what that started."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def runs(process: psutil.Process) -> bool:
    """Whether it runs; a process that ended and was not waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
