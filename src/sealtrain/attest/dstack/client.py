"""The dstack guest API over its unix socket: three calls, both generations, nothing implicit.

The socket is an argument; no environment variable is read, so nothing outside the command line can
move the trust anchor. Answers are bounded. One retry after a transport failure: every call here is
idempotent, and agents make quotes one at a time.
"""

from __future__ import annotations

import socket as sockets
import ssl
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import httpx

from sealtrain.attest.dstack.parse import parse_attestation, parse_event_log
from sealtrain.attest.evidence import LogEntry
from sealtrain.attest.report_data import REPORT_DATA_BYTES
from sealtrain.base.canonical import parse_json
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid, EvidenceMalformed, GuestApiUnreachable

__all__ = ["Api", "DstackClient", "GuestInfo", "GuestKey", "GuestQuote"]

Api = Literal["v0", "v1"]
MAX_ANSWER_BYTES = 32 << 20
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
        timeout: Seconds per call; quotes are serialised in the agent, so at least 30 is sensible.
    """

    def __init__(self, socket: str, timeout: float = 30.0) -> None:
        self.socket = str(socket)
        self._timeout = timeout
        self._api: Api | None = None

    @property
    def api(self) -> Api:
        """Newest generation the agent serves, found by one probe.

        Raises:
            GuestApiUnreachable: The agent does not answer.
        """
        if self._api is None:
            status, answer = self._post("/v1/Version", {})
            missing = isinstance(answer, dict) and answer.get("error") == "Service not found"
            self._api = "v1" if status == 200 or (status == 404 and missing) else "v0"
        return self._api

    def info(self) -> GuestInfo:
        """Ask for the guest's identity and deployment document.

        Raises:
            GuestApiUnreachable: No answer, or the agent refuses.
            EvidenceMalformed: The answer is not what the API promises.
        """
        if self.api == "v1":
            answer = self._call("/v1/Info", {})
            document = _text(answer, "app_compose")
        else:
            answer = self._call("/Info", {})
            document = _text(_embedded(_text(answer, "tcb_info")), "app_compose")
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
            answer = self._call("/v1/GetKey", {"domain": path, "algorithm": "secp256k1"})
        else:
            answer = self._call("/GetKey", {"path": path, "purpose": purpose})
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
        """
        if len(report_data) != REPORT_DATA_BYTES:
            raise EvidenceMalformed(
                "report data has the wrong length", got=len(report_data), expected=64
            )
        request = {"report_data": report_data.hex()}
        if self.api == "v1":
            answer = self._call("/v1/Attest", request)
            quote, log, host, _ = parse_attestation(_octets(answer.get("attestation")))
            return GuestQuote(quote, log, host)
        answer = self._call("/GetQuote", request)
        config = answer.get("vm_config") or None
        if config is not None and not isinstance(config, str):
            raise EvidenceMalformed("guest API answered with a malformed vm_config")
        log = parse_event_log(_text(answer, "event_log"))
        return GuestQuote(_octets(answer.get("quote")), log, config)

    def _call(self, path: str, body: dict[str, str]) -> dict[str, Any]:
        status, answer = self._post(path, body)
        if status != 200:
            reason = answer.get("error") if isinstance(answer, dict) else None
            raise GuestApiUnreachable(
                f"guest API refused {path}",
                check="guest API",
                got=f"HTTP {status}: {str(reason)[:200]}",
                hint=_HINT,
            )
        if not isinstance(answer, dict):
            raise EvidenceMalformed(f"guest API answered {path} with something else than an object")
        return answer

    def _post(self, path: str, body: dict[str, str]) -> tuple[int, Any]:
        for attempt in (1, 2):
            try:
                return self._post_once(path, body)
            except (httpx.HTTPError, OSError) as error:
                if attempt == 2:
                    raise GuestApiUnreachable(
                        f"guest API at {self.socket} does not answer",
                        check="guest API",
                        got=type(error).__name__,
                        hint=_HINT,
                    ) from error
        raise AssertionError("the loop above returns or raises")

    def _post_once(self, path: str, body: dict[str, str]) -> tuple[int, Any]:
        # The HTTP library leaks its socket when a unix connect fails; ours fails first and cleanly.
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
            probe.settimeout(self._timeout)
            probe.connect(self.socket)
        # A unix socket speaks no TLS: an empty trust store saves reading the machine's each time.
        no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = httpx.HTTPTransport(uds=self.socket, verify=no_tls, trust_env=False)
        # trust_env off: no proxy, no certificate file and no netrc from the environment.
        with (
            httpx.Client(transport=transport, timeout=self._timeout, trust_env=False) as client,
            client.stream("POST", f"http://dstack{path}", json=body) as response,
        ):
            data = bytearray()
            for part in response.iter_bytes():
                data += part
                if len(data) > MAX_ANSWER_BYTES:
                    raise EvidenceMalformed("guest API's answer is too long")
            status = response.status_code
        try:
            return status, parse_json(bytes(data), max_bytes=MAX_ANSWER_BYTES)
        except DataInvalid as error:
            if status != 200:
                return status, None
            raise EvidenceMalformed(f"guest API answered {path} with no JSON") from error


def _embedded(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text.encode("utf-8"), max_bytes=MAX_ANSWER_BYTES)
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
