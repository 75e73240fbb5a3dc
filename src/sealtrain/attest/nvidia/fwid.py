"""The firmware id in a leaf certificate: which firmware the key that signs reports was made for.

Two TCG DICE extensions carry it, each ending in digests of named algorithms (DER):

- Hopper and its switches, 2.23.133.5.4.1: ``{…, {SHA-384, digest}}``, the digest at the very end.
- Blackwell, 2.23.133.5.4.1.1: ``TcbInfo``, whose element ``[6]`` lists ``{SHA-384, digest}``; the
  first is the firmware's.
"""

from __future__ import annotations

from cryptography import x509

from sealtrain.attest.errors import CertificateChainInvalid

_COMPOSITE = "2.23.133.5.4.1"
_TCB_INFO = "2.23.133.5.4.1.1"
_DICE = "2.23.133.5.4"
_SEQUENCE, _OBJECT, _OCTETS, _FWIDS = 0x30, 0x06, 0x04, 0xA6
_SHA384 = bytes.fromhex("608648016503040202")
_DIGEST_BYTES = 48


def is_dice(oid: x509.ObjectIdentifier) -> bool:
    """Whether an extension is one of TCG DICE's, which bind keys to firmware."""
    return oid.dotted_string == _DICE or oid.dotted_string.startswith(_DICE + ".")


def read_fwid(leaf: x509.Certificate) -> bytes | None:
    """Digest of the firmware a leaf names, ``None`` where it names none.

    Raises:
        CertificateChainInvalid: A firmware id that cannot be read, or two of them.
    """
    found: list[bytes] = []
    for extension in leaf.extensions:
        if isinstance(extension.value, x509.UnrecognizedExtension):
            if extension.oid.dotted_string == _COMPOSITE:
                found.append(composite_fwid(extension.value.value))
            elif extension.oid.dotted_string == _TCB_INFO:
                found.append(tcb_info_fwid(extension.value.value))
    if len(found) > 1:
        raise _refusal("leaf names two firmware ids")
    return found[0] if found else None


def composite_fwid(data: bytes) -> bytes:
    """Digest in Hopper's extension.

    Raises:
        CertificateChainInvalid: It does not end in one.
    """
    tail = data[-_DIGEST_BYTES - 2 :]
    if len(tail) != _DIGEST_BYTES + 2 or tail[:2] != bytes([_OCTETS, _DIGEST_BYTES]):
        raise _refusal("leaf's firmware id does not end in a SHA-384 digest")
    return tail[2:]


def tcb_info_fwid(data: bytes) -> bytes:
    """First digest in Blackwell's extension.

    Raises:
        CertificateChainInvalid: Not a ``TcbInfo`` with a SHA-384 digest.
    """
    outer = _elements(data)
    if len(outer) != 1 or outer[0][0] != _SEQUENCE:
        raise _refusal("leaf's firmware id is no sequence")
    lists = [value for tag, value in _elements(outer[0][1]) if tag == _FWIDS]
    if len(lists) != 1:
        raise _refusal("leaf's firmware id holds no list of digests")
    entries = _elements(lists[0])
    first = _elements(entries[0][1]) if entries and entries[0][0] == _SEQUENCE else []
    if [tag for tag, _ in first] != [_OBJECT, _OCTETS] or first[0][1] != _SHA384:
        raise _refusal("leaf's firmware id is not a SHA-384 digest")
    if len(first[1][1]) != _DIGEST_BYTES:
        raise _refusal("leaf's firmware id has another length")
    return first[1][1]


def _refusal(message: str) -> CertificateChainInvalid:
    return CertificateChainInvalid(message, check="firmware id")


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each DER element; lengths of one, two or three bytes."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        if len(data) - at < 2:
            raise _refusal("leaf's firmware id is truncated")
        tag, size = data[at], data[at + 1]
        at += 2
        if size >= 0x80:
            extra = size & 0x7F
            if not 1 <= extra <= 2 or len(data) - at < extra:
                raise _refusal("leaf's firmware id has a length that is not DER")
            size = int.from_bytes(data[at : at + extra], "big")
            at += extra
        if size > len(data) - at:
            raise _refusal("leaf's firmware id is truncated")
        found.append((tag, data[at : at + size]))
        at += size
    return found
