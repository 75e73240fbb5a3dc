"""The JavaScript verifier says of evidence of every TEE what ours says, also of real evidence.

``test_simulated_lies`` has every lie of a simulated machine.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exhibit_world import REFUSED, accepted, ders_of
from machines_world import ASKED, BARE, COMPOSE, MACHINES, NOW, MachinePark
from second_evidence import IN_LEAF, EvidenceQuestion, compare_codes, own_code
from variants import variants

from sealtrain.attest.dstacksnp.launch import launch_commitment
from sealtrain.attest.presets import PRESETS, insecure_simulator_policy, preset
from sealtrain.attest.tdx.parse import parse_quote
from sealtrain.base.encoding import to_base64
from sealtrain.base.secret import Secret
from sealtrain_rehearsal.simulator.dstack_platforms import launch_config
from sealtrain_rehearsal.simulator.guest import SimulatedGuest
from sealtrain_rehearsal.simulator.pki import SimulatedPki
from sealtrain_rehearsal.simulator.snp import SimulatedSnp

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C170"),
    pytest.mark.claim("C238"),
    pytest.mark.timeout(600),
]

DAY = 24 * 3600
PEM_BEGINS, PEM_ENDS = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("park"))


def shown(park: MachinePark, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an honest machine shows, and a policy that accepts it."""
    machine = MACHINES[name]
    document: Any = park.evidence(machine).to_dict()
    policy: Any = park.trust(machine).to_dict()
    return document, policy


@pytest.mark.parametrize("whole", variants([False, True], each_time=[False]))
@pytest.mark.parametrize("name", BARE)
def test_the_truth_ends_alike_at_every_time_and_under_every_policy(
    park: MachinePark, name: str, whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under its own policy at every time; under the others now, and with ``whole`` always, too."""
    document, own = shown(park, name)
    policies = [own, *(shown(park, other)[1] for other in BARE)]
    policies += [preset(other).to_dict() for other in PRESETS]
    times = (0, NOW - 400 * DAY, NOW - 1, NOW, NOW + 61, NOW + 2 * DAY, NOW + 20_000 * DAY)
    asked = [
        EvidenceQuestion(label=f"policy {i} at {now}", document=document, policy=policy, now=now)
        for i, policy in enumerate(policies)
        for now in (times if whole or policy is own else (NOW,))
    ]
    assert compare_codes(asked, capsys)["accepted"] > 0


def changed(document: Any, bits: int) -> Iterator[tuple[str, Any]]:
    """One of so many bits of each signed part, or one text or item of it, is another."""
    if "tpm" in document["cpu"]:
        for label, other in changed({"cpu": document["cpu"]["tpm"]}, bits):
            yield f"tpm {label}", {**document, "cpu": {**document["cpu"], "tpm": other["cpu"]}}
    for field, value in document["cpu"].items():
        if field in ("tee", "vm_config", "tpm"):
            continue
        values = value if isinstance(value, list) else [value]
        for place, text in enumerate(values):
            if not isinstance(text, str):
                continue
            plain = field in ("app_compose", "mr_config", "runtime", "report_data")
            raw = text.encode() if plain else base64.b64decode(text)
            leaf = range(raw.find(PEM_BEGINS), raw.find(PEM_ENDS) + len(PEM_ENDS))
            for at in range(0, len(raw), max(1, len(raw) // bits)):
                altered = bytearray(raw)
                altered[at] ^= 1
                spelt = altered.decode("latin-1") if plain else base64.b64encode(altered).decode()
                if isinstance(value, list):
                    other: Any = [*value[:place], spelt, *value[place + 1 :]]
                else:
                    other = spelt
                kept = {**document, "cpu": {**document["cpu"], field: other}}
                where = IN_LEAF if field == "quote" and at in leaf else ""
                yield f"{field} {place} bit of byte {at}{where}", kept
        if isinstance(value, list):
            yield f"{field} reversed", {**document, "cpu": {**document["cpu"], field: value[::-1]}}
            yield f"{field} short", {**document, "cpu": {**document["cpu"], field: value[:-1]}}


@pytest.mark.parametrize("bits", variants([12, 24, 60, 150], each_time=[12]))
@pytest.mark.parametrize(
    "name", variants(BARE, each_time=["dstack", "snp", "nitro", "azure-tdx", "test-vtpm"])
)
def test_altered_evidence_ends_alike(
    park: MachinePark, name: str, bits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    document, policy = shown(park, name)
    asked = [
        EvidenceQuestion(label=label, document=other, policy=policy)
        for label, other in changed(document, bits)
    ]
    counted = compare_codes(asked, capsys)
    assert len(counted) > 3


def versions() -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Label, outcome, document and policy of every form of report and quote, known and unknown."""
    for version in range(1, 9):
        guest = SimulatedSnp(b"a chip of some firmware", version=version)
        cpu = guest.show(ASKED.report_data(), COMPOSE, now=NOW)
        policy = insecure_simulator_policy(guest.root_der, tee="snp").to_dict()
        end = "accepted" if 2 <= version <= 6 else "quote-invalid"
        yield f"report {version}", end, simulated(None, cpu), policy
    pki = SimulatedPki(b"a platform of some firmware")
    collateral: Any = pki.collateral(NOW).to_dict()
    policy = insecure_simulator_policy(pki.root_der, tee="tdx").to_dict()
    config = b"\1" + hashlib.sha256(COMPOSE).digest() + bytes(15)

    def quote(**form: Any) -> bytes:
        return pki.quote(ASKED.report_data(), mr_config_id=config, **form)

    older, newer = quote(version=5), quote(service_td=bytes(48))
    for label, end, raw in (
        ("version 4", "accepted", quote()),
        ("version 5, report 1.0", "accepted", older),
        ("version 5, report 1.5", "accepted", newer),
        ("a service guest", "migratable-guest", quote(service_td=b"\1" * 48)),
        ("version 6", "quote-invalid", b"\6" + newer[1:]),
        ("version 4 with a body's head", "quote-invalid", b"\4" + newer[1:]),
        ("version 5 without it", "quote-invalid", b"\5" + quote()[1:]),
        ("a report of SGX", "quote-invalid", older[:48] + b"\1" + older[49:]),
        ("a later report", "quote-invalid", older[:48] + b"\4" + older[49:]),
        ("another size", "quote-invalid", newer[:50] + b"\x48" + newer[51:]),
        ("1.5 called 1.0", "quote-invalid", newer[:48] + b"\2" + newer[49:]),
    ):
        cpu = {"tee": "tdx", "quote": base64.b64encode(raw).decode()}
        yield label, end, simulated(collateral, cpu), policy


def simulated(collateral: Any, cpu: dict[str, Any]) -> dict[str, Any]:
    return {**evidence_of(cpu["tee"], cpu), "platform": "simulator", "collateral": collateral}


@pytest.mark.claim("C421")
def test_every_version_of_report_and_quote_ends_alike(capsys: pytest.CaptureFixture[str]) -> None:
    asked = []
    for label, end, document, policy in versions():
        question = EvidenceQuestion(label=label, document=document, policy=policy)
        assert own_code(question) == end, label
        asked.append(question)
    assert compare_codes(asked, capsys)["accepted"] == 5 + 3


LAUNCHES: dict[str, Any] = {
    "as the host writes it": {},
    "without what is not needed": {"app_id": None, "instance_id": None},
    "with all there is": {
        "gpu_policy_hash": "ab" * 32,
        "key_provider": "kms",
        "key_provider_id": "cd" * 40,
        "init_script_hashes": ["ef" * 32, "01" * 32],
    },
    "of version 2": {"version": 2},
    "of a version that is no number": {"version": True},
    "of a version in a text": {"version": "3"},
    "with an unknown field": {"more": 1},
    "without a document": {"compose_hash": None},
    "with a short document": {"compose_hash": "00" * 20},
    "in upper case": {"compose_hash": "AB" * 32},
    "of another document": {"compose_hash": "ab" * 32},
    "with an unknown provider": {"key_provider": "owner"},
    "with a short app id": {"app_id": "00"},
    "with half a byte": {"key_provider_id": "abc"},
    "with an endless id": {"key_provider_id": "ab" * 2049},
    "with a script's name": {"init_script_hashes": ["init"]},
    "with scripts that are no list": {"init_script_hashes": {}},
}
TEXTS = (
    "",
    "{}",
    "[]",
    "{",
    "null",
    '{"version":3,"version":3}',
    "x" * 65536,
    "x" * 65537,
    "\u00e9" * 40000,
)


@pytest.mark.claim("C420")
def test_launch_configurations_of_every_form_end_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """HOST_DATA commits to each of them: the form alone decides."""
    guest = SimulatedSnp(b"a guest that dstack launched")
    policy = insecure_simulator_policy(guest.root_der, tee="dstack-amd-sev-snp").to_dict()
    pinned = {**policy, "cpu": {**policy["cpu"], "key_provider": "cd" * 40}}
    written = {
        label: json.dumps({**json.loads(launch_config(COMPOSE)), **changed})
        for label, changed in LAUNCHES.items()
    }
    written |= {repr(text[:30]): text for text in TEXTS}
    written["with a fraction"] = written["as the host writes it"].replace(": 3", ": 3.0")
    asked = []
    for label, text in written.items():
        shown = guest.show(ASKED.report_data(), COMPOSE, now=NOW, host_data=launch_commitment(text))
        document = simulated(None, {**shown, "tee": "dstack-amd-sev-snp", "mr_config": text})
        asked += [
            EvidenceQuestion(label=label, document=document, policy=rules)
            for rules in (policy, pinned)
        ]
    counted = compare_codes(asked, capsys)
    # Three are well formed, and 3.0 is 3 to both.
    assert counted["accepted"] == 4 + 1
    assert counted["key-provider-mismatch"] == 3


@pytest.mark.claim("C564")
@pytest.mark.parametrize("name", ["tdx", "snp", "nitro"])
def test_an_altered_root_is_no_root_to_either(
    park: MachinePark, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy's software root signs itself: one byte of it changed, and the policy is refused."""
    document, policy = shown(park, name)
    root = base64.b64decode(policy["root"]["insecure_simulator_root"])
    asked = []
    for at in range(0, len(root), 2):
        other = bytearray(root)
        other[at] ^= 0xFF if at % 3 else 1
        changed_root = {"insecure_simulator_root": base64.b64encode(other).decode()}
        asked.append(
            EvidenceQuestion(
                label=f"byte {at}", document=document, policy={**policy, "root": changed_root}
            )
        )
    assert set(compare_codes(asked, capsys)) == {"trust-invalid"}


P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
P384 = int(
    "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"
    "C7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973",
    16,
)


def resigned(document: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The same signature with the other s, and numbers that no signature has."""
    documents = {
        "snp": "report",
        "dstack-amd-sev-snp": "report",
        "azure-snp": "report",
        "gcp-snp": "report",
        "nitro": "document",
        "test-nitro": "document",
        "dstack-aws-nitro-tpm": "document",
    }
    field = documents.get(name, "quote")
    own = document["cpu"]
    if name == "test-vtpm":
        field, own = "signature", own["tpm"]
    raw = base64.b64decode(own[field])
    size, order, byteorder = (48, P384, "big")
    if field in ("quote", "signature"):
        size, order = 32, P256
    at, room = {
        "quote": (636, 32),
        "document": (len(raw) - 96, 48),
        "report": (0x2A0, 72),
        "signature": (6, 34),  # each number has its length before it
    }[field]
    if field == "report":
        size, byteorder = 72, "little"
    r, s = (
        int.from_bytes(raw[at + room * i : at + room * i + size], byteorder)  # type: ignore[arg-type]
        for i in (0, 1)
    )
    for label, numbers in {
        "the other s": (r, order - s),
        "r is zero": (0, s),
        "s is zero": (r, 0),
        "s is the order": (r, order),
        "r is the order": (order, s),
        "all bits": ((1 << 8 * size) - 1, (1 << 8 * size) - 1),
        "r and s swapped": (s, r),
    }.items():
        pair = b"".join(number.to_bytes(room, byteorder) for number in numbers)  # type: ignore[arg-type]
        if field == "signature":
            pair = pair[2:34] + raw[38:40] + pair[36:]
        altered = raw[:at] + pair + raw[at + len(pair) :]
        shown_again = {**own, field: base64.b64encode(altered).decode()}
        cpu = {**document["cpu"], "tpm": shown_again} if field == "signature" else shown_again
        yield (label, {**document, "cpu": cpu})


@pytest.mark.parametrize("name", BARE)
def test_signatures_of_other_numbers_end_alike(
    park: MachinePark, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """ECDSA has two signatures for one: real documents have either, so both verifiers accept it."""
    document, policy = shown(park, name)
    asked = [
        EvidenceQuestion(label=label, document=other, policy=policy)
        for label, other in resigned(document, name)
    ]
    counted = compare_codes(asked, capsys)
    # Google's vTPM signs for the quote's bytes, so there the other s is another quote.
    google = name in ("dstack-gcp-tdx", "gcp-snp")
    other = "report-data-mismatch" if google else "accepted"
    assert counted.pop(other) == 1
    assert set(counted) <= {"quote-invalid", "evidence-malformed"}


def not_der(der: bytes) -> Iterator[tuple[str, bytes]]:
    """Other encodings of an element; a lenient reader takes them for the same."""
    head = 2 + (der[1] & 0x7F)
    length, content = der[2:head], der[head:]
    yield "a length with a zero", b"\x30" + bytes([der[1] + 1]) + b"\0" + length + content
    yield "an indefinite length", b"\x30\x80" + content + b"\0\0"
    yield "a byte behind", der + b"\0"
    yield "an element behind", der + b"\x05\0"
    yield (
        "a length beyond the end",
        b"\x30"
        + der[1:2]
        + (int.from_bytes(length, "big") + 1).to_bytes(len(length), "big")
        + content,
    )
    yield "a length of four bytes", b"\x30\x84" + len(content).to_bytes(4, "big") + content
    yield "the tag of a set", b"\x31" + der[1:]
    yield "cut", der[:-1]
    yield "depth", b"\x30\x80" * 2000
    yield "empty", b""
    bits = behind(der, behind(der, head))  # of an element in three parts, where the third begins
    assert der[bits] == 0x03
    yield "bits left over", der[: bits + 2] + b"\x01" + der[bits + 3 :]


def behind(der: bytes, at: int) -> int:
    """Where the element at a place ends."""
    if der[at + 1] < 0x80:
        return at + 2 + der[at + 1]
    size = der[at + 1] & 0x7F
    return at + 2 + size + int.from_bytes(der[at + 2 : at + 2 + size], "big")


@pytest.mark.parametrize("name", ["snp", "tdx", "dstack-gcp-tdx"])
def test_certificates_and_lists_that_are_not_der_end_alike(
    park: MachinePark, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document, policy = shown(park, name)
    asked = []

    def ask(label: str, change: Callable[[Any], None]) -> None:
        changed = copy.deepcopy(document)
        change(changed)
        asked.append(EvidenceQuestion(label=label, document=changed, policy=policy))

    def put(place: Any, key: Any, text: str) -> Callable[[Any], None]:
        def change(changed: Any) -> None:
            at = changed
            for step in place:
                at = at[step]
            at[key] = text

        return change

    places: dict[str, tuple[str, ...]] = {
        "snp": ("cpu", "certificates"),
        "dstack-gcp-tdx": ("cpu", "tpm", "certificates"),
    }
    if name in places:
        listed = document["cpu"] if name == "snp" else document["cpu"]["tpm"]
        for i, text in enumerate(listed["certificates"]):
            for label, der in not_der(base64.b64decode(text)):
                encoded = base64.b64encode(der).decode()
                ask(f"certificate {i} {label}", put(places[name], i, encoded))
    else:
        for field in ("root_ca_crl", "pck_crl"):
            for label, der in not_der(bytes.fromhex(document["collateral"][field])):
                ask(f"{field} {label}", put(("collateral",), field, der.hex()))
    assert "accepted" not in compare_codes(asked, capsys)


def policies_near(policy: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A policy with one rule that is missing, of another type, or accepts nothing."""
    for name in policy["cpu"]:
        without = copy.deepcopy(policy)
        del without["cpu"][name]
        yield f"without {name}", without
        for other in ("any", "refuse", "require", None, [], {}, 0, -1, ["x"], ["00" * 48]):
            near = copy.deepcopy(policy)
            near["cpu"][name] = other
            yield f"{name} = {other!r}", near


@pytest.mark.parametrize(
    "name",
    variants(
        [name for name in BARE if name not in ("dstack", "tdx")],
        each_time=["nitro", "azure-tdx"],
    ),
)
def test_policies_of_another_form_are_read_alike(
    park: MachinePark, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document, policy = shown(park, name)
    asked = [
        EvidenceQuestion(label=label, document=document, policy=other)
        for label, other in policies_near(policy)
    ]
    counted = compare_codes(asked, capsys)
    assert counted["trust-invalid"] > 20


def logging_guest() -> tuple[dict[str, Any], dict[str, Any]]:
    """A dstack guest whose agent shows the firmware's events too, and a policy that accepts it."""
    pki = SimulatedPki(b"of a guest that logs its boot")
    guest = SimulatedGuest(pki, Secret(b"\x05" * 32), COMPOSE, random=bytes)
    document: Any = guest.evidence(ASKED, collateral=pki.collateral(NOW)).to_dict()
    policy: Any = insecure_simulator_policy(pki.root_der).to_dict()
    return document, policy


def without_firmware(document: dict[str, Any]) -> dict[str, Any]:
    silent = copy.deepcopy(document)
    log = silent["cpu"]["event_log"]
    silent["cpu"]["event_log"] = [entry for entry in log if entry["imr"] == 3]
    assert 0 < len(silent["cpu"]["event_log"]) < len(log)
    return silent


def test_registers_by_value_and_by_log_end_alike(
    park: MachinePark, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, policy = logging_guest()
    bare, bares = shown(park, "tdx")
    guests = {
        "with its log": (logs, policy),
        "without the firmware's events": (without_firmware(logs), policy),
        "without a log": (bare, bares),
    }
    asked = []
    for shape, (document, trusting) in guests.items():
        quote = parse_quote(base64.b64decode(document["cpu"]["quote"]))
        registers = (quote.mrtd, *quote.rtmr)
        image = dict(zip(("mrtd", "rtmr0", "rtmr1", "rtmr2"), registers, strict=False))
        for first in (image["rtmr0"], "log", "any", None):
            for changed in ({}, *({register: "11" * 48} for register in image)):
                rules = copy.deepcopy(trusting)
                rules["cpu"]["measurements"] = [image | {"rtmr0": first} | changed]
                label = f"{shape}, rtmr0 {first!r:.8}, another {next(iter(changed), 'none')}"
                asked.append(EvidenceQuestion(label=label, document=document, policy=rules))
    counted = compare_codes(asked, capsys)
    # By value of each, and by the log that there is.
    assert counted["accepted"] == 4
    assert counted["trust-invalid"] > 10
    assert counted["measurement-mismatch"] > 10


def evidence_of(platform: str, cpu: dict[str, Any]) -> dict[str, Any]:
    part = {"tee": platform, **cpu, "app_compose": COMPOSE.decode()}
    return {
        "version": 2,
        "platform": platform,
        "cpu": part,
        "gpu": None,
        "collateral": None,
        "gpu_collateral": None,
    }


def real(shared: Path) -> Iterator[EvidenceQuestion]:
    """Real evidence and what is refused of it, at its time and just outside.

    No real machine measured our deployment document: what holds is refused for that alone.
    """
    for real in (*accepted(shared), *(refused for refused, _ in REFUSED)):
        data = (shared / "vectors" / real.file).read_bytes()
        if real.file.startswith("nitro/") and real.file.endswith(".cose"):
            cpu: dict[str, Any] = {"document": base64.b64encode(data).decode()}
            document = evidence_of("nitro", cpu)
        elif real.file.startswith("sev-snp/") and len(real.certificates) == 2:
            chain = ders_of(shared, real.certificates)
            cpu = {
                "report": base64.b64encode(data).decode(),
                "certificates": [base64.b64encode(der).decode() for der in chain],
                "crl": None,
            }
            document = evidence_of("snp", cpu)
        else:
            continue
        policies = [
            real.rules().to_dict(),
            preset("nitro").to_dict(),
            preset("snp-genoa").to_dict(),
        ]
        for now in {real.at, *real.outside, NOW}:
            for place, policy in enumerate(policies):
                label = f"{real.file} policy {place} at {now}"
                yield EvidenceQuestion(label=label, document=document, policy=policy, now=now)


def test_real_evidence_ends_alike(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = compare_codes(list(real(shared)), capsys)
    assert counted["compose-hash-mismatch"] > 3
    assert counted["certificate-chain-invalid"] > 3


@pytest.mark.parametrize("bits", variants([3, 8, 20, 60], each_time=[3]))
def test_real_evidence_with_a_changed_bit_ends_alike(
    shared: Path, bits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chains of AWS and AMD, and signatures under them: no bit of them may be another."""
    asked = []
    for honest in real(shared):
        if own_code(honest) != "compose-hash-mismatch":
            continue
        for label, document in changed(honest.document, bits):
            asked.append(replace(honest, label=f"{honest.label} {label}", document=document))
    counted = compare_codes(asked, capsys)
    assert counted["certificate-chain-invalid"] + counted["quote-invalid"] > 5 * bits


LIMITS = {"report": 1184, "quote": 32 << 10, "document": 16 << 10, "crl": 64 << 10}
"""Fields of evidence, and how many bytes each may have."""


def of_length(text: str, length: int) -> str:
    """The same bytes, cut or followed by zeros."""
    return to_base64((base64.b64decode(text) + bytes(length))[:length])


@pytest.mark.claim("C565")
@pytest.mark.parametrize("name", ["tdx", "snp", "nitro", "gcp-snp"])
def test_lengths_at_the_limits_end_alike(
    park: MachinePark, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What base64 rounds up to, what a parser takes, and what is one byte more."""
    document, policy = shown(park, name)
    asked = []

    def ask(cpu: dict[str, Any], label: str) -> None:
        changed = {**document, "cpu": cpu}
        asked.append(EvidenceQuestion(label=label, document=changed, policy=policy))

    cpu = document["cpu"]
    for field, most in LIMITS.items():
        for length in range(most - 1, most + 4) if cpu.get(field) else ():
            ask({**cpu, field: of_length(cpu[field], length)}, f"{field} of {length}")
    for place, text in enumerate(cpu.get("certificates", ())):
        for length in (1, *range(4094, 4098), *range(8191, 8195)):
            others = list(cpu["certificates"])
            others[place] = of_length(text, length)
            ask({**cpu, "certificates": others}, f"certificate {place} of {length}")
    counted = compare_codes(asked, capsys)
    assert counted["evidence-malformed"] > 0
