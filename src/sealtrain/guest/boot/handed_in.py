"""What an operator hands into a guest that has no config drive: one archive, by vsock or metadata.

The archive is that of a config drive, read by the same reader with the same limits. Everything here
is a stranger's: answers are bounded in bytes and time, no redirect is followed, and nothing that
comes is run. The module imports little, since the first program of a guest has it.
"""

from __future__ import annotations

import binascii
import io
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sealtrain.errors import ImageRefused
from sealtrain.guest.boot.decisions import CONFIG_LIMITS
from sealtrain.image.disk.cpio import read_files

HOST: Final = 2
"""Context id of the host of a virtual machine."""
HOST_PORT: Final = 8477
METADATA: Final = ("169.254.169.254", 80)
MAX_ARCHIVE_BYTES: Final = sum(CONFIG_LIMITS.values()) + 4096
_MAX_HEAD_BYTES: Final = 8192
_SECONDS: Final = 30.0
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,7}")
_TOKEN: Final = re.compile(rb"[!-~]{1,256}")
Connect = Callable[[], socket.socket]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataService:
    """How a cloud hands a tenant's bytes to a machine.

    Attributes:
        path: Of them.
        headers: That are sent along.
        proof_path: Where a token is put for, which is sent along then; ``None`` without tokens.
        answers: A header that each answer has; ``None`` where the cloud names none.
    """

    path: str
    headers: Mapping[str, str]
    proof_path: str | None = None
    answers: tuple[bytes, bytes] | None = None


_PROOF_HEADER: Final = "X-aws-ec2-metadata-token"
SERVICES: Final = {
    "Google": MetadataService(
        path="/computeMetadata/v1/instance/attributes/sealtrain-config",
        headers={"Metadata-Flavor": "Google"},
        answers=(b"metadata-flavor", b"Google"),
    ),
    "Amazon EC2": MetadataService(
        path="/latest/user-data", headers={}, proof_path="/latest/api/token"
    ),
    "Microsoft Corporation": MetadataService(
        path="/metadata/instance/compute/userData?api-version=2021-01-01&format=text",
        headers={"Metadata": "true"},
    ),
}
"""By what the machine's firmware says of its vendor (``sys_vendor`` of DMI)."""


def receive_archive(connection: socket.socket, monotonic: Clock = time.monotonic) -> bytes:
    """All that the host sends before it closes.

    Raises:
        ImageRefused: It is too long, or not whole in time.
    """
    until, found = monotonic() + _SECONDS, b""
    while more := _receive(connection, MAX_ARCHIVE_BYTES + 1 - len(found), until, monotonic):
        found += more
        if len(found) > MAX_ARCHIVE_BYTES:
            raise _refusal(f"is longer than {MAX_ARCHIVE_BYTES} bytes", "vsock")
    return found


def ask_service(
    service: MetadataService, connect: Connect, monotonic: Clock = time.monotonic
) -> bytes:
    """The archive that a tenant gave to a machine, which the cloud hands over in base64.

    Args:
        service: The cloud's.
        connect: Makes a connection to ``METADATA``, one for each question.
        monotonic: Clock that counts seconds.

    Raises:
        ImageRefused: Another answer than 200, one that is too long or late, or no base64.
    """
    headers = dict(service.headers)
    if service.proof_path is not None:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = _ask(connect, "PUT", service.proof_path, lifetime, 256, None, monotonic)
        if not _TOKEN.fullmatch(token):
            raise _refusal("has a token of another form", "metadata")
        headers[_PROOF_HEADER] = token.decode("ascii")
    limit = -(-MAX_ARCHIVE_BYTES // 3) * 4 + 4096  # with the ends of its lines
    text = _ask(connect, "GET", service.path, headers, limit, service.answers, monotonic)
    try:
        return binascii.a2b_base64(bytes(text).translate(None, b"\r\n"), strict_mode=True)
    except binascii.Error as error:
        raise _refusal("is not in base64", "metadata") from error


def read_archive(archive: bytes) -> dict[str, bytes]:
    """The files of an archive, as those of a config drive.

    Raises:
        ImageRefused: As ``image.disk.cpio.read_files``.
    """
    return read_files(io.BytesIO(archive), CONFIG_LIMITS)


def _ask(
    connect: Connect,
    method: str,
    path: str,
    headers: Mapping[str, str],
    limit: int,
    answers: tuple[bytes, bytes] | None,
    monotonic: Clock,
) -> bytes:
    """The body of an answer 200."""
    lines = [f"{method} {path} HTTP/1.0", f"Host: {METADATA[0]}", "Content-Length: 0"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    until = monotonic() + _SECONDS
    try:
        with connect() as connection:
            connection.settimeout(_SECONDS)
            connection.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
            return _answer(connection, limit, answers, until, monotonic)
    except OSError as error:
        raise _refusal("cannot be read", "metadata", error.strerror) from error


def _answer(
    connection: socket.socket,
    limit: int,
    answers: tuple[bytes, bytes] | None,
    until: float,
    monotonic: Clock,
) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        room = _MAX_HEAD_BYTES - len(found)
        more = _receive(connection, room, until, monotonic) if room > 0 else b""
        if not more:
            raise _refusal("has an answer of another form", "metadata")
        found += more
    head, _, body = found.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    said = _STATUS.fullmatch(status)
    if said is None or said[1] != b"200":
        raise _refusal("is refused by the metadata service", "metadata", status[:40])
    fields = [
        (name.lower(), value.strip()) for name, _, value in (x.partition(b":") for x in lines)
    ]
    lengths = [value for name, value in fields if name == b"content-length"]
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]) or int(lengths[0]) > limit:
        raise _refusal(f"has no length, or one above {limit} bytes", "metadata")
    if any(name == b"transfer-encoding" for name, _ in fields):
        raise _refusal("comes in an encoding", "metadata")
    if answers is not None and answers not in fields:
        raise _refusal("comes from another service", "metadata")
    length = int(lengths[0])
    while len(body) < length:
        more = _receive(connection, length - len(body), until, monotonic)
        if not more:
            raise _refusal("ends early", "metadata")
        body += more
    return body[:length]


def _receive(connection: socket.socket, most: int, until: float, monotonic: Clock) -> bytes:
    left = until - monotonic()
    if left <= 0:
        raise _refusal("is not whole in time", "time", f"{_SECONDS:g} s")
    connection.settimeout(left)
    try:
        return connection.recv(min(most, 65536))
    except TimeoutError as error:
        raise _refusal("is not whole in time", "time", f"{_SECONDS:g} s") from error


def _refusal(problem: str, check: str, got: object = None) -> ImageRefused:
    return ImageRefused(f"what the operator hands in {problem}", check=check, got=got)
