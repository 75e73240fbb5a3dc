"""What a dstack guest measured: the event log against the verified quote, and the rules it keeps.

1. Register 3 holds run-time events only; each digest is recomputed from name and payload, none is
   taken from the log. A firmware event (registers 0 to 2) is its digest and nothing else.
2. Replaying the entries of a register in order gives the quoted register. Firmware events are
   either logged in full or not at all: the quote carries those registers and the policy compares
   them.
3. ``app-id``, ``compose-hash``, ``instance-id`` and ``key-provider`` occur exactly once, before the
   one ``system-ready``; what follows is under the app's control and counts for nothing.
4. SHA-256 of the deployment document's raw bytes is the measured compose hash.
5. A nonzero MRCONFIGID commits to the same values.

``replay_log`` does 1 to 3 and 5 over a quote that ``tdx.verify`` verified; what the evidence shows
of the deployment document is compared by ``attest.engine``.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, fields
from typing import Any, Self

from sealtrain.attest.dstack.keccak import keccak256
from sealtrain.attest.dstack.parse import RUNTIME_EVENT, runtime_digest, runtime_preimage
from sealtrain.attest.errors import EventLogMismatch
from sealtrain.attest.statement import LogEntry
from sealtrain.attest.tdx.verify import VerifiedQuote
from sealtrain.attest.tpm.log import replay_digests
from sealtrain.attest.tpm.quote import Bank
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid, KeyProviderMismatch

LOG = "event log"
_READY = "system-ready"
_KIND_BYTE = {"none": 0, "local": 1, "kms": 2, "tpm": 3}
_NO_GPU_POLICY = sha256_hex(b"{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGuest:
    """Values from events that replay to the quoted register 3. Hex, lower case."""

    app_id: str
    compose_hash: str
    instance_id: str
    key_provider_name: str
    key_provider: str
    os_image_hash: str | None
    """As the key provider told the guest; only as true as the provider."""
    firmware_logged: bool
    """The log has the firmware's events too, and replays to registers 0 to 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredQuote(VerifiedQuote):
    """A dstack guest's quote, and what it measured."""

    measured: MeasuredGuest

    @property
    def firmware_logged(self) -> bool:
        """As its log has them."""
        return self.measured.firmware_logged

    @classmethod
    def of(cls, signed: VerifiedQuote, measured: MeasuredGuest, **further: Any) -> Self:
        """A quote with the measurements that its log replays to, and what a subclass adds."""
        quote = {field.name: getattr(signed, field.name) for field in fields(signed)}
        return cls(measured=measured, **quote, **further)


def replay_log(
    log: tuple[LogEntry, ...], registers: tuple[str, str, str, str], mr_config_id: bytes
) -> MeasuredGuest:
    """What a log says that replays to a verified quote's registers; its document is not compared.

    Args:
        log: Entries in the order they were measured.
        registers: RTMR0 to RTMR3, 96 hex digits each.
        mr_config_id: 48 bytes of the TD report.

    Raises:
        EventLogMismatch: The log does not replay or breaks a rule above.
        KeyProviderMismatch: The key provider's event is malformed.
    """
    for index, quoted in enumerate(registers):
        entries = tuple(entry for entry in log if entry.imr == index)
        if index < 3 and not any(entry.imr < 3 for entry in log):
            continue
        if not hmac.compare_digest(_replay(entries), bytes.fromhex(quoted)):
            raise EventLogMismatch(
                f"event log does not replay to RTMR{index} of the quote",
                check="event log",
                got=_replay(entries).hex()[:16] + "…",
                expected=quoted[:16] + "…",
                hint="an event was changed, dropped, added or moved after it was measured",
            )
    measured = boot_measurements(log)
    if any(mr_config_id):
        _check_config_id(mr_config_id, measured, _boot_events(log))
    return measured


def replay_register(log: tuple[LogEntry, ...], bank: Bank) -> bytes:
    """A register of a TPM that was extended with the run-time events of a log, all of them.

    Raises:
        EventLogMismatch: An event of register 3 brings a digest or is of another type.
    """
    digests = []
    for entry in log:
        if entry.imr == 3:
            _digest(entry)
            payload = bytes.fromhex(entry.event_payload)
            measured = runtime_preimage(entry.event, payload, entry.version)
            digests.append(hashlib.new(bank, measured).digest())
    return replay_digests(digests, bank)


def boot_measurements(log: tuple[LogEntry, ...]) -> MeasuredGuest:
    """What the run-time events of a log say; that they replay is compared by the caller.

    Raises:
        EventLogMismatch: The log breaks rule 3 above.
        KeyProviderMismatch: The key provider's event is malformed.
    """
    return _read_measurements(_boot_events(log), firmware_logged=shows_firmware(log))


def describe_unmeasured(log: tuple[LogEntry, ...]) -> MeasuredGuest:
    """What is known of a guest whose log does not hold: nothing but whether firmware is in it."""
    return MeasuredGuest(
        app_id="",
        compose_hash="",
        instance_id="",
        key_provider_name="",
        key_provider="",
        os_image_hash=None,
        firmware_logged=shows_firmware(log),
    )


def shows_firmware(log: tuple[LogEntry, ...]) -> bool:
    """Whether a log has the firmware's own events, of register 0; nothing is replayed."""
    return any(entry.imr == 0 for entry in log)


def _replay(entries: tuple[LogEntry, ...]) -> bytes:
    register = bytes(48)
    for entry in entries:
        register = hashlib.sha384(register + _digest(entry)).digest()
    return register


def _digest(entry: LogEntry) -> bytes:
    """What the entry extended its register with; whatever that does not cover must be absent."""
    if entry.imr < 3:
        covered = (entry.event_type, entry.event, entry.event_payload, entry.version)
        if len(entry.digest) != 96 or covered != (0, "", "", 1):
            raise EventLogMismatch(
                "firmware event is malformed",
                check="event log",
                got=f"register {entry.imr}",
                expected="a digest and nothing else",
            )
        return bytes.fromhex(entry.digest)
    if entry.event_type != RUNTIME_EVENT:
        raise EventLogMismatch(
            "register 3 holds a foreign event",
            check="event log",
            got=f"type {entry.event_type:#x}",
            expected=f"type {RUNTIME_EVENT:#x}",
        )
    if entry.digest:
        raise EventLogMismatch(
            f"event {entry.event!r} brings its own digest",
            check="event log",
            expected="none: it is recomputed from name and payload",
        )
    return runtime_digest(entry.event, bytes.fromhex(entry.event_payload), entry.version)


def _boot_events(log: tuple[LogEntry, ...]) -> dict[str, str]:
    """Name → payload (hex) of the run-time events before ``system-ready``, each at most once."""
    events: dict[str, str] = {}
    for entry in (entry for entry in log if entry.imr == 3):
        if entry.event == _READY:
            return events
        if entry.event in events:
            raise EventLogMismatch(
                f"event {entry.event!r} was measured twice before {_READY}", check="event log"
            )
        if ":" in entry.event:
            # Version 1 joins name and payload with a colon: such a name could be split elsewhere.
            raise EventLogMismatch(
                "event name is ambiguous", check="event log", got=repr(entry.event)
            )
        events[entry.event] = entry.event_payload
    raise EventLogMismatch(f"event log has no {_READY}", check="event log")


def _read_measurements(events: dict[str, str], *, firmware_logged: bool) -> MeasuredGuest:
    name, identifier = _key_provider(_require_event(events, "key-provider", None))
    image = events.get("os-image-hash")
    if image is not None and len(image) != 64:
        raise EventLogMismatch("event 'os-image-hash' has the wrong length", check="event log")
    return MeasuredGuest(
        app_id=_require_event(events, "app-id", (40,)),
        compose_hash=_require_event(events, "compose-hash", (64,)),
        instance_id=_require_event(events, "instance-id", (0, 40)),
        key_provider_name=name,
        key_provider=identifier,
        os_image_hash=image,
        firmware_logged=firmware_logged,
    )


def _require_event(events: dict[str, str], name: str, lengths: tuple[int, ...] | None) -> str:
    payload = events.get(name)
    if payload is None:
        raise EventLogMismatch(
            f"event {name!r} was not measured before {_READY}", check="event log"
        )
    if lengths is not None and len(payload) not in lengths:
        raise EventLogMismatch(
            f"event {name!r} has the wrong length",
            check="event log",
            got=len(payload) // 2,
            expected=" or ".join(str(length // 2) for length in lengths),
        )
    return payload


def _key_provider(payload: str) -> tuple[str, str]:
    try:
        value = parse_json(bytes.fromhex(payload), max_bytes=8192, max_depth=2)
        name, identifier = value["name"], value["id"]
        if not isinstance(name, str) or bytes.fromhex(identifier).hex() != identifier:
            raise ValueError  # noqa: TRY301  # one malformed form among several
    except (DataInvalid, ValueError, TypeError, KeyError) as error:
        raise KeyProviderMismatch(
            "key provider's event is malformed",
            check="key provider",
            expected='{"name": …, "id": lower-case hex}',
        ) from error
    return name, identifier


def config_ids(measured: MeasuredGuest) -> set[bytes]:
    """Configuration ids of form 2 (33 bytes) that commit to measured values.

    The provider's id may have been open when the guest was started.
    """
    compose, app = bytes.fromhex(measured.compose_hash), bytes.fromhex(measured.app_id)
    kind = measured.key_provider_name.removesuffix("-sgx")
    if kind not in _KIND_BYTE:
        return set()
    return {
        b"\x02" + keccak256(compose + app + bytes([_KIND_BYTE[kind]]) + bytes.fromhex(provider))
        for provider in (measured.key_provider, "")
    }


def _check_config_id(mr_config_id: bytes, measured: MeasuredGuest, events: dict[str, str]) -> None:
    """MRCONFIGID, forms 1 to 3; the provider's id may have been open when the guest was started."""
    compose = bytes.fromhex(measured.compose_hash)
    kind = measured.key_provider_name.removesuffix("-sgx")
    accepted: set[bytes] = {b"\x01" + compose, *config_ids(measured)}
    for provider in (measured.key_provider, ""):
        document = {
            "app_id": measured.app_id,
            "compose_hash": measured.compose_hash,
            "instance_id": measured.instance_id,
            "key_provider": kind,
            "key_provider_id": provider,
            "version": 3,
        }
        gpu = events.get("gpu-policy-hash", _NO_GPU_POLICY)
        for variant in (document, {**document, "gpu_policy_hash": gpu}):
            prefix = b"dstack-mr-config-v3:\0"
            accepted.add(b"\x03" + hashlib.sha256(prefix + canonical_json(variant)).digest())
    if mr_config_id not in {value + bytes(15) for value in accepted}:
        raise EventLogMismatch(
            "MRCONFIGID of the quote commits to other values than the event log",
            check="MRCONFIGID",
            got=mr_config_id.hex(),
        )
