"""A firmware's boot log (CCEL): events in TCG's format, replayed per register. Nothing signs it."""

from __future__ import annotations

import hashlib
import struct

from sealtrain.errors import FormatUnknown

__all__ = ["replayed_boot_log"]

_MAX_EVENTS = 4096
_SHA384 = 12
_SIZES = {4: 20, 11: 32, 12: 48, 13: 64}
_FIRST = 32  # the header's own event: register, type, SHA-1, size
_END = 0xFFFFFFFF


def replayed_boot_log(data: bytes) -> dict[int, tuple[int, str]]:
    """Register (0 is RTMR0) → number of events and the SHA-384 they lead to, hex.

    Raises:
        FormatUnknown: An event runs past the end, or uses an unknown algorithm.
    """
    found: dict[int, tuple[int, str]] = {}
    try:
        at = _FIRST + struct.unpack_from("<I", data, _FIRST - 4)[0]
        for _ in range(_MAX_EVENTS):
            index, kind, digests = struct.unpack_from("<III", data, at)
            if kind == _END or (index, kind) == (0, 0) or index > 4:
                break
            at += 12
            for _ in range(min(digests, len(_SIZES))):
                (algorithm,) = struct.unpack_from("<H", data, at)
                digest = data[at + 2 : at + 2 + _SIZES[algorithm]]
                at += 2 + _SIZES[algorithm]
                if algorithm == _SHA384 and index > 0 and kind != 3:
                    count, register = found.get(index - 1, (0, "00" * 48))
                    extended = hashlib.sha384(bytes.fromhex(register) + digest).hexdigest()
                    found[index - 1] = (count + 1, extended)
            (size,) = struct.unpack_from("<I", data, at)
            at += 4 + size
    except (struct.error, KeyError) as error:
        if not found:
            raise FormatUnknown(
                "boot log cannot be read", hint="check that the file is complete"
            ) from error
    return found
