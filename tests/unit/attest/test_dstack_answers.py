"""The guest agent's answers of today, made here by the rules of its source.

The rules are those of Dstack-TEE/dstack@312dc605: ``guest-agent/rpc/proto/agent_rpc.proto``
(fields; bytes are hex), ``guest-agent/src/{rpc_service,backend}.rs`` (what is in them),
``ra-rpc/src/lib.rs`` (an error is status 400 and ``{"error": TEXT}``), and
``cc-eventlog/src/{tdx,runtime_events}.rs`` (event log, versions 1 and 2).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from guests import verify_log
from small_agent import Answer, agent, said

from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.dstack.parse import parse_event_log
from sealtrain.attest.dstack.verify import replay_log
from sealtrain.attest.errors import (
    EventLogMismatch,
    EvidenceMalformed,
    GuestApiUnreachable,
    PlatformMismatch,
)
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.base.secret import Secret
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki

RUNTIME = 0x08000001
COMPOSE = b'{ "name": "answers",\n "docker_compose_file": "\xc3\xa9" }'
MISSING = said({"error": "Service not found"}, 400)


@pytest.fixture(scope="module")
def guest(pki: SimulatedPki) -> SimulatedGuest:
    return SimulatedGuest(pki, Secret(bytes(32)), COMPOSE, emit_events=True)


def app_info(guest: SimulatedGuest, tcb_info: str | None = None) -> dict[str, Any]:
    """``AppInfo``: every field of the message; ``tcb_info`` is JSON in a text, indented."""
    inner = {
        **dict.fromkeys(("mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3"), "00" * 48),
        "mr_aggregated": "00" * 32,
        "os_image_hash": "00" * 32,
        "compose_hash": hashlib.sha256(COMPOSE).hexdigest(),
        "device_id": "00" * 32,
        "event_log": events(guest, 1),
        "app_compose": COMPOSE.decode(),
    }
    return {
        "app_id": guest.app_id.hex(),
        "instance_id": "ab" * 20,
        "app_cert": "-----BEGIN CERTIFICATE-----\n",
        "tcb_info": json.dumps(inner, indent=2) if tcb_info is None else tcb_info,
        "app_name": "answers",
        "device_id": "00" * 32,
        "mr_aggregated": "00" * 32,
        "os_image_hash": "00" * 32,
        "key_provider_info": "{}",
        "compose_hash": hashlib.sha256(COMPOSE).hexdigest(),
        "vm_config": "{}",
        "cloud_vendor": "Google",
        "cloud_product": "Google Compute Engine",
    }


def preimage(event: dict[str, Any], version: int) -> bytes:
    if version == 1:
        payload = bytes.fromhex(event["event_payload"])
        return RUNTIME.to_bytes(4, "little") + b":" + event["event"].encode() + b":" + payload
    fields = {"name": event["event"], "payload": event["event_payload"], "type": RUNTIME}
    return json.dumps(fields, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def events(guest: SimulatedGuest, version: int) -> list[dict[str, Any]]:
    """The log as ``GetQuote`` shows it: stripped, version 2 with its pre-image."""
    found = []
    for entry in guest.event_log():
        event = dict(entry)
        if event["imr"] == 3:
            event["digest"] = ""
            if version == 2:
                event |= {"version": 2, "preimage": preimage(event, 2).hex()}
        else:
            event["event_payload"] = ""
        found.append(event)
    return found


def register_of(log: list[dict[str, Any]], version: int) -> str:
    value = bytes(48)
    for event in log:
        if event["imr"] == 3:
            value = hashlib.sha384(
                value + hashlib.sha384(preimage(event, version)).digest()
            ).digest()
    return value.hex()


def serving(answers: dict[str, Answer]) -> Any:
    return lambda path, _body: answers.get(path, MISSING)


# --- Info ---------------------------------------------------------------------------------------


def test_info_gives_the_documents_bytes_whatever_stands_around_them(
    tmp_path: Path, guest: SimulatedGuest
) -> None:
    with agent(tmp_path / "a.sock", serving({"/Info": said(app_info(guest))})) as client:
        info = client.info()
    assert (info.api, info.app_name, info.instance_id) == ("v0", "answers", "ab" * 20)
    assert info.app_compose == COMPOSE
    assert info.compose_hash == hashlib.sha256(info.app_compose).hexdigest()
    assert info.app_id == guest.app_id.hex()


def test_an_info_that_hides_its_document_is_refused(tmp_path: Path, guest: SimulatedGuest) -> None:
    """``public_tcbinfo`` false: the text is empty, on the port for strangers."""
    hidden = said(app_info(guest, ""))
    with (
        agent(tmp_path / "a.sock", serving({"/Info": hidden})) as client,
        pytest.raises(EvidenceMalformed),
    ):
        client.info()


def test_the_version_is_told_by_every_generation(tmp_path: Path) -> None:
    told = said({"version": "0.6.0", "rev": "312dc605"})
    for number, (answers, expected) in enumerate(
        (
            ({"/Version": told}, "0.6.0"),
            ({"/v1/Version": told}, "0.6.0"),
            ({}, None),
            ({"/Version": said({"version": 5})}, None),
            ({"/Version": said([])}, None),
            ({"/Version": said({"version": "x" * 200})}, "x" * 64),
        )
    ):
        with agent(tmp_path / f"{number}.sock", serving(answers)) as client:
            assert client.version() == expected
    with pytest.raises(GuestApiUnreachable):
        DstackClient(str(tmp_path / "none.sock")).version()


# --- GetQuote -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_quotes_log_of_each_version_replays(
    tmp_path: Path, guest: SimulatedGuest, version: int
) -> None:
    log = events(guest, version)
    answer = {
        "quote": guest.quote(bytes(64)).hex(),
        "event_log": json.dumps(log),
        "report_data": bytes(64).hex(),
        "vm_config": "{}",
        "attestation": "",
    }
    with agent(tmp_path / "a.sock", serving({"/GetQuote": said(answer)})) as client:
        got = client.get_quote(bytes(64))
    quote = parse_quote(got.quote)
    registers = (*quote.rtmr[:3], register_of(log, version))
    assert (version == 1) == (registers == quote.rtmr)
    measured = verify_log(got.event_log, registers, bytes(48), COMPOSE)
    assert measured.app_id == guest.app_id.hex()
    assert {entry.version for entry in got.event_log if entry.imr == 3} == {version}
    # A log of the other version, or of both, is another log.
    mixed = [*log[:-1], log[-1] | {"version": 3 - version}]
    for other in (events(guest, 3 - version), mixed):
        with pytest.raises(EventLogMismatch):
            replay_log(parse_event_log(json.dumps(other)), registers, bytes(48))


@pytest.mark.parametrize("version", [0, 3, "2", None, True, 2.5])
def test_a_log_of_no_known_version_is_refused(guest: SimulatedGuest, version: Any) -> None:
    log = events(guest, 1)
    log[-1]["version"] = version
    with pytest.raises(EvidenceMalformed):
        parse_event_log(json.dumps(log))


def test_what_a_preimage_or_a_digest_says_is_not_believed(guest: SimulatedGuest) -> None:
    """dstack compares them; here both are made anew from name and payload."""
    log = events(guest, 2)
    registers = (*parse_quote(guest.quote(bytes(64))).rtmr[:3], register_of(log, 2))
    lying = [
        event
        | {"preimage": preimage(event | {"event_payload": "00"}, 2).hex(), "digest": "00" * 48}
        if event["imr"] == 3
        else event
        for event in log
    ]
    assert parse_event_log(json.dumps(lying)) == parse_event_log(json.dumps(log))
    replay_log(parse_event_log(json.dumps(lying)), registers, bytes(48))


def test_a_guest_of_another_processor_is_named(tmp_path: Path) -> None:
    """Its quote and log are empty, and what it shows instead is an attestation of its own kind."""
    blob = bytes.fromhex("83") + _text("version") + b"\x01"
    data = b"\x81" + _text("report") + b"\xc4\x01\x00"
    blob += (
        _text("platform") + b"\x82" + _text("kind") + _text("amd-sev-snp") + _text("data") + data
    )
    stack = b"\x82" + _text("report_data") + b"\xc4\x40" + bytes(64) + _text("config") + _text("{}")
    blob += _text("stack") + b"\x82" + _text("kind") + _text("dstack") + _text("data") + stack
    answer = {"quote": "", "event_log": "", "report_data": bytes(64).hex(), "vm_config": "{}"}
    for number, more in enumerate(({"attestation": blob.hex()}, {"attestation": ""}, {})):
        with (
            agent(
                tmp_path / f"{number}.sock", serving({"/GetQuote": said(answer | more)})
            ) as client,
            pytest.raises(PlatformMismatch if number == 0 else EvidenceMalformed),
        ):
            client.get_quote(bytes(64))


def _text(value: str) -> bytes:
    """MessagePack: a short text."""
    data = value.encode()
    return (bytes([0xA0 | len(data)]) if len(data) < 32 else bytes([0xD9, len(data)])) + data


# --- GetKey, EmitEvent, AttestGpu ---------------------------------------------------------------


def test_a_key_comes_with_two_signatures_and_no_algorithm_is_asked_for(tmp_path: Path) -> None:
    """``algorithm`` left out is secp256k1; an older agent does not know the field."""
    chain = ["11" * 65, "22" * 65]
    seen: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if path != "/GetKey":
            return MISSING
        seen.append(body)
        return said({"key": "ab" * 32, "signature_chain": chain})

    with agent(tmp_path / "a.sock", answer) as client:
        key = client.get_key("a/b", purpose="signing")
    assert seen == [{"path": "a/b", "purpose": "signing"}]
    assert [link.hex() for link in key.signature_chain] == chain


def test_an_agent_that_measures_no_events_any_more_says_so_without_an_end(tmp_path: Path) -> None:
    """``EmitEvent`` is not in the message any more: status 400, as for every unknown method."""
    with agent(tmp_path / "a.sock", serving({})) as client:
        assert client.emit_event("run-log", b"\x00") is False


def test_devices_are_not_asked_of_an_agent_that_has_no_such_method(tmp_path: Path) -> None:
    """Its ``GpuInfo`` is the record of the boot: it answers no nonce, so it shows nothing here."""
    answers = {"/GpuInfo": said({"attestation": "{}"}), "/Version": said({"version": "0.6.0"})}
    with agent(tmp_path / "a.sock", serving(answers)) as client:
        assert client.api == "v0"
        with pytest.raises(GuestApiUnreachable):
            client.attest_gpu(bytes(32))
