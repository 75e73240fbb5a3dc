"""Simulated machines of Azure and Google: a processor's statement, a quote of the cloud's TPM."""

from __future__ import annotations

import hashlib
import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from cryptography.hazmat.primitives.asymmetric import rsa

from sealtrain.attest.nitro.collect import measure_compose, nitro_shown
from sealtrain.base.canonical import JsonValue
from sealtrain.base.clock import Clock
from sealtrain.base.encoding import to_base64
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.clouds import AZURE_FAULT_MEANINGS, GOOGLE_SNP_FAULT_MEANINGS
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.nitro import FAULT_MEANINGS as NITRO_FAULT_MEANINGS
from sealtrain_rehearsal.simulator.nitro import SimulatedNsm
from sealtrain_rehearsal.simulator.state import SimulatorState
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine, SimulatedTpm

_ALL = tuple(range(24))
_BOOT = ((4, "image"), (7, "Secure Boot"), (9, "command line"), (11, "sections"))
Attest = Callable[[bytes], dict[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class Paravisor:
    """Azure's layer below a guest: it names the TPM's key to the processor.

    Attributes:
        key: The TPM's attestation key.
        vm_id: The machine's id.
    """

    key: rsa.RSAPrivateKey
    vm_id: str = "00000000-0000-4000-8000-000000000001"

    def tpm_key(self, oid: str, machine: bytes) -> tuple[rsa.RSAPrivateKey, tuple[bytes, ...]]:
        """The key; no certificate names it."""
        return self.key, ()

    @property
    def runtime(self) -> bytes:
        """The JSON text that names it."""
        number = self.key.public_key().public_numbers().n
        modulus = urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8, "big"))
        key = {"kid": "HCLAkPub", "key_ops": ["sign"], "kty": "RSA", "e": "AQAB"}
        configuration = {"secure-boot": True, "tpm-enabled": True, "vmUniqueId": self.vm_id}
        document = {
            "keys": [{**key, "n": modulus.rstrip(b"=").decode("ascii")}],
            "vm-configuration": configuration,
            "user-data": "00" * 64,
        }
        return json.dumps(document, separators=(",", ":")).encode("ascii")


@cache
def _key(which: str) -> rsa.RSAPrivateKey:
    """New in each process, since no generator of RSA keys takes a seed."""
    return rsa.generate_private_key(65537, 2048)


def cloud_machine(
    machine: Machine, state: SimulatorState, compose: bytes, *, clock: Clock
) -> Attest | None:
    """How such a guest is asked for evidence; ``None`` for machines of other kinds.

    Args:
        machine: What is played.
        state: Whose PKIs sign.
        compose: The deployment document.
        clock: Time of revocation lists.
    """
    makers = {
        "azure-snp": _azure_snp,
        "azure-tdx": _azure_tdx,
        "gcp-snp": _gcp_snp,
        "test-vtpm": _test_vtpm,
        "test-nitro": _test_nitro,
    }
    make = makers.get(machine.tee)
    if make is None:
        return None
    return partial(make, state, os.urandom(16), compose, clock, machine.cpu_fault or "")


def _azure_snp(
    state: SimulatorState,
    launch: bytes,
    compose: bytes,
    clock: Clock,
    fault: str,
    report_data: bytes,
) -> dict[str, JsonValue]:
    inner = None if not fault or fault in AZURE_FAULT_MEANINGS else fault
    paravisor, shown = _azure(compose, fault, report_data)
    report = state.snp(launch=launch).show(
        _commit(paravisor), compose, now=clock(), host_data=bytes(32), fault=inner
    )
    return {**report, "tee": "azure-snp", **shown}


def _azure_tdx(
    state: SimulatorState,
    launch: bytes,
    compose: bytes,
    clock: Clock,
    fault: str,
    report_data: bytes,
) -> dict[str, JsonValue]:
    paravisor, shown = _azure(compose, fault, report_data)
    signed = _commit(paravisor)
    if fault == "wrong-report-data":
        signed = hashlib.sha512(signed).digest()
    image = "SIMULATED other image" if fault == "other-image" else "SIMULATED"
    quote = state.pki.quote(signed, mrtd=hashlib.sha384(f"{image} paravisor".encode()).digest())
    return {"tee": "azure-tdx", "quote": to_base64(quote), **shown}


def _azure(
    compose: bytes, fault: str, report_data: bytes
) -> tuple[Paravisor, dict[str, JsonValue]]:
    """The paravisor that the processor signs for, and what is shown besides."""
    signed = Paravisor(_key("other" if fault == "tpm-other-key" else "own"))
    named = Paravisor(signed.key, "another") if fault == "tpm-other-machine" else signed
    tpm = SimulatedTpm(Paravisor(_key("own")))
    events = _boot(tpm, compose, fault)
    asked = hashlib.sha256(_require_length(report_data)).digest()
    shown = _quote(tpm, asked[::-1] if fault == "tpm-other-conversation" else asked, fault)
    return signed, {
        "runtime": named.runtime.decode("ascii"),
        "tpm": {**shown, "events": events},
        "report_data": report_data.hex(),
    }


def _gcp_snp(
    state: SimulatorState,
    launch: bytes,
    compose: bytes,
    clock: Clock,
    fault: str,
    report_data: bytes,
) -> dict[str, JsonValue]:
    inner = None if not fault or fault in GOOGLE_SNP_FAULT_MEANINGS else fault
    guest = state.snp(launch=launch)
    report = guest.report(_require_length(report_data), compose, host_data=bytes(32), fault=inner)
    named = SimulatedMachine(
        zone="simulated-b" if fault == "tpm-other-zone" else "simulated-a",
        production=fault != "tpm-test-key",
    )
    tpm = SimulatedTpm(state.pki if fault == "tpm-foreign-root" else guest, machine=named)
    plain = b"SIMULATED firmware without encryption"
    firmware = plain if fault == "tpm-not-confidential" else b"SIMULATED firmware"
    tpm.extend(0, firmware)
    first = {"index": 0, "digest": hashlib.sha256(firmware).hexdigest()}
    events = [first, *_boot(tpm, compose, fault)]
    signed_for = report + b"x" if fault == "tpm-other-quote" else report
    shown = _quote(tpm, hashlib.sha256(signed_for).digest(), fault)
    certificates = [to_base64(der) for der in tpm.certificates]
    return {
        "tee": "gcp-snp",
        "report": to_base64(report),
        "certificates": [to_base64(der) for der in guest.certificates(fault=inner)],
        "crl": to_base64(guest.revocations(clock(), issuer_revoked=inner == "revoked-issuer")),
        "tpm": {**shown, "events": events, "certificates": certificates},
    }


def _test_vtpm(
    state: SimulatorState,
    launch: bytes,
    compose: bytes,
    clock: Clock,
    fault: str,
    report_data: bytes,
) -> dict[str, JsonValue]:
    named = SimulatedMachine(production=fault != "tpm-test-key")
    vendor = state.snp(launch=launch) if fault == "tpm-foreign-root" else state.pki
    tpm = SimulatedTpm(vendor, machine=named)
    events = _boot(tpm, compose, fault)
    asked = hashlib.sha256(_require_length(report_data)).digest()
    shown = _quote(tpm, asked[::-1] if fault == "tpm-other-conversation" else asked, fault)
    certificates = [to_base64(der) for der in tpm.certificates]
    return {
        "tee": "test-vtpm",
        "tpm": {**shown, "events": events, "certificates": certificates},
        "report_data": report_data.hex(),
    }


def _test_nitro(
    state: SimulatorState,
    launch: bytes,
    compose: bytes,
    clock: Clock,
    fault: str,
    report_data: bytes,
) -> dict[str, JsonValue]:
    """As an enclave's agent answers: its module is asked anew each time, and is of one start."""
    own = fault if fault in NITRO_FAULT_MEANINGS else None
    nsm = SimulatedNsm(state.nitro, clock=clock, fault=own)
    measure_compose(nsm, compose + b"\n" if fault == "other-compose" else compose)
    asked = _require_length(report_data)
    return nitro_shown(nsm, asked[::-1] if fault == "wrong-report-data" else asked)


def _boot(tpm: SimulatedTpm, compose: bytes, fault: str) -> list[JsonValue]:
    """The machine starts; its init extends PCR 14 by the document. What the firmware logged."""
    logged: list[JsonValue] = []
    for index, what in _BOOT:
        other = fault == "tpm-other-image" and index == 4
        measured = f"SIMULATED {'other ' if other else ''}{what}".encode("ascii")
        tpm.extend(index, measured)
        logged.append({"index": index, "digest": hashlib.sha256(measured).hexdigest()})
    tpm.extend(14, compose + b"\n" if fault == "other-compose" else compose)
    return logged[:1] + logged if fault == "tpm-other-events" else logged


def _quote(tpm: SimulatedTpm, asked: bytes, fault: str) -> dict[str, JsonValue]:
    message, signature = tpm.quote(asked, bank="sha256", selection=_ALL)
    if fault == "tpm-bad-signature":
        signature = signature[:-1] + bytes([signature[-1] ^ 1])
    values = tpm.registers("sha256")
    if fault == "tpm-altered-register":
        values[4] = bytes(31) + b"\1"
    return {
        "message": to_base64(message),
        "signature": to_base64(signature),
        "registers": [{"index": index, "value": values[index].hex()} for index in _ALL],
    }


def _commit(paravisor: Paravisor) -> bytes:
    """Report data of the processor's statement: the hash of the runtime data, and zeros."""
    return hashlib.sha256(paravisor.runtime).digest().ljust(64, b"\0")


def _require_length(report_data: bytes) -> bytes:
    if len(report_data) != 64:
        raise DataInvalid("report_data is not 64 bytes long")
    return report_data
