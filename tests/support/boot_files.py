"""Files that machines boot, small ones: TDX firmware, PE programs, enclave images."""

from __future__ import annotations

import struct
import uuid
import zlib
from typing import Any


def guid(text: str) -> bytes:
    return uuid.UUID(text).bytes_le


def googles_firmware() -> bytes:
    """The firmware of 2 MiB that Google's test makes, by its fields."""
    size = 2 << 20
    made = bytearray(size)
    made[0x800:0x810] = made[0xA00:0xA10] = b"LGTM" * 4

    def put(before_end: int, data: bytes) -> None:
        made[size - before_end : size - before_end + len(data)] = data

    def entry(length: int, name: str) -> bytes:
        return struct.pack("<H", length) + guid(name)

    end = 0x20 + 18
    put(end + 22, struct.pack("<I", 0xFF0000FF) + entry(22, "00f771de-1a7e-4fcb-890e-68c77e2fb44e"))
    made[0:16] = struct.pack("<IIII", int.from_bytes(b"ASEV", "little"), 16 + 36, 1, 3)
    places = ((0xFF001000, 0x1000, 1), (0xFF003000, 4096, 3), (0xFF004000, 4096, 2))
    for number, place in enumerate(places):
        made[16 + 12 * number : 28 + 12 * number] = struct.pack("<III", *place)
    put(end + 44, struct.pack("<I", size) + entry(22, "dc886566-984a-4798-a75e-5585a7bf67cc"))
    made[0x100:0x110] = guid("e9eaf9f3-168e-44d5-a8eb-7f4d8738f6ae")
    sections = [
        (0x20000, 0x1E0000, 0xFFE20000, 0x1E0000, 0, 1),
        (0, 0x20000, 0xFFE00000, 0x20000, 1, 0),
        (0, 0, 0x810000, 0x10000, 3, 0),
        (0, 0, 0x80B000, 0x2000, 3, 0),
        (0, 0, 0x809000, 0x2000, 2, 0),
        (0, 0, 0x800000, 0x6000, 3, 0),
    ]
    listed = struct.pack("<4sIII", b"TDVF", 208, 1, 6)
    listed += b"".join(struct.pack("<IIQQII", *section) for section in sections)
    made[0x110 : 0x110 + len(listed)] = listed
    put(
        end + 66,
        struct.pack("<I", size - 0x110) + entry(22, "e47a6535-984a-4798-865e-4685a7bf8ec2"),
    )
    put(end, entry(66 + 18, "96b582de-1fb2-45f7-baea-a366c55a082d"))
    return bytes(made)


def program(*sections: tuple[str, bytes], signed: bytes = b"") -> bytes:
    """A PE32+ file with these sections, and certificates behind them."""
    table = 0x80 + 24 + 240
    at = -(-(table + 40 * len(sections)) // 512) * 512
    head = bytearray(at)
    head[:2] = b"MZ"
    struct.pack_into("<I", head, 0x3C, 0x80)
    head[0x80:0x84] = b"PE\0\0"
    struct.pack_into("<HHIIIHH", head, 0x84, 0x8664, len(sections), 0, 0, 0, 240, 0)
    struct.pack_into("<H", head, 0x98, 0x20B)
    struct.pack_into("<II", head, 0x98 + 32, 0x1000, 512)
    struct.pack_into("<I", head, 0x98 + 60, at)
    body = b""
    for number, (name, content) in enumerate(sections):
        size = -(-len(content) // 512) * 512
        place = (len(content), 0x1000 * (number + 1), size, at + len(body))
        struct.pack_into("<8sIIII", head, table + 40 * number, name.encode(), *place)
        body += content.ljust(size, b"\0")
    struct.pack_into("<II", head, 0x98 + 112 + 32, at + len(body) if signed else 0, len(signed))
    return bytes(head) + body + signed


def enclave(
    *ramdisks: bytes,
    kernel: bytes = b"kernel",
    metadata: bytes = b"{}",
    signature: bytes | None = None,
) -> bytes:
    sections = [
        (1, kernel),
        (2, b"reboot=k"),
        (5, metadata),
        *((3, ramdisk) for ramdisk in ramdisks),
    ]
    sections += [] if signature is None else [(4, signature)]
    offsets, sizes, at = [0] * 32, [0] * 32, 548
    for number, (_, content) in enumerate(sections):
        offsets[number], sizes[number] = at, len(content)
        at += 12 + len(content)
    fields = (b".eif", 4, 0, 1 << 30, 2, 0, len(sections), *offsets, *sizes, 0)
    head = struct.pack(">4sHHQQHH32Q32QI", *fields)
    body = b"".join(struct.pack(">HHQ", kind, 0, len(value)) + value for kind, value in sections)
    return head + struct.pack(">I", zlib.crc32(body, zlib.crc32(head))) + body


def kernel(**fields: int) -> bytes:
    made = bytearray(program((".text", b"\x90" * 0x1000)).ljust(0x2000, b"\0"))
    made[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", made, 0x206, fields.get("protocol", 0x20F))
    made[0x211] = fields.get("flags", 1)
    struct.pack_into("<I", made, 0x22C, fields.get("initrd_max", 0x7FFFFFFF))
    struct.pack_into("<H", made, 0x236, fields.get("loadable", 0x7F))
    return bytes(made)


def disk_image(*entries: bytes, sector: int = 512, **changed: Any) -> bytes:
    """The beginning of a disk with these partitions (GPT); ``changed`` replaces header fields."""
    table = b"".join(entries).ljust(128 * 128, b"\0")
    fields: dict[str, Any] = {
        "signature": b"EFI PART", "revision": 0x10000, "size": 92, "crc": 0, "zero": 0, "own": 1,
        "other": 9999, "first_usable": 34, "last_usable": 9966, "disk": b"d" * 16, "table": 2,
        "count": 128, "length": 128, "table_crc": zlib.crc32(table),
    } | changed  # fmt: skip
    header = struct.pack("<8sIIIIQQQQ16sQIII", *fields.values())
    if not fields["crc"]:
        header = header[:16] + struct.pack("<I", zlib.crc32(header)) + header[20:]
    made = bytearray(2 * sector) + table
    made[sector : sector + 92] = header
    return bytes(made)
