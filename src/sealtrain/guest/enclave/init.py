"""The first process of an enclave: it measures the document before anything of it runs.

In this order, and at the first failure the enclave ends, with nothing of the document started:

1. file systems; modules, with their words of the kernel's command line;
2. the heartbeat, without which nitro-cli ends the launch;
3. the security module: its time is the enclave's, since a parent could set a clock back, and its
   random bytes count in the kernel's generator;
4. the deployment document from the parent, once; **PCR 16 is extended with it and locked**;
5. it is of this image and platform; then no module is loaded any more;
6. a broker's files, under the names that the measured document gives (``handedfiles``);
7. bridges to the parent, and the document's program as a user without privileges. It takes the
   run ticket itself (spec/run-ticket.md §4). Each minute the clock is held against the module's.

A document of the simulator's platform is started in the same way, for tests of an enclave under a
test root: its program asks an agent, which is this process, and finds its ticket in a file. What
the agent shows is of kind ``test-nitro``, which no policy for hardware takes.

Until the heartbeat only the standard library is loaded: nitro-cli's patience ends.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from sealtrain.guest.enclave.bridge import Bridge, carry_to
from sealtrain.guest.enclave.plan import (
    DEVICE_LINKS,
    DOCUMENT_FILE,
    KEPT,
    MOUNTS,
    TICKET_FILE,
    USER,
    VARIABLES,
    EnclaveProgram,
    Mount,
    module_parameters,
    program_of,
)
from sealtrain.guest.enclave.ports import (
    DOCUMENT_PORT,
    FILES_PORT,
    HEARTBEAT,
    HEARTBEAT_PORT,
    PARENT,
    PROXY,
    STATUS_PORT,
    TICKET_PORT,
    TUNNEL_PORT,
)

if TYPE_CHECKING:
    from sealtrain.attest.nitro.collect import Nsm
    from sealtrain.guest.boot.agent import GuestAgent

_FOLDER: Final = Path("/enclave")
_MODULE: Final = "/dev/nsm"
_HEARTBEAT_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.05
_TOLD_SECONDS: Final = 10.0
_MAX_CLOCK_SECONDS: Final = 4_102_444_800
"""The year 2100."""
_CLOCK_SECONDS: Final = 60.0
_DRIFT_SECONDS: Final = 1.0
"""By less the clock is not set anew: asking the module takes some of it."""
_FAILED: Final = 125


class EnclaveKernel(Protocol):
    """What init asks of the kernel: ``system.LinuxKernel``, or a test's."""

    def mount(self, what: Mount) -> None:
        """Mount a file system."""

    def load_module(self, path: Path, parameters: str) -> None:
        """Load a module."""

    def load_no_more_modules(self) -> None:
        """Refuse further modules."""

    def set_clock(self, seconds: float) -> None:
        """Set the time."""

    def add_entropy(self, data: bytes) -> None:
        """Add random bytes."""

    def raise_loopback(self) -> None:
        """Bring loopback up."""

    def give(self, path: Path, user: int) -> None:
        """Let a user own a file."""

    def gain_no_privileges(self) -> None:
        """Let no later program gain a privilege."""

    def listen(self, port: int) -> socket.socket:
        """Bind a vsock port."""

    def connect(self, cid: int, port: int) -> socket.socket:
        """Connect over vsock."""


class EnclaveInit:
    """One start of an enclave.

    Args:
        kernel: What is asked of the kernel.
        files: Root of the file system; ``/`` but in tests.
        nsm: Opens the transport to the security module.
        monotonic: Clock that counts seconds.
        sleep: Waits so many seconds.
        is_parent: Whether a peer's vsock address is the parent's.
        clock: The enclave's own time, in seconds since 1970.
    """

    def __init__(
        self,
        kernel: EnclaveKernel,
        *,
        files: Path = Path("/"),
        nsm: Callable[[], Nsm] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        is_parent: Callable[[object], bool] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kernel = kernel
        self._files = files
        self._open_nsm = nsm or _device
        self._monotonic, self._sleep = monotonic, sleep
        self._is_parent = is_parent or _is_parent
        self._clock = clock
        self._bridges: list[Bridge] = []

    def prepare(self) -> None:
        """Step 1: file systems and modules."""
        for what in MOUNTS:
            self._kernel.mount(what)
        for place, target in DEVICE_LINKS.items():
            self._path(place).symlink_to(target)
        words = self._path("/proc/cmdline").read_text()
        folder = self._path(str(_FOLDER))
        for name in (folder / "order").read_text().split():
            path = folder / "modules" / f"{name}.ko"
            self._kernel.load_module(path, module_parameters(words, name))

    def beat(self) -> None:
        """Step 2: say that the enclave has started, and hear that it was heard.

        Raises:
            OSError: The parent does not listen, or answers with something else.
        """
        until = self._monotonic() + _HEARTBEAT_SECONDS
        while True:
            try:
                connection = self._kernel.connect(PARENT, HEARTBEAT_PORT)
                break
            except OSError:
                if self._monotonic() > until:
                    raise
                self._sleep(_PAUSE_SECONDS)
        with connection:
            connection.sendall(HEARTBEAT)
            if connection.recv(1) != HEARTBEAT:
                raise OSError("the parent answers the heartbeat with something else")

    def measure(self) -> EnclaveProgram:
        """Step 3 to 5: time, random bytes, the document into PCR 16, and what it starts.

        Raises:
            SealtrainError: No module or document, or the document is not for this enclave.
        """
        from sealtrain.attest.nitro.collect import measure_compose, random_bytes
        from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
        from sealtrain.client.parentticket import receive_from_sender

        nsm = self._open_nsm()
        self._kernel.set_clock(_ask_time(nsm))
        self._kernel.add_entropy(random_bytes(nsm))
        self._kernel.raise_loopback()
        with self._kernel.listen(DOCUMENT_PORT) as listener:
            listener.listen()
            document = receive_from_sender(
                listener, MAX_DEPLOYMENT_BYTES, is_sender=self._is_parent
            )
        measure_compose(nsm, document)
        self.tell("measured")
        from sealtrain.guest.enclave.handedfiles import names_of
        from sealtrain.recipe.document import frame_of

        frame = frame_of(document)
        image = (self._path(str(_FOLDER)) / "image").read_text("ascii").strip()
        program = replace(program_of(frame, image), files=names_of(frame))
        self._kernel.load_no_more_modules()
        place = self._path(DOCUMENT_FILE)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(document)
        place.chmod(0o644)
        return program

    def take_files(self, program: EnclaveProgram) -> tuple[str, ...]:
        """Step 6: what the parent hands in, once; nothing where the document names none.

        Returns:
            Names of the files that were written, for the document's program alone to read.

        Raises:
            TicketInvalid: The parent sends nothing in time.
            DataInvalid: What it sends is of another form or name.
        """
        from sealtrain.client.parentticket import receive_from_sender
        from sealtrain.guest.enclave.handedfiles import MAX_FILES_BYTES, read_message

        if not program.files:
            return ()
        with self._kernel.listen(FILES_PORT) as listener:
            listener.listen()
            message = receive_from_sender(listener, MAX_FILES_BYTES, is_sender=self._is_parent)
        files = read_message(message, program.files)
        folder = self._path(KEPT)
        for name, data in sorted(files.items()):
            self._give(folder / name, data)
        return tuple(sorted(files))

    def take_ticket(self) -> None:
        """Of a document that asks an agent: the run ticket, into the file that its program reads.

        Raises:
            TicketInvalid: The parent sends none in time.
        """
        from sealtrain.client.parentticket import receive_from_sender
        from sealtrain.client.ticket import MAX_TICKET_BYTES

        with self._kernel.listen(TICKET_PORT) as listener:
            listener.listen()
            ticket = receive_from_sender(listener, MAX_TICKET_BYTES, is_sender=self._is_parent)
        self._give(self._path(TICKET_FILE), ticket)

    def open_agent(self) -> GuestAgent:
        """The agent of such a document, at its socket; it answers once it is started."""
        from sealtrain.attest.nitro.collect import nitro_shown
        from sealtrain.guest.boot.agent import AGENT_SOCKET, GuestAgent, answers

        nsm = self._open_nsm()
        document = self._path(DOCUMENT_FILE).read_bytes()
        known = answers(document, lambda report_data: nitro_shown(nsm, report_data), "test-nitro")
        path = self._path(AGENT_SOCKET)
        agent = GuestAgent(path, known)
        self._kernel.give(path, USER)
        return agent

    def close_module(self, user: int) -> None:
        """Let a user alone open the security module, which Linux's driver offers to all of them.

        Args:
            user: Of the document's program, or 0 where an agent asks for it.
        """
        device = self._path(_MODULE)
        device.chmod(0o600)
        self._kernel.give(device, user)

    def _give(self, place: Path, data: bytes) -> None:
        """Write a new file that the document's program alone reads."""
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        self._kernel.give(place, USER)

    def open_bridges(self, ports: Sequence[int], proxy: tuple[str, int] = PROXY) -> None:
        """Step 7: the proxy on loopback, and the document's ports for the parent."""
        inside = socket.create_server(proxy)
        self._bridges.append(
            Bridge(inside, carry_to(lambda: self._kernel.connect(PARENT, TUNNEL_PORT)))
        )
        for port in ports:
            self._bridges.append(
                Bridge(
                    self._kernel.listen(port),
                    carry_to(_to_loopback(port)),
                    is_welcome=self._is_parent,
                )
            )

    def start_bridges(self) -> None:
        """Carry what came since they were opened; threads run from now on."""
        for bridge in self._bridges:
            bridge.start()

    def correct_clock(self, nsm: Nsm) -> None:
        """Set the clock anew where it has drifted from the module's.

        Evidence is held against the time at which a run says that it finished, and a processor's
        counter whose speed was misjudged at the start is off by a minute within the hour.

        Raises:
            SealtrainError: The module does not answer.
        """
        time_of_module = _ask_time(nsm)
        if abs(time_of_module - self._clock()) > _DRIFT_SECONDS:
            self._kernel.set_clock(time_of_module)

    def keep_clock(self) -> None:
        """Correct the clock each minute from now on, in a thread that ends with the enclave."""
        threading.Thread(target=self._keep_clock, name="clock", daemon=True).start()

    def _keep_clock(self) -> None:
        from sealtrain.errors import SealtrainError

        nsm = self._open_nsm()
        while True:
            self._sleep(_CLOCK_SECONDS)
            with suppress(SealtrainError):  # it is asked again
                self.correct_clock(nsm)

    def close(self) -> None:
        """Close the bridges."""
        for bridge in self._bridges:
            bridge.close()

    def tell(self, stage: str, **more: int | str) -> None:
        """Tell the parent how far the enclave is; a parent that does not listen misses it.

        It waits until the parent has read the line: a later one could overtake it.
        """
        with suppress(OSError), self._kernel.connect(PARENT, STATUS_PORT) as connection:
            connection.settimeout(_TOLD_SECONDS)
            connection.sendall(json.dumps({"stage": stage, **more}).encode("ascii") + b"\n")
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)

    def _path(self, name: str) -> Path:
        return self._files / name.lstrip("/")


def main() -> None:
    """Be process 1 of an enclave. It does not return: the enclave ends."""
    from sealtrain.guest.enclave.system import LinuxKernel

    kernel = LinuxKernel()
    enclave = EnclaveInit(kernel)
    status, code = _FAILED, "failed"
    try:
        enclave.prepare()
        enclave.beat()
        program = enclave.measure()
        enclave.take_files(program)
        enclave.open_bridges(program.ports)
        agent = None
        if program.asks_agent:
            enclave.take_ticket()
            agent = enclave.open_agent()
        enclave.close_module(0 if program.asks_agent else USER)
        kernel.gain_no_privileges()
        child = _start(program)
        enclave.start_bridges()
        enclave.keep_clock()
        if agent is not None:
            agent.start()
        enclave.tell("started")
        status, code = _wait(child), "ended"
    # What failed is told by its code; the kernel would panic if process 1 ended by itself.
    except BaseException as error:
        code = str(getattr(error, "code", type(error).__name__))[:60]
        print(f"enclave: {code}: {error}", file=sys.stderr, flush=True)
    enclave.tell("ended", status=status, code=code)
    time.sleep(1)  # for the parent to read it: a restart drops what lies in queues
    kernel.restart()
    while True:
        time.sleep(60)


def _start(program: EnclaveProgram) -> subprocess.Popen[bytes]:
    """Start the document's program as a user without privileges."""
    return subprocess.Popen(  # noqa: S603  # the measured document's own words
        program.words,
        cwd=KEPT,
        env=dict(VARIABLES),
        stdin=subprocess.DEVNULL,
        user=USER,
        group=USER,
        extra_groups=[],
    )


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the program, and reap what others leave; 128 + N where signal N ended it."""
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _ask_time(nsm: Nsm) -> float:
    """The module's time, in seconds since 1970: that of a document that it makes."""
    from sealtrain.attest.nitro.collect import attestation
    from sealtrain.attest.nitro.parse import parse_document

    return min(parse_document(attestation(nsm)).timestamp_ms / 1000, _MAX_CLOCK_SECONDS)


def _to_loopback(port: int) -> Callable[[], socket.socket]:
    return lambda: socket.create_connection(("127.0.0.1", port), timeout=30)


def _is_parent(peer: object) -> bool:
    return isinstance(peer, tuple) and peer[0] == PARENT


def _device() -> Nsm:
    from sealtrain.attest.nitro.collect import device_nsm

    return device_nsm()
