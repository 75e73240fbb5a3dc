"""The dstack guest API over its unix socket: five calls, two generations, nothing implicit.

The socket is an argument; no environment variable is read, so nothing outside the command line can
move the trust anchor. Answers are bounded in bytes and in time. One retry after a failure where a
call may be repeated (all but ``emit_event``): agents make quotes one at a time.

Generations v0 (0.5) and v1 (0.6) are spoken; tappd (0.4 and older) is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sealtrain.attest.dstack.parse import (
    AgentStatement,
    parse_attestation,
    parse_event_log,
    parse_statement,
)
from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable, PlatformMismatch
from sealtrain.attest.report_data import REPORT_DATA_BYTES
from sealtrain.attest.statement import LogEntry
from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.http import Bounds, HttpClient, Problem
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid

Api = Literal["v0", "v1"]
MAX_ANSWER_BYTES = 32 << 20
_MAX_VALUES = 1 << 17
GPU_FORMAT = "nvidia-nvattest-collect-evidence-json-v1"
_MAX_DEVICES = 64
_MAX_VERSION = 64
_MAX_DEVICE_TEXT = 256 << 10
_MAX_EVENT_PAYLOAD = 32 << 10
MAX_EVENTS = 256
"""One client's; the log is part of all later evidence, which holds 1024 entries."""
_EVENT = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_HINT = (
    "inside a dstack guest mount /var/run/dstack.sock; elsewhere start the simulator and name its "
    "socket"
)


class GuestQuote(NamedTuple):
    """A quote as the guest API hands it out, parsed but not verified."""

    quote: bytes
    event_log: tuple[LogEntry, ...]
    vm_config: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestInfo:
    """The agent's unsigned statement about its guest. Hex, lower case."""

    app_id: str
    instance_id: str
    compose_hash: str
    app_compose: bytes
    app_name: str
    api: Api


class GuestKey(Secret):
    """A derived key (32 bytes) with the chain that ties it to its key provider."""

    __slots__ = ("signature_chain",)

    def __init__(self, value: bytes, signature_chain: tuple[bytes, ...]) -> None:
        super().__init__(value)
        self.signature_chain = signature_chain


class DstackClient:
    """Client of one guest's socket.

    Args:
        socket: Path of the unix socket.
        timeout: Seconds per call, its retry included; quotes are serialised in the agent, so at
            least 30 is sensible.
        max_events: Most events that it measures.
        api: Generation to speak; ``None`` asks the agent for its newest.
    """

    def __init__(
        self,
        socket: str,
        timeout: float = 30.0,
        *,
        api: Api | None = None,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self.socket = str(socket)
        self._bounds = Bounds(connect=timeout, read=timeout, total=timeout, tries=2, pause=0.05)
        self._api = api
        self._emitted = 0
        self._max_events = max_events

    @property
    def api(self) -> Api:
        """The generation that was asked for, else the newest the agent serves, by one probe.

        Raises:
            GuestApiUnreachable: The agent does not answer.
        """
        if self._api is None:
            status, answer = self._post("/v1/Version", {})
            missing = isinstance(answer, dict) and answer.get("error") == "Service not found"
            self._api = "v1" if status == 200 or (status == 404 and missing) else "v0"
        return self._api

    def version(self) -> str | None:
        """The agent's version as it states it; ``None`` where it states none.

        Raises:
            GuestApiUnreachable: The agent does not answer.
        """
        status, answer = self._post("/v1/Version" if self.api == "v1" else "/Version", {})
        told = answer.get("version") if status == 200 and isinstance(answer, dict) else None
        return told[:_MAX_VERSION] if isinstance(told, str) else None

    def info(self) -> GuestInfo:
        """Ask for the guest's identity and deployment document.

        Raises:
            GuestApiUnreachable: No answer, or the agent refuses.
            EvidenceMalformed: The answer is not what the API promises.
        """
        if self.api == "v1":
            answer = self.call("/v1/Info", {})
            document = _text(answer, "app_compose")
        else:
            answer = self.call("/Info", {})
            document = _text(_parse_embedded(_text(answer, "tcb_info")), "app_compose")
        return GuestInfo(
            app_id=_text(answer, "app_id"),
            instance_id=_text(answer, "instance_id"),
            compose_hash=_text(answer, "compose_hash"),
            app_compose=document.encode("utf-8"),
            app_name=_text(answer, "app_name"),
            api=self.api,
        )

    def get_key(self, path: str, *, purpose: str, api: Api = "v0") -> GuestKey:
        """Derive the app's key for a path.

        Both agent generations answer v0, with the same key; v1 keys are other keys. The default
        therefore survives an upgrade of the guest's image.

        Args:
            path: Derivation path (v0) or domain (v1).
            purpose: Named in the signed claim of v0; not an input of the derivation.
            api: Which derivation.

        Raises:
            GuestApiUnreachable: No answer, or the agent refuses.
            EvidenceMalformed: The answer is not what the API promises.
        """
        if api == "v1":
            answer = self.call("/v1/GetKey", {"domain": path, "algorithm": "secp256k1"})
        else:
            answer = self.call("/GetKey", {"path": path, "purpose": purpose})
        chain = answer.get("signature_chain")
        if not isinstance(chain, list) or len(chain) > 4:
            raise EvidenceMalformed("guest API answered without a signature chain")
        key = _octets(answer.get("key"))
        if len(key) != 32:
            raise EvidenceMalformed(
                "guest API answered with a key of the wrong length", got=len(key), expected=32
            )
        return GuestKey(key, tuple(_octets(link) for link in chain))

    def get_quote(self, report_data: bytes) -> GuestQuote:
        """Ask for a quote over 64 bytes.

        Raises:
            GuestApiUnreachable: No answer, or the agent refuses.
            EvidenceMalformed: ``report_data`` is not 64 bytes, or the answer is not what the API
                promises.
            PlatformMismatch: The guest is not on TDX.
        """
        if len(report_data) != REPORT_DATA_BYTES:
            raise EvidenceMalformed(
                "report data has the wrong length", got=len(report_data), expected=64
            )
        request = {"report_data": report_data.hex()}
        if self.api == "v1":
            answer = self.call("/v1/Attest", request)
            quote, log, host, _ = parse_attestation(_octets(answer.get("attestation")))
            return GuestQuote(quote, log, host)
        answer = self.call("/GetQuote", request)
        if answer.get("quote") == "" and answer.get("attestation"):
            # Of another processor: quote and log are empty, and its kind stands in the attestation.
            quote, log, host, _ = parse_attestation(_octets(answer["attestation"]))
            return GuestQuote(quote, log, host)
        config = answer.get("vm_config") or None
        if config is not None and not isinstance(config, str):
            raise EvidenceMalformed("guest API answered with a malformed vm_config")
        log = parse_event_log(_text(answer, "event_log"))
        return GuestQuote(_octets(answer.get("quote")), log, config)

    def statement_of(self, kind: str, report_data: bytes) -> AgentStatement:
        """A statement of one kind of machine; raises as ``get_statement``.

        Raises:
            PlatformMismatch: The agent runs on a machine of another kind.
        """
        found = self.get_statement(report_data)
        if found is None or found.kind != kind:
            raise PlatformMismatch(
                "dstack's agent runs on a machine of another kind",
                check="platform",
                got="of generation v0" if found is None else found.kind,
                expected=kind,
            )
        return found

    def get_statement(self, report_data: bytes) -> AgentStatement | None:
        """Ask for whatever statement this machine makes over 64 bytes.

        Returns:
            The statement; ``None`` where the agent is of generation v0, which knows TDX only.

        Raises:
            GuestApiUnreachable: No answer, or the agent refuses.
            EvidenceMalformed: ``report_data`` is not 64 bytes, or the answer is not what the API
                promises.
            PlatformMismatch: The statement of a platform that is not read here.
        """
        if len(report_data) != REPORT_DATA_BYTES:
            raise EvidenceMalformed(
                "report data has the wrong length", got=len(report_data), expected=64
            )
        if self.api != "v1":
            return None
        answer = self.call("/v1/Attest", {"report_data": report_data.hex()})
        return parse_statement(_octets(answer.get("attestation")))

    def emit_event(self, event: str, payload: bytes) -> bool:
        """Measure an event of the app into run-time register 3, where the guest still can.

        Not repeated after a failure: an event that is measured twice is in the log twice.

        Args:
            event: Lower-case words with hyphens, at most 64 characters.
            payload: At most 32 KiB.

        Returns:
            Whether the event was measured. Agents of generation v1 never do, and v0 agents of
            theirs refuse; and nothing is, once this client has emitted so many events that
            the guest's log might outgrow evidence.

        Raises:
            DataInvalid: The event's name or payload is out of bounds.
            GuestApiUnreachable: The agent does not answer, or fails.
        """
        if not _EVENT.fullmatch(event) or len(payload) > _MAX_EVENT_PAYLOAD:
            raise DataInvalid(
                "event cannot be measured",
                check="event",
                got=f"{event[:80]!r}, {len(payload)} bytes",
                expected=f"[a-z0-9-], 1 to 64 long; at most {_MAX_EVENT_PAYLOAD} bytes",
            )
        if self.api == "v1" or self._emitted >= self._max_events:
            return False
        self._emitted += 1  # also where the answer is lost: it may have been measured
        status, answer = self._post(
            "/EmitEvent", {"event": event, "payload": payload.hex()}, idempotent=False
        )
        if status in (400, 404):
            return False
        if status != 200:
            raise self._refuse("/EmitEvent", status, answer)
        return True

    def attest_gpu(self, nonce: bytes) -> list[dict[str, str]]:
        """Let the agent collect fresh evidence of every NVIDIA accelerator.

        It shows that genuine devices answered the nonce, not that they sit in this guest.

        Args:
            nonce: 32 bytes.

        Returns:
            One mapping per device: ``arch``, ``nonce`` (hex), ``evidence`` (base64 of the report),
            ``certificate`` (base64 of a PEM chain). Nothing in it is verified.

        Raises:
            GuestApiUnreachable: The agent is of generation v0, has no accelerator, or fails.
            EvidenceMalformed: ``nonce`` is not 32 bytes, or the answer is not in that format.
        """
        if len(nonce) != 32:
            raise EvidenceMalformed("GPU nonce has the wrong length", got=len(nonce), expected=32)
        if self.api != "v1":
            raise GuestApiUnreachable(
                "guest API has no AttestGpu",
                check="guest API",
                got="generation v0",
                expected="generation v1",
                hint="collect GPU evidence through NVML in the guest, or use a newer guest image",
            )
        bundles = self.call("/v1/AttestGpu", {"nonce": nonce.hex()}).get("bundles")
        if not isinstance(bundles, list) or not 0 < len(bundles) <= _MAX_DEVICES:
            raise EvidenceMalformed("guest API answered without GPU evidence", check="GPU evidence")
        devices = [device for bundle in bundles for device in _devices(bundle)]
        if not 0 < len(devices) <= _MAX_DEVICES or any(
            device["nonce"] != nonce.hex() for device in devices
        ):
            raise EvidenceMalformed(
                "guest API answered with GPU evidence for something else",
                check="GPU evidence",
                expected=f"1 to {_MAX_DEVICES} devices, all with the nonce that was sent",
            )
        return devices

    def call(self, path: str, body: dict[str, str]) -> dict[str, Any]:
        """Answer of one method.

        Raises:
            GuestApiUnreachable: No answer, or the agent refuses.
            EvidenceMalformed: The answer is no JSON object.
        """
        status, answer = self._post(path, body)
        if status == 404 and self._post("/prpc/Tappd.Info", {})[0] == 200:
            raise GuestApiUnreachable(
                f"guest API at {self.socket} is of the generation tappd, which is not supported",
                check="guest API",
                got="tappd",
                expected="v0 or v1",
                hint="mount /var/run/dstack.sock; guest images before 0.5 do not have it",
            )
        if status != 200:
            raise self._refuse(path, status, answer)
        if not isinstance(answer, dict):
            raise EvidenceMalformed(f"guest API answered {path} with something else than an object")
        return answer

    def _refuse(self, path: str, status: int, answer: Any) -> GuestApiUnreachable:
        reason = answer.get("error") if isinstance(answer, dict) else None
        return GuestApiUnreachable(
            f"guest API refused {path}",
            check="guest API",
            got=f"HTTP {status}: {str(reason)[:200]}",
            hint=_HINT,
        )

    def _post(self, path: str, body: dict[str, str], *, idempotent: bool = True) -> tuple[int, Any]:
        # A unix socket speaks no TLS.
        with HttpClient(self._bounds, failed=self._silent, tls=False, unix=self.socket) as client:
            answer = client.ask(
                "POST",
                f"http://dstack{path}",
                cap=MAX_ANSWER_BYTES,
                content=canonical_json(body),
                headers={"content-type": "application/json"},
                idempotent=idempotent,
            )
        try:
            return answer.status, parse_json(
                answer.body, max_bytes=MAX_ANSWER_BYTES, max_values=_MAX_VALUES
            )
        except DataInvalid as error:
            if answer.status != 200:
                return answer.status, None
            raise EvidenceMalformed(f"guest API answered {path} without JSON") from error

    def _silent(self, problem: Problem) -> Exception:
        if problem.kind in ("long", "encoding"):
            return EvidenceMalformed(
                "guest API's answer is not of its form", check="guest API", got=problem.reason
            )
        return GuestApiUnreachable(
            f"guest API at {self.socket} does not answer",
            check="guest API",
            got=problem.reason,
            hint=_HINT,
        )


def _devices(bundle: Any) -> list[dict[str, str]]:
    """Devices of one bundle: nvattest's array, or the object it prints around it."""
    if not isinstance(bundle, dict) or bundle.get("format") != GPU_FORMAT:
        raise EvidenceMalformed(
            "guest API answered with GPU evidence of another format",
            check="GPU evidence",
            got=repr(bundle.get("format"))[:80] if isinstance(bundle, dict) else None,
            expected=GPU_FORMAT,
        )
    try:
        value = parse_json(_octets(bundle.get("evidence")), max_depth=8)
    except DataInvalid as error:
        raise EvidenceMalformed("GPU evidence is not JSON", check="GPU evidence") from error
    if isinstance(value, dict):
        value = value.get("evidences") if value.get("result_code", 0) == 0 else None
    names = ("arch", "nonce", "evidence", "certificate")
    if not isinstance(value, list) or not all(
        isinstance(device, dict)
        and all(isinstance(device.get(name), str) for name in names)
        and all(len(device[name]) <= _MAX_DEVICE_TEXT for name in names)
        for device in value
    ):
        raise EvidenceMalformed(
            "GPU evidence is not a list of devices",
            check="GPU evidence",
            expected=f"{', '.join(names)}, each a text",
        )
    return [{name: device[name] for name in names} for device in value]


def _parse_embedded(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text.encode("utf-8"), max_bytes=MAX_ANSWER_BYTES, max_values=_MAX_VALUES)
    except DataInvalid as error:
        raise EvidenceMalformed("guest API's tcb_info is not JSON") from error
    if not isinstance(value, dict):
        raise EvidenceMalformed("guest API's tcb_info is not an object")
    return value


def _text(answer: dict[str, Any], name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str):
        raise EvidenceMalformed(f"guest API answered without {name}")
    return value


def _octets(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError) as error:
        raise EvidenceMalformed("guest API answered with malformed hex") from error
