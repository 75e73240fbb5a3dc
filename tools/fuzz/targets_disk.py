"""Fuzz targets of a guest's disk and first programs: what a host puts in front of them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

Made = tuple[Callable[[bytes], object], list[bytes]]


def _config_drive() -> Made:
    from sealtrain.guest.boot.decisions import CONFIG_LIMITS
    from sealtrain.image.disk.cpio import FILE, Entry, read_files, write_archive

    def act(data: bytes) -> None:
        found = read_files(io.BytesIO(data), CONFIG_LIMITS)
        assert all(len(found[name]) <= CONFIG_LIMITS[name] for name in found)

    seeds = [{"app-compose.json": Entry(FILE, b"{}")}, {"network": Entry(FILE, b"10.0.0.1/8 x")}]
    return act, [write_archive(files) for files in seeds]


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
    "boot-words": _boot_words,
    "guest-partitions": _partitions,
    "tpm-answers": _tpm_answers,
    "tpm-certificates": _tpm_certificates,
}
