"""Messages from the network: every field known, present, bounded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bare_evidence import EVIDENCE

from sealtrain.consortium.receipts import Lease
from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import (
    MAX_DATASETS,
    ChallengeRequest,
    ReleaseRequest,
    SealedKeys,
    load_message,
)

VECTORS = Path(__file__).resolve().parents[3] / "vectors" / "release" / "conversations.json"


@pytest.fixture
def release() -> dict[str, Any]:
    case = json.loads(VECTORS.read_text())["cases"][1]
    assert case["kind"] == "release"
    return copy.deepcopy(case["transcript"]) | {"evidence": EVIDENCE}


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def test_a_request_survives_the_wire(release: dict[str, Any]) -> None:
    request = load_message(ReleaseRequest, encoded(release))
    assert request.to_dict() == release
    assert "evidence" not in request.transcript()


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "unknown field": lambda one: one.update(extra=1),
    "unknown field of a dataset": lambda one: one["datasets"][0].update(extra=1),
    "unknown field of a stanza": lambda one: one["datasets"][0]["stanza"].update(extra=1),
    "challenge left out": lambda one: one.pop("challenge"),
    "resume left out": lambda one: one.pop("resume"),
    "accelerators left out": lambda one: one.update(
        evidence={name: value for name, value in EVIDENCE.items() if name != "gpu"}
    ),
    "an older version": lambda one: one.update(version=1),
    "the version before owners of ids": lambda one: one.update(version=2),
    "another version": lambda one: one.update(version=4),
    "version as text": lambda one: one.update(version="3"),
    "no owner of a dataset": lambda one: one["datasets"][0].pop("owner_id"),
    "no owner of other data": lambda one: one["elsewhere"].append(
        {"dataset_id": "0f" * 16, "root": "ab" * 32}
    ),
    "no submission": lambda one: one.pop("submission_id"),
    "a submission by its name": lambda one: one.update(submission_id="nightly"),
    "broker left out": lambda one: one.pop("broker_id"),
    "other data left out": lambda one: one.pop("elsewhere"),
    "a dataset here and elsewhere": lambda one: one["elsewhere"].append(
        {name: one["datasets"][0][name] for name in ("owner_id", "dataset_id", "root")}
    ),
    "a stanza elsewhere": lambda one: one["elsewhere"].append(
        one["datasets"][0] | {"dataset_id": "0f" * 16}
    ),
    "resume as number": lambda one: one.update(resume=1),
    "upper-case hex": lambda one: one.update(run_id="AB" * 16),
    "short challenge": lambda one: one.update(challenge="ab" * 31),
    "newline behind hex": lambda one: one.update(challenge="ab" * 32 + "\n"),
    "short public key": lambda one: one.update(hpke_public_key="AAAA"),
    "no dataset": lambda one: one.update(datasets=[]),
    "a dataset twice": lambda one: one["datasets"].append(one["datasets"][0]),
    "an owner stanza": lambda one: one["datasets"][0]["stanza"].update(kind="owner"),
    "a huge stanza": lambda one: one["datasets"][0]["stanza"].update(body="A" * 8196),
    "evidence of another platform": lambda one: one.update(evidence=EVIDENCE | {"platform": "x"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_request_that_is_not_one(release: dict[str, Any], name: str) -> None:
    BROKEN[name](release)
    with pytest.raises(DataInvalid):
        load_message(ReleaseRequest, encoded(release))


def test_datasets_are_bounded(release: dict[str, Any]) -> None:
    one = release["datasets"][0]
    release["datasets"] = [one | {"dataset_id": f"{number:032x}"} for number in range(MAX_DATASETS)]
    load_message(ReleaseRequest, encoded(release))
    release["elsewhere"] = [{"owner_id": "e" * 64, "dataset_id": "f" * 32, "root": one["root"]}]
    with pytest.raises(DataInvalid):
        load_message(ReleaseRequest, encoded(release))
    release["elsewhere"] = []
    release["datasets"].append(one | {"dataset_id": "f" * 32})
    with pytest.raises(DataInvalid):
        load_message(ReleaseRequest, encoded(release))


def test_a_body_over_the_cap_is_not_parsed() -> None:
    with pytest.raises(LimitExceeded):
        load_message(ChallengeRequest, b"{" + b" " * 100, max_bytes=100)


def test_the_caller_names_the_error() -> None:
    with pytest.raises(AnswerInvalid):
        load_message(ChallengeRequest, b"{}", error=AnswerInvalid)


def test_keys_do_not_show() -> None:
    secret = "QUFB" * 10 + "QUE="
    keys = SealedKeys(
        keys={"ab" * 16: secret},
        latest_checkpoint=None,
        lease=Lease(lease_id="cd" * 32, not_after="2026-01-01T00:00:00Z"),
        lease_key=secret,
        receipt_digest="ef" * 32,
    )
    assert "QUFB" not in repr(keys) + str(keys)


def test_a_malformed_key_is_not_quoted_in_the_error() -> None:
    document = {"keys": {"ab" * 16: "SECRETSECRET"}, "latest_checkpoint": None}
    with pytest.raises(AnswerInvalid) as caught:
        load_message(SealedKeys, encoded(document), error=AnswerInvalid)
    assert "SECRET" not in str(caught.value) + json.dumps(caught.value.to_dict())
