"""One simulated guest: what it measured at boot, its quotes, its keys.

The events and their order are those of a dstack guest; registers come from replaying them. Keys
derive exactly as dstack's do, from a root that the state folder's seed stands for.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealtrain.attest.dstack import keys
from sealtrain.attest.dstack.msgpack import pack
from sealtrain.attest.dstack.parse import RUNTIME_EVENT, log_entries, runtime_digest
from sealtrain.attest.dstack.secp256k1 import ORDER, sign_recoverable
from sealtrain.attest.evidence import MAX_LOG_ENTRIES, Collateral, Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import parse_json
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import LockInvalid
from sealtrain_rehearsal.simulator.devices import Devices
from sealtrain_rehearsal.simulator.faults import FAULTS, check_fault
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.seeds import octets

__all__ = ["FAULTS", "SimulatedGuest"]

# (register, event type, name) of the firmware's events; their digests only need to be stable.
_FIRMWARE_EVENTS = (
    (0, 0x8000000B, "td-hob"),
    (0, 0x80000001, "secure-boot"),
    (0, 0x00000004, "separator-0"),
    (0, 0x0000000A, "acpi-tables"),
    (1, 0x80000003, "kernel"),
    (1, 0x00000004, "separator-1"),
    (2, 0x00000006, "command-line"),
    (2, 0x00000006, "initrd"),
)
_OS_IMAGE_HASH = hashlib.sha256(b"SIMULATED sealtrain guest image").hexdigest()


class SimulatedGuest:
    """A guest that booted with one deployment document.

    Args:
        pki: Signs its quotes.
        seed: Seed of its key provider; guests of one seed and one app share keys, as on dstack.
        compose: Raw bytes of ``app-compose.json``.
        devices: What the machine has besides its dstack agent.
        random: Source of the instance id.
        emit_events: Play an agent of API v0 that measures the app's own events (0.5), instead of
            one that serves v0 and v1 and measures none (0.6).
        fault: One of ``FAULTS``, or ``None`` to tell the truth.

    Raises:
        LockInvalid: ``compose`` is not a JSON object in UTF-8.
        DataInvalid: There is no such fault.
    """

    def __init__(
        self,
        pki: SimulatedPki,
        seed: Secret,
        compose: bytes,
        *,
        devices: Devices | None = None,
        random: Random = os.urandom,
        emit_events: bool = False,
        fault: str | None = None,
    ) -> None:
        self.devices = Devices() if devices is None else devices
        document = _document(compose)
        check_fault(fault)
        self._pki = pki if fault is None else pki.lying(fault)
        self._fault = fault
        self.emits_events = emit_events
        self.compose = bytes(compose)
        self.compose_hash = hashlib.sha256(compose).digest()
        # What was measured is what booted, whatever document is shown afterwards.
        booted = compose + b"\n" if fault == "other-compose" else compose
        self._measured_hash = hashlib.sha256(booted).digest()
        self.app_id = self._measured_hash[:20]
        self.app_name = str(document.get("name", "app"))[:256]
        self.instance_id = b"" if document.get("no_instance_id") is True else random(20)
        root = _k256_scalar(seed, "k256-root")
        self._app_key = keys.derive_app_key(root, self.app_id)
        self.root_public_key = keys.public_half(root, "secp256k1")
        app_public = keys.public_half(self._app_key, "secp256k1")
        self._issued = sign_recoverable(root, keys.write_app_key_claim(self.app_id, app_public))
        self.key_provider = _key_provider(document, seed)
        self._log: list[dict[str, Any]] = []
        self._registers = (bytes(48), bytes(48), bytes(48), bytes(48))
        self._boot()

    def event_log(self) -> list[dict[str, Any]]:
        """The boot log as API v0 shows it: firmware by digest, run-time events by payload."""
        return [dict(entry) for entry in self._log]

    def quote(self, report_data: bytes) -> bytes:
        """A quote over up to 64 bytes, padded with zeros as the agent pads.

        Raises:
            DataInvalid: More than 64 bytes.
        """
        if len(report_data) > 64:
            raise DataInvalid("report_data is longer than 64 bytes")
        committed = report_data.ljust(64, b"\0")
        if self._fault == "wrong-report-data":
            committed = hashlib.sha512(committed).digest()
        return self._pki.quote(committed, mrtd=self._mrtd, rtmr=self._registers)

    def emit(self, event: str, payload: bytes) -> None:
        """Measure an event of the app, as v0 ``EmitEvent`` does.

        Raises:
            DataInvalid: This agent measures no events of apps, or the log is full.
        """
        if not self.emits_events:
            raise DataInvalid("EmitEvent is not supported")
        if len(self._log) >= MAX_LOG_ENTRIES or not 0 < len(event) <= 128:
            raise DataInvalid("event is malformed or the log is full")
        log, registers = list(self._log), list(self._registers)
        _measure(log, registers, 3, RUNTIME_EVENT, event, payload)
        self._log = log
        self._registers = (registers[0], registers[1], registers[2], registers[3])

    def attestation(self, report_data: bytes) -> bytes:
        """The same as API v1 packs it. Raises as ``quote``."""
        quote = self.quote(report_data)
        runtime = [entry for entry in self._log if entry["imr"] == 3]
        return pack(
            {
                "version": 1,
                "platform": {
                    "kind": "tdx",
                    "data": {
                        # dstack's encoder writes plain byte vectors as arrays of integers.
                        "quote": list(quote),
                        "event_log": [
                            {
                                "imr": 3,
                                "event_type": RUNTIME_EVENT,
                                "digest": b"",
                                "event": entry["event"],
                                "event_payload": bytes.fromhex(entry["event_payload"]),
                            }
                            for entry in runtime
                        ],
                    },
                },
                "stack": {
                    "kind": "dstack",
                    "data": {
                        "report_data": list(report_data.ljust(64, b"\0")),
                        "runtime_events": [
                            {
                                "event": entry["event"],
                                "payload": bytes.fromhex(entry["event_payload"]),
                            }
                            for entry in runtime
                        ],
                        "config": self.vm_config(),
                    },
                },
            }
        )

    def evidence(self, binding: Binding | bytes, *, collateral: Collateral | None) -> Evidence:
        """Evidence as ``attest.guest`` builds it of a dstack guest, without a server.

        Args:
            binding: A conversation, or bare report data of up to 64 bytes.
            collateral: To carry along.

        Raises:
            DataInvalid: More than 64 bytes.
        """
        report_data = binding if isinstance(binding, bytes) else binding.report_data()
        return Evidence.build(
            "simulator",
            app_compose=self.compose,
            collateral=collateral,
            tee="dstack",
            quote=to_base64(self.quote(report_data)),
            event_log=[entry.to_dict() for entry in log_entries(self.event_log())],
            vm_config=self.vm_config(),
        )

    def vm_config(self) -> str:
        """The host's statement about the machine; it names the simulator."""
        return json.dumps(
            {"os_image_hash": _OS_IMAGE_HASH, "image": "SIMULATED", "cpu_count": 2, "num_gpus": 0},
            separators=(",", ":"),
        )

    def key_v0(self, path: str, purpose: str, algorithm: keys.Algorithm) -> dict[str, Any]:
        """Answer of v0 ``GetKey``."""
        key = keys.derive_v0(self._app_key, path)
        claim = keys.claim_v0(purpose, keys.public_half(key, algorithm))
        return {"key": key.reveal().hex(), "signature_chain": self._chain(claim)}

    def key_v1(self, domain: str, algorithm: keys.Algorithm) -> dict[str, Any]:
        """Answer of v1 ``GetKey``."""
        key = keys.derive_v1(self._app_key, domain, algorithm)
        public = keys.public_half(key, algorithm)
        return {
            "key": key.reveal().hex(),
            "public_key": public.hex(),
            "signature_chain": self._chain(keys.claim_v1(domain, algorithm, public)),
        }

    def info(self) -> dict[str, Any]:
        """Fields that v0 and v1 ``Info`` share."""
        return {
            "app_id": self.app_id.hex(),
            "instance_id": self.instance_id.hex(),
            "app_name": self.app_name,
            "compose_hash": self.compose_hash.hex(),
            "device_id": hashlib.sha256(b"").hexdigest(),
            "os_image_hash": _OS_IMAGE_HASH,
            "mr_aggregated": hashlib.sha256(self._mrtd + b"".join(self._registers)).hexdigest(),
            "key_provider_info": self.key_provider.hex(),
            "vm_config": self.vm_config(),
            "cloud_vendor": "SIMULATED",
            "cloud_product": "SIMULATED",
        }

    def tcb_info(self) -> dict[str, Any]:
        """The JSON inside v0 ``Info``."""
        return {
            "mrtd": self._mrtd.hex(),
            **{f"rtmr{index}": value.hex() for index, value in enumerate(self._registers)},
            "mr_aggregated": self.info()["mr_aggregated"],
            "os_image_hash": _OS_IMAGE_HASH,
            "compose_hash": self.compose_hash.hex(),
            "device_id": self.info()["device_id"],
            "event_log": self.event_log(),
            "app_compose": self.compose.decode("utf-8"),
        }

    def _chain(self, claim: bytes) -> list[str]:
        return [sign_recoverable(self._app_key, claim).hex(), self._issued.hex()]

    def _boot(self) -> None:
        registers = [bytes(48)] * 4
        log: list[dict[str, Any]] = []
        image = "SIMULATED other image" if self._fault == "other-image" else "SIMULATED"
        for imr, kind, name in _FIRMWARE_EVENTS:
            digest = hashlib.sha384(f"{image} {name}".encode()).digest()
            _measure(log, registers, imr, kind, "", b"", digest)
        for name, payload in self._boot_events():
            _measure(log, registers, 3, RUNTIME_EVENT, name, payload)
        self._mrtd = hashlib.sha384(f"{image} firmware".encode()).digest()
        self._registers = (registers[0], registers[1], registers[2], registers[3])
        if self._fault == "replayed-log":
            # The boot before this one, when the disk had another file system.
            at = next(i for i, entry in enumerate(log) if entry["event"] == "storage-fs")
            log[at] = {**log[at], "event_payload": b"ext4".hex()}
        self._log = log

    def _boot_events(self) -> tuple[tuple[str, bytes], ...]:
        return (
            ("system-preparing", b""),
            ("app-id", self.app_id),
            ("compose-hash", self._measured_hash),
            ("instance-id", self.instance_id),
            ("boot-mr-done", b""),
            ("os-image-hash", bytes.fromhex(_OS_IMAGE_HASH)),
            ("key-provider", self.key_provider),
            ("storage-fs", b"zfs"),
            ("system-ready", b""),
        )


def _measure(
    log: list[dict[str, Any]],
    registers: list[bytes],
    imr: int,
    kind: int,
    name: str,
    payload: bytes,
    digest: bytes | None = None,
) -> None:
    """Extend a register by an event: by its given digest, or by that of name and payload."""
    found = runtime_digest(name, payload, 1) if digest is None else digest
    registers[imr] = hashlib.sha384(registers[imr] + found).digest()
    log.append(
        {
            "imr": imr,
            "event_type": kind,
            "digest": found.hex() if imr < 3 else "",
            "event": name,
            "event_payload": payload.hex(),
        }
    )


def _document(compose: bytes) -> dict[str, Any]:
    try:
        value = parse_json(compose)
    except DataInvalid as error:
        raise LockInvalid(
            f"deployment document is {error.message}", check="app-compose.json"
        ) from error
    if not isinstance(value, dict):
        raise LockInvalid("deployment document is not an object", check="app-compose.json")
    return value


def _key_provider(document: dict[str, Any], seed: Secret) -> bytes:
    """Payload of the key-provider event: the provider the document asks for, by its CA key."""
    if document.get("key_provider") == "kms" or document.get("kms_enabled") is True:
        ca = ec.derive_private_key(_scalar(seed, "kms-ca"), ec.SECP256R1()).public_key()
        spki = ca.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        fields = {"name": "kms", "id": spki.hex()}
    else:
        fields = {"name": "none", "id": ""}
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _k256_scalar(seed: Secret, label: str) -> Secret:
    return Secret(_scalar(seed, label).to_bytes(32, "big"))


def _scalar(seed: Secret, label: str) -> int:
    """A private scalar below both group orders in use (secp256k1's is within 2**-32 of P-256's)."""
    wide = octets(seed.reveal(), "key", label, 48)
    return int.from_bytes(wide, "big") % (min(ORDER, ec.SECP256R1().group_order) - 1) + 1
