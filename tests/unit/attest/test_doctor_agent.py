"""A look at a dstack guest before it asks for keys: a sound agent, and broken ones."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_agent import Answer, agent, said

from sealtrain.attest.doctor.agent import agent_findings
from sealtrain.attest.doctor.finding import Finding
from sealtrain.attest.doctor.guest import ProcessorEvidence
from sealtrain.attest.doctor.look import look
from sealtrain.attest.dstack.client import DstackClient
from sealtrain.attest.dstack.exhibit import DstackQuote
from sealtrain.attest.dstack.parse import parse_event_log
from sealtrain.attest.tdx.exhibit import Quote
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.base.secret import Secret
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.machine import Machine
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.server import running

NOW = 1_800_000_000
COMPOSE = b'{"name": "doctor"}\n'
PKI = SimulatedPki(b"doctor-" * 5)
NAMES = ["version", "document", "kind", "event log", "RTMR3 events", "TPM", "disk"]


def guest() -> SimulatedGuest:
    return SimulatedGuest(PKI, Secret(bytes(32)), COMPOSE, emit_events=True)


def shown(change: Callable[[list[dict[str, Any]]], object] = lambda log: None) -> ProcessorEvidence:
    """Evidence of a guest whose log was changed on the way."""
    made = guest()
    log = made.event_log()
    change(log)
    quote = parse_quote(made.quote(bytes(64)))
    entries = parse_event_log(json.dumps(log))
    return ProcessorEvidence(
        exhibit=DstackQuote(raw=quote.raw, quote=quote, log=entries, vm_config=None)
    )


def info(**changed: Any) -> Answer:
    document = COMPOSE.decode()
    return said(
        {
            "app_id": "ab" * 20,
            "instance_id": "",
            "app_name": "doctor",
            "compose_hash": hashlib.sha256(COMPOSE).hexdigest(),
            "tcb_info": json.dumps({"app_compose": document}),
            **changed,
        }
    )


SOUND: dict[str, Answer] = {"/Version": said({"version": "0.6.0", "rev": "ab"}), "/Info": info()}


def asked(
    root: Path, answers: dict[str, Answer], evidence: ProcessorEvidence | None = None
) -> dict[str, Finding]:
    """What is found with an agent that answers so."""
    (root / "run").mkdir(exist_ok=True)
    place = root / "run" / "dstack.sock"
    missing = said({"error": "Service not found"}, 400)
    with agent(place, lambda path, _body: answers.get(path, missing)):
        found = list(agent_findings(root, place, evidence or shown()))
    sound(found)
    return {finding.name: finding for finding in found}


def sound(findings: list[Finding]) -> None:
    for finding in findings:
        assert finding.topic == "agent"
        assert finding.found
        assert bool(finding.fix) == bool(finding.refused) == (finding.level != "ok"), finding
        assert "\n" not in finding.found + finding.refused + finding.fix


@pytest.mark.parametrize("events", [True, False])
def test_a_simulated_guest_of_each_generation_lacks_nothing(tmp_path: Path, events: bool) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run-data").mkdir()
    compose = tmp_path / "app-compose.json"
    compose.write_bytes(COMPOSE)
    with running(
        tmp_path / "run/dstack.sock",
        compose,
        tmp_path / "state",
        clock=lambda: NOW,
        machine=Machine(emit_events=events),
    ):
        found = [
            finding for finding in look(tmp_path, now=NOW).findings if finding.topic == "agent"
        ]
    assert [item.name for item in found] == NAMES
    levels = {item.name: item.level for item in found}
    # Newer agents leave the firmware's events out of an attestation, and a disk can be small.
    assert levels.pop("event log") in ("ok", "note")
    assert levels.pop("disk") in ("ok", "note")
    assert set(levels.values()) == {"ok"}
    assert found[0].found.endswith("v0" if events else "v1")


def test_a_sound_agent_is_told_with_its_document_and_its_events(tmp_path: Path) -> None:
    (tmp_path / "run-data").mkdir()
    found = asked(tmp_path, SOUND)
    assert list(found) == NAMES
    assert {item.level for name, item in found.items() if name != "disk"} == {"ok"}
    assert hashlib.sha256(COMPOSE).hexdigest() in found["document"].found
    assert guest().app_id.hex() in found["RTMR3 events"].found
    assert "0.6.0" in found["version"].found


@pytest.mark.parametrize(
    ("answers", "name", "level", "code"),
    [
        ({"/Version": said({}, 404)}, "version", "note", ""),
        ({"/Version": (200, b"\xff")}, "version", "refused", "evidence-malformed"),
        ({"/Info": said({}, 500)}, "document", "refused", "guest-api-unreachable"),
        ({"/Info": (200, b"<html>")}, "document", "refused", "evidence-malformed"),
        ({"/Info": info(tcb_info="")}, "document", "refused", "evidence-malformed"),
        ({"/Info": info(app_id=None)}, "document", "refused", "evidence-malformed"),
        ({"/Info": info(compose_hash="00" * 32)}, "document", "refused", "compose-hash-mismatch"),
    ],
)  # fmt: skip
def test_a_broken_agent_is_a_finding_and_no_failure(
    tmp_path: Path, answers: dict[str, Answer], name: str, level: str, code: str
) -> None:
    found = asked(tmp_path, SOUND | answers)
    assert found[name].level == level
    assert code in found[name].refused
    assert found["RTMR3 events"].level == "ok"


def test_an_agent_that_is_gone_or_stalls_is_a_finding(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stalled:
        stalled.bind(str(tmp_path / "stalled.sock"))
        stalled.listen()
        for name in ("none.sock", "stalled.sock"):
            client = partial(DstackClient, timeout=0.3)
            found = list(agent_findings(tmp_path, tmp_path / name, None, agent=client))
            sound(found)
            assert [item.name for item in found] == ["version", "kind", "TPM", "disk"]
            assert "guest-api-unreachable" in found[0].refused
            assert found[1].level == "missing"


LOGS: list[tuple[str, Callable[[list[dict[str, Any]]], object], str]] = [
    ("an event is missing", lambda log: log.pop(), "event-log-mismatch"),
    ("events in another order", lambda log: log.insert(0, log.pop()), "event-log-mismatch"),
    ("an event twice", lambda log: log.append(log[-1]), "event-log-mismatch"),
    ("another payload", lambda log: log[-2].update(event_payload="00"), "event-log-mismatch"),
    ("another version", lambda log: log[-1].update(version=2), "event-log-mismatch"),
]


@pytest.mark.parametrize(
    ("change", "code"), [log[1:] for log in LOGS], ids=[log[0] for log in LOGS]
)
def test_a_log_that_does_not_replay_is_refused(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], object], code: str
) -> None:
    found = asked(tmp_path, SOUND, shown(change))
    assert found["RTMR3 events"].level == "refused"
    assert code in found["RTMR3 events"].refused


def test_a_log_without_the_firmwares_events_is_noted(tmp_path: Path) -> None:
    def stripped(log: list[dict[str, Any]]) -> None:
        log[:] = [event for event in log if event["imr"] == 3]

    found = asked(tmp_path, SOUND, shown(stripped))
    assert found["event log"].level == "note"
    assert found["RTMR3 events"].level == "ok"


def test_evidence_of_another_kind_has_no_log_to_look_at(tmp_path: Path) -> None:
    quote = parse_quote(guest().quote(bytes(64)))
    found = asked(tmp_path, SOUND, ProcessorEvidence(exhibit=Quote(raw=quote.raw, quote=quote)))
    assert list(found) == ["version", "document", "kind", "TPM", "disk"]
    assert found["kind"].found == Quote.kind


@pytest.mark.parametrize(
    ("vendor", "kind"),
    [("Google", "dstack-gcp-tdx"), ("Amazon EC2", "dstack-aws-nitro-tpm"), ("QEMU", None)],
)
def test_a_cloud_is_known_by_its_vendor_and_needs_its_tpm(
    tmp_path: Path, vendor: str, kind: str | None
) -> None:
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/sys_vendor").write_text(f"{vendor}\n")
    found = asked(tmp_path, SOUND)
    assert found["kind"].level == ("ok" if kind is None else "note")
    assert (kind or DstackQuote.kind) in found["kind"].found
    assert found["TPM"].level == ("ok" if kind is None else "missing")
    # In a container the device is not there, and the kernel lists it all the same.
    for place in ("sys/class/tpm/tpm0", "dev/tpmrm0"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / "run/dstack.sock").unlink()
        assert asked(tmp_path, SOUND)["TPM"].level == "ok"


def test_a_disk_that_is_missing_or_no_folder_is_told(tmp_path: Path) -> None:
    assert asked(tmp_path, SOUND)["disk"].level == "missing"
    (tmp_path / "run/dstack.sock").unlink()
    (tmp_path / "run-data").mkdir()
    assert asked(tmp_path, SOUND)["disk"].level in ("ok", "note")


def test_one_agent_is_opened_and_by_its_socket(tmp_path: Path) -> None:
    opened: list[str] = []

    def client(place: str) -> DstackClient:
        opened.append(place)
        return DstackClient(place, timeout=1.0)

    list(agent_findings(tmp_path, tmp_path / "a.sock", None, agent=client))
    assert opened == [str(tmp_path / "a.sock")]
