"""Vectors of enclave image files, made without sealtrain and without a library that writes cpio.

Writes ``vectors/image/enclave.json``: an OCI layout, a kernel and modules with the EIF and the PCRs
that they give, and files that are no EIF. Run: ``python tools/vectorgen/enclave.py [FOLDER]``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

from image import LAYERS, OUT, canonical, order, sha256, tar

Json = Any
WORDS = (
    b"reboot=k panic=30 pci=off console=ttyS0 i8042.noaux i8042.nomux i8042.nopnp i8042.dumbkbd "
    b"random.trust_cpu=on quiet"
)
INIT = b"#!/usr/bin/python3.11 -IB\nfrom sealtrain.guest.enclave.init import main\nmain()\n"
KERNEL, LINE, RAMDISK, METADATA = 1, 2, 3, 5
BZIMAGE = bytes(0x202) + b"HdrS" + bytes(range(200))
KINDS = {"folder": 0o040000, "file": 0o100000, "link": 0o120000}
Section = tuple[int, bytes]


def base64_of(data: bytes) -> str:
    """As text."""
    return base64.b64encode(data).decode()


def entry(number: int, name: str, mode: int, data: bytes = b"", device: str = "0" * 16) -> bytes:
    """One entry of cpio's newc form: thirteen fields of eight hex digits."""
    named = name.encode() + b"\0"
    head = "070701" + f"{number:08x}{mode:08x}" + "0" * 16 + "00000001" + "0" * 8
    head += f"{len(data):08x}" + "0" * 16 + device + f"{len(named):08x}" + "0" * 8
    whole = head.encode() + named
    whole += bytes(-len(whole) % 4)
    return whole + data + bytes(-len(data) % 4)


def archive(entries: list[tuple[str, int, bytes, str]]) -> bytes:
    """Entries in their order, and the one that ends them."""
    ended = [*entries, ("TRAILER!!!", 0, b"", "0" * 16)]
    return b"".join(entry(number, *each) for number, each in enumerate(ended, 1))


def plain(name: str, mode: int, data: bytes = b"") -> tuple[str, int, bytes, str]:
    """An entry that is no device."""
    return name, mode, data, "0" * 16


def boot(modules: list[tuple[str, bytes]], image: str) -> bytes:
    """The first ramdisk."""
    folders = ("dev", "enclave", "enclave/modules", "proc", "sys")
    order_of = "".join(f"{name}\n" for name, _ in modules).encode()
    return archive(
        [
            *(plain(name, 0o40755) for name in folders),
            ("dev/console", 0o20600, b"", "0000000500000001"),
            plain("enclave/image", 0o100644, image.encode() + b"\n"),
            plain("enclave/order", 0o100644, order_of),
            *(plain(f"enclave/modules/{name}.ko", 0o100644, data) for name, data in modules),
            plain("init", 0o100755, INIT),
        ]
    )


def application(layers: list[list[Json]]) -> bytes:
    """The second ramdisk."""
    return archive(
        [
            plain(
                each["name"],
                KINDS[each["kind"]] | int(each["mode"], 8),
                each.get("target", "").encode() or base64.b64decode(each.get("content", "")),
            )
            for layer in layers
            for each in sorted(layer, key=order)
        ]
    )


def metadata(image: str) -> bytes:
    """Canonical JSON."""
    built = {
        "BuildTime": "1970-01-01T00:00:00+00:00",
        "BuildTool": "sealtrain",
        "BuildToolVersion": "0.1.0",
        "OperatingSystem": "Linux",
        "KernelVersion": "",
    }
    return canonical(
        {
            "ImageName": image,
            "ImageVersion": "0.1.0",
            "BuildMetadata": built,
            "DockerInfo": {},
            "CustomMetadata": None,
        }
    )


def eif(sections: list[Section], processors: int, memory: int, **changed: Any) -> bytes:
    """The file: a header of 548 bytes, and sections behind heads of 12."""
    offsets, at = [], 548
    for _, data in sections:
        offsets.append(at)
        at += 12 + len(data)
    sizes = [len(data) for _, data in sections]
    offsets, sizes = changed.get("offsets", offsets), changed.get("sizes", sizes)
    head = b".eif" + struct.pack(">HHQQH", changed.get("version", 4), 0, memory, processors, 0)
    head += struct.pack(">H", changed.get("count", len(sections)))
    for numbers in (offsets, sizes):
        head += b"".join(struct.pack(">Q", number) for number in numbers)
        head += bytes(8 * (32 - len(numbers)))
    head += bytes(4)
    flags = changed.get("section_flags", 0)
    body = b"".join(struct.pack(">HHQ", kind, flags, len(data)) + data for kind, data in sections)
    crc = zlib.crc32(head + body) ^ changed.get("crc", 0)
    behind: bytes = changed.get("behind", b"")
    return head + struct.pack(">I", crc) + body + behind


def register(*parts: bytes) -> str:
    """One extension of a register of zeros, SHA-384."""
    inner = hashlib.sha384(b"".join(parts)).digest()
    return hashlib.sha384(bytes(48) + inner).hexdigest()


def layout(layers: list[list[Json]]) -> tuple[str, dict[str, str]]:
    """An image: its digest, and the files of its OCI layout in base64."""
    tars = [tar(layer) for layer in layers]
    kind = "application/vnd.oci.image."
    config = canonical(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Entrypoint": ["sealtrain"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(tar)}" for tar in tars]},
        }
    )

    def describe(data: bytes, name: str) -> Json:
        return {"mediaType": kind + name, "digest": f"sha256:{sha256(data)}", "size": len(data)}

    manifest = canonical(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}manifest.v1+json",
            "config": describe(config, "config.v1+json"),
            "layers": [describe(tar, "layer.v1.tar") for tar in tars],
            "annotations": {"org.opencontainers.image.title": "vector"},
        }
    )
    index = canonical({"schemaVersion": 2, "manifests": [describe(manifest, "manifest.v1+json")]})
    files = {
        f"blobs/sha256/{sha256(value)}": base64_of(value) for value in (*tars, config, manifest)
    }
    return f"sha256:{sha256(manifest)}", {"index.json": base64_of(index), **files}


def list_accepted() -> list[Json]:
    """Images, kernels and modules with the one file that they give."""
    usual = [("virtio_mmio", b"\x7fELF one"), ("nsm", b"\x7fELF three")]
    every = LAYERS["of every kind"]
    cases: list[tuple[str, list[list[Json]], bytes, list[tuple[str, bytes]], int, int]] = [
        ("of every kind", [every], BZIMAGE, usual, 2, 0),
        ("names beyond ASCII", [LAYERS["names beyond ASCII"]], BZIMAGE + b"k" * 1001, [], 4, 512),
        ("two layers", [every, LAYERS["long names"]], BZIMAGE[:-1], usual[::-1], 1, 64),
    ]
    made = []
    for name, layers, kernel, modules, processors, memory in cases:
        image, files = layout(layers)
        first, second = boot(modules, image), application(layers)
        sections = [
            (KERNEL, kernel),
            (LINE, WORDS),
            (METADATA, metadata(image)),
            (RAMDISK, first),
            (RAMDISK, second),
        ]
        size = 548 + sum(12 + len(data) for _, data in sections)
        data = eif(sections, processors, (memory or -(-4 * size // 2**20)) << 20)
        made.append(
            {
                "name": name,
                "outcome": "ok",
                "layout": files,
                "image": image,
                "kernel": base64_of(kernel),
                "modules": [[module, base64_of(content)] for module, content in modules],
                "processors": processors,
                "memory_mib": memory,
                "eif_sha256": sha256(data),
                "eif_bytes": len(data),
                "pcr0": register(kernel, WORDS, first, second),
                "pcr1": register(kernel, WORDS, first),
                "pcr2": register(second),
            }
        )
    return made


def list_refused() -> list[Json]:
    """Files that no reader may take: two readers would measure them differently, or cannot."""
    good: list[Section] = [(KERNEL, b"kernel"), (LINE, b"quiet"), (RAMDISK, b"a"), (RAMDISK, b"b")]
    first = 548
    cases = {
        "a section before the others": eif(good, 2, 1 << 30, offsets=[900, 566, 583, 596]),
        "sections swapped in the table": eif(good, 2, 1 << 30, offsets=[first, 566, 596, 583]),
        "sections that overlap": eif(good, 2, 1 << 30, offsets=[first, first, 583, 596]),
        "a gap in the table": eif(good, 2, 1 << 30, offsets=[first, 566, 0, 596]),
        "another size in the table": eif(good, 2, 1 << 30, sizes=[6, 5, 2, 1]),
        "a size beyond the end": eif(good, 2, 1 << 30, sizes=[6, 5, 1, 1 << 62]),
        "fewer sections than there are": eif(good, 2, 1 << 30, count=3),
        "more sections than there are": eif(good, 2, 1 << 30, count=5),
        "no section": eif(good, 2, 1 << 30, count=0),
        "sections beyond the table": eif(good, 2, 1 << 30, count=33),
        "a trailer": eif(good, 2, 1 << 30, behind=b"\0"),
        "another checksum": eif(good, 2, 1 << 30, crc=1),
        "an unknown version": eif(good, 2, 1 << 30, version=5),
        "flags of a section": eif(good, 2, 1 << 30, section_flags=1),
        "an unknown kind of section": eif([*good, (6, b"x")], 2, 1 << 30),
        "two kernels": eif([*good, (KERNEL, b"kernel")], 2, 1 << 30),
        "no ramdisk": eif(good[:2], 2, 1 << 30),
        "cut": eif(good, 2, 1 << 30)[:-1],
        "a header alone": eif([], 2, 1 << 30),
    }
    return [
        {"name": name, "outcome": "image-refused", "eif": base64_of(data)}
        for name, data in sorted(cases.items())
    ]


def main(folder: Path) -> None:
    """Write the file."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"cases": [*list_accepted(), *list_refused()]}
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    (folder / "enclave.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
