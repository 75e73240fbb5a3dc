"""The engine: what evidence of a guest is compared with, in one order, by every verdict.

Of a guest's processor a TEE gives signed facts and a table of rules (``attest.facts``,
``attest.rules``); ``guest_part`` makes the part of them whose checks ``attest.parts`` walks. The
engine alone compares platform, tier, document, app and conversation. ``guest_groups`` has what
follows from a signature: the TEE's rules by their number, the document, the app, the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from sealtrain.attest.claims import (
    Claim,
    Group,
    claim_unchecked,
    compare_commitment,
    equal,
    raising,
    single,
)
from sealtrain.attest.errors import (
    AppIdMismatch,
    ComposeHashMismatch,
    PlatformMismatch,
    SimulatedEvidence,
)
from sealtrain.attest.facts import MeasuredDocument, SignedFacts, Situation
from sealtrain.attest.parts import Part, Vouched
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.rules import Rule
from sealtrain.attest.tee import VerifiedGuest
from sealtrain.attest.verifier import Verifier, verifier_of
from sealtrain.base.tiers import Tier, or_stronger, require_tier

if TYPE_CHECKING:
    from sealtrain.attest.bundle import Attachments
    from sealtrain.attest.forms import StatementExhibit


def guest_part(
    prove: Callable[[], SignedFacts[Any]], verifier: Verifier[Any, Any, Any], at: Situation
) -> Part:
    """A guest's processor: proven, bound to its document, compared.

    Args:
        prove: Raises ``EvidenceRefused`` where a signature does not lead to a root.
        verifier: Its TEE's.
        at: Policy, time, conversation.
    """

    def verify() -> Vouched:
        facts = prove()
        return Vouched(
            root=facts.root,
            simulated=facts.statement.simulated,
            identity=facts.statement.quote_identity,
            eat={} if facts.document is None else verifier.eat(facts.statement),
            groups=tuple(guest_groups(facts, verifier, at)),
            bound=tuple(_compare_binding(facts, verifier, at)),
            facts=_guest(facts, at),
        )

    return Part(name="cpu0", verify=verify)


def statement_part(exhibit: StatementExhibit, beside: Attachments, at: Situation) -> Part:
    """The same of a file that holds one processor's statement."""
    return guest_part(partial(exhibit.prove, beside, at), verifier_of(exhibit.tee), at)


def _compare_binding(
    facts: SignedFacts[Any], verifier: Verifier[Any, Any, Any], at: Situation
) -> Iterator[Group]:
    """(3) Rules that come first, what ties the statement, the document that the evidence shows."""
    if at.shown_compose is None:
        return
    rules = {rule.name: rule for rule in verifier.rules}
    for name in verifier.early:
        yield from _apply_rule(rules[name], facts, verifier, at)
    yield from facts.ties
    if facts.document is not None:
        yield single(partial(_same_document, facts.document, at.shown_compose))


def guest_groups(
    facts: SignedFacts[Any], verifier: Verifier[Any, Any, Any], at: Situation
) -> Iterator[Group]:
    """(4) The TEE's rules by their number, then document, app and conversation.

    Of a file by itself, what ties the statement stands before the first rule about what the guest
    measured; of evidence that shows its document, ``ties`` and ``early`` rules were made before.

    Args:
        facts: What was signed.
        verifier: Its TEE's, which has the rules.
        at: Policy, time, conversation.
    """
    bare = at.shown_compose is None
    ties = facts.ties if bare else ()
    if facts.held:
        yield lambda: facts.held
    for rule in verifier.rules:
        if rule.measured:
            yield from ties
            ties = ()
        if bare or rule.name not in verifier.early:
            yield from _apply_rule(rule, facts, verifier, at)
    yield from ties
    if facts.document is not None:
        yield from _document_groups(facts.document, at)
        if facts.app_id is not None:
            yield single(partial(_app, facts.app_id, facts.document.source, at))
    if facts.asked is not None:
        yield from facts.asked
    else:
        said = partial(compare_commitment, "report data", at.nonce, facts.report_data, facts.source)
        yield single(said)


def _apply_rule(
    rule: Rule, facts: SignedFacts[Any], verifier: Verifier[Any, Any, Any], at: Situation
) -> Iterator[Group]:
    """A rule as one comparison; none where what it is about, or who asks for it, is missing."""
    asked = None if at.policy is None else at.policy.cpu
    policy = asked if isinstance(asked, verifier.form) else None
    if (policy is None and not rule.always) or (rule.measured and facts.document is None):
        return

    def compare() -> tuple[Claim, ...]:
        claim = rule.compare(facts.statement, policy, at.now)
        return () if claim is None else (claim,)

    yield compare


def _guest(facts: SignedFacts[Any], at: Situation) -> VerifiedGuest[Any] | None:
    """Facts about a guest, of a statement that comes with the deployment document."""
    digest = at.shown_compose
    if digest is None or facts.document is None:
        return None
    return VerifiedGuest(
        signed=facts.statement,
        report_data=facts.report_data or b"",
        compose_hash=digest,
        app_id=facts.app_id or digest[:40],
        instance_id=facts.instance_id,
        key_provider=facts.key_provider,
    )


def check_offered(offered: str, policy: AppraisalPolicy) -> Claim:
    """(1) What evidence is offered as, before anything of it is verified.

    Raises:
        SimulatedEvidence: A simulator's, and the policy asks for hardware.
        PlatformMismatch: Another platform's.
    """
    simulated = offered == "simulator"
    if offered != policy.platform:
        error = SimulatedEvidence if simulated else PlatformMismatch
        raise error(
            "evidence is of another platform than the policy asks for",
            check="platform",
            got=SIMULATED_LABEL if simulated else offered,
            expected=policy.platform,
        )
    return Claim(
        name="platform", got=offered, expected=policy.platform, source="evidence", outcome="equal"
    )


def check_platform(platform: str, simulated: bool, policy: AppraisalPolicy) -> Claim:
    """(4) What the root of trust says of the platform that was offered.

    Raises:
        SimulatedEvidence: A simulator signed, and the policy asks for hardware.
        PlatformMismatch: Another platform's, or verified under another policy.
    """
    if simulated and policy.simulator_root is None:
        raise SimulatedEvidence(
            "evidence is simulated; this policy asks for hardware",
            check="platform",
            got=SIMULATED_LABEL,
            expected=policy.platform,
        )
    if simulated != (policy.simulator_root is not None):
        raise PlatformMismatch(
            "evidence was verified under another policy",
            check="platform",
            got="hardware",
            expected="simulator",
        )
    return equal(
        "platform",
        platform,
        policy.platform,
        source="root of trust",
        error=PlatformMismatch,
        message="guest runs on another platform",
    )


def check_tier(proven: Tier, policy: AppraisalPolicy) -> Claim:
    """What evidence of this kind proves, compared with the lowest tier that the policy takes.

    Raises:
        TierRefused: It proves less.
    """
    require_tier(proven, policy.tier, asked_by="the policy")
    return Claim(
        name="tier",
        got=proven,
        expected=or_stronger(policy.tier),
        source="kind of evidence",
        outcome="equal" if proven == policy.tier else "allowed",
    )


def other_tee(got: str, expected: str) -> Group:
    """The policy is for something else than this part."""
    return raising(
        PlatformMismatch(
            "evidence is of another TEE than the policy asks for",
            check="platform",
            got=got,
            expected=expected,
        )
    )


def _document_groups(document: MeasuredDocument, at: Situation) -> Iterator[Group]:
    """The deployment documents that were named, by what the guest measured."""
    if not at.compose_hashes and at.shown_compose is None:
        yield single(partial(claim_unchecked, "compose hash", document.got, source=document.source))
    for digest in at.compose_hashes:
        yield single(partial(_same_document, document, digest))


def _same_document(document: MeasuredDocument, digest: str) -> Claim:
    return equal(
        "compose hash",
        document.got,
        document.of(digest),
        source=document.source,
        error=ComposeHashMismatch,
        message="guest measured another deployment document",
        hint="show the exact bytes that were deployed; re-serialised JSON has another hash",
    )


def _app(app_id: str, source: str, at: Situation) -> Claim:
    return equal(
        "app id",
        app_id,
        at.app_id,
        source=source,
        error=AppIdMismatch,
        message="guest runs another app",
    )
