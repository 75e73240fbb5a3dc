"""The driver that decides and the one that explains, over the same evidence: they end alike."""

from __future__ import annotations

from sealtrain.attest.appraise import appraise
from sealtrain.attest.bundle import Attachments
from sealtrain.attest.evidence import Evidence
from sealtrain.attest.explain.examine import examine
from sealtrain.attest.explain.explanation import Line, explain, line_of
from sealtrain.attest.forms import Exhibit, OwnEvidence
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.verify import verify
from sealtrain.errors import DataInvalid, EvidenceRefused


def both_judge(
    evidence: Evidence, policy: AppraisalPolicy, now: int, beside: Attachments
) -> str | None:
    """Evidence in its conversation: ``verify`` and ``appraise``, then ``explain``.

    Returns:
        The code both end in; ``None`` where everything holds.
    """
    binding = beside.binding
    assert binding is not None

    def decide() -> None:
        verified = verify(
            evidence,
            policy,
            now,
            binding=binding,
            collateral=beside.collateral,
            gpu_collateral=beside.gpu_collateral,
            crl=beside.crl,
        )
        expected = beside.compose_hash
        appraise(verified, policy, binding=binding, compose_hash=expected, app_id=None)

    try:
        decide()
    except EvidenceRefused as error:
        refused: EvidenceRefused | None = error
    else:
        refused = None
    exhibit = OwnEvidence(raw=evidence.to_bytes(), evidence=evidence)
    return _agreed(refused, exhibit, beside, policy, now)


def both_examine(
    exhibit: Exhibit, policy: AppraisalPolicy, now: int, beside: Attachments
) -> str | None:
    """A third party's file: ``examine``, then ``explain``. Returns as ``both_judge``."""
    try:
        examine(exhibit, beside, policy, now)
    except EvidenceRefused as error:
        return _agreed(error, exhibit, beside, policy, now)
    except DataInvalid:  # no evidence by itself
        assert not explain(exhibit, beside, policy, now).lines
        return None
    return _agreed(None, exhibit, beside, policy, now)


def _agreed(
    refused: EvidenceRefused | None,
    exhibit: Exhibit,
    beside: Attachments,
    policy: AppraisalPolicy,
    now: int,
) -> str | None:
    lines: tuple[Line, ...] = ()
    malformed: EvidenceRefused | None = None
    try:
        lines = explain(exhibit, beside, policy, now).lines
    except EvidenceRefused as error:  # not even its form holds: there is nothing to show
        malformed = error
    if malformed is not None:
        assert refused is not None
        assert (malformed.code, malformed.check) == (refused.code, refused.check)
        return refused.code
    broken = [line for line in lines if line.standing == "broken"]
    if refused is None:
        assert not broken, broken
        return None
    assert broken, refused
    first = broken[0]
    assert first.code == refused.code, (first, refused)
    assert _same_check(first, refused, policy.cpu.tee), (first, refused)
    return refused.code


def _same_check(line: Line, refused: EvidenceRefused, tee: str) -> bool:
    """By its name or, where one is known under two, by the policy's field."""
    check = refused.check or refused.code
    if line.name in (check, "signature and root"):
        return True
    return line.policy != "" and line.policy == line_of(tee, line.part, check)
