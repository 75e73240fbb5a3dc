"""Transcripts, report data, HPKE info and receipts agree with an independent generator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bare_evidence import EVIDENCE

from sealtrain.attest.report_data import report_data
from sealtrain.base.encoding import from_base64
from sealtrain.base.secret import Secret
from sealtrain.broker.service.keyring import Keyring
from sealtrain.consortium.receipts import receipt_digest, verify_receipt
from sealtrain.errors import Refused, SealtrainError
from sealtrain.release.challenge_code import expiry_of, make_challenge
from sealtrain.release.lease_code import (
    LEASE_HEADER,
    Closing,
    manifest_key,
    read_lease_header,
    show_lease,
    show_manifest,
)
from sealtrain.release.messages import (
    BrokerIdentity,
    BrokerKeys,
    ReleaseRequest,
    RenewalRequest,
    answer_info,
    ledger_origin,
    transcript_digest,
)
from sealtrain.release.sealing_key import SignedSealingKey, verify_sealing_key
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.identity import broker_id

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "release"
CONVERSATIONS = json.loads((FOLDER / "conversations.json").read_text())["cases"]
CHALLENGES = json.loads((FOLDER / "challenges.json").read_text())
LEASES = json.loads((FOLDER / "leases.json").read_text())["cases"]
SEALING_KEYS = json.loads((FOLDER / "sealing-keys.json").read_text())
RECEIPTS = json.loads((FOLDER / "receipts.json").read_text())
MODELS: dict[str, Any] = {
    "release": ReleaseRequest,
    "renewal": RenewalRequest,
    "broker-keys": BrokerKeys,
    "broker-identity": BrokerIdentity,
}


@pytest.mark.parametrize("case", CONVERSATIONS, ids=lambda case: case["name"])
def test_a_message_commits_to_the_transcript_of_the_vector(case: dict[str, Any]) -> None:
    document = {"version": 1} | case["transcript"] | {"evidence": EVIDENCE}
    message = MODELS[case["kind"]].model_validate_json(json.dumps(document))
    transcript = message.transcript()
    assert transcript == case["transcript"]
    assert report_data(case["kind"], transcript).hex() == case["report_data"]
    if "transcript_digest" in case:
        assert transcript_digest(transcript) == case["transcript_digest"]
    if "hpke_info" in case:
        assert answer_info(case["transcript_digest"]).hex() == case["hpke_info"]
    if "broker_id" in case:
        assert broker_id(from_base64(message.signing_key)) == case["broker_id"]
    if "ledger_origin" in case:
        assert ledger_origin(transcript["consortium_id"]) == case["ledger_origin"]


@pytest.mark.parametrize("case", CHALLENGES["cases"], ids=lambda case: case["challenge"][:16])
def test_a_challenge_is_made_and_known_again(case: dict[str, Any]) -> None:
    keyring = Keyring(Secret(bytes.fromhex(CHALLENGES["root"])))

    def key(purpose: str, generation: str) -> Secret:
        return keyring.challenge_key(CHALLENGES["consortium_id"], purpose, generation)

    mine = key(case["purpose"], case["generation"])
    assert mine.reveal().hex() == case["key"]
    made = make_challenge(
        mine, expires_at=case["expires_at"], random=lambda _size: bytes.fromhex(case["random"])
    )
    assert made == case["challenge"]
    for other in CHALLENGES["cases"]:
        same = (other["purpose"], other["generation"]) == (case["purpose"], case["generation"])
        found = expiry_of(made, key(other["purpose"], other["generation"]))
        assert found == (case["expires_at"] if same else None)


@pytest.mark.parametrize("case", LEASES, ids=lambda case: case["header"][-16:])
def test_a_lease_is_shown_by_its_key_and_known_by_the_root_alone(case: dict[str, Any]) -> None:
    body, key = bytes.fromhex(case["body"]), Secret(bytes.fromhex(case["key"]))
    assert show_lease(case["lease_id"], key, body) == {LEASE_HEADER: case["header"]}
    shown = read_lease_header(case["header"])
    assert shown is not None
    for other in LEASES:
        keyring = Keyring(Secret(bytes.fromhex(other["root"])))
        assert keyring.has_granted(shown) == (other["root"] == case["root"])
        assert not keyring.closes(shown)


@pytest.mark.parametrize("case", LEASES, ids=lambda case: case["manifest_header"][-16:])
def test_a_manifest_is_shown_by_a_key_of_its_own(case: dict[str, Any]) -> None:
    body, lease_key = bytes.fromhex(case["body"]), Secret(bytes.fromhex(case["key"]))
    key = manifest_key(lease_key)
    assert key.reveal().hex() == case["manifest_key"]
    closing = Closing(broker_id="00" * 32, lease_id=case["lease_id"], key=key)
    assert show_manifest(closing, body) == {LEASE_HEADER: case["manifest_header"]}
    shown = read_lease_header(case["manifest_header"])
    assert shown is not None
    for other in LEASES:
        keyring = Keyring(Secret(bytes.fromhex(other["root"])))
        assert keyring.closes(shown) == (other["root"] == case["root"])
        assert not keyring.has_granted(shown)


@pytest.mark.parametrize("case", RECEIPTS["cases"], ids=lambda case: case["name"])
def test_a_receipt_verifies_or_is_refused_as_the_vector_says(case: dict[str, Any]) -> None:
    envelope = Envelope.from_dict(case["envelope"])
    assert receipt_digest(envelope) == case["digest"]
    public = from_base64(RECEIPTS["public_key"])
    if case["outcome"] == "ok":
        assert verify_receipt(envelope, public).run_id
    else:
        with pytest.raises(Refused) as caught:
            verify_receipt(envelope, public)
        assert caught.value.code == case["outcome"]


@pytest.mark.parametrize("case", SEALING_KEYS["cases"], ids=lambda case: case["name"])
def test_a_signed_key_is_sealed_to_or_refused_as_the_vector_says(case: dict[str, Any]) -> None:
    document = json.dumps({"version": 1, "statement": case["statement"]})
    answer = SignedSealingKey.model_validate_json(document)
    signing_key = from_base64(SEALING_KEYS["public_key"])
    if case["outcome"] == "ok":
        assert len(verify_sealing_key(answer, signing_key, SEALING_KEYS["asked"])) == 1216
    else:
        with pytest.raises(SealtrainError) as caught:
            verify_sealing_key(answer, signing_key, SEALING_KEYS["asked"])
        assert caught.value.code == case["outcome"]


def test_the_generator_writes_the_same_bytes_again(repository: Path, tmp_path: Path) -> None:
    program = repository / "tools" / "vectorgen" / "release.py"
    subprocess.run([sys.executable, str(program), str(tmp_path)], check=True)
    for name in ("conversations.json", "receipts.json", "sealing-keys.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
