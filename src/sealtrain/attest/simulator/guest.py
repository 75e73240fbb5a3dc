"""One simulated guest: what it measured at boot, its quotes, its keys.

The events and their order are those of a dstack guest; registers come from replaying them. Keys
derive exactly as dstack's do, from a root that the state folder's seed stands for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealtrain.attest.dstack import keys
from sealtrain.attest.dstack.msgpack import pack
from sealtrain.attest.dstack.parse import RUNTIME_EVENT, log_entries, runtime_digest
from sealtrain.attest.dstack.secp256k1 import ORDER, sign_recoverable
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.simulator.pki import SimulatedPki
from sealtrain.base.canonical import parse_json
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, LockInvalid

__all__ = ["SimulatedGuest"]

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
        pki: Who signs its quotes.
        seed: Seed of its key provider; guests of one seed and one app share keys, as on dstack.
        compose: Raw bytes of ``app-compose.json``.
        random: Source of the instance id.

    Raises:
        LockInvalid: ``compose`` is not a JSON object in UTF-8.
    """

    def __init__(
        self,
        pki: SimulatedPki,
        seed: Secret,
        compose: bytes,
        *,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        document = _document(compose)
        self._pki = pki
        self.compose = bytes(compose)
        self.compose_hash = hashlib.sha256(compose).digest()
        self.app_id = self.compose_hash[:20]
        self.app_name = str(document.get("name", "app"))[:256]
        self.instance_id = b"" if document.get("no_instance_id") is True else random(20)
        root = _k256_scalar(seed, "k256-root")
        self._app_key = keys.derive_app_key(root, self.app_id)
        self.root_public_key = keys.public_half(root, "secp256k1")
        app_public = keys.public_half(self._app_key, "secp256k1")
        self._issued = sign_recoverable(root, keys.issued_claim(self.app_id, app_public))
        self.key_provider = _key_provider(document, seed)
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
        return self._pki.quote(report_data.ljust(64, b"\0"), mrtd=self._mrtd, rtmr=self._registers)

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

    def evidence(self, report_data: bytes, *, collateral: Collateral | None) -> Evidence:
        """Evidence as ``dstack.collect`` builds it, without a server. Raises as ``quote``."""
        return Evidence.build(
            platform="simulator",
            quote=self.quote(report_data),
            event_log=log_entries(self.event_log()),
            app_compose=self.compose,
            vm_config=self.vm_config(),
            collateral=collateral,
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

        def measure(imr: int, kind: int, name: str, payload: bytes, digest: bytes) -> None:
            registers[imr] = hashlib.sha384(registers[imr] + digest).digest()
            log.append(
                {
                    "imr": imr,
                    "event_type": kind,
                    "digest": digest.hex() if imr < 3 else "",
                    "event": name,
                    "event_payload": payload.hex(),
                }
            )

        for imr, kind, name in _FIRMWARE_EVENTS:
            measure(imr, kind, "", b"", hashlib.sha384(f"SIMULATED {name}".encode()).digest())
        image = bytes.fromhex(_OS_IMAGE_HASH)
        for name, payload in (
            ("system-preparing", b""),
            ("app-id", self.app_id),
            ("compose-hash", self.compose_hash),
            ("instance-id", self.instance_id),
            ("boot-mr-done", b""),
            ("os-image-hash", image),
            ("key-provider", self.key_provider),
            ("storage-fs", b"zfs"),
            ("system-ready", b""),
        ):
            measure(3, RUNTIME_EVENT, name, payload, runtime_digest(name, payload, 1))
        self._log = log
        self._mrtd = hashlib.sha384(b"SIMULATED firmware").digest()
        self._registers = (registers[0], registers[1], registers[2], registers[3])


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
    info = f"sealtrain/simulator-key/v1:{label}".encode("ascii")
    wide = HKDF(hashes.SHA256(), 48, None, info).derive(seed.reveal())
    return int.from_bytes(wide, "big") % (min(ORDER, _P256_ORDER) - 1) + 1


_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
