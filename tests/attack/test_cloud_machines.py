"""An operator on Azure or Google shows statements of another machine, boot or conversation.

The attacker holds every genuine document, machines of the same cloud with TPMs of their own, and
the whole guest of a machine that boots another image. They do not hold keys of a processor, of a
paravisor, or below the roots that the policy trusts.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from machines_world import (
    ASKED,
    COMPOSE,
    ELSEWHERE,
    LIES,
    MACHINES,
    NOW,
    Lie,
    MachinePark,
    judge,
)

from sealtrain.attest.bundle import Attachments
from sealtrain.attest.errors import (
    CertificateChainInvalid,
    ComposeHashMismatch,
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
from sealtrain.attest.tpm.hcl import parse_runtime
from sealtrain.errors import EvidenceRefused, TierRefused, TrustInvalid
from sealtrain.image.machine.disk import document_register
from sealtrain_rehearsal.simulator.cloud_machines import Paravisor
from sealtrain_rehearsal.simulator.tpm import SimulatedTpm

pytestmark = [pytest.mark.long, pytest.mark.claim("C560")]

NAMES = ("azure-snp", "azure-tdx", "gcp-snp")
AZURE = NAMES[:2]
CLOUD = [
    lie
    for lie in LIES
    if lie.name in NAMES and (lie.fault.startswith("tpm-") or lie.fault == "other-compose")
]
"""``test_simulated_lies`` plays those of the processor, too."""


@pytest.fixture(scope="module")
def park(tmp_path_factory: pytest.TempPathFactory) -> MachinePark:
    return MachinePark(tmp_path_factory.mktemp("clouds"))


def altered(evidence: Evidence, change: Callable[[dict[str, Any]], object]) -> Evidence:
    """The same document with another processor's part."""
    document: Any = copy.deepcopy(evidence.to_dict())
    change(document["cpu"])
    return Evidence.from_dict(document)


@pytest.mark.parametrize("name", NAMES)
def test_the_documents_under_attack_are_accepted(park: MachinePark, name: str) -> None:
    """Every refusal below is a refusal of one of these, changed."""
    machine = MACHINES[name]
    verdict = judge(park.evidence(machine), park.pin(machine))
    assert verdict.simulated
    assert verdict.tier == ("cloud-tpm" if name == "gcp-snp" else "processor-and-paravisor")


@pytest.mark.negative(78)
@pytest.mark.negative(79)
@pytest.mark.parametrize("lie", CLOUD, ids=str)
def test_every_lie_of_such_a_machine_is_refused(park: MachinePark, lie: Lie) -> None:
    honest = replace(lie.machine, fault=None)
    with pytest.raises(EvidenceRefused) as caught:
        judge(park.evidence(lie.machine), park.pin(honest))
    assert caught.value.code == lie.code


def own_quote(cpu: dict[str, Any], key: rsa.RSAPrivateKey, asked: bytes) -> dict[str, Any]:
    """An attacker's machine plays the victim's boot and signs for the victim's nonce."""
    tpm = SimulatedTpm(Paravisor(key))
    for event in cpu["tpm"]["events"]:
        what = {4: "image", 7: "Secure Boot", 9: "command line", 11: "sections"}[event["index"]]
        tpm.extend(event["index"], f"SIMULATED {what}".encode())
    tpm.extend(14, COMPOSE)
    message, signature = tpm.quote(asked, bank="sha256", selection=range(24))
    assert {register["index"]: register["value"] for register in cpu["tpm"]["registers"]} == {
        index: value.hex() for index, value in tpm.registers("sha256").items()
    }
    return {
        **cpu["tpm"],
        "message": base64.b64encode(message).decode(),
        "signature": base64.b64encode(signature).decode(),
    }


@pytest.mark.negative(78)
@pytest.mark.parametrize("name", AZURE)
def test_a_key_that_no_processor_signed_for_is_refused(park: MachinePark, name: str) -> None:
    """The same boot quoted by another TPM; with its runtime data; with the key put into ours."""
    machine = MACHINES[name]
    evidence, policy = park.evidence(machine), park.pin(machine)
    cpu: Any = evidence.to_dict()["cpu"]
    key = rsa.generate_private_key(65537, 2048)
    asked = hashlib.sha256(bytes.fromhex(cpu["report_data"])).digest()
    tpm = own_quote(cpu, key, asked)
    runtime = json.loads(cpu["runtime"])
    theirs = json.loads(Paravisor(key).runtime)
    both = {**runtime, "keys": [*runtime["keys"], *theirs["keys"]]}
    other = {**runtime, "keys": theirs["keys"]}
    for named, error in (
        (cpu["runtime"], QuoteInvalid),
        (Paravisor(key).runtime.decode(), ReportDataMismatch),
        (json.dumps(other), ReportDataMismatch),
        (json.dumps(both), EvidenceMalformed),
    ):
        with pytest.raises(error):
            judge(altered(evidence, lambda cpu, at=named: cpu.update(tpm=tpm, runtime=at)), policy)  # type: ignore[misc]
    # That the quote itself is right: under its own key it is the victim's boot and nonce.
    assert parse_runtime(Paravisor(key).runtime).key.public_numbers() == (
        key.public_key().public_numbers()
    )


@pytest.mark.negative(79)
@pytest.mark.parametrize("name", NAMES)
def test_statements_of_another_conversation_are_refused(park: MachinePark, name: str) -> None:
    """Of the whole machine, of the TPM alone, and with the nonce that is asked for beside it."""
    machine = MACHINES[name]
    policy = park.pin(machine)
    here, there = park.evidence(machine), park.evidence(machine, ELSEWHERE)
    with pytest.raises(ReportDataMismatch):
        judge(there, policy, ASKED)
    other: Any = there.to_dict()["cpu"]
    with pytest.raises(ReportDataMismatch):
        judge(altered(here, lambda cpu: cpu.update(tpm=other["tpm"])), policy)
    if name in AZURE:
        wanted = ASKED.report_data().hex()
        with pytest.raises(ReportDataMismatch):
            judge(altered(there, lambda cpu: cpu.update(report_data=wanted)), policy)


@pytest.mark.negative(80)
@pytest.mark.parametrize("name", NAMES)
def test_registers_and_events_that_were_not_quoted_are_refused(
    park: MachinePark, name: str
) -> None:
    machine = MACHINES[name]
    evidence, policy = park.evidence(machine), park.pin(machine)

    def register(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["registers"][12]["value"] = "11" * 32

    def document(cpu: dict[str, Any]) -> None:
        cpu["app_compose"] += "\n"

    def dropped(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["events"][-1]["digest"] = "22" * 32

    def added(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["events"].append({"index": 12, "digest": "33" * 32})

    def moved(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["events"][-1]["index"] = 4

    def doubled(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["events"].append(cpu["tpm"]["events"][0])

    for change, error in (
        (register, MeasurementMismatch),
        (document, ComposeHashMismatch),
        (dropped, EventLogMismatch),
        (added, EventLogMismatch),
        (moved, EventLogMismatch),
        (doubled, EventLogMismatch),
    ):
        with pytest.raises(error):
            judge(altered(evidence, change), policy)


@pytest.mark.negative(80)
@pytest.mark.parametrize("name", NAMES)
def test_a_quote_of_some_registers_is_no_evidence(park: MachinePark, name: str) -> None:
    """A register that is not quoted could hold anything: PCR 12 a command line from outside."""
    evidence = park.evidence(MACHINES[name])

    def without(cpu: dict[str, Any]) -> None:
        del cpu["tpm"]["registers"][12]

    def longer(cpu: dict[str, Any]) -> None:
        for register in cpu["tpm"]["registers"]:
            register["value"] = "44" * 48

    def reversed_(cpu: dict[str, Any]) -> None:
        cpu["tpm"]["registers"].reverse()

    for change in (without, longer, reversed_):
        with pytest.raises(EvidenceMalformed):
            altered(evidence, change)


@pytest.mark.negative(81)
@pytest.mark.parametrize("name", NAMES)
def test_each_boot_register_of_a_policy_is_compared(park: MachinePark, name: str) -> None:
    machine = MACHINES[name]
    evidence = park.evidence(machine)
    document: Any = park.pin(machine).to_dict()
    (boot,) = document["cpu"]["boots"]
    assert set(boot) == {f"pcr{i}" for i in (4, 7, 8, 9, 11, 12)} | (
        {"pcr0"} if name == "gcp-snp" else set()
    )
    for register in boot:
        rules = {**document["cpu"], "boots": [{**boot, register: "55" * 32}]}
        with pytest.raises(MeasurementMismatch) as caught:
            judge(evidence, policy_from_dict({**document, "cpu": rules}))
        assert caught.value.check == "boot"
    listed = {**document["cpu"], "boots": [{**boot, "pcr4": "55" * 32}, boot]}
    judge(evidence, policy_from_dict({**document, "cpu": listed}))


@pytest.mark.negative(81)
@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_names_no_boot_is_refused(name: str) -> None:
    document: Any = preset(name).to_dict()
    boot = {f"pcr{i}": "66" * 32 for i in (4, 7, 8, 9, 11, 12)}
    if name == "gcp-snp":
        boot["pcr0"] = "66" * 32
    policy_from_dict({**document, "cpu": {**document["cpu"], "boots": [boot]}})
    never = ("pcr4", "pcr7", *(("pcr0",) if name == "gcp-snp" else ()))
    for boots in (
        "any",
        [{}],
        [{**boot, "pcr1": "66" * 32}],
        *([{key: value for key, value in boot.items() if key != gone}] for gone in boot),
        *([{**boot, zero: "00" * 32}] for zero in never),
    ):
        with pytest.raises(TrustInvalid):
            policy_from_dict({**document, "cpu": {**document["cpu"], "boots": boots}})
    without = {key: value for key, value in document["cpu"].items() if key != "boots"}
    with pytest.raises(TrustInvalid):
        policy_from_dict({**document, "cpu": without})


@pytest.mark.negative(82)
def test_another_machine_than_the_listed_is_refused(park: MachinePark) -> None:
    for name, rules in (
        ("azure-snp", {"vm_ids": ["another"]}),
        ("azure-tdx", {"vm_ids": []}),
        ("gcp-snp", {"projects": ["another"]}),
        ("gcp-snp", {"zones": []}),
        ("gcp-snp", {"instances": ["7"]}),
    ):
        machine = MACHINES[name]
        document: Any = park.pin(machine).to_dict()
        policy = policy_from_dict({**document, "cpu": {**document["cpu"], **rules}})
        with pytest.raises(PlatformMismatch):
            judge(park.evidence(machine), policy)


@pytest.mark.negative(82)
def test_another_chain_under_googles_key_is_refused(park: MachinePark) -> None:
    machine = MACHINES["gcp-snp"]
    evidence, policy = park.evidence(machine), park.pin(machine)
    own: Any = evidence.to_dict()["cpu"]
    google: Any = park.evidence(MACHINES["dstack-gcp-tdx"]).to_dict()["cpu"]
    leaf, issuer, root = own["tpm"]["certificates"]
    for certificates in (
        [leaf],
        [leaf, root],
        [issuer, root],
        own["certificates"],
        google["tpm"]["certificates"],
    ):
        with pytest.raises((CertificateChainInvalid, QuoteRootUntrusted)):
            judge(
                altered(evidence, lambda cpu, at=certificates: cpu["tpm"].update(certificates=at)),  # type: ignore[misc]
                policy,
            )


@pytest.mark.negative(83)
@pytest.mark.parametrize("name", AZURE)
def test_a_machine_with_runtime_data_of_another_form_is_refused(
    park: MachinePark, name: str
) -> None:
    evidence, policy = park.evidence(MACHINES[name]), park.pin(MACHINES[name])
    own: Any = evidence.to_dict()["cpu"]
    shown = json.loads(own["runtime"])
    key = shown["keys"][0]
    for runtime, error in (
        ("{}", EvidenceMalformed),
        ("[]", EvidenceMalformed),
        (json.dumps({**shown, "keys": [key, key]}), EvidenceMalformed),
        (json.dumps({**shown, "keys": [{**key, "n": key["n"][:-1]}]}), QuoteInvalid),
        (json.dumps({**shown, "keys": [{**key, "e": "Aw"}]}), QuoteInvalid),
        (own["runtime"] + " ", ReportDataMismatch),
    ):
        with pytest.raises(error):
            judge(altered(evidence, lambda cpu, at=runtime: cpu.update(runtime=at)), policy)  # type: ignore[misc]


@pytest.mark.negative(83)
def test_runtime_data_of_another_form_are_refused() -> None:
    good = json.loads(Paravisor(rsa.generate_private_key(65537, 2048)).runtime)
    key = good["keys"][0]
    number = base64.urlsafe_b64encode(b"\xc1" * 128).decode().rstrip("=")
    for change, error in (
        ({"keys": []}, EvidenceMalformed),
        ({"keys": [key, key]}, EvidenceMalformed),
        ({"keys": [{**key, "kid": "HCLEkPub"}]}, EvidenceMalformed),
        ({"keys": [{**key, "kty": "EC"}]}, EvidenceMalformed),
        ({"vm-configuration": {}}, EvidenceMalformed),
        ({"keys": [{**key, "n": number}]}, QuoteInvalid),
        ({"keys": [{**key, "e": "Aw"}]}, QuoteInvalid),
        ({"keys": [{**key, "n": 5}]}, QuoteInvalid),
        ({"keys": [{**key, "n": key["n"][:-1] + "_"}]}, QuoteInvalid),
    ):
        with pytest.raises(error):
            parse_runtime(json.dumps({**good, **change}).encode())
    for text in (b"[]", b"{}", b"{", b"[" * 9000, b'{"keys":[],"keys":[]}', b" " * 20000):
        with pytest.raises(EvidenceMalformed):
            parse_runtime(text)


@pytest.mark.negative(84)
@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_machine_is_no_hardware(park: MachinePark, name: str) -> None:
    with pytest.raises(SimulatedEvidence):
        judge(park.evidence(MACHINES[name]), preset(name))


@pytest.mark.negative(84)
def test_one_kind_is_not_another(park: MachinePark) -> None:
    """The processor's half of a machine, under the rules of a machine without a cloud's TPM."""
    for name, other in (
        ("azure-snp", "gcp-snp"),
        ("gcp-snp", "azure-snp"),
        ("azure-snp", "snp"),
        ("azure-tdx", "tdx"),
        ("snp", "azure-snp"),
        ("dstack-gcp-tdx", "azure-tdx"),
    ):
        with pytest.raises(PlatformMismatch):
            judge(park.evidence(MACHINES[name]), park.trust(MACHINES[other]))


@pytest.mark.negative(84)
@pytest.mark.parametrize("name", NAMES)
def test_the_processors_half_alone_names_no_document(park: MachinePark, name: str) -> None:
    """Passed off as a machine of the strongest tier, it is of another conversation or document."""
    bare = "tdx" if name == "azure-tdx" else "snp"
    evidence = park.evidence(MACHINES[name])

    def stripped(cpu: dict[str, Any]) -> None:
        for field in ("tpm", "runtime", "report_data"):
            cpu.pop(field, None)
        cpu["tee"] = bare

    with pytest.raises(ComposeHashMismatch):
        judge(altered(evidence, stripped), park.trust(MACHINES[bare]))


@pytest.mark.negative(85)
@pytest.mark.parametrize("name", NAMES)
def test_no_such_machine_reaches_a_stronger_tier(park: MachinePark, name: str) -> None:
    machine = MACHINES[name]
    document: Any = park.pin(machine).to_dict()
    stronger = ["processor"] + (["processor-and-paravisor"] if name == "gcp-snp" else [])
    for tier in stronger:
        with pytest.raises(TierRefused):
            judge(park.evidence(machine), policy_from_dict({**document, "tier": tier}))


@pytest.mark.negative(79)
@pytest.mark.parametrize("name", NAMES)
def test_of_two_breaches_a_decision_and_an_explanation_name_the_same(
    park: MachinePark, name: str
) -> None:
    machine = MACHINES[name]
    document: Any = park.pin(machine).to_dict()
    place = {"zones": []} if name == "gcp-snp" else {"vm_ids": []}
    policy = policy_from_dict(
        {**document, "cpu": {**document["cpu"], "boots": [], **place}},
    )
    evidence = park.evidence(machine)
    with pytest.raises(EvidenceRefused) as decided:
        judge(evidence, policy)
    exhibit = OwnEvidence(raw=evidence.to_bytes(), evidence=evidence)
    shown = explain(exhibit, Attachments(binding=ASKED), policy, NOW)
    first = next(line for line in shown.lines if line.standing == "broken")
    assert decided.value.code == first.code == "measurement-mismatch"


@pytest.mark.claim("C561")
def test_runtime_data_that_were_refused_once_are_refused_again() -> None:
    """What was read of runtime data is remembered by all their bytes, refusals never are."""
    good = Paravisor(rsa.generate_private_key(65537, 2048)).runtime
    first = parse_runtime(good)
    assert parse_runtime(bytes(bytearray(good))) is first
    for _ in range(2):
        with pytest.raises(EvidenceMalformed):
            parse_runtime(good[:-1])
    other = parse_runtime(good.replace(b"000001", b"000002"))
    assert other.vm_id != first.vm_id


def test_the_documents_register_is_what_image_measure_prints(park: MachinePark) -> None:
    for name in NAMES:
        cpu: Any = park.evidence(MACHINES[name]).to_dict()["cpu"]
        assert cpu["tpm"]["registers"][14]["value"] == document_register(COMPOSE, "sha256")


@pytest.mark.claim("C566")
@pytest.mark.parametrize("name", [*NAMES, "dstack-gcp-tdx"])
def test_a_verdict_says_that_no_list_of_googles_was_read(park: MachinePark, name: str) -> None:
    machine = MACHINES[name]
    part = judge(park.evidence(machine), park.pin(machine)).submods["cpu0"]
    left = {claim.name for claim in part.claims if claim.outcome == "any"}
    assert ("vTPM revocation" in left) == (name not in AZURE)
