"""What dstack's agent hands out on rented machines: read from both versions of its attestation."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID, NameOID
from http_server import running as served
from machines_world import (
    ASKED,
    COMPOSE,
    COMPOSE_HASH,
    LIES,
    MACHINES,
    NOW,
    Lie,
    MachinePark,
    judge,
)

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.claims import require_groups
from sealtrain.attest.dstack.msgpack import pack
from sealtrain.attest.dstack.parse import parse_attestation, parse_statement
from sealtrain.attest.engine import statement_part
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    CollateralUnreachable,
    EvidenceMalformed,
    PlatformMismatch,
    SimulatedEvidence,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.explanation import line_of
from sealtrain.attest.facts import Situation
from sealtrain.attest.forms import StatementExhibit
from sealtrain.attest.gcp.collect import collect_gcp, fetch_issuers, show_tpm
from sealtrain.attest.guest import open_guest
from sealtrain.attest.presets import preset
from sealtrain.attest.registry import tee_of
from sealtrain.attest.verifier import verifier_of
from sealtrain.errors import EvidenceRefused, FormatUnknown
from sealtrain_rehearsal.simulator.server import running

pytestmark = pytest.mark.long

GOOGLE, AMAZON = "dstack-gcp-tdx", "dstack-aws-nitro-tpm"
STORE = "http://privateca-content-01234567-89ab-cdef-0123-456789abcdef.storage.googleapis.com"


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("agents"))


def cpu_of(park: MachinePark, name: str) -> dict[str, Any]:
    document: Any = park.evidence(MACHINES[name]).to_dict()
    cpu: dict[str, Any] = document["cpu"]
    return cpu


def runtime(cpu: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [
        (entry["event"], bytes.fromhex(entry["event_payload"]))
        for entry in cpu["event_log"]
        if entry["imr"] == 3
    ]


def tpm_quote(cpu: dict[str, Any]) -> dict[str, Any]:
    tpm = cpu["tpm"]
    return {
        "message": base64.b64decode(tpm["message"]),
        "signature": base64.b64decode(tpm["signature"]),
        "pcr_values": [
            {
                "index": register["index"],
                "algorithm": "sha256",
                "value": bytes.fromhex(register["value"]),
            }
            for register in tpm["registers"]
        ],
        "ak_cert": base64.b64decode(tpm["certificates"][0]),
        "platform": "gcp",
        "event_log": [
            {"pcr_index": event["index"], "digest": bytes.fromhex(event["digest"])}
            for event in tpm["events"]
        ],
    }


def message_pack(cpu: dict[str, Any]) -> bytes:
    """Version 1, as ``rmp_serde`` writes it."""
    if cpu["tee"] == GOOGLE:
        log = [
            {
                "imr": 3,
                "event_type": 0x08000001,
                "digest": b"",
                "event": name,
                "event_payload": payload,
            }
            for name, payload in runtime(cpu)
        ]
        quote = list(base64.b64decode(cpu["quote"]))
        data: Any = {"quote": quote, "event_log": log, "tpm_quote": tpm_quote(cpu)}
    else:
        data = {"attestation_doc": list(base64.b64decode(cpu["document"]))}
    events = [{"event": name, "payload": payload} for name, payload in runtime(cpu)]
    stack = {"report_data": list(bytes(64)), "runtime_events": events, "config": "{}"}
    return pack(
        {
            "version": 1,
            "platform": {"kind": cpu["tee"].removeprefix("dstack-"), "data": data},
            "stack": {"kind": "dstack", "data": stack},
        }
    )


def compact(value: int) -> bytes:
    for mode, size in ((0, 1), (1, 2), (2, 4)):
        if value < 1 << (8 * size - 2):
            return (value << 2 | mode).to_bytes(size, "little")
    raise AssertionError


def vector(data: bytes) -> bytes:
    return compact(len(data)) + data


def scale(cpu: dict[str, Any]) -> bytes:
    """Version 0, in SCALE."""
    events = runtime(cpu)
    short = compact(len(events)) + b"".join(vector(n.encode()) + vector(p) for n, p in events)
    tail = short + bytes(64) + vector(b"{}")
    if cpu["tee"] == AMAZON:
        return b"\0\4" + vector(base64.b64decode(cpu["document"])) + tail
    log = compact(len(events)) + b"".join(
        struct.pack("<II", 3, 0x08000001) + vector(b"") + vector(n.encode()) + vector(p)
        for n, p in events
    )
    quote = tpm_quote(cpu)
    registers = [
        struct.pack("<I", value["index"]) + vector(b"sha256") + vector(value["value"])
        for value in quote["pcr_values"]
    ]
    firmware = [
        struct.pack("<I", item["pcr_index"]) + vector(item["digest"]) for item in quote["event_log"]
    ]
    return b"".join(
        (
            b"\0\1",
            vector(base64.b64decode(cpu["quote"])),
            log,
            vector(quote["message"]),
            vector(quote["signature"]),
            compact(len(registers)),
            *registers,
            vector(quote["ak_cert"]),
            b"\1",
            compact(len(firmware)),
            *firmware,
            tail,
        )
    )


@pytest.mark.parametrize("name", [GOOGLE, AMAZON])
def test_both_versions_say_the_same(park: MachinePark, name: str) -> None:
    cpu = cpu_of(park, name)
    first, second = parse_statement(scale(cpu)), parse_statement(message_pack(cpu))
    assert f"dstack-{first.kind}" == name
    assert first.statement == base64.b64decode(cpu["quote" if name == GOOGLE else "document"])
    assert first == second
    assert [entry.event for entry in first.log] == [event for event, _ in runtime(cpu)]


@pytest.mark.parametrize("name", [GOOGLE, AMAZON])
def test_what_is_damaged_or_another_platform_is_refused(park: MachinePark, name: str) -> None:
    whole = scale(cpu_of(park, name))
    for bad in (whole + b"\0", whole[:-1], *(whole[:cut] for cut in range(2, len(whole), 151))):
        with pytest.raises(EvidenceMalformed):
            parse_statement(bad)
    if name == AMAZON:
        with pytest.raises(PlatformMismatch):
            parse_attestation(whole)
    else:
        assert parse_attestation(whole)[0] == parse_statement(whole).statement
        certificate_der = vector(tpm_quote(cpu_of(park, name))["ak_cert"])
        at = whole.index(certificate_der) + len(certificate_der)  # names the platform
        with pytest.raises(EvidenceMalformed):
            parse_statement(whole[:at] + b"\3" + whole[at + 1 :])


def beside(park: MachinePark, cpu: dict[str, Any]) -> Attachments:
    collateral = park.evidence(MACHINES[GOOGLE]).collateral if cpu["tee"] == GOOGLE else None
    issuers = cpu["tpm"]["certificates"][1:] if cpu["tee"] == GOOGLE else []
    return Attachments(
        collateral=collateral, certificates=tuple(base64.b64decode(issuer) for issuer in issuers)
    )


@pytest.mark.parametrize("name", [GOOGLE, AMAZON])
@pytest.mark.parametrize("write", [scale, message_pack], ids=["version 0", "version 1"])
def test_a_file_of_the_agent_verifies_and_is_explained(
    park: MachinePark, name: str, write: Any
) -> None:
    cpu, policy = cpu_of(park, name), park.pin(MACHINES[name])
    exhibit = recognise(write(cpu))
    assert isinstance(exhibit, StatementExhibit)
    assert exhibit.tee == name
    assert exhibit.kind in tee_of(name).kinds
    given = beside(park, cpu)
    at = Situation(policy=policy, root=policy.simulator_root, now=NOW, nonce=ASKED.report_data())
    vouched = statement_part(exhibit, given, at).verify()
    claims = require_groups(vouched.groups)
    assert vouched.simulated
    lines = {line_of(name, "cpu0", claim.name) for claim in claims}
    assert "cpu.boots" in lines
    fields = {field.name: field.value for field in exhibit.fields(given)}
    assert fields["identity"] == vouched.identity
    assert exhibit.root(given)
    if name == GOOGLE:
        assert {"PCR 0", "PCR 14", "qualifying data"} <= fields.keys()
        with pytest.raises(CertificateChainInvalid):  # the agent shows no issuer
            statement_part(exhibit, Attachments(collateral=given.collateral), at).verify()


@pytest.mark.parametrize("name", [GOOGLE, AMAZON])
def test_a_file_whose_log_is_altered_is_refused(park: MachinePark, name: str) -> None:
    cpu, policy = cpu_of(park, name), park.pin(MACHINES[name])
    cpu["event_log"].pop()
    exhibit = recognise(scale(cpu))
    assert isinstance(exhibit, StatementExhibit)
    at = Situation(policy=policy, root=policy.simulator_root, now=NOW)
    vouched = statement_part(exhibit, beside(park, cpu), at).verify()
    with pytest.raises(EvidenceRefused) as caught:
        require_groups(vouched.groups)
    assert caught.value.code == "event-log-mismatch"


@pytest.mark.parametrize(
    "lie", [lie for lie in LIES if lie.machine.tee in (GOOGLE, AMAZON)], ids=str
)
def test_of_a_lie_the_reader_of_a_file_thinks_as_the_broker(park: MachinePark, lie: Lie) -> None:
    """The same statement as the agent's file, verified line by line: the same refusal."""
    evidence = park.evidence(lie.machine)
    policy = park.pin(MACHINES[lie.name])
    document: Any = evidence.to_dict()
    cpu = document["cpu"]
    issuers = cpu["tpm"]["certificates"][1:] if lie.name == GOOGLE else []
    given = Attachments(
        collateral=evidence.collateral,
        certificates=tuple(base64.b64decode(issuer) for issuer in issuers),
    )
    at = Situation(
        policy=policy,
        root=policy.simulator_root,
        now=NOW,
        nonce=ASKED.report_data(),
        compose_hashes=(COMPOSE_HASH,),
    )

    def audit() -> None:
        exhibit = recognise(scale(cpu))
        assert isinstance(exhibit, StatementExhibit)
        require_groups(statement_part(exhibit, given, at).verify().groups)

    if lie.fault == "enclave":  # no attestation of this form: the file is not even recognised
        with pytest.raises(FormatUnknown):
            audit()
        return
    with pytest.raises(EvidenceRefused) as caught:
        audit()
    assert caught.value.code == lie.code


# --- Issuers of the attestation key ---------------------------------------------------------------


def certificate(subject: str, issuer: str, url: str | None) -> bytes:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    key = ec.derive_private_key(7, ec.SECP256R1())
    begins = datetime.fromtimestamp(NOW, UTC)
    builder = (
        x509.CertificateBuilder(named(issuer), named(subject), key.public_key(), 1)
        .not_valid_before(begins)
        .not_valid_after(begins.replace(year=begins.year + 1))
    )
    if url is not None:
        access = x509.AccessDescription(
            AuthorityInformationAccessOID.CA_ISSUERS, x509.UniformResourceIdentifier(url)
        )
        builder = builder.add_extension(x509.AuthorityInformationAccess([access]), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def test_issuers_are_fetched_from_googles_store_alone() -> None:
    """One after the other, in DER or PEM, until one issued itself; at most three."""
    root = certificate("root", "root", None)
    middle = certificate("middle", "root", f"{STORE}/02/ca.crt")
    leaf = certificate("leaf", "middle", f"{STORE}/01/ca.crt")
    pem = x509.load_der_x509_certificate(middle).public_bytes(Encoding.PEM)
    files = {f"{STORE}/01/ca.crt": pem, f"{STORE}/02/ca.crt": root}
    asked: list[str] = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return files[url]

    assert fetch_issuers(leaf, fetch) == (middle, root)
    assert asked == [f"{STORE}/01/ca.crt", f"{STORE}/02/ca.crt"]
    endless = certificate("leaf", "leaf of leaves", f"{STORE}/01/ca.crt")
    assert len(fetch_issuers(endless, lambda _: endless)) == 3
    for url in (
        None,
        "http://example.org/ca.crt",
        "http://169.254.169.254/ca.crt",
        f"{STORE}.example.org/01/ca.crt",
        f"{STORE}/01/../ca.crt",
        f"https{STORE.removeprefix('http')}/01/ca.crt",
        f"file://{Path('/etc/passwd')}",
    ):
        with pytest.raises(CollateralUnreachable):
            fetch_issuers(certificate("leaf", "middle", url), fetch)
    for body in (b"", b"<html>", b"-----BEGIN CERTIFICATE-----\n"):
        with pytest.raises(CollateralUnreachable):
            fetch_issuers(leaf, lambda _, body=body: body)


def test_an_agents_answer_becomes_evidence(park: MachinePark) -> None:
    """The same that the simulator's driver shows, issuers apart."""
    cpu = cpu_of(park, GOOGLE)
    found = parse_statement(message_pack(cpu))
    with pytest.raises(CollateralUnreachable):  # simulated certificates name no issuer
        collect_gcp(found, lambda url: b"")
    issuers = tuple(base64.b64decode(certificate) for certificate in cpu["tpm"]["certificates"][1:])
    assert found.tpm_quote is not None
    shown = show_tpm(found.tpm_quote, issuers)
    assert shown.to_dict() == cpu["tpm"]
    of_agent = verifier_of(AMAZON).of_agent
    assert of_agent is not None
    part = of_agent(parse_statement(message_pack(cpu_of(park, AMAZON))))
    evidence = Evidence.build("simulator", app_compose=COMPOSE, **part)
    judge(evidence, park.pin(MACHINES[AMAZON]))


def test_an_agent_is_asked_for_whatever_its_machine_makes(park: MachinePark) -> None:
    """Evidence in the form of the machine's kind; a machine that cannot be verified is said so."""
    blob = message_pack(cpu_of(park, AMAZON))
    asked: list[bytes] = []

    def get_statement(report_data: bytes) -> Any:
        asked.append(report_data)
        return parse_statement(blob)

    ask = verifier_of("dstack").ask_agent
    assert ask is not None
    part = ask(SimpleNamespace(get_statement=get_statement), bytes(64))
    assert part["tee"] == AMAZON
    assert asked == [bytes(64)]
    blob = message_pack(cpu_of(park, GOOGLE))
    with pytest.raises(CollateralUnreachable):
        ask(SimpleNamespace(get_statement=get_statement), bytes(64))


def test_an_agents_statement_is_shown_by_itself(park: MachinePark, tmp_path: Path) -> None:
    """As the doctor asks for it; of another kind it is refused."""
    blob = message_pack(cpu_of(park, AMAZON)).hex()
    socket = tmp_path / "agent.sock"

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name is the library's
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            data = json.dumps({"attestation": blob}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def address_string(self) -> str:
            return "guest"

        def log_message(self, *_: object) -> None:
            pass

    with served(UnixStreamServer(str(socket), Handler)):
        exhibit, _ = verifier_of("dstack").show(socket, bytes(64))
        assert exhibit.tee == AMAZON
        with pytest.raises(PlatformMismatch):
            verifier_of(GOOGLE).show(socket, bytes(64))


def test_a_tpm_quote_of_another_form_is_refused(park: MachinePark) -> None:
    parts = tpm_quote(cpu_of(park, GOOGLE))
    for change in (
        {"platform": "dstack"},
        {"pcr_values": None},
        {"pcr_values": [{}]},
        {"pcr_values": parts["pcr_values"][::-1]},
        {"event_log": [1]},
        {"event_log": [{"pcr_index": 24, "digest": bytes(32)}]},
        {"message": bytes(1100)},
        {"ak_cert": b""},
    ):
        with pytest.raises(EvidenceMalformed):
            show_tpm(parts | change, ())


def test_the_simulated_agent_of_an_instance_answers_as_one_on_ec2(tmp_path: Path) -> None:
    """So an owner rehearses with the platform's own name, and ``doctor`` sees the instance."""
    machine, state = MACHINES[AMAZON], tmp_path / "state"
    compose, socket = tmp_path / "app-compose.json", tmp_path / "guest.sock"
    compose.write_bytes(COMPOSE)
    with running(socket, compose, state, clock=lambda: NOW, machine=machine):
        guest = open_guest("dstack", str(socket), collateral=f"file:{state / 'collateral.json'}")
        evidence = guest.evidence(ASKED)
        exhibit, _ = verifier_of("dstack").show(socket, bytes(64))
    assert evidence.cpu.tee == exhibit.tee == AMAZON
    with pytest.raises(SimulatedEvidence):
        judge(evidence, preset(AMAZON))
