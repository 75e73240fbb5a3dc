"""The guest API's client: events of the app, GPU evidence, generations it does not speak."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from guests import verify_log
from small_agent import Answer, agent, said

from sealtrain.attest.dstack.client import GPU_FORMAT, MAX_EVENTS, DstackClient
from sealtrain.attest.dstack.parse import parse_event_log
from sealtrain.attest.errors import EvidenceMalformed, GuestApiUnreachable
from sealtrain.attest.evidence import MAX_LOG_ENTRIES
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.base.secret import Secret
from sealtrain.errors import DataInvalid
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.server import running

NOW = 1_800_000_000
COMPOSE = b'{"name":"events"}'
NONCE = bytes(range(32))

# --- Events -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("events") / "app-compose.json"
    path.write_bytes(COMPOSE)
    return path


def test_events_of_the_app_are_measured_where_the_agent_still_does(compose: Path) -> None:
    folder = compose.parent
    with running(
        folder / "old.sock",
        compose,
        folder / "state",
        clock=lambda: NOW,
        machine=Machine(emit_events=True),
    ) as path:
        client = DstackClient(str(path))
        assert client.api == "v0"
        before = parse_quote(client.get_quote(bytes(64)).quote).rtmr
        for number in range(3):
            assert client.emit_event("run-log", bytes([number]) * 32)
        answer = client.get_quote(bytes(64))
        after = parse_quote(answer.quote)
        assert after.rtmr[:3] == before[:3]
        assert after.rtmr[3] != before[3]
        assert [entry.event for entry in answer.event_log[-4:]] == [
            "system-ready",
            *["run-log"] * 3,
        ]
        assert answer.event_log[-1].event_payload == "02" * 32
        measured = verify_log(answer.event_log, after.rtmr, after.mr_config_id, COMPOSE)
        assert measured.app_id == client.info().app_id


def test_an_event_is_refused_where_agents_no_longer_measure_any(compose: Path) -> None:
    folder = compose.parent
    with running(folder / "new.sock", compose, folder / "state", clock=lambda: NOW) as path:
        client = DstackClient(str(path))
        assert client.api == "v1"
        assert client.emit_event("run-log", b"") is False
        # The frozen methods of a newer agent answer, and refuse.
        client = DstackClient(str(path), api="v0")
        assert client.emit_event("run-log", b"") is False
        assert [entry.event for entry in client.get_quote(bytes(64)).event_log][-1] == (
            "system-ready"
        )


def test_an_app_cannot_change_what_was_measured_at_boot(compose: Path, pki: SimulatedPki) -> None:
    guest = SimulatedGuest(pki, Secret(bytes(32)), COMPOSE, emit_events=True)
    for name in ("app-id", "compose-hash", "key-provider", "system-ready"):
        guest.emit(name, b"\0" * 32)
    quote = parse_quote(guest.quote(bytes(64)))
    log = parse_event_log(json.dumps(guest.event_log()))
    assert verify_log(log, quote.rtmr, quote.mr_config_id, COMPOSE).app_id == guest.app_id.hex()


@pytest.mark.parametrize(
    ("event", "payload"),
    [("", b""), ("App-Id", b""), ("a:b", b""), ("a" * 65, b""), ("-a", b""), ("a", b"\0" * 32769)],
)
def test_an_event_out_of_bounds_is_not_sent(tmp_path: Path, event: str, payload: bytes) -> None:
    with pytest.raises(DataInvalid):
        DstackClient(str(tmp_path / "nobody.sock")).emit_event(event, payload)


def test_an_event_is_never_sent_twice(tmp_path: Path) -> None:
    """After a broken connection nobody knows whether it was measured; saying so is all there is."""
    seen: list[str] = []

    def answer(path: str, _body: dict[str, Any]) -> Answer:
        seen.append(path)
        if path == "/EmitEvent":
            raise ConnectionError
        return 404, b""

    with (
        agent(tmp_path / "a.sock", answer) as client,
        pytest.raises(GuestApiUnreachable),
    ):
        client.emit_event("run-log", b"")
    assert seen.count("/EmitEvent") == 1


def test_a_client_stops_before_the_log_outgrows_evidence(pki: SimulatedPki, tmp_path: Path) -> None:
    """A log of more entries than evidence may hold would end every renewal of the lease."""
    assert MAX_EVENTS < MAX_LOG_ENTRIES // 2
    guest = SimulatedGuest(pki, Secret(bytes(32)), COMPOSE, emit_events=True)

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if path == "/EmitEvent":
            guest.emit(body["event"], bytes.fromhex(body["payload"]))
            return said({})
        return 404, b""

    with agent(tmp_path / "a.sock", answer):
        client = DstackClient(str(tmp_path / "a.sock"), max_events=6)
        told = [client.emit_event("run-log", b"") for _ in range(9)]
    assert told == [True] * 6 + [False] * 3
    assert [entry["event"] for entry in guest.event_log()].count("run-log") == 6


@pytest.mark.parametrize(("status", "outcome"), [(200, True), (400, False), (404, False)])
def test_what_the_agent_says_of_an_event_is_passed_on(
    tmp_path: Path, status: int, outcome: bool
) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        if path == "/EmitEvent":
            assert body == {"event": "run-log", "payload": "0a"}
            return said({} if status == 200 else {"error": "not supported"}, status)
        return 404, b""

    with agent(tmp_path / "a.sock", answer) as client:
        assert client.emit_event("run-log", b"\n") is outcome


def test_a_failing_agent_is_not_one_that_refuses(tmp_path: Path) -> None:
    with (
        agent(
            tmp_path / "a.sock",
            lambda path, _: (404, b"") if path.startswith("/v1") else said({"error": "x"}, 500),
        ) as client,
        pytest.raises(GuestApiUnreachable, check=carries(check="guest API")),
    ):
        client.emit_event("run-log", b"")


# --- Generations --------------------------------------------------------------------------------


def test_the_oldest_generation_is_refused_by_name(tmp_path: Path) -> None:
    """Its report data is another hash and its log has other rules; guessing would be worse."""

    def tappd(path: str, _body: dict[str, Any]) -> Answer:
        return said({"app_id": "ab" * 20}) if path == "/prpc/Tappd.Info" else (404, b"")

    with agent(tmp_path / "tappd.sock", tappd) as client:
        for ask in (client.info, lambda: client.get_quote(bytes(64))):
            with pytest.raises(
                GuestApiUnreachable, check=carries(check="guest API", got="tappd")
            ) as caught:
                ask()
            assert caught.value.expected == "v0 or v1"
            assert "dstack.sock" in str(caught.value.hint)


def test_an_agent_that_knows_nothing_is_refused_as_such(tmp_path: Path) -> None:
    with (
        agent(tmp_path / "a.sock", lambda _path, _body: (404, b"")) as client,
        pytest.raises(GuestApiUnreachable, check=carries(check="guest API", got="HTTP 404: None")),
    ):
        client.info()


# --- GPU evidence -------------------------------------------------------------------------------


def device(**changed: Any) -> dict[str, Any]:
    return {
        "arch": "HOPPER",
        "nonce": NONCE.hex(),
        "evidence": base64.b64encode(b"report").decode(),
        "certificate": base64.b64encode(b"-----BEGIN").decode(),
    } | changed


def bundled(value: Any, **changed: Any) -> dict[str, Any]:
    evidence = value if isinstance(value, bytes) else json.dumps(value).encode()
    return {"vendor": "nvidia", "format": GPU_FORMAT, "evidence": evidence.hex()} | changed


def gpu_agent(path: Path, bundles: Any, status: int = 200) -> Any:
    def answer(method: str, body: dict[str, Any]) -> Answer:
        if method == "/v1/Version":
            return said({"version": "0.6.0"})
        assert (method, body) == ("/v1/AttestGpu", {"nonce": NONCE.hex()})
        return said({"bundles": bundles} if status == 200 else {"error": "no nvattest"}, status)

    return agent(path, answer)


def test_devices_of_all_bundles(tmp_path: Path) -> None:
    two = [device(), device(arch="BLACKWELL", extra=1)]
    for bundles in ([bundled(two)], [bundled({"result_code": 0, "evidences": two})]):
        with gpu_agent(tmp_path / "g.sock", bundles) as client:
            assert client.attest_gpu(NONCE) == [device(), device(arch="BLACKWELL")]
        (tmp_path / "g.sock").unlink()
    with gpu_agent(tmp_path / "h.sock", [bundled([device]) for device in two]) as client:
        assert len(client.attest_gpu(NONCE)) == 2


MALFORMED: dict[str, Any] = {
    "none": None,
    "empty": [],
    "no object": ["x"],
    "boot record": [bundled([device()], format="nvidia-nvattest-boottime-json-v1")],
    "no hex": [bundled([device()], evidence="zz")],
    "no JSON": [bundled(b"\xff")],
    "two keys": [bundled(b'{"result_code":0,"result_code":1}')],
    "a failure": [bundled({"result_code": 3, "evidences": [device()]})],
    "no list": [bundled({"evidences": None})],
    "a text": [bundled(["x"])],
    "a missing field": [bundled([{"arch": "HOPPER"}])],
    "a number": [bundled([device(evidence=1)])],
    "too long": [bundled([device(evidence="A" * (300 << 10))])],
    "too many": [bundled([device()] * 65)],
    "no device": [bundled([])],
    "too many bundles": [bundled([])] * 65,
    "too deep": [bundled(b"[" * 50 + b"]" * 50)],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_gpu_evidence_in_another_form_is_refused(tmp_path: Path, name: str) -> None:
    with (
        gpu_agent(tmp_path / "g.sock", MALFORMED[name]) as client,
        pytest.raises(EvidenceMalformed),
    ):
        client.attest_gpu(NONCE)


@pytest.mark.negative(43)
def test_gpu_evidence_for_another_nonce_is_refused(tmp_path: Path) -> None:
    with (
        gpu_agent(tmp_path / "g.sock", [bundled([device(nonce="00" * 32)])]) as client,
        pytest.raises(EvidenceMalformed, check=carries(check="GPU evidence")),
    ):
        client.attest_gpu(NONCE)


def test_a_guest_without_accelerators_or_without_the_method_says_so(tmp_path: Path) -> None:
    with (
        gpu_agent(tmp_path / "g.sock", None, status=501) as client,
        pytest.raises(GuestApiUnreachable, check=carries(check="guest API")),
    ):
        client.attest_gpu(NONCE)
    with (
        agent(tmp_path / "a.sock", lambda _path, _body: (404, b"")) as client,
        pytest.raises(GuestApiUnreachable, check=carries(check="guest API", got="generation v0")),
    ):
        client.attest_gpu(NONCE)
    for nonce in (b"", NONCE[:31], NONCE + b"\0"):
        with pytest.raises(EvidenceMalformed):
            DstackClient(str(tmp_path / "nobody.sock")).attest_gpu(nonce)
