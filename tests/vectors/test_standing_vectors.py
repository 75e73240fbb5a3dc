"""Our own vectors of standing approvals and of series of datasets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealtrain.consortium.datasets import verify_dataset
from sealtrain.consortium.decisions import verify_decision
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.series import chain_of, member_digest
from sealtrain.consortium.standing_approval import Begun, is_spent, use_of
from sealtrain.errors import SealtrainError
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.target import Target

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "vectors" / "approvals"
STANDING = json.loads((FOLDER / "standing.json").read_text())
SERIES = json.loads((FOLDER / "series.json").read_text())
pytestmark = [pytest.mark.claim("C185"), pytest.mark.claim("C187")]


def cases(found: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(item, id=item["name"]) for item in found]


@pytest.mark.parametrize("case", cases(STANDING["cases"]["approvals"]))
def test_terms_are_accepted_or_refused_by_their_rule(case: dict[str, Any]) -> None:
    consortium = Consortium.from_dict(STANDING["consortium"])
    envelope = Envelope.from_bytes(case["envelope"].encode())
    if case["outcome"] != "ok":
        with pytest.raises(SealtrainError) as caught:
            verify_decision(envelope, consortium)
        assert caught.value.code == case["outcome"]
        return
    signed = verify_decision(envelope, consortium)
    terms = signed.decision.standing
    assert (None if terms is None else terms.to_dict()) == case["standing"]
    assert signed.digest == case["digest"]
    assert signed.decision.to_bytes() == envelope.payload


@pytest.mark.parametrize("case", cases(STANDING["cases"]["countings"]))
def test_what_runs_leave_of_an_approval(case: dict[str, Any]) -> None:
    consortium = Consortium.from_dict(STANDING["consortium"])
    model = next(
        approval
        for approval in STANDING["cases"]["approvals"]
        if approval.get("standing") == {"runs": 10}
    )
    signed = verify_decision(Envelope.from_bytes(model["envelope"].encode()), consortium)
    terms = type(signed.decision.standing).model_validate(case["standing"])
    decision = signed.decision.model_copy(update={"standing": terms})
    approval = replace(signed, decision=decision)
    owner = signed.owner.name
    begun = [
        Begun(
            index=run["index"],
            target=Target(**run["target"]),
            reserved=((owner, "x", run["epsilon"]),) if run["epsilon"] else (),
        )
        for run in case["begun"]
    ]
    asked = ((owner, "x", case["asked"]),) if case["asked"] else ()
    use = use_of(approval, STANDING["place"], begun)
    assert is_spent(approval, use, asked) == case["spent"]


@pytest.mark.parametrize("case", cases(SERIES["cases"]["chains"]))
def test_members_are_a_chain_or_are_refused(case: dict[str, Any]) -> None:
    consortium = Consortium.from_dict(SERIES["consortium"])
    members = [
        verify_dataset(Envelope.from_bytes(member.encode()), consortium)
        for member in case["members"]
    ]
    if case["outcome"] != "ok":
        with pytest.raises(SealtrainError) as caught:
            chain_of(members)
        assert caught.value.code == case["outcome"]
        return
    assert [member_digest(value) for value in chain_of(reversed(members))] == case["digests"]


@pytest.mark.parametrize("case", cases(SERIES["cases"]["forms"]))
def test_a_block_of_another_form_is_refused(case: dict[str, Any]) -> None:
    consortium = Consortium.from_dict(SERIES["consortium"])
    with pytest.raises(SealtrainError) as caught:
        verify_dataset(Envelope.from_bytes(case["envelope"].encode()), consortium)
    assert caught.value.code == case["outcome"]


def test_they_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    maker = REPOSITORY / "tools" / "vectorgen" / "standing.py"
    subprocess.run([sys.executable, str(maker), str(tmp_path)], check=True, timeout=60)
    for name in ("standing.json", "series.json"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
