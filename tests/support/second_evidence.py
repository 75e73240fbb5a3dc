"""The JavaScript verifier beside ours: the same evidence to both, and where they disagree."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from machines_world import ASKED, NOW
from node_judges import judge

from sealtrain.attest.appraise import appraise
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.policy import policy_from_dict
from sealtrain.attest.verify import verify
from sealtrain.base.canonical import canonical_json
from sealtrain.base.encoding import to_base64
from sealtrain.errors import SealtrainError

DRIVER = Path(__file__).with_suffix(".mjs")
UNREAD_LEAF = {"collateral-mismatch", "quote-invalid", "quote-root-untrusted"}
"""Which of these a PCK certificate of another encoding ends in hangs on what of it is read first.
Both refuse it in check 4."""
IN_LEAF = " of the leaf"
"""How the label of a question ends whose PCK certificate was altered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceQuestion:
    """A document under a policy at a moment.

    Attributes:
        label: The change that was made, for a person.
    """

    label: str
    document: Any
    policy: dict[str, Any]
    now: int = NOW

    def to_line(self) -> str:
        """As the driver reads it."""
        return json.dumps(
            {
                "evidence": to_base64(canonical_json(self.document)),
                "policy": self.policy,
                "now": self.now,
                "purpose": ASKED.purpose,
                "transcript": ASKED.transcript,
            }
        )


def own_code(question: EvidenceQuestion) -> str:
    """The code of our refusal, or ``accepted``."""
    try:
        policy = policy_from_dict(question.policy)
        evidence = Evidence.from_bytes(canonical_json(question.document))
        verified = verify(evidence, policy, question.now, binding=ASKED)
        appraise(verified, policy, binding=ASKED, compose_hash=None, app_id=None)
    except SealtrainError as error:
        return error.code
    return "accepted"


def second_codes(questions: list[EvidenceQuestion]) -> list[str]:
    """The same of the JavaScript verifier, which reads all questions in one process."""
    return judge(DRIVER, (question.to_line() for question in questions))


def compare_codes(
    questions: list[EvidenceQuestion], capsys: pytest.CaptureFixture[str]
) -> Counter[str]:
    """Refuse any disagreement of the two verifiers; return how many questions ended in what."""
    answers = [
        (question.label, own_code(question), second_code)
        for question, second_code in zip(questions, second_codes(questions), strict=True)
    ]
    counted = Counter(code for _, code, _ in answers)
    with capsys.disabled():
        print(f"\n{len(answers)} documents, {len(counted)} different answers: {dict(counted)}")
    differ = [answer for answer in answers if not _agree(*answer)]
    assert differ == [], "\n".join(map(str, differ[:30]))
    return counted


def _agree(label: str, own: str, second: str) -> bool:
    leaf = label.endswith(IN_LEAF) and {own, second} <= UNREAD_LEAF
    return own == second or leaf
