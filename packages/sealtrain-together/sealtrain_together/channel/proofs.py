"""Proofs of identity on a channel, and the checks of the peer's proof (spec §1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Self

from sealtrain.attest.evidence import Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.signing.ed25519 import verify_signature
from sealtrain.training.errors import ChannelRefused

if TYPE_CHECKING:
    from sealtrain.attest.appraise import Verdict
    from sealtrain.attest.policy import AppraisalPolicy
    from sealtrain.guest.guest import AttestedGuest
    from sealtrain.signing.ed25519 import Ed25519Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The party at the other end.

    Attributes:
        kind: How it proved itself.
        verdict: Result of appraising its evidence; ``None`` for a key.
        public_key: The Ed25519 key it signed with; ``None`` for a guest.
        evidence_digest: SHA-256 of its evidence as canonical JSON, hex; empty for a key.
    """

    kind: Literal["evidence", "signature"]
    verdict: Verdict | None = None
    public_key: bytes | None = None
    evidence_digest: str = ""

    @property
    def simulated(self) -> bool:
        """Its evidence proves nothing about hardware."""
        return self.verdict is not None and self.verdict.simulated


class Proof(Protocol):
    """Makes this side's proof for one conversation."""

    def __call__(self, binding: Binding) -> dict[str, JsonValue]:
        """The proof document."""


class Acceptance(Protocol):
    """Verifies the other side's proof."""

    def __call__(self, proof: JsonValue, binding: Binding) -> Peer:
        """The peer, once its proof holds; raises otherwise."""


@dataclass(frozen=True, slots=True)
class ProveGuest:
    """Prove what this guest runs.

    Attributes:
        collect: Makes evidence for a binding (``attest.guest.Guest.evidence``).
    """

    collect: Callable[[Binding], Evidence]

    @classmethod
    def of(cls, guest: AttestedGuest) -> Self:
        """How a guest of a run proves itself on its channels."""
        return cls(guest.collect)

    def __call__(self, binding: Binding) -> dict[str, JsonValue]:
        """As ``Proof``."""
        return {"kind": "evidence", "evidence": self.collect(binding).to_dict()}


@dataclass(frozen=True, slots=True)
class ProveKey:
    """Prove possession of a signing key."""

    signer: Ed25519Signer

    def __call__(self, binding: Binding) -> dict[str, JsonValue]:
        """As ``Proof``."""
        return {
            "kind": "signature",
            "public_key": to_base64(self.signer.public),
            "signature": to_base64(self.signer.sign(_signed_bytes(binding))),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptGuest:
    """Accept guests whose evidence meets a policy.

    Attributes:
        policy: What it must be.
        compose_hash: The deployment document it must have measured; ``None`` only for any.
        clock: Verification time, seconds since the epoch.
    """

    policy: AppraisalPolicy
    compose_hash: str | None
    clock: Callable[[], int]

    @classmethod
    def of(cls, guest: AttestedGuest) -> Self:
        """Whom a guest of a run talks to: guests of its own deployment that meet its policy."""
        return cls(policy=guest.policy, compose_hash=guest.compose_hash, clock=guest.now)

    def __call__(self, proof: JsonValue, binding: Binding) -> Peer:
        """As ``Acceptance``. Raises the class of the first check that fails."""
        from sealtrain.attest.appraise import appraise
        from sealtrain.attest.verify import verify

        fields = _fields(proof, "evidence", {"evidence"})
        evidence = Evidence.from_dict(fields["evidence"])
        verified = verify(evidence, self.policy, self.clock(), binding=binding)
        verdict = appraise(
            verified, self.policy, binding=binding, compose_hash=self.compose_hash, app_id=None
        )
        digest = sha256_hex(canonical_json(fields["evidence"]))
        return Peer(kind="evidence", verdict=verdict, evidence_digest=digest)


@dataclass(frozen=True, slots=True)
class AcceptKey:
    """Accept a holder of one of these Ed25519 keys."""

    public_keys: frozenset[bytes]

    def __call__(self, proof: JsonValue, binding: Binding) -> Peer:
        """As ``Acceptance``. Raises ``ChannelRefused``, ``SignatureInvalid``, ``DataInvalid``."""
        fields = _fields(proof, "signature", {"public_key", "signature"})
        public, signature = (
            from_base64(_text(fields[name]), length=length)
            for name, length in (("public_key", 32), ("signature", 64))
        )
        if public not in self.public_keys:
            raise ChannelRefused("the peer signs with a key of no party here", check="proof")
        verify_signature(public, signature, _signed_bytes(binding))
        return Peer(kind="signature", public_key=public)


def _signed_bytes(binding: Binding) -> bytes:
    return f"sealtrain/{binding.purpose}/v1:".encode() + canonical_json(binding.transcript)


def _fields(proof: JsonValue, kind: str, names: set[str]) -> dict[str, JsonValue]:
    if not isinstance(proof, dict) or proof.get("kind") != kind or set(proof) != {"kind", *names}:
        raise ChannelRefused(
            "the peer proves itself in another way than this side accepts",
            check="proof",
            got=proof.get("kind") if isinstance(proof, dict) else None,
            expected=kind,
        )
    return proof


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise ChannelRefused("a proof holds something else than text", check="proof")
    return value
