"""Run control against vectors of an independent generator."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.digests import sha256_hex
from sealtrain.consortium.runevents import RunEvent, after, state_submitted
from sealtrain.consortium.submissions import (
    ControlDocument,
    RunStop,
    Submission,
    verify_control,
)
from sealtrain.errors import SealtrainError, error_by_code
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.ed25519 import key_id

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "run-control" / "documents.json").read_text("utf-8")
)
DOCUMENTS = {document["name"]: document for document in VECTORS["cases"]["documents"]}
READ = {name: document for name, document in DOCUMENTS.items() if document["outcome"] == "ok"}
CHAINS = {chain["name"]: chain["steps"] for chain in VECTORS["cases"]["chains"]}
KINDS: dict[str, type[ControlDocument]] = {
    kind.entry_kind: kind for kind in (Submission, RunEvent, RunStop)
}
KEYS = {key_id(key): key for key in (base64.b64decode(text) for text in VECTORS["keys"].values())}


def read(case: Any) -> ControlDocument:
    envelope = Envelope.from_dict(case["envelope"])
    return verify_control(KINDS[case["kind"]], envelope, KEYS, VECTORS["consortium_id"])


@pytest.mark.parametrize("name", READ)
def test_a_document_is_read(name: str) -> None:
    case = READ[name]
    document = read(case)
    envelope = Envelope.from_dict(case["envelope"])
    assert envelope.digest == case["digest"]
    assert document.to_bytes() == envelope.payload
    if isinstance(document, Submission):
        assert document.submission_id == case["submission_id"]
        assert document.ticket_digest == case["ticket_digest"]


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in READ])
def test_a_faulty_document_is_refused(name: str) -> None:
    case = DOCUMENTS[name]
    with pytest.raises(error_by_code(case["outcome"])) as refused:
        read(case)
    assert refused.value.code == case["outcome"]


@pytest.mark.parametrize("name", CHAINS)
def test_events_end_as_the_chain_says(name: str) -> None:
    began = VECTORS["began"]
    first = read({"kind": "submission", "envelope": VECTORS["submission"]})
    assert isinstance(first, Submission)
    state = state_submitted(first, by="one", digest="00" * 32, index=0, at=began)
    keys = list(KEYS)
    template = READ
    for number, step in enumerate(CHAINS[name], 1):
        like = Envelope.from_dict(template[f"an event {step['event']}"]["envelope"])
        fields = json.loads(like.payload) | {
            "runner": keys[step.get("runner", 2) - 1],
            "previous": step.get("previous", state.head),
        }
        fields |= {word: step[word] for word in ("run_id", "instance") if word in step}
        event = RunEvent.from_dict(fields)
        try:
            state = after(
                state, event, by="runner", digest=sha256_hex(event.to_bytes()), index=number,
                at=began + step["after"],
            )  # fmt: skip
            ended = state.phase
        except SealtrainError as error:
            ended = error.code
        assert ended == step["ends"], (number, step)
