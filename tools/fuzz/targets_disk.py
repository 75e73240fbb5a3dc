"""Fuzz targets of a guest's disk and first programs: what a host puts in front of them."""

from __future__ import annotations

import base64
import io
import socket
import struct
import tarfile
from collections.abc import Callable
from typing import cast

from sealtrain.errors import DataInvalid

Made = tuple[Callable[[bytes], object], list[bytes]]


def _config_drive() -> Made:
    from sealtrain.guest.boot.decisions import CONFIG_LIMITS
    from sealtrain.image.disk.cpio import FILE, Entry, read_files, write_archive

    def act(data: bytes) -> None:
        found = read_files(io.BytesIO(data), CONFIG_LIMITS)
        assert all(len(found[name]) <= CONFIG_LIMITS[name] for name in found)

    seeds = [{"app-compose.json": Entry(FILE, b"{}")}, {"network": Entry(FILE, b"10.0.0.1/8 x")}]
    return act, [write_archive(files) for files in seeds]


class _Answering:
    """A connection whose other end says these bytes, in pieces, and closes."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def __enter__(self) -> _Answering:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def settimeout(self, _seconds: float) -> None:
        """It never waits."""

    def sendall(self, data: bytes) -> None:
        assert data.endswith(b"\r\n\r\n")
        assert data.count(b"\r\n\r\n") == 1  # no answer puts a line into a question

    def recv(self, size: int) -> bytes:
        size = min(size, 1000)
        said, self._left = self._left[:size], self._left[size:]
        return said


def _metadata() -> Made:
    from sealtrain.guest.boot.decisions import CONFIG_LIMITS
    from sealtrain.guest.boot.handed_in import SERVICES, ask_service, read_archive
    from sealtrain.image.disk.cpio import FILE, Entry, write_archive

    def act(data: bytes) -> None:
        first, _, second = data.partition(b"\0\0\0\0")
        answers = [first, second] if second else [first]
        service = SERVICES["Amazon EC2" if second else "Google"]

        def connect() -> socket.socket:
            return cast("socket.socket", _Answering(answers.pop(0)))

        found = read_archive(ask_service(service, connect))
        assert all(len(found[name]) <= CONFIG_LIMITS[name] for name in found)

    text = base64.b64encode(write_archive({"app-compose.json": Entry(FILE, b"{}")}))
    head = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: "
    answer = head + b"%d" % len(text) + b"\r\n\r\n" + text
    token = head + b"5\r\n\r\ntoken"
    return act, [answer, token + bytes(4) + answer]


def _address_lease() -> Made:
    from sealtrain.guest.boot.address_lease import OFFER, read_answer

    card, transaction = bytes(range(6)), b"abcd"

    def act(data: bytes) -> None:
        offer = read_answer(data, OFFER, card, transaction)
        if offer is None:
            raise DataInvalid("another's message")
        network = offer.network
        assert {len(part) for part in (network.address, network.mask, network.gateway)} == {4}
        assert any(network.address)
        assert network.address != network.gateway

    head = b"\2\1\6\0" + transaction + b"\0\0\x80\0" + bytes(4) + b"\x0a\1\2\3" + bytes(8)
    head += card.ljust(16, b"\0") + bytes(192) + b"\x63\x82\x53\x63"
    options = b"\x35\1\2\1\4\xff\xff\xff\0\3\4\x0a\1\2\1\x36\4\x0a\1\2\1\xff"
    return act, [head + options]


def _debian_package() -> Made:
    from sealtrain.image.disk.debian_package import read_package

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        head = tarfile.TarInfo("./usr/lib/modules/7/vmlinuz")
        head.size = 5
        tar.addfile(head, io.BytesIO(b"linux"))
    data = packed.getvalue()
    head_of_part = b"%-16s%-12d%-6d%-6d%-8d%-10d`\n" % (b"data.tar.xz", 0, 0, 0, 644, len(data))
    return read_package, [b"!<arch>\n" + head_of_part + data]


def _gpu_list() -> Made:
    from sealtrain.base.models import load_json
    from sealtrain.image.disk.inputs import GPU_LIST, GpuList

    def act(data: bytes) -> None:
        listed = load_json(GpuList, data, DataInvalid, GPU_LIST, max_bytes=1 << 20)
        digests = [*listed.modules.values(), *listed.firmware.values()]
        assert digests
        assert all(len(digest) == 64 for digest in digests)
        assert not any(".." in name for name in (*listed.modules, *listed.firmware))

    digest = "ab" * 32
    text = (
        f'{{"version":1,"driver":"580.95.05","kernel":"7.3","modules":{{"nvidia.ko":"{digest}"}},'
        f'"firmware":{{"nvidia/580.95.05/gsp_ga10x.bin":"{digest}"}}}}'
    )
    return act, [text.encode()]


def _boot_words() -> Made:
    from sealtrain.guest.boot.decisions import parse_network, parse_parameters

    def act(data: bytes) -> None:
        if data[:1] == b"n":
            parse_network(data[1:])
        else:
            parse_parameters(data.decode("utf-8", "replace"))

    line = b"quiet sealtrain.root=" + b"ab" * 32 + b" sealtrain.blocks=300"
    return act, [line, b"n10.0.2.15/24 10.0.2.2"]


def _partitions() -> Made:
    from sealtrain.image.disk.partitions import ROOT_KIND, read_partitions, write_disk

    out = io.BytesIO()
    write_disk([(name, ROOT_KIND, io.BytesIO(b"x")) for name in ("one", "two")], out)

    def act(data: bytes) -> None:
        # The protective MBR says nothing; a disk is longer than what a fuzzer likes to change.
        found = read_partitions(io.BytesIO(bytes(512) + data + bytes(4 << 20)))
        assert all(part.size > 0 for part in found)

    return act, [out.getvalue()[512 : 1024 + 128 * 128]]


def _tpm_answers() -> Made:
    from sealtrain.attest.tpm.device import Tpm

    def act(data: bytes) -> None:
        left = [data]

        def transmit(command: bytes) -> bytes:
            size = int.from_bytes(left[0][:2], "big")
            answer, left[0] = left[0][2 : 2 + size], left[0][2 + size :]
            return answer.ljust(10, b"\0")

        assert len(Tpm(transmit).registers()) == 24

    answers = b""
    for group in range(3):
        shown = struct.pack(">IIHB", 1, 1, 11, 3) + (0xFF << 8 * group).to_bytes(3, "little")
        shown += struct.pack(">I", 8) + (b"\0\x20" + bytes(32)) * 8
        answer = struct.pack(">HII", 0x8001, 10 + len(shown), 0) + shown
        answers += struct.pack(">H", len(answer)) + answer
    return act, [answers]


def _tpm_certificates() -> Made:
    from sealtrain.attest.tpm.collect import split_certificates

    def act(data: bytes) -> None:
        assert b"".join(split_certificates(data)) == data.rstrip(b"\0") or data.endswith(b"\0")

    return act, [b"\x30\x82\0\1x", b"\x30\x82\0\2xx\x30\x82\0\1y\0\0"]


DISK_TARGETS: dict[str, Callable[[], Made]] = {
    "config-drive": _config_drive,
    "guest-metadata": _metadata,
    "address-lease": _address_lease,
    "debian-package": _debian_package,
    "gpu-list": _gpu_list,
    "boot-words": _boot_words,
    "guest-partitions": _partitions,
    "tpm-answers": _tpm_answers,
    "tpm-certificates": _tpm_certificates,
}
