"""``vectors/evidence`` comes from a generator that shares no code with sealtrain."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from guests import verify_log

from sealtrain.attest.appraise import appraise
from sealtrain.attest.dstack.parse import RUNTIME_EVENT, runtime_digest
from sealtrain.attest.errors import EventLogMismatch
from sealtrain.attest.evidence import Evidence, LogEntry
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json
from sealtrain.base.tiers import TIER_OF_KIND, TIERS, require_tier, tier_of
from sealtrain.errors import SealtrainError

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "evidence"
DOCUMENTS = json.loads((FOLDER / "documents.json").read_text())
BINDING = Binding(DOCUMENTS["purpose"], DOCUMENTS["transcript"])
TIER_CASES = json.loads((FOLDER / "tiers.json").read_text())
EVENT_LOG = json.loads((FOLDER / "event-log.json").read_text())


def outcome_of(case: dict[str, Any]) -> str:
    document = {**DOCUMENTS["evidence"], **case["changes"]}
    document["cpu"] = {**document["cpu"], **case["cpu"]}
    policy = policy_from_dict(DOCUMENTS["policy"])
    try:
        evidence = Evidence.from_bytes(canonical_json(document))
        facts = verify(evidence, policy, case["now"], binding=BINDING)
        appraise(
            facts,
            policy,
            binding=BINDING,
            compose_hash=DOCUMENTS["compose_hash"],
            app_id=DOCUMENTS["app_id"],
        )
    except SealtrainError as error:
        return error.code
    return "ok"


@pytest.mark.parametrize("case", DOCUMENTS["cases"], ids=lambda case: case["name"])
def test_each_document_ends_as_its_vector_says(case: dict[str, Any]) -> None:
    assert outcome_of(case) == case["outcome"]


@pytest.mark.claim("C430")
def test_the_tiers_their_order_and_their_kinds_are_those_of_the_vector() -> None:
    assert list(TIERS) == TIER_CASES["order"]
    assert TIER_CASES["kinds"] == TIER_OF_KIND


@pytest.mark.claim("C430")
@pytest.mark.parametrize("case", TIER_CASES["cases"], ids=lambda case: case["name"])
def test_a_machine_below_the_lowest_tier_is_refused(case: dict[str, Any]) -> None:
    outcome = "ok"
    try:
        require_tier(tier_of(case["kind"]), case["lowest"], asked_by="the policy")
    except SealtrainError as error:
        outcome = error.code
    assert outcome == case["outcome"]


def test_digest_and_identity_are_those_of_the_vector() -> None:
    evidence = Evidence.from_dict(DOCUMENTS["evidence"])
    assert evidence.digest == DOCUMENTS["evidence_sha256"]
    policy = policy_from_dict(DOCUMENTS["policy"])
    facts = verify(evidence, policy, DOCUMENTS["cases"][0]["now"], binding=BINDING)
    assert facts.report_data.hex() == DOCUMENTS["report_data"]
    assert facts.quote_identity == DOCUMENTS["quote_identity"]
    assert facts.signed.ppid == "77" * 16
    assert facts.instance_id == "41" * 20
    assert facts.key_provider == "3059aabb"
    assert facts.signed.measured.os_image_hash == "51" * 32
    assert facts.signed.tcb_evaluation_data_number == 7


@pytest.mark.parametrize("vector", json.loads((FOLDER / "report-data.json").read_text())["cases"])
def test_report_data_equals_its_vector(vector: dict[str, Any]) -> None:
    binding = Binding(vector["purpose"], vector["transcript"])
    assert binding.report_data().hex() == vector["report_data"]
    assert binding.gpu_nonce().hex() == vector["gpu_nonce"]
    with_gpus = binding.report_data(bytes.fromhex(vector["gpu_digest"]))
    assert with_gpus.hex() == vector["report_data_with_gpus"]


def test_runtime_digests_and_their_register_equal_the_vectors() -> None:
    register = bytes(48)
    for event in EVENT_LOG["cases"]:
        digest = runtime_digest(event["event"], bytes.fromhex(event["payload"]), event["version"])
        assert digest.hex() == event["digest"]
        register = hashlib.sha384(register + digest).digest()
    assert register.hex() == EVENT_LOG["register"]


def test_each_form_of_config_id_commits_to_the_measured_values() -> None:
    vector = EVENT_LOG["mr_config_id"]
    compose = vector["app_compose"].encode()
    provider = json.dumps(vector["key_provider"]).encode()

    def log(app_id: str) -> tuple[LogEntry, ...]:
        payloads = {
            "app-id": app_id,
            "compose-hash": hashlib.sha256(compose).hexdigest(),
            "instance-id": vector["instance_id"],
            "key-provider": provider.hex(),
            "system-ready": "",
        }
        return tuple(
            LogEntry(
                imr=3,
                event_type=RUNTIME_EVENT,
                digest="",
                event=name,
                event_payload=payload,
                version=1,
            )
            for name, payload in payloads.items()
        )

    def check(app_id: str, form: str) -> None:
        register = bytes(48)
        for entry in log(app_id):
            digest = runtime_digest(entry.event, bytes.fromhex(entry.event_payload), 1)
            register = hashlib.sha384(register + digest).digest()
        zero = "00" * 48
        verify_log(log(app_id), (zero, zero, zero, register.hex()), bytes.fromhex(form), compose)

    for form in vector["forms"]:
        check(vector["app_id"], form)
    for form in vector["forms"][1:]:
        with pytest.raises(EventLogMismatch, check=carries(check="MRCONFIGID")):
            check("00" * 20, form)


def test_the_generator_writes_the_same_bytes_again(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("Crypto.Hash.keccak")
    generator = repository / "tools" / "vectorgen" / "evidence.py"
    subprocess.run([sys.executable, str(generator), str(tmp_path)], check=True)
    for path in FOLDER.glob("*.json"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    source = generator.read_text()
    assert "import sealtrain" not in source
    assert "from sealtrain" not in source
