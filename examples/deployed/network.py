"""A network on one machine: guests in namespaces of their own, with routes to few places.

Everything happens in a network namespace that the story makes for itself, as an ordinary user where
the system lets users make namespaces (``unshare``). Nothing outside of it changes.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

BROKERS, STORES, ELSEWHERE = "10.77.1.1", "10.77.2.1", "10.77.3.1"
"""Addresses of the world outside of guests; guests have no route to the last."""
_GUESTS = "10.77.9.0/24"
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_INSIDE = "SEALTRAIN_STORY_NETWORK"
_ALL_PROTOCOLS = 0x0003


def inside() -> None:
    """Begin this program anew in a namespace of its own, unless it runs in one."""
    if os.environ.get(_INSIDE):
        for address in (BROKERS, STORES, ELSEWHERE):
            _ip("address", "add", f"{address}/32", "dev", "lo")
        _ip("link", "set", "lo", "up")
        return
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        raise SystemExit(
            f"this story needs the programs {', '.join(missing)} (iproute2, util-linux)"
        )
    words = ["unshare", "--map-root-user", "--net", sys.executable, *sys.argv]
    if subprocess.run([*words[:3], "true"], check=False).returncode != 0:  # noqa: S603
        raise SystemExit("this system lets its users make no namespaces; try it as root")
    os.execvpe(words[0], words, os.environ | {_INSIDE: "1"})  # noqa: S606 - our own program


class Guest:
    """A namespace with a way to brokers and stores, and to nothing else. Use as a context."""

    def __init__(self, number: int, traffic: Path, *, fellows: bool = False) -> None:
        """Make nothing yet.

        Args:
            number: Of the guest, from 1.
            traffic: File for every byte on its line.
            fellows: It also has a way to the other guests.
        """
        self._number = number
        self._traffic = traffic
        self._fellows = fellows
        self._stack = ExitStack()

    @property
    def address(self) -> str:
        """At which the other guests reach it."""
        return self._addresses()[1]

    def __enter__(self) -> Guest:
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def words(self, command: Sequence[str]) -> list[str]:
        """A command as it is started inside."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", *command]

    def _make(self) -> None:
        self._holder = self._stack.enter_context(
            subprocess.Popen(["unshare", "--net", "sleep", "3600"])  # noqa: S607
        )
        self._stack.callback(self._holder.kill)
        line, ours, its = (f"guest{self._number}", *self._addresses())
        here = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{self._holder.pid}/ns/net").readlink() == here:
            pass  # unshare has not made it yet
        _ip("link", "add", line, "type", "veth", "peer", "name", "eth0", "netns",
            str(self._holder.pid))  # fmt: skip
        self._stack.callback(lambda: _ip("link", "delete", line, check=False))
        _ip("address", "add", f"{ours}/30", "dev", line)
        _ip("link", "set", line, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{its}/30", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", f"{BROKERS}/32", "via", ours),
            ("route", "add", f"{STORES}/32", "via", ours),
            *((("route", "add", _GUESTS, "via", ours),) if self._fellows else ()),
        ):
            subprocess.run(self.words(["ip", *command]), check=True)  # noqa: S603
        if self._fellows:
            _FORWARDING.write_text("1")
        self._record(line)

    def _addresses(self) -> tuple[str, str]:
        first = 4 * self._number
        return f"10.77.9.{first + 1}", f"10.77.9.{first + 2}"

    def _record(self, line: str) -> None:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        wire.bind((line, 0))
        wire.settimeout(0.2)
        over = threading.Event()

        def listen() -> None:
            with self._traffic.open("wb") as file, wire:
                while not over.is_set():
                    try:
                        file.write(wire.recv(1 << 16))
                    except TimeoutError:
                        continue
                    except OSError:
                        return

        thread = threading.Thread(target=listen, name="wire")
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(over.set)


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check)  # noqa: S603, S607 - our own words
