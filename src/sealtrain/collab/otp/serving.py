"""An accelerator or a dealer, here or as a process of its own.

    with served("accelerator", device="cuda") as there:
        accelerator = RemoteAccelerator(there.host, there.port)

Both hold matrices that anybody may know. A dealer also holds, for as long as a connection lasts,
the pad secret of the guest at its other end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from sealtrain.base.hostport import written
from sealtrain.collab.otp import wire
from sealtrain.collab.otp.dealer import Answers, session_info
from sealtrain.collab.otp.exact import backend
from sealtrain.collab.otp.masks import Masks, drawn_secret
from sealtrain.collab.otp.matrix import PublicMatrix
from sealtrain.errors import (
    AcceleratorUnreachable,
    DataInvalid,
    LimitExceeded,
    PadsRefused,
    SealtrainError,
    UsageError,
)
from sealtrain.sealing.hpke import HpkePrivateKey, HpkePublicKey
from sealtrain.training import quiet

quiet.silence()

import torch  # noqa: E402  # after silence()

__all__ = ["Limits", "Role", "Served", "Server", "run", "served"]

Role = Literal["accelerator", "dealer"]
LOOPBACK: Final = "127.0.0.1"
START_SECONDS: Final = 120.0
END_SECONDS: Final = 10.0
MAX_LINE: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server takes at most.

    Attributes:
        matrix_bytes: Of all matrices together.
        connections: At a time.
        frame_seconds: For one frame to arrive or leave.
        idle_seconds: Between two frames.
    """

    matrix_bytes: int = 16 << 30
    connections: int = 8
    frame_seconds: float = 120.0
    idle_seconds: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Where a server listens.

    Attributes:
        host: Address.
        port: Port.
        key: A dealer's public key; ``None`` of an accelerator.
        backend: How it multiplies.
        process: Its process id.
    """

    host: str
    port: int
    key: HpkePublicKey | None
    backend: str
    process: int


class Server(socketserver.ThreadingTCPServer):
    """Listens and answers each connection in a thread.

    Args:
        role: What it answers to.
        device: Where it multiplies.
        exact: Name of the back-end (``exact.backend``).
        limits: What it takes.
        host: Where it listens: an address, or a name.
        port: Where it listens; 0 for any.
        introduce: Has a connection that begins an attested channel, and the dealer's own key
            (``introduction.introduce``); refusals it raises end the connection.

    Raises:
        UsageError: It cannot listen there.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        role: Role,
        *,
        device: str,
        exact: str,
        limits: Limits,
        host: str = LOOPBACK,
        port: int = 0,
        introduce: Callable[[socket.socket, HpkePublicKey], None] | None = None,
    ) -> None:
        self.role = role
        self.introduce = introduce
        self.device = device
        self.exact = backend(exact, device)
        self.limits = limits
        self.key = HpkePrivateKey(drawn_secret()) if role == "dealer" else None
        self._matrices: dict[bytes, tuple[PublicMatrix, torch.Tensor]] = {}
        self._room = limits.matrix_bytes
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(limits.connections)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Conversation)
        except OSError as error:
            raise UsageError(
                f"the {role} cannot listen there", got=f"{written(host, port)}, {error.strerror}"
            ) from error

    @property
    def place(self) -> str:
        """Where it listens, ``HOST:PORT``."""
        host, port = self.server_address[:2]
        return written(str(host), port)

    def keep(self, values: torch.Tensor) -> bytes:
        """Know a matrix from now on; its digest.

        Raises:
            LimitExceeded: There is no room for it.
        """
        matrix = PublicMatrix(values)
        with self._lock:
            if matrix.digest not in self._matrices:
                if values.numel() > self._room:
                    raise LimitExceeded("no room for another matrix", got=values.numel())
                self._room -= values.numel()
                self._matrices[matrix.digest] = matrix, values.to(self.device)
        return matrix.digest

    def known(self, digest: bytes) -> tuple[PublicMatrix, torch.Tensor]:
        """A matrix, and it where it is multiplied.

        Raises:
            DataInvalid: Nobody brought it.
        """
        with self._lock:
            if digest not in self._matrices:
                raise DataInvalid("nobody brought this matrix")
            return self._matrices[digest]

    def multiplied(
        self, elements: torch.Tensor, values: torch.Tensor, *, forward: bool
    ) -> torch.Tensor:
        """A product, back on the CPU."""
        factor = values.T if forward else values
        return self.exact.product(elements.to(self.device), factor).cpu()

    def process_request(self, request: object, client_address: object) -> None:
        """Answer a connection, or close it where there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]  # of a TCP server
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        """Answer, then make room."""
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing is printed: what went wrong was said to who asked, or that side is gone."""


class _Conversation(socketserver.BaseRequestHandler):
    """One connection: frames in, answers out, the first refusal ends it."""

    server: Server

    def handle(self) -> None:
        limits = self.server.limits
        if self._introduced():
            return
        channel = wire.Channel(self.request, seconds=limits.frame_seconds)
        self._masks: Masks | None = None
        self._answers: Answers | None = None
        with suppress(AcceleratorUnreachable), torch.no_grad():
            try:
                while True:
                    kind, body = channel.receive(idle_seconds=limits.idle_seconds)
                    channel.send(kind | wire.ANSWER, self._answer(kind, body))
            except AcceleratorUnreachable:
                raise
            except SealtrainError as error:
                channel.send(wire.REFUSED, error.message.encode()[: wire.MAX_REFUSAL])

    def _introduced(self) -> bool:
        """Whether this was a conversation of the dealer about itself, which is over then."""
        introduce, key = self.server.introduce, self.server.key
        if introduce is None or key is None:
            return False
        self.request.settimeout(self.server.limits.idle_seconds)
        with suppress(OSError, SealtrainError):
            # No frame is of kind 0, and the length of a channel's first message begins with it.
            if self.request.recv(1, socket.MSG_PEEK) != b"\0":
                return False
            introduce(self.request, key.public)
        return True

    def _answer(self, kind: int, body: bytearray) -> bytes | memoryview:
        if kind == wire.MATRIX:
            return self.server.keep(wire.matrix_of(body))
        if kind == wire.PRODUCT and self.server.role == "accelerator":
            return self._product(body)
        if kind == wire.BEGIN and self.server.key is not None:
            return self._begin(body, self.server.key)
        if kind == wire.PADS and self._masks is not None and self._answers is not None:
            return self._pads(body, self._masks, self._answers)
        raise DataInvalid(f"a {self.server.role} does not answer this", got=f"frame {kind:#04x}")

    def _product(self, body: bytearray) -> memoryview:
        digest, direction, rows, offset = wire.read_product(body)
        matrix, values = self.server.known(digest)
        elements = wire.elements(body, rows, matrix.widths(direction)[0], offset=offset)
        self._bounded(matrix.widths(direction)[1], rows)
        forward = direction == "forward"
        return wire.octets(self.server.multiplied(elements, values, forward=forward))

    def _begin(self, body: bytearray, key: HpkePrivateKey) -> bytes:
        if self._masks is not None:
            raise PadsRefused("a connection serves one beginning")
        session = bytes(body[: wire.SESSION_BYTES])
        try:
            secret = key.open(bytes(body[wire.SESSION_BYTES :]), info=session_info(session))
            self._masks, self._answers = Masks(secret), Answers(secret, session)
        except SealtrainError as error:
            raise DataInvalid("this is not sealed to this dealer") from error
        return b""

    def _pads(self, body: bytearray, masks: Masks, answers: Answers) -> bytes:
        digest, direction, first, rows = wire.read_pads(body)
        matrix, values = self.server.known(digest)
        if masks.position(matrix, direction) != first:
            raise PadsRefused("rows of a stream are given in order, each once")
        self._bounded(max(matrix.widths(direction)), rows)
        _, mask = masks.rows(matrix, direction, rows)
        product = self.server.multiplied(mask, values, forward=direction == "forward")
        return answers.sealed(product, bytes(body))

    @staticmethod
    def _bounded(columns: int, rows: int) -> None:
        # A short request must not have this side make more than a frame holds.
        if 4 * columns * rows > wire.MAX_FRAME:
            raise LimitExceeded("this would be a longer answer than a frame holds")


@contextmanager
def served(
    role: Role,
    *,
    device: str = "cpu",
    exact: str = "fastest",
    limits: Limits | None = None,
    threads: int = 1,
) -> Iterator[Served]:
    """Start a server as a process of its own, and end it with the block.

    Args:
        role: What it is.
        device: Where it multiplies: ``cpu``, ``cuda``.
        exact: Back-end, ``exact.backend``.
        limits: What it takes.
        threads: It multiplies with, on the CPU.

    Raises:
        AcceleratorUnreachable: It did not start.
    """
    settings = {"role": role, "device": device, "exact": exact, "threads": threads}
    limit = asdict(limits or Limits())
    # A fresh interpreter: a forked one would share the guest's memory, secrets included.
    work = subprocess.Popen(  # noqa: S603  # this interpreter, our own module
        [sys.executable, "-m", "sealtrain.collab.otp", json.dumps(settings | {"limits": limit})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = _told(work, role)
        yield Served(
            host=LOOPBACK,
            port=told["port"],
            key=None if told["key"] is None else HpkePublicKey(bytes.fromhex(told["key"])),
            backend=told["backend"],
            process=work.pid,
        )
    finally:
        work.terminate()
        with suppress(subprocess.TimeoutExpired):
            work.wait(END_SECONDS)
        work.kill()
        work.wait()
        for pipe in (work.stdin, work.stdout):
            if pipe is not None:
                pipe.close()


def _told(work: subprocess.Popen[bytes], role: Role) -> dict[str, Any]:
    """What a started server says of itself, within the time it has to start."""
    output = work.stdout
    if output is None or not select.select([output], [], [], START_SECONDS)[0]:
        raise AcceleratorUnreachable(f"the {role} did not start in time")
    line = output.readline(MAX_LINE)
    told = json.loads(line) if line.endswith(b"\n") else {"refused": "it ended while it started"}
    if "refused" in told:
        raise AcceleratorUnreachable(f"the {role} did not start: {told['refused']}")
    return dict(told)


def run(settings: dict[str, Any], *, say: Callable[[bytes], object], lifeline: int) -> None:
    """Be a server until the other end of a pipe is closed.

    Args:
        settings: As ``served`` gives them.
        say: Takes one line: where it listens.
        lifeline: Descriptor to read from; at its end, so ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it
    torch.set_num_threads(settings["threads"])
    try:
        server = Server(
            settings["role"],
            device=settings["device"],
            exact=settings["exact"],
            limits=Limits(**settings["limits"]),
        )
    except (SealtrainError, RuntimeError, AssertionError) as error:  # torch asserts, too
        say(json.dumps({"refused": f"{type(error).__name__} on {settings['device']}"}).encode())
        return
    key = None if server.key is None else server.key.public.raw.hex()
    told = {"port": server.server_address[1], "key": key, "backend": server.exact.name}
    say(json.dumps(told).encode())
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    server.serve_forever()


def _end_with(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os._exit(0)
