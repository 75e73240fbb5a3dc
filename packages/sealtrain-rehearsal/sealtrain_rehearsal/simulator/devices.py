"""What a simulated machine has besides its dstack agent: a security module, accelerators.

Real ones are reached through device files; here they answer on the guest's own socket under
``/simulator/``, with the same bytes, so that one collector serves both.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sealtrain.attest.dstack.client import GPU_FORMAT
from sealtrain.attest.nitro.collect import measure_compose
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.clock import Clock
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.cloud_machines import cloud_machine
from sealtrain_rehearsal.simulator.dstack_platforms import (
    enclave_attestation,
    snp_attestation,
    snp_evidence,
)
from sealtrain_rehearsal.simulator.machine import Machine, SimulatedTee
from sealtrain_rehearsal.simulator.nitro import SimulatedNsm
from sealtrain_rehearsal.simulator.state import SimulatorState

if TYPE_CHECKING:
    from sealtrain.attest.nvidia.parse import GpuEvidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Of one simulated machine.

    Attributes:
        tee: What it plays.
        nsm: Security module of an enclave, CBOR to CBOR; ``None`` elsewhere.
        attest: Report data (64 bytes) → the TEE's form of evidence, where that is a driver's to
            make; ``None`` elsewhere.
        attestation: Report data (64 bytes) → the blob of dstack's agent, where the guest is not on
            TDX; ``None`` there.
        accelerators: Nonce (32 bytes) → reports of all accelerators; ``None`` where there is none.
    """

    tee: SimulatedTee = "dstack"
    nsm: Callable[[bytes], bytes] | None = None
    attest: Callable[[bytes], dict[str, JsonValue]] | None = None
    attestation: Callable[[bytes], bytes] | None = None
    accelerators: Callable[[bytes], GpuEvidence] | None = None

    def guest(self) -> dict[str, Any]:
        """Answer of ``/simulator/Guest``."""
        return {"tee": self.tee}

    def ask_nsm(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Answer of ``/simulator/Nsm``. Raises ``DataInvalid`` where there is none."""
        if self.nsm is None:
            raise DataInvalid("this guest has no Nitro security module")
        return {"response": self.nsm(_octets(fields, "request")).hex()}

    def ask_driver(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Answer of ``/simulator/Attest``. Raises ``DataInvalid`` where there is none."""
        if self.attest is None:
            raise DataInvalid("this guest has no attestation driver")
        return self.attest(_octets(fields, "report_data"))

    def ask_gpus(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Answer of ``/simulator/Gpus``. Raises ``DataInvalid`` on a nonce of another length."""
        nonce = _octets(fields, "nonce")
        if len(nonce) != 32:
            raise DataInvalid("nonce of accelerators is not 32 bytes")
        shown = None if self.accelerators is None else self.accelerators(nonce).to_dict()
        return {"evidence": shown}

    def ask_agent(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Answer of ``/v1/AttestGpu``. Raises ``DataInvalid`` where there is none."""
        nonce = _octets(fields, "nonce")
        if len(nonce) != 32:
            raise DataInvalid("nonce of accelerators is not 32 bytes")
        if self.accelerators is None:
            raise DataInvalid("no NVIDIA GPU found")
        shown = [
            {
                "arch": device.architecture,
                "nonce": nonce.hex(),
                "evidence": device.report,
                "certificate": to_base64(device.certificate_chain.encode("ascii")),
            }
            for device in self.accelerators(nonce).devices
        ]
        evidence = canonical_json({"evidences": shown, "result_code": 0}).hex()
        return {"bundles": [{"vendor": "nvidia", "format": GPU_FORMAT, "evidence": evidence}]}


def devices_of(machine: Machine, state: SimulatorState, compose: bytes, *, clock: Clock) -> Devices:
    """Devices of a machine whose measured start read ``compose``.

    Args:
        machine: What is played.
        state: Whose PKIs sign.
        compose: The deployment document.
        clock: Time of the security module's documents and of revocation lists.

    Raises:
        DataInvalid: Numbers of accelerators that do not go together.
    """
    nsm = None
    attestation: Callable[[bytes], bytes] | None = None
    if machine.tee == "nitro":
        nsm = SimulatedNsm(state.nitro, clock=clock, fault=machine.cpu_fault)
        measure_compose(nsm, compose)
        attestation = partial(enclave_attestation, nsm)
    attest = cloud_machine(machine, state, compose, clock=clock)
    if machine.tee == "tdx":
        attest = partial(_tdx, state, compose, machine.cpu_fault)
    elif machine.tee == "snp":
        guest = state.snp(launch=os.urandom(16))

        def attest(report_data: bytes) -> dict[str, JsonValue]:
            return guest.show(report_data, compose, now=clock(), fault=machine.cpu_fault)

    elif machine.tee == "dstack-amd-sev-snp":
        guest = state.snp(launch=os.urandom(16))

        def attest(report_data: bytes) -> dict[str, JsonValue]:
            fault = machine.cpu_fault
            return snp_evidence(guest, report_data, compose, now=clock(), fault=fault)

        def attestation(report_data: bytes) -> bytes:
            return snp_attestation(guest, report_data, compose, fault=machine.cpu_fault)

    accelerators: Callable[[bytes], GpuEvidence] | None = None
    if machine.gpus:
        gpus = state.gpus(machine)

        def accelerators(nonce: bytes) -> GpuEvidence:
            return gpus.evidence(nonce, fault=machine.gpu_fault)

    return Devices(
        tee=machine.tee,
        nsm=nsm,
        attest=attest,
        attestation=attestation,
        accelerators=accelerators,
    )


def _tdx(
    state: SimulatorState, compose: bytes, fault: str | None, report_data: bytes
) -> dict[str, JsonValue]:
    if len(report_data) != 64:
        raise DataInvalid("report_data is not 64 bytes long")
    booted = compose + b"\n" if fault == "other-compose" else compose
    if fault == "wrong-report-data":
        report_data = hashlib.sha512(report_data).digest()
    image = "SIMULATED other image" if fault == "other-image" else "SIMULATED"
    quote = state.pki.quote(
        report_data,
        mrtd=hashlib.sha384(f"{image} firmware".encode()).digest(),
        mr_config_id=b"\x01" + hashlib.sha256(booted).digest() + bytes(15),
    )
    return {"tee": "tdx", "quote": to_base64(quote)}


def _octets(fields: dict[str, Any], name: str) -> bytes:
    text = fields.get(name)
    try:
        return bytes.fromhex(text)  # type: ignore[arg-type]  # not text: refused
    except (TypeError, ValueError) as error:
        raise DataInvalid(f"{name} is not hex") from error
