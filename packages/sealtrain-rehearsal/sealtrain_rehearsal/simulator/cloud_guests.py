"""dstack guests on rented machines: what their machines sign besides, or in place of, a quote."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

from sealtrain.attest.dstack.parse import log_entries, runtime_preimage
from sealtrain.attest.dstack.verify import boot_measurements, config_ids
from sealtrain.attest.nitro.parse import PCR_BYTES
from sealtrain.attest.nitro.verify import extend
from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import Clock
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.faults import FAULTS
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.nitro import HOUR, sign_document
from sealtrain_rehearsal.simulator.state import SimulatorState
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine, SimulatedTpm

_SELECTION = (0, 2, 14)
"""What dstack quotes on Google Cloud."""
_INSTANCE, _NAME = "i-00000000000000002", "0000000000000000"


def agent_fault(machine: Machine) -> str | None:
    """The lie that the dstack guest itself tells; the others are its machine's."""
    fault = machine.cpu_fault
    if machine.tee == "dstack-aws-nitro-tpm":
        return fault if fault == "other-compose" else None
    return fault if machine.tee in ("dstack", "dstack-gcp-tdx") and fault in FAULTS else None


def cloud_driver(
    machine: Machine, state: SimulatorState, guest: SimulatedGuest, *, clock: Clock
) -> Callable[[bytes], dict[str, JsonValue]] | None:
    """How such a guest is asked for evidence; ``None`` for machines of other kinds.

    Args:
        machine: What is played.
        state: Whose PKIs sign.
        guest: The dstack guest that it runs.
        clock: Time of documents.
    """
    if machine.tee == "dstack-gcp-tdx":
        return partial(_gcp, state, guest, machine.cpu_fault)
    if machine.tee == "dstack-aws-nitro-tpm":
        return partial(_nitro_tpm, state, guest, clock, machine.cpu_fault)
    return None


def _gcp(
    state: SimulatorState, guest: SimulatedGuest, fault: str | None, report_data: bytes
) -> dict[str, JsonValue]:
    quote = guest.quote(_require_length(report_data))
    zone = "simulated-b" if fault == "tpm-other-zone" else "simulated-a"
    pki = state.pki.lying("foreign-root") if fault == "tpm-foreign-root" else state.pki
    named = SimulatedMachine(zone=zone, production=fault != "tpm-test-key")
    tpm = SimulatedTpm(pki, machine=named)
    firmware = [(0, b"SIMULATED firmware"), (2, _image(fault == "tpm-other-image"))]
    for index, measured in firmware:
        tpm.extend(index, measured)
    for measured in _events(guest, fault == "tpm-other-events"):
        tpm.extend(14, measured)
    signed_for = quote + b"x" if fault == "tpm-other-quote" else quote
    message, signature = tpm.quote(
        hashlib.sha256(signed_for).digest(), bank="sha256", selection=_SELECTION
    )
    if fault == "tpm-bad-signature":
        signature = signature[:-1] + bytes([signature[-1] ^ 1])
    values = tpm.registers("sha256")
    if fault == "tpm-altered-register":
        values[2] = bytes(31) + b"\1"
    return {
        "tee": "dstack-gcp-tdx",
        "quote": to_base64(quote),
        "event_log": [entry.to_dict() for entry in log_entries(guest.event_log())],
        "vm_config": guest.vm_config(),
        "tpm": {
            "message": to_base64(message),
            "signature": to_base64(signature),
            "registers": [{"index": index, "value": values[index].hex()} for index in _SELECTION],
            "certificates": [to_base64(der) for der in tpm.certificates],
            "events": [
                {"index": index, "digest": hashlib.sha256(measured).hexdigest()}
                for index, measured in firmware
            ],
        },
    }


def _nitro_tpm(
    state: SimulatorState,
    guest: SimulatedGuest,
    clock: Clock,
    fault: str | None,
    report_data: bytes,
) -> dict[str, JsonValue]:
    log = log_entries([entry for entry in guest.event_log() if entry["imr"] == 3])
    registers = dict.fromkeys(range(24), bytes(PCR_BYTES))
    registers[4] = _once(_image(fault == "other-image"))
    registers[7] = _once(b"SIMULATED Secure Boot")
    found = max(config_ids(boot_measurements(log))).ljust(PCR_BYTES, b"\0")
    if fault == "other-config":
        found = b"\2" + bytes(PCR_BYTES - 1)
    registers[8] = extend(registers[8], found)
    for measured in _events(guest, fault == "other-events"):
        registers[14] = extend(registers[14], hashlib.sha384(measured).digest())
    now = clock()
    made = now + {"stale-document": -4 * HOUR, "future-document": HOUR}.get(fault or "", 0)
    pki = state.nitro.foreign() if fault == "wrong-root" else state.nitro
    kind, field = ("enc", "pcrs") if fault == "enclave" else ("tpm", "nitrotpm_pcrs")
    module_id = f"{_INSTANCE}-{kind}{_NAME}"
    asked = _require_length(report_data)
    document = sign_document(
        pki.issue(module_id, now - 4 * HOUR if fault == "expired-leaf" else now - 1),
        {
            "module_id": module_id,
            "digest": "SHA384",
            "timestamp": made * 1000,
            field: registers,
        },
        {"user_data": asked[::-1] if fault == "wrong-report-data" else asked},
        broken=fault == "bad-signature",
    )
    return {
        "tee": "dstack-aws-nitro-tpm",
        "document": to_base64(document),
        "event_log": [entry.to_dict() for entry in log],
        "vm_config": guest.vm_config(),
    }


def _require_length(report_data: bytes) -> bytes:
    if len(report_data) != 64:
        raise DataInvalid("report_data is not 64 bytes long")
    return report_data


def _image(other: bool) -> bytes:
    return b"SIMULATED other image" if other else b"SIMULATED image"


def _once(measured: bytes) -> bytes:
    return extend(bytes(PCR_BYTES), hashlib.sha384(measured).digest())


def _events(guest: SimulatedGuest, other: bool) -> list[bytes]:
    """What was hashed of every run-time event, in order."""
    found: list[dict[str, Any]] = [entry for entry in guest.event_log() if entry["imr"] == 3]
    measured = [
        runtime_preimage(entry["event"], bytes.fromhex(entry["event_payload"]), 1)
        for entry in found
    ]
    return measured[1:] if other else measured
