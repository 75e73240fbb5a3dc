"""The parent instance of an enclave: it starts it, hands in document and ticket, and carries bytes.

Nothing is started that ``launch`` did not judge, and an enclave that was started is ended, however
this process leaves.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol, cast

from sealtrain.attest.errors import GuestApiUnreachable
from sealtrain.base.visible_text import escape_hidden
from sealtrain.errors import DataInvalid
from sealtrain.guest.enclave.bridge import Bridge, carry_to
from sealtrain.guest.enclave.launch import EnclaveLaunch
from sealtrain.guest.enclave.ports import (
    DOCUMENT_PORT,
    FILES_PORT,
    MAX_STATUS_BYTES,
    STATUS_PORT,
    TICKET_PORT,
    TUNNEL_PORT,
)
from sealtrain.guest.enclave.tunnels import Tunnels

MAX_ANSWER_BYTES: Final = 64 << 10
_ANSWER_SECONDS: Final = 600.0
_HAND_IN_SECONDS: Final = 600.0
_SEND_SECONDS: Final = 25.0
_PAUSE_SECONDS: Final = 0.5
_STATUS_SECONDS: Final = 10.0
_LOOKS_EVERY_SECONDS: Final = 10.0
_ID: Final = re.compile(r"i-[0-9a-f]{8,32}-enc[0-9a-f]{1,32}")
_LEAST_CID, _LAST_CID = 4, (1 << 32) - 2
_STAGES: Final = ("measured", "started", "ended")
_HINT: Final = "nitro-cli describe-enclaves; nitro-cli console needs debug mode, which is refused"


class Vsock(Protocol):
    """How a parent listens and connects: over vsock, or as a test plays it."""

    def listen(self, port: int) -> socket.socket:
        """A socket that is bound to a vsock port of this machine."""

    def connect(self, cid: int, port: int) -> socket.socket:
        """A connection to a port of an enclave."""


NitroCli = Callable[[Sequence[str]], bytes]
"""Runs nitro-cli with words, and gives its answer: at most ``MAX_ANSWER_BYTES`` and one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEnclave:
    """An enclave that nitro-cli started."""

    id: str
    cid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveStage:
    """How far an enclave says that it is.

    Attributes:
        stage: ``measured``, ``started`` or ``ended``.
        status: Exit status of the document's program, where it ended.
        code: Why it ended.
    """

    stage: str
    status: int | None = None
    code: str | None = None


def nitro_cli(program: str, *, seconds: float = _ANSWER_SECONDS) -> NitroCli:
    """AWS's program of that name or path.

    Args:
        program: ``nitro-cli``, or its path.
        seconds: That an answer may take.

    Returns:
        A function that raises ``GuestApiUnreachable`` where it is missing, fails or takes too long.
    """

    def run(words: Sequence[str]) -> bytes:
        try:
            with subprocess.Popen(  # noqa: S603  # our own words
                [program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
            ) as process:
                said = cast("IO[bytes]", process.stdout)
                limit = threading.Timer(seconds, process.kill)
                limit.start()
                try:
                    answer = said.read(MAX_ANSWER_BYTES + 1)
                    if len(answer) > MAX_ANSWER_BYTES:
                        process.kill()
                    status = process.wait()
                finally:
                    limit.cancel()
                    process.kill()
        except OSError as error:
            raise _nitro_error(words[0], type(error).__name__) from error
        if status != 0:
            raise _nitro_error(words[0], f"exit status {status}")
        return answer

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentMachine:
    """What a parent reaches.

    Attributes:
        cli: nitro-cli.
        vsock: How to listen and connect.
        tunnels: What serves the enclave's connections to servers.
        publish: Binds a document's port for callers of this machine; ``None`` publishes none.
    """

    cli: NitroCli
    vsock: Vsock
    tunnels: Tunnels
    publish: Callable[[int], socket.socket] | None = None


class Parent:
    """Starts one enclave and stays with it.

    Args:
        launch: What to start.
        machine: What is reached.
        on_stage: Called with each stage that the enclave says.
        hand_in_seconds: How long the enclave may take to listen for document and ticket.
        look_seconds: How often nitro-cli is asked whether the enclave still runs.
    """

    def __init__(
        self,
        launch: EnclaveLaunch,
        machine: ParentMachine,
        *,
        on_stage: Callable[[EnclaveStage], None] = lambda _: None,
        hand_in_seconds: float = _HAND_IN_SECONDS,
        look_seconds: float = _LOOKS_EVERY_SECONDS,
    ) -> None:
        self._launch, self._machine = launch, machine
        self._on_stage = on_stage
        self._hand_in_seconds, self._look_seconds = hand_in_seconds, look_seconds
        self._news = threading.Condition()
        self._ended: EnclaveStage | None = None
        self._cid: int | None = None

    def run(self) -> EnclaveStage:
        """Start, hand in, and wait until the enclave has ended.

        Raises:
            GuestApiUnreachable: nitro-cli fails or answers with something else, the enclave takes
                neither document nor ticket, or it is gone without a word.
        """
        bridges: list[Bridge] = []
        try:
            for port, handle in ((STATUS_PORT, self._hear), (TUNNEL_PORT, self._machine.tunnels)):
                listener = self._listen(port)
                bridges.append(Bridge(listener, handle, is_welcome=self._is_ours))
            for bridge in bridges:
                bridge.start()
            enclave = self._start()
            self._cid = enclave.cid
            try:
                bridges += self._publish(enclave.cid)
                self._hand_in(enclave, DOCUMENT_PORT, self._launch.document, "document")
                if self._launch.files is not None:
                    self._hand_in(enclave, FILES_PORT, self._launch.files, "files")
                self._hand_in(enclave, TICKET_PORT, self._launch.ticket, "run ticket")
                return self._wait(enclave)
            finally:
                with suppress(GuestApiUnreachable):
                    self._machine.cli(("terminate-enclave", "--enclave-id", enclave.id))
        finally:
            for bridge in bridges:
                bridge.close()

    def _start(self) -> RunningEnclave:
        """Start the enclave; one that is not what was asked for is ended."""
        answer = self._machine.cli(run_words(self._launch))
        try:
            return read_started(answer, self._launch)
        except GuestApiUnreachable:
            id_ = _id_in(answer)
            if id_ is not None:
                with suppress(GuestApiUnreachable):
                    self._machine.cli(("terminate-enclave", "--enclave-id", id_))
            raise

    def _listen(self, port: int) -> socket.socket:
        try:
            return self._machine.vsock.listen(port)
        except OSError as error:
            raise GuestApiUnreachable(
                f"nothing can listen at vsock port {port} of this machine",
                check="vsock",
                got=error.strerror,
                expected="a parent instance of AWS Nitro enclaves, and one enclave at a time",
            ) from error

    def _is_ours(self, peer: Any) -> bool:
        """Whether a peer is the enclave: another one on this machine could ask for tunnels."""
        if not isinstance(peer, tuple):
            return True  # a unix socket of a test has no context id
        return self._cid is None or peer[0] == self._cid

    def _publish(self, cid: int) -> list[Bridge]:
        if self._machine.publish is None:
            return []
        found = []
        for port in self._launch.ports:
            bridge = Bridge(self._machine.publish(port), carry_to(self._into(cid, port)))
            bridge.start()
            found.append(bridge)
        return found

    def _into(self, cid: int, port: int) -> Callable[[], socket.socket]:
        return lambda: self._machine.vsock.connect(cid, port)

    def _hand_in(self, enclave: RunningEnclave, port: int, data: bytes, what: str) -> None:
        """Send bytes whole once the enclave listens; one that has ended takes no more.

        Raises:
            GuestApiUnreachable: It takes none in time, or is gone.
        """
        until = time.monotonic() + self._hand_in_seconds
        looks = time.monotonic() + self._look_seconds
        while (now := time.monotonic()) < until:
            if now >= looks:
                self._require_running(enclave)
                looks = now + self._look_seconds
            with self._news:
                if self._ended is not None:
                    return
            try:
                with self._machine.vsock.connect(enclave.cid, port) as connection:
                    connection.settimeout(_SEND_SECONDS)
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1)  # its end: the enclave has read all of it
                    return
            except OSError:
                with self._news:
                    self._news.wait(_PAUSE_SECONDS)
        raise GuestApiUnreachable(
            f"the enclave takes no {what}",
            check=what,
            got=f"no whole connection in {self._hand_in_seconds:g} s",
            expected=f"one to port {port}",
            hint=_HINT,
        )

    def _wait(self, enclave: RunningEnclave) -> EnclaveStage:
        while True:
            with self._news:
                if self._ended is None:
                    self._news.wait(self._look_seconds)
                if self._ended is not None:
                    return self._ended
            self._require_running(enclave)

    def _require_running(self, enclave: RunningEnclave) -> None:
        """Return if the enclave runs, or said why it ended.

        Raises:
            GuestApiUnreachable: It is gone and did not.
        """
        if enclave.id in running(self._machine.cli(("describe-enclaves",))):
            return
        with self._news:
            if self._ended is not None:
                return
        raise GuestApiUnreachable(
            "the enclave is gone and did not say why", check="enclave", hint=_HINT
        )

    def _hear(self, connection: socket.socket) -> None:
        """One line of the enclave's; what is no stage is left alone."""
        connection.settimeout(_STATUS_SECONDS)
        line = b""
        while not line.endswith(b"\n") and len(line) <= MAX_STATUS_BYTES:
            more = connection.recv(MAX_STATUS_BYTES + 1 - len(line))
            if not more:
                return
            line += more
        stage = stage_of(line)
        if stage is None:
            return
        with self._news:
            if self._ended is not None:
                return
            if stage.stage == "ended":
                self._ended = stage
            self._news.notify_all()
        self._on_stage(stage)


def run_words(launch: EnclaveLaunch) -> tuple[str, ...]:
    """Words of ``nitro-cli`` that start an enclave; none of them is debug mode."""
    return (
        *("run-enclave", "--eif-path", str(launch.eif)),
        *("--cpu-count", str(launch.processors), "--memory", str(launch.memory_mib)),
    )


def read_started(answer: bytes, launch: EnclaveLaunch) -> RunningEnclave:
    """What nitro-cli says that it started.

    Raises:
        GuestApiUnreachable: Not its form, or another enclave than was asked for.
    """
    id_ = _id_in(answer)
    if id_ is None:
        raise _nitro_error("run-enclave", "no id of an enclave")
    said = _parse_answer(answer, "run-enclave")
    cid = said.get("EnclaveCID")
    if type(cid) is not int or not _LEAST_CID <= cid <= _LAST_CID:
        raise _nitro_error("run-enclave", "no context id of an enclave")
    asked = {"NumberOfCPUs": launch.processors, "MemoryMiB": launch.memory_mib}
    for name, value in asked.items():
        if said.get(name) != value:
            raise _nitro_error("run-enclave", f"another {name}")
    return RunningEnclave(id=id_, cid=cid)


def _id_in(answer: bytes) -> str | None:
    """The id of an enclave in an answer; ``None`` where there is none of its form."""
    try:
        said = _parse_answer(answer, "run-enclave")
    except GuestApiUnreachable:
        return None
    id_ = said.get("EnclaveID") if isinstance(said, dict) else None
    return id_ if isinstance(id_, str) and _ID.fullmatch(id_) else None


def running(answer: bytes) -> set[str]:
    """Ids of the enclaves that nitro-cli says are running.

    Raises:
        GuestApiUnreachable: Not its form.
    """
    said = _parse_answer(answer, "describe-enclaves")
    if not isinstance(said, list) or not all(isinstance(each, dict) for each in said):
        raise _nitro_error("describe-enclaves", "no list of enclaves")
    return {
        each["EnclaveID"]
        for each in said
        if each.get("State") == "RUNNING" and isinstance(each.get("EnclaveID"), str)
    }


def stage_of(line: bytes) -> EnclaveStage | None:
    """A stage from an enclave's line; ``None`` where it is none."""
    try:
        said = json.loads(line) if len(line) <= MAX_STATUS_BYTES else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("stage") not in _STAGES:
        return None
    status, code = said.get("status"), said.get("code")
    return EnclaveStage(
        stage=said["stage"],
        status=status if type(status) is int and 0 <= status <= 255 else None,
        code=escape_hidden(code, 60) if isinstance(code, str) else None,
    )


def _parse_answer(answer: bytes, word: str) -> Any:
    from sealtrain.base.canonical import parse_json

    try:
        return parse_json(answer, max_bytes=MAX_ANSWER_BYTES)
    except DataInvalid as error:
        raise _nitro_error(word, "no JSON") from error


def _nitro_error(word: str, got: str) -> GuestApiUnreachable:
    return GuestApiUnreachable(
        f"nitro-cli {word} fails or answers with something else",
        check="nitro-cli",
        got=got,
        hint="run it by hand; the allocator needs as many processors and as much memory "
        "(/etc/nitro_enclaves/allocator.yaml)",
    )
