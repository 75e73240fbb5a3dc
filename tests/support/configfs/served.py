"""Plays configfs-tsm in a plain folder: python served.py FOLDER TEE STATE COMPOSE

Whoever makes a report's folder finds the kernel's files in it; 64 bytes in ``inblob`` are answered
in ``outblob`` by a simulated TDX or SEV-SNP guest. A plain folder cannot make its readers wait as
the kernel does: ``waiting`` beside this does that in the process that asks.
"""

from __future__ import annotations

import base64
import struct
import sys
import time
from pathlib import Path
from typing import Any, cast

from sealtrain.attest.snp.collect import CERTIFICATE_GUIDS
from sealtrain.base.clock import system_clock
from sealtrain_rehearsal.simulator.devices import devices_of
from sealtrain_rehearsal.simulator.machine import Machine, SimulatedTee
from sealtrain_rehearsal.simulator.state import ensure

PROVIDERS = {"tdx": b"tdx_guest\n", "snp": b"sev_guest\n"}


def table(named: dict[str, bytes]) -> bytes:
    """A host's table of certificates."""
    offset = 24 * (len(named) + 1)
    entries, blobs = b"", b""
    for name, der in named.items():
        guid = CERTIFICATE_GUIDS[name].bytes
        entries += struct.pack("<16sII", guid, offset + len(blobs), len(der))
        blobs += der
    return entries + bytes(24) + blobs


def answer(shown: dict[str, Any]) -> dict[str, bytes]:
    """The kernel's files for what a guest shows, by name."""
    if shown["tee"] == "tdx":
        return {"outblob": base64.b64decode(shown["quote"])}
    leaf, issuer, root = map(base64.b64decode, shown["certificates"])
    crl = base64.b64decode(shown["crl"])
    aux = table({"vcek": leaf, "ask": issuer, "ark": root, "crl": crl})
    return {"auxblob": aux, "outblob": base64.b64decode(shown["report"])}


def main(folder: Path, tee: SimulatedTee, state: Path, compose: Path) -> None:
    machine = Machine(tee=tee)
    opened = ensure(state, system_clock(), machine=machine)
    devices = devices_of(machine, opened, compose.read_bytes(), clock=system_clock)

    def put(report: Path, name: str, data: bytes) -> None:
        made = folder.parent / f"{folder.name}.{name}"
        made.write_bytes(data)
        made.rename(report / name)

    print("configfs-tsm ready", flush=True)
    asked: dict[Path, bool] = {}
    while True:
        for report in folder.iterdir():
            if report not in asked:
                asked[report] = False
                put(report, "inblob", b"")
                put(report, "generation", b"0\n")
                put(report, "provider", PROVIDERS[tee])
            elif not asked[report] and len(given := (report / "inblob").read_bytes()) == 64:
                asked[report] = True
                put(report, "generation", b"1\n")
                for name, data in answer(devices.ask_driver({"report_data": given.hex()})).items():
                    put(report, name, data)
        time.sleep(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]), cast("SimulatedTee", sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
