"""Enclave image files (EIF) of AWS Nitro: read, written, and the PCRs that they give.

The format is that of ``aws-nitro-enclaves-image-format``, version 2 to 4. AWS's reader walks the
sections by position, QEMU's by a table of offsets: a file in which these differ is refused. A
writer here writes version 4 in one form only (spec/images.md §12).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealtrain.attest.errors import EvidenceMalformed
from sealtrain.attest.nitro.cbor import decode
from sealtrain.errors import ImageRefused
from sealtrain.image.machine.registers import extend

KERNEL, COMMAND_LINE, RAMDISK, SIGNATURE, METADATA = 1, 2, 3, 4, 5
NAMES: Final = {
    KERNEL: "kernel",
    COMMAND_LINE: "command line",
    RAMDISK: "ramdisk",
    SIGNATURE: "signature",
    METADATA: "metadata",
}
"""What a kind of section holds."""
_HEADER: Final = struct.Struct(">4sHHQQHH32Q32QII")
_SECTION: Final = struct.Struct(">HHQ")
_VERSIONS: Final = (2, 3, 4)
_MAX_SECTIONS: Final = 32
_WRITTEN_VERSION: Final = 4
_READ_BYTES: Final = 1 << 20
_MAX_SIGNATURE_BYTES: Final = 64 << 10


class EnclaveFile:
    """An EIF.

    Args:
        data: Its bytes.

    Attributes:
        version: Of the format.
        memory: Default of an enclave's memory, in bytes; in no register.
        processors: The same of its processors.
        sections: Kind and content, in order.

    Raises:
        ImageRefused: Not an EIF, a byte lies outside its sections, or its checksum differs.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEADER.size:
            raise _refusal(f"the file has {len(data)} bytes, an EIF more than {_HEADER.size}")
        magic, version, _, memory, processors, _, count, *rest = _HEADER.unpack_from(data)
        offsets, sizes, checksum = rest[:32], rest[32:64], rest[65]
        if magic != b".eif" or version not in _VERSIONS or not 0 < count <= _MAX_SECTIONS:
            raise _refusal("the file is no EIF of version 2 to 4")
        self.version: int = version
        self.memory: int = memory
        self.processors: int = processors
        crc, at = zlib.crc32(data[: _HEADER.size - 4]), _HEADER.size
        sections: list[tuple[int, memoryview]] = []
        for number in range(count):
            if offsets[number] != at or at + _SECTION.size > len(data):
                raise _refusal("its sections do not follow each other in the order of their table")
            kind, flags, size = _SECTION.unpack_from(data, at)
            end = at + _SECTION.size + size
            if size != sizes[number] or flags or end > len(data):
                raise _refusal("a section has another size than the table says")
            if not KERNEL <= kind <= METADATA:
                raise _refusal(f"a section is of the unknown kind {kind}")
            crc = zlib.crc32(memoryview(data)[at:end], crc)
            sections.append((kind, memoryview(data)[at + _SECTION.size : end]))
            at = end
        if at != len(data):
            raise _refusal("bytes follow the last section")
        if crc != checksum:
            raise _refusal("its checksum is another one")
        self.sections = tuple(sections)

    def of_kind(self, kind: int) -> Sequence[memoryview]:
        """Contents of the sections of a kind, in order."""
        return [content for section_kind, content in self.sections if section_kind == kind]


def measure_enclave(data: bytes) -> dict[int, str]:
    """PCR 0, 1 and 2 of an EIF: number → value, 96 hex digits.

    PCR 0 is of the whole image, 1 of kernel, command line and first ramdisk, 2 of the ramdisks
    after it. PCR 8, of a signed image, is of a certificate: owners pin it by its signer.

    Raises:
        ImageRefused: Not an EIF that starts an enclave.
    """
    file = EnclaveFile(data)
    kernels, lines = file.of_kind(KERNEL), file.of_kind(COMMAND_LINE)
    ramdisks = file.of_kind(RAMDISK)
    if (len(kernels), len(lines)) != (1, 1) or not ramdisks:
        raise _refusal("it has not one kernel, one command line and a ramdisk")
    whole, boot, application = hashlib.sha384(), hashlib.sha384(), hashlib.sha384()
    for found in (whole, boot):
        found.update(kernels[0])
        found.update(lines[0])
    for number, ramdisk in enumerate(ramdisks):
        whole.update(ramdisk)
        (application if number else boot).update(ramdisk)
    return {
        number: extend([found.digest()], "sha384").hex()
        for number, found in enumerate((whole, boot, application))
    }


def measure_signer(data: bytes) -> str | None:
    """PCR 8 of a signed EIF, 96 hex digits: of the certificate that signed it; else ``None``.

    Certificate and signature are arrays of integers, as AWS's tools write them. The signature is
    not verified: the hypervisor does that, and its register says that it was.

    Raises:
        ImageRefused: Not an EIF, or its signature section has another form.
    """
    found = EnclaveFile(data).of_kind(SIGNATURE)
    if not found:
        return None
    if len(found) != 1 or len(found[0]) > _MAX_SIGNATURE_BYTES:
        raise _refusal("it has more than one signature section, or one that is too long")
    try:
        value = decode(bytes(found[0]), "the signature section")
    except EvidenceMalformed as error:
        raise _refusal(f"its signature section has another form: {error.message}") from error
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        raise _refusal("its signature section is no list of one signature")
    if value[0].keys() != {"signing_certificate", "signature"}:
        raise _refusal("its signature has other fields than certificate and signature")
    certificate, _ = (_octets(value[0][name]) for name in ("signing_certificate", "signature"))
    try:
        der = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    except (ValueError, x509.InvalidVersion, UserWarning) as error:
        raise _refusal("its certificate cannot be read") from error
    return extend([hashlib.sha384(der).digest()], "sha384").hex()


def _octets(value: object) -> bytes:
    """Bytes that are written as an array of integers.

    Raises:
        ImageRefused: They are not, such as a byte string, which QEMU's reader refuses.
    """
    if not isinstance(value, list) or not all(
        type(each) is int and 0 <= each <= 255 for each in value
    ):
        raise _refusal("its certificate or signature is no array of integers")
    return bytes(value)


def enclave_size(sections: Sequence[tuple[int, BinaryIO]]) -> int:
    """Bytes of the EIF that has these sections."""
    return _HEADER.size + sum(_SECTION.size + _size_of(content) for _, content in sections)


def write_enclave(
    into: BinaryIO, sections: Sequence[tuple[int, BinaryIO]], *, processors: int, memory: int
) -> int:
    """Write an EIF for x86-64, its sections one after the other and nothing else.

    Args:
        into: A file at its start, open for writing.
        sections: Kind and content, in the order of the file.
        processors: That ``nitro-cli`` takes where it is told no other number.
        memory: The same of memory, in bytes.

    Returns:
        The number of bytes written.

    Raises:
        ImageRefused: More sections than a table has places for, or a section changed meanwhile.
    """
    if not 0 < len(sections) <= _MAX_SECTIONS:
        raise _refusal(f"an EIF has at most {_MAX_SECTIONS} sections, not {len(sections)}")
    sizes = [_size_of(content) for _, content in sections]
    offsets, at = [], _HEADER.size
    for size in sizes:
        offsets.append(at)
        at += _SECTION.size + size
    unused = [0] * (_MAX_SECTIONS - len(sections))
    head = _HEADER.pack(
        *(b".eif", _WRITTEN_VERSION, 0, memory, processors, 0, len(sections)),
        *(*offsets, *unused, *sizes, *unused, 0, 0),
    )[:-4]
    # The checksum stands before what it covers: the sections are read twice.
    crc = zlib.crc32(head)
    for data in _content(sections, sizes):
        crc = zlib.crc32(data, crc)
    into.write(head + struct.pack(">I", crc))
    written = len(head) + 4
    again = zlib.crc32(head)
    for data in _content(sections, sizes):
        into.write(data)
        written += len(data)
        again = zlib.crc32(data, again)
    if written != at or again != crc:
        raise _refusal("a section changed while it was written")
    return written


def _content(sections: Sequence[tuple[int, BinaryIO]], sizes: Sequence[int]) -> Iterator[bytes]:
    for (kind, content), size in zip(sections, sizes, strict=True):
        yield _SECTION.pack(kind, 0, size)
        content.seek(0)
        while data := content.read(_READ_BYTES):
            yield data


def _size_of(content: BinaryIO) -> int:
    content.seek(0, 2)
    return content.tell()


def _refusal(problem: str) -> ImageRefused:
    return ImageRefused(problem, check="EIF", hint="name an EIF that nitro-cli wrote, unchanged")
