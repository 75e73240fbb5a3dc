"""The operator of a rented machine shows another machine's, boot's or conversation's statements.

The attacker holds every genuine document, machines of the same cloud with vTPMs of their own, and
the whole host. They do not hold keys below the roots that the policy trusts.
"""

from __future__ import annotations

import base64
import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from machines_world import ASKED, ELSEWHERE, LIES, MACHINES, NOW, Lie, MachinePark, judge
from tpm_world import ACTION, BOOT, boot_log, hcl_report

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.dstack.parse import runtime_preimage
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    DebugGuest,
    EventLogMismatch,
    EvidenceMalformed,
    MeasurementMismatch,
    PlatformMismatch,
    QuoteInvalid,
    QuoteRootUntrusted,
    ReportDataMismatch,
    SimulatedEvidence,
)
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.explain.explanation import explain
from sealtrain.attest.forms import OwnEvidence
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.presets import preset
from sealtrain.attest.tpm.hcl import check_runtime, parse_hcl
from sealtrain.attest.tpm.log import MAX_LOG_BYTES, check_replay, parse_log
from sealtrain.errors import EvidenceRefused, TrustInvalid
from sealtrain_rehearsal.simulator.state import ensure
from sealtrain_rehearsal.simulator.tpm import SimulatedMachine, SimulatedTpm

pytestmark = [pytest.mark.long, pytest.mark.claim("C400")]

GOOGLE, AMAZON = MACHINES["dstack-gcp-tdx"], MACHINES["dstack-aws-nitro-tpm"]
RENTED = [lie for lie in LIES if lie.machine.tee in (GOOGLE.tee, AMAZON.tee)]
MODULUS = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n
Tpm = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rented")


@pytest.fixture(scope="module")
def park(folder: Path) -> MachinePark:
    return MachinePark(folder)


def altered(evidence: Evidence, change: Callable[[dict[str, Any]], object]) -> Evidence:
    """The same document with another processor's part."""
    document: Any = copy.deepcopy(evidence.to_dict())
    change(document["cpu"])
    return Evidence.from_dict(document)


def test_the_documents_under_attack_are_accepted(park: MachinePark) -> None:
    """Every refusal below is a refusal of one of these two, changed."""
    for machine in (GOOGLE, AMAZON):
        verdict = judge(park.evidence(machine), park.pin(machine))
        assert verdict.simulated
        assert verdict.platform == "simulator"


@pytest.mark.negative(71)
@pytest.mark.parametrize("lie", RENTED, ids=str)
def test_every_lie_of_a_rented_machine_is_refused(park: MachinePark, lie: Lie) -> None:
    honest = replace(lie.machine, fault=None)
    with pytest.raises(EvidenceRefused) as caught:
        judge(park.evidence(lie.machine), park.pin(honest))
    assert caught.value.code == lie.code


def quoted_by(
    folder: Path, evidence: Evidence, machine: SimulatedMachine, *, resets: int = 1
) -> Tpm:
    """Another machine of the same cloud plays the victim's boot and signs for its quote."""
    tpm = SimulatedTpm(ensure(folder / "state", NOW).pki, machine=machine, resets=resets)
    cpu: Any = evidence.to_dict()["cpu"]
    tpm.extend(0, b"SIMULATED firmware")
    tpm.extend(2, b"SIMULATED image")
    for entry in cpu["event_log"]:
        if entry["imr"] == 3:
            payload = bytes.fromhex(entry["event_payload"])
            tpm.extend(14, runtime_preimage(entry["event"], payload, entry["version"]))
    signed_for = hashlib.sha256(base64.b64decode(cpu["quote"])).digest()
    message, signature = tpm.quote(signed_for, bank="sha256", selection=(0, 2, 14))
    values = tpm.registers("sha256")
    return {
        "message": base64.b64encode(message).decode(),
        "signature": base64.b64encode(signature).decode(),
        "registers": [{"index": i, "value": values[i].hex()} for i in (0, 2, 14)],
        "certificates": [
            base64.b64encode(certificate).decode() for certificate in tpm.certificates
        ],
        "events": [],
    }


@pytest.mark.negative(71)
def test_a_quote_of_another_conversation_is_refused(park: MachinePark) -> None:
    """Of the vTPM alone, or of the whole machine."""
    policy, here, there = park.pin(GOOGLE), park.evidence(GOOGLE), park.evidence(GOOGLE, ELSEWHERE)
    other: Any = there.to_dict()["cpu"]
    with pytest.raises(ReportDataMismatch) as caught:
        judge(altered(here, lambda cpu: cpu.update(tpm=other["tpm"])), policy)
    assert caught.value.check == "qualifying data"
    for machine in (GOOGLE, AMAZON):
        with pytest.raises(ReportDataMismatch):
            judge(park.evidence(machine, ELSEWHERE), park.pin(machine), ASKED)


@pytest.mark.negative(71)
def test_a_register_or_event_that_was_not_quoted_is_refused(park: MachinePark) -> None:
    evidence, policy = park.evidence(GOOGLE), park.pin(GOOGLE)

    def register(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["registers"][0]["value"] = "11" * 32

    def missing(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["registers"].pop()

    def repeated(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["registers"].append(cpu["tpm"]["registers"][-1])

    def event(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["events"].append(cpu["tpm"]["events"][0])

    def moved(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["events"][0]["index"] = 2

    def unquoted(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["events"][0]["index"] = 7

    for change, error in (
        (register, MeasurementMismatch),
        (missing, EvidenceMalformed),
        (repeated, EvidenceMalformed),
        (event, EventLogMismatch),
        (moved, EventLogMismatch),
        (unquoted, EventLogMismatch),
    ):
        with pytest.raises(error):
            judge(altered(evidence, change), policy)


@pytest.mark.negative(72)
@pytest.mark.parametrize("machine", [GOOGLE, AMAZON], ids=lambda machine: machine.tee)
@pytest.mark.parametrize("way", ["dropped", "added", "moved", "renamed", "another payload"])
def test_an_altered_log_of_the_running_system_is_refused(
    park: MachinePark, machine: Any, way: str
) -> None:
    def change(cpu: dict[str, Any]) -> None:
        log = cpu["event_log"]
        at = next(i for i, entry in enumerate(log) if entry["event"] == "storage-fs")
        if way == "dropped":
            log.pop(at)
        elif way == "added":
            log.append(dict(log[at], event="after"))
        elif way == "moved":
            log[at], log[at - 1] = log[at - 1], log[at]
        elif way == "renamed":
            log[at]["event"] = "storage"
        else:
            log[at]["event_payload"] = b"ext4".hex()

    with pytest.raises(EventLogMismatch):
        judge(altered(park.evidence(machine), change), park.pin(machine))


@pytest.mark.negative(72)
def test_a_firmware_event_beside_a_nitro_tpm_is_refused(park: MachinePark) -> None:
    """No register of the document holds it."""
    firmware = {"imr": 0, "event_type": 0, "digest": "00" * 48, "event": "", "event_payload": ""}

    def change(cpu: dict[str, Any]) -> None:
        cpu["event_log"].insert(0, {**firmware, "version": 1})

    with pytest.raises(EventLogMismatch):
        judge(altered(park.evidence(AMAZON), change), park.pin(AMAZON))


@pytest.mark.negative(72)
def test_an_altered_boot_log_is_refused() -> None:
    """Dropped, added, moved, renamed; and a log longer than 16 MiB is not read."""
    log = parse_log(boot_log(BOOT))
    quoted = {index: log.replay(index, "sha256") for index in range(24)}
    check_replay(log, "sha256", quoted, range(10))
    for entries in (BOOT[1:], (*BOOT, BOOT[0]), (*BOOT[:9], BOOT[10], BOOT[9], *BOOT[11:])):
        with pytest.raises(EventLogMismatch):
            check_replay(parse_log(boot_log(entries)), "sha256", quoted, range(10))
    renamed = parse_log(boot_log((*BOOT[:9], replace(BOOT[9], kind=0xD), *BOOT[10:])))
    check_replay(renamed, "sha256", quoted, range(10))  # no digest covers a type …
    assert renamed.find(4, ACTION) == ()
    assert not renamed.find(4, 0xD)[0].shows_data("sha256")  # … so such data count for nothing
    with pytest.raises(EvidenceMalformed):
        parse_log(boot_log(BOOT).ljust(MAX_LOG_BYTES + 1, b"\xff"))


@pytest.mark.negative(73)
@pytest.mark.parametrize(
    ("line", "machine"),
    [
        ("zone", SimulatedMachine(zone="elsewhere-b")),
        ("project", SimulatedMachine(project="another")),
        ("instance", SimulatedMachine(instance_id=2)),
    ],
)
def test_a_vtpm_of_another_machine_is_refused(
    folder: Path, park: MachinePark, line: str, machine: SimulatedMachine
) -> None:
    """Any customer's vTPM signs what it is asked to: only the names in its certificate differ."""
    evidence, policy = park.evidence(GOOGLE), park.pin(GOOGLE)
    own = quoted_by(folder, evidence, SimulatedMachine())
    judge(altered(evidence, lambda cpu: cpu.update(tpm=own)), policy)
    foreign = altered(evidence, lambda cpu: cpu.update(tpm=quoted_by(folder, evidence, machine)))
    with pytest.raises(PlatformMismatch) as caught:
        judge(foreign, policy)
    assert caught.value.check == line
    # A policy that names no machine trusts every customer's: spec/evidence-tpm.md says so.
    judge(foreign, park.trust(GOOGLE))


@pytest.mark.negative(73)
def test_a_key_that_was_not_made_for_production_is_refused(folder: Path, park: MachinePark) -> None:
    evidence = park.evidence(GOOGLE)
    test = quoted_by(folder, evidence, SimulatedMachine(production=False))
    for policy in (park.pin(GOOGLE), park.trust(GOOGLE)):
        with pytest.raises(DebugGuest):
            judge(altered(evidence, lambda cpu: cpu.update(tpm=test)), policy)


@pytest.mark.negative(73)
def test_the_chain_under_an_attestation_key_is_looked_at(park: MachinePark) -> None:
    evidence, policy = park.evidence(GOOGLE), park.pin(GOOGLE)
    own: Any = evidence.to_dict()["cpu"]
    other: Any = park.evidence(replace(GOOGLE, fault="tpm-foreign-root")).to_dict()["cpu"]
    leaf, issuer, root = own["tpm"]["certificates"]
    foreign = other["tpm"]["certificates"][0]
    for certificates in (
        [leaf],
        [leaf, root],
        [issuer, root],
        [leaf, issuer, issuer, root],
        [foreign, issuer, root],
    ):

        def change(cpu: dict[str, Any], chain: list[str] = certificates) -> None:
            cpu["tpm"]["certificates"] = chain

        with pytest.raises((CertificateChainInvalid, QuoteRootUntrusted)):
            judge(altered(evidence, change), policy)


@pytest.mark.negative(71)
def test_a_signature_of_another_key_or_boot_is_refused(folder: Path, park: MachinePark) -> None:
    evidence, policy = park.evidence(GOOGLE), park.pin(GOOGLE)
    again = quoted_by(folder, evidence, SimulatedMachine(), resets=2)

    def mixed(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["message"] = again["message"]

    with pytest.raises(QuoteInvalid):
        judge(altered(evidence, mixed), policy)


@pytest.mark.negative(73)
def test_a_simulated_vtpm_is_no_hardware(park: MachinePark) -> None:
    for name, machine in (("dstack-gcp-tdx", GOOGLE), ("dstack-aws-nitro-tpm", AMAZON)):
        with pytest.raises(SimulatedEvidence):
            judge(park.evidence(machine), preset(name))


@pytest.mark.negative(74)
def test_a_policy_without_boot_registers_is_refused() -> None:
    """A NitroTPM's document says nothing without them; nor may a register be zero."""
    document: Any = preset("dstack-aws-nitro-tpm").to_dict()
    boot = {"pcr4": "11" * 48, "pcr7": "22" * 48, "pcr12": "00" * 48}
    policy_from_dict({**document, "cpu": {**document["cpu"], "boots": [boot]}})
    for boots in ("any", [{**boot, "pcr4": "00" * 48}], [{**boot, "pcr7": "00" * 48}], [{}]):
        with pytest.raises(TrustInvalid):
            policy_from_dict({**document, "cpu": {**document["cpu"], "boots": boots}})
    without = {name: rule for name, rule in document["cpu"].items() if name != "boots"}
    with pytest.raises(TrustInvalid):
        policy_from_dict({**document, "cpu": without})


@pytest.mark.negative(74)
def test_one_kind_is_not_another(park: MachinePark) -> None:
    """The half of a Google machine under the rules of plain dstack, and every other exchange."""
    for machine, other in ((GOOGLE, AMAZON), (AMAZON, GOOGLE), (MACHINES["dstack"], GOOGLE)):
        with pytest.raises(PlatformMismatch):
            judge(park.evidence(machine), park.trust(other))
    half = altered(park.evidence(GOOGLE), lambda cpu: cpu.pop("tpm") and cpu.update(tee="dstack"))
    with pytest.raises(PlatformMismatch):
        judge(half, park.pin(GOOGLE))


@pytest.mark.negative(75)
@pytest.mark.parametrize("kind", ["snp", "tdx"])
def test_an_hcl_report_of_another_machine_is_refused(kind: str) -> None:
    victim = parse_hcl(hcl_report(kind, MODULUS))
    check_runtime(victim.runtime, victim.report_data)
    own = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n
    for other in (hcl_report(kind, own), hcl_report(kind, MODULUS, vm_id="another")):
        with pytest.raises(ReportDataMismatch):
            check_runtime(parse_hcl(other).runtime, victim.report_data)
    for bad in (b"HCLA", hcl_report(kind, MODULUS)[:-1] + b"\1", b"[" * 20000):
        with pytest.raises(EvidenceMalformed):
            parse_hcl(bad)


@pytest.mark.negative(71)
def test_of_two_breaches_decision_and_explanation_name_the_same(park: MachinePark) -> None:
    """Key provider and boot: a decision and an explanation go through them in one order."""
    document: Any = park.pin(GOOGLE).to_dict()
    rules = {"key_provider": "11" * 32, "boots": [], "zones": ["elsewhere-b"]}
    policy = policy_from_dict({**document, "cpu": {**document["cpu"], **rules}})
    evidence = park.evidence(GOOGLE)
    with pytest.raises(EvidenceRefused) as decided:
        judge(evidence, policy)
    exhibit = OwnEvidence(raw=evidence.to_bytes(), evidence=evidence)
    shown = explain(exhibit, Attachments(binding=ASKED), policy, NOW)
    first = next(line for line in shown.lines if line.standing == "broken")
    assert decided.value.code == first.code == "key-provider-mismatch"
