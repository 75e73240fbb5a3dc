"""Keccak-256 as Ethereum uses it (padding 0x01), over public data only.

``hashlib`` has only the later SHA-3 padding. dstack signs and measures with this older form; a
few short messages per verification do not justify a dependency of the core.
"""

from __future__ import annotations

_RATE = 136
_MASK = (1 << 64) - 1


def _round_constants() -> tuple[int, ...]:
    constants: list[int] = []
    state = 1
    for _ in range(24):
        constant = 0
        for power in range(7):
            if state & 1:
                constant |= 1 << ((1 << power) - 1)
            state = (state << 1) ^ (0x171 if state & 0x80 else 0)
        constants.append(constant)
    return tuple(constants)


def _rotations() -> tuple[tuple[int, int, int], ...]:
    """(source lane, target lane, rotation) of the combined rho and pi steps, FIPS 202 §3.2."""
    steps = [(0, 0, 0)]
    x, y = 1, 0
    for index in range(24):
        target_x, target_y = y, (2 * x + 3 * y) % 5
        steps.append((x + 5 * y, target_x + 5 * target_y, (index + 1) * (index + 2) // 2 % 64))
        x, y = target_x, target_y
    return tuple(steps)


_CONSTANTS = _round_constants()
_STEPS = _rotations()


def keccak256(data: bytes) -> bytes:
    """32-byte Keccak-256 digest of ``data``."""
    padded = bytearray(data)
    padded += b"\x01" + bytes(-(len(data) + 1) % _RATE)
    padded[-1] |= 0x80
    lanes = [0] * 25
    for start in range(0, len(padded), _RATE):
        for lane in range(_RATE // 8):
            at = start + 8 * lane
            lanes[lane] ^= int.from_bytes(padded[at : at + 8], "little")
        lanes = _permute(lanes)
    return b"".join(lane.to_bytes(8, "little") for lane in lanes[:4])


def _rotate(lane: int, by: int) -> int:
    return ((lane << by) | (lane >> (64 - by))) & _MASK


def _permute(lanes: list[int]) -> list[int]:
    for constant in _CONSTANTS:
        columns = [
            lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]
            for x in range(5)
        ]
        parity = [columns[(x - 1) % 5] ^ _rotate(columns[(x + 1) % 5], 1) for x in range(5)]
        moved = [0] * 25
        for source, target, rotation in _STEPS:
            moved[target] = _rotate(lanes[source] ^ parity[source % 5], rotation)
        lanes = [
            moved[i] ^ (~moved[i - i % 5 + (i + 1) % 5] & moved[i - i % 5 + (i + 2) % 5] & _MASK)
            for i in range(25)
        ]
        lanes[0] ^= constant
    return lanes
