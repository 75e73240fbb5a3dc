"""Fuzz targets of machines that are asked for evidence, and of an enclave's start."""

from __future__ import annotations

import struct
from collections.abc import Callable

Made = tuple[Callable[[bytes], object], list[bytes]]


def _tdx_boot_log() -> Made:
    from sealtrain.attest.tdx.bootlog import check_events, parse_ccel

    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, 1)
    spec += struct.pack("<HH", 0x0C, 48) + b"\0"
    head = struct.pack("<II20sI", 1, 3, bytes(20), len(spec)) + spec
    event = struct.pack("<IIIH", 2, 4, 1, 0x0C) + bytes(48) + struct.pack("<I", 4) + bytes(4)
    return (
        lambda data: check_events(parse_ccel(data), ["00" * 48] * 4),
        [head + event, head + event + b"\xff" * 64, head],
    )


def _launch_endorsement() -> Made:
    from sealtrain.attest.gcp.endorsement import verify_endorsement
    from sealtrain_rehearsal.simulator.pki import SimulatedPki

    root = SimulatedPki(b"sealtrain fuzz, simulated").root_der
    measured = b"\x08\x10\x1a\x30" + bytes(48)
    tdx = b"\x42" + bytes([len(measured) + 2]) + b"\x12" + bytes([len(measured)]) + measured
    golden = b"\x0a\x02\x08\x01" + b"\x22\x03\x30\x01\x00" + tdx
    outer = b"\x0a" + bytes([len(golden)]) + golden + b"\x12\x04abcd"
    return lambda data: verify_endorsement(data, root, now=1_800_000_000), [outer, golden]


def _metadata_answer() -> Made:
    from sealtrain.attest.cloudtpm.collect import read_fields

    return lambda data: read_fields(data, "vcekCert", "certificateChain"), [
        b'{"vcekCert":"a","certificateChain":"b","tcbm":"c"}',
        b'{"vcekCert":1}',
    ]


def _enclave_files() -> Made:
    from sealtrain.guest.enclave.handedfiles import read_message, write_message

    names = frozenset({"database", "collateral.json"})

    def act(data: bytes) -> None:
        found = read_message(data, names)
        assert set(found) <= names
        assert write_message(found) == data

    return act, [write_message({"database": b"an address"}), write_message({}), b'{"a":"AA=="}']


MACHINE_TARGETS: dict[str, Callable[[], Made]] = {
    "tdx-boot-log": _tdx_boot_log,
    "launch-endorsement": _launch_endorsement,
    "metadata-answer": _metadata_answer,
    "enclave-files": _enclave_files,
}
"""By name: makes the function and its examples."""
