"""Decide about one file at a moment: every part verifies and every comparison holds, or nothing.

sealtrain's own evidence, with the conversation it was made for, is decided by ``attest.verify`` and
``attest.appraise``, as everywhere else. Other files are reported as not bound to a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from sealtrain.attest.appraise import Submodule, appraise
from sealtrain.attest.bundle import KINDS, Attachments, Bundle
from sealtrain.attest.claims import Claim
from sealtrain.attest.errors import ComposeHashMismatch, EvidenceMalformed
from sealtrain.attest.exhibits import recognise
from sealtrain.attest.explain.parts import parts_of
from sealtrain.attest.forms import Bundled, Exhibit, OwnEvidence, QuotedGpus
from sealtrain.attest.nvidia.policy import NvidiaPolicy
from sealtrain.attest.parts import decide
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.roots import SIMULATED_LABEL
from sealtrain.attest.verify import verify
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import DataInvalid

Missing = Literal["conversation", "tie", "guest", "document", "accelerators"]
"""Checks that only evidence of a whole guest in a conversation allows."""

_MISSING: dict[Missing, str] = {
    "conversation": "not bound to a conversation",
    "tie": "nothing ties these accelerators to this processor",
    "guest": "devices alone: no guest vouches for confidential mode",
    "document": "deployment document not compared",
    "accelerators": "processor alone: accelerators that the policy asks for are not in this file",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A file whose every part verified and held.

    Attributes:
        kind: What it is.
        title: The same in words.
        bound: Whether it was compared with a conversation.
        simulated: Whether a simulator signed any of it: it proves nothing about hardware.
        compared: Whether a policy was looked at.
        missing: Checks of a broker that could not be made here.
        submods: By part: claims under their RFC 9711 names, and comparisons that held.
    """

    kind: str
    title: str
    bound: bool
    simulated: bool
    compared: bool
    missing: tuple[Missing, ...]
    verified_at: int
    identities: dict[str, str]
    submods: dict[str, Submodule]

    @property
    def label(self) -> str:
        """One line for people."""
        if self.simulated:
            return SIMULATED_LABEL
        if not self.compared:
            return "SIGNATURE AND ROOT VERIFIED — compared with no policy"
        lacking = "; ".join(_MISSING[part] for part in self.missing)
        return f"VERIFIED — {lacking}" if lacking else "VERIFIED"

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "kind": self.kind,
            "label": self.label,
            "bound": self.bound,
            "missing": list(self.missing),
            "simulated": self.simulated,
            "verified_at": to_rfc3339(self.verified_at),
            "identities": self.identities,
            "submods": {name: submodule.to_dict() for name, submodule in self.submods.items()},
        }


def unwrap_bundle(exhibit: Exhibit, given: Attachments) -> tuple[Exhibit, Attachments]:
    """What a bundle holds and what lies beside it; anything else as it is.

    Args:
        exhibit: A recognised file.
        given: What a person named; it counts more than what a bundle holds.

    Raises:
        EvidenceRefused: The bundle's evidence is malformed, nothing this release knows, or
            something else than the bundle says.
    """
    if not isinstance(exhibit, Bundled):
        return exhibit, given
    bundle = exhibit.bundle
    try:
        inner = recognise(bundle.evidence_bytes)
    except DataInvalid as error:
        raise EvidenceMalformed(
            f"bundle's evidence: {error.message}", check="bundle", got=error.got
        ) from error
    if inner.kind != bundle.kind:
        raise EvidenceMalformed(
            "bundle holds something else than it says",
            check="bundle",
            got=inner.kind,
            expected=bundle.kind,
        )
    named = {
        name: value
        for name in Attachments.__dataclass_fields__
        if (value := getattr(given, name)) not in (None, ())
    }
    kept = bundle.beside
    if kept.gpu_collateral is not None:
        kept = replace(kept, gpu_collateral=kept.gpu_collateral.without_verdict())
    return inner, replace(kept, **named)


def examine(
    exhibit: Exhibit, beside: Attachments, policy: AppraisalPolicy | None, now: int
) -> Examined:
    """Verify a file under a policy at a moment.

    Args:
        exhibit: Recognised and unwrapped.
        beside: What lies beside it.
        policy: What must hold; ``None`` for signatures and roots alone.
        now: Verification time, seconds since 1970.

    Raises:
        DataInvalid: The file is no evidence by itself.
        EvidenceRefused: A leaf of that branch, for the first thing that does not hold.
    """
    if isinstance(exhibit, OwnEvidence) and beside.binding is not None and policy is not None:
        return _own(exhibit, beside, policy, now)
    submods: dict[str, Submodule] = {}
    identities: dict[str, str] = {}
    simulated = False
    held = decide(parts_of(exhibit, beside, policy, now))
    for name, (vouched, claims) in held.items():
        signed = Claim(
            name="signature and root",
            got=vouched.root,
            expected=vouched.root,
            source="signature",
            outcome="equal",
        )
        submods[name] = Submodule(
            eat=vouched.eat if policy is not None else {}, claims=(signed, *claims)
        )
        identities[name] = vouched.identity
        simulated = simulated or vouched.simulated
    if not submods:
        raise DataInvalid(
            f"{exhibit.title}: not evidence by itself",
            got=exhibit.kind,
            hint="sealtrain attest explain shows what it says",
        )
    bound = _is_bound(exhibit, beside)
    return Examined(
        kind=exhibit.kind,
        title=exhibit.title,
        bound=bound,
        simulated=simulated,
        compared=policy is not None,
        missing=tuple(_missing(exhibit, beside, policy, bound=bound)),
        verified_at=now,
        identities=identities,
        submods=submods,
    )


def _is_bound(exhibit: Exhibit, beside: Attachments) -> bool:
    """Whether a conversation was named that this kind is compared with."""
    if isinstance(exhibit, OwnEvidence):
        return beside.binding is not None
    return beside.nonce is not None and exhibit.kind in KINDS


def _missing(
    exhibit: Exhibit, beside: Attachments, policy: AppraisalPolicy | None, *, bound: bool
) -> Iterator[Missing]:
    if not bound:
        yield "conversation"
    if isinstance(exhibit, OwnEvidence):
        if not bound and exhibit.evidence.gpu is not None:
            yield "tie"
    elif exhibit.kind.startswith("gpu-"):
        yield "guest"
    elif exhibit.kind in KINDS:
        if beside.app_compose is None and beside.compose_hash is None:
            yield "document"
        if isinstance(exhibit, QuotedGpus):
            yield "guest"
        elif policy is not None and isinstance(policy.gpu, NvidiaPolicy):
            yield "accelerators"


def make_bundle(
    exhibit: Exhibit, beside: Attachments, policy: AppraisalPolicy | None, now: int
) -> Bundle:
    """A bundle of a verification that was made just now.

    Raises:
        DataInvalid: As ``examine``.
        EvidenceRefused: As ``examine``; what does not verify is not bundled.
    """
    examine(exhibit, beside, policy, now)
    kind = next((known for known in KINDS if known == exhibit.kind), None)
    if kind is None:
        raise DataInvalid(f"{exhibit.title}: not evidence that can be bundled", got=exhibit.kind)
    return Bundle.build(kind, exhibit.raw, beside, policy=policy, verified_at=now)


def _own(exhibit: OwnEvidence, beside: Attachments, policy: AppraisalPolicy, now: int) -> Examined:
    binding = beside.binding
    if binding is None:
        raise TypeError("bound evidence has a binding")
    verified = verify(
        exhibit.evidence,
        policy,
        now,
        binding=binding,
        collateral=beside.collateral,
        gpu_collateral=beside.gpu_collateral,
        crl=beside.crl,
    )
    named = {
        *(() if beside.app_compose is None else (sha256_hex(beside.app_compose),)),
        *(() if beside.compose_hash is None else (beside.compose_hash,)),
    }
    if len(named) > 1:
        raise ComposeHashMismatch(
            "two deployment documents are named",
            check="compose hash",
            got=", ".join(sorted(named)),
            expected="one, and the guest's",
        )
    verdict = appraise(
        verified, policy, binding=binding, compose_hash=next(iter(named), None), app_id=None
    )
    return Examined(
        kind=exhibit.kind,
        title=exhibit.title,
        bound=True,
        simulated=verdict.simulated,
        compared=True,
        missing=(),
        verified_at=now,
        identities={"cpu0": verdict.quote_identity},
        submods=verdict.submods,
    )
