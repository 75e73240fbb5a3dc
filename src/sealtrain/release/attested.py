"""Attest, then pin: take a broker's keys only after it proved what it runs (spec §2).

``fetch_keys`` checks, in order:

1. the answer is about the consortium, recipe and nonce that were asked for;
2. its owners are exactly the consortium's, in their order;
3. the evidence verifies under the pin's policy, comes from the deployment the pin names and commits
   to every field of the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from sealtrain.attest.appraise import Verdict, appraise
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.encoding import from_base64
from sealtrain.consortium.members import Consortium
from sealtrain.errors import AnswerInvalid, ApprovalUnknown
from sealtrain.release.api import BrokerClient
from sealtrain.release.pin import BrokerPin
from sealtrain.release.transcript import KEYS_PURPOSE, broker_id, ledger_origin

__all__ = ["AttestedBroker", "fetch_keys"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedBroker:
    """A broker that proved itself, and its public keys for one recipe.

    Attributes:
        keys: HPKE public key (1216 bytes) by owner name.
        signing_key: Ed25519 public key of its receipts and its ledger, 32 bytes.
        evidence: What it showed.
        verdict: What that was worth.
    """

    consortium_id: str
    app_id: str
    compose_hash: str
    keys: dict[str, bytes]
    signing_key: bytes
    evidence: Evidence
    verdict: Verdict

    @property
    def broker_id(self) -> str:
        """Its name, 64 hex digits."""
        return broker_id(self.signing_key)

    @property
    def origin(self) -> str:
        """Origin of its ledger."""
        return ledger_origin(self.consortium_id)

    @property
    def simulated(self) -> bool:
        """Its evidence came from a simulator and proves nothing about hardware."""
        return self.verdict.simulated

    def key_of(self, owner: str) -> bytes:
        """The HPKE public key that ``owner`` seals to.

        Raises:
            ApprovalUnknown: No such owner in the consortium.
        """
        if owner not in self.keys:
            raise ApprovalUnknown(
                "the broker serves no such owner",
                check="owner",
                got=owner,
                expected=", ".join(self.keys),
                hint="use an identity that the consortium file lists",
            )
        return self.keys[owner]


def fetch_keys(
    client: BrokerClient,
    pin: BrokerPin,
    consortium: Consortium,
    *,
    app_id: str,
    compose_hash: str,
    now: int,
    random: Callable[[int], bytes] = os.urandom,
    collateral: Collateral | None = None,
) -> AttestedBroker:
    """Have a broker prove itself and take its keys for one recipe.

    Args:
        client: Of the broker at ``pin.url``.
        pin: What it must prove.
        consortium: As the asker holds it.
        app_id: 40 hex digits, of the recipe's deployment.
        compose_hash: 64 hex digits, of the recipe's deployment.
        now: Verification time, seconds since the epoch.
        random: Source of the nonce.
        collateral: The asker's own collateral; ``None`` uses what the broker sends, which is signed
            and must be valid at ``now`` but may be the oldest that still is.

    Raises:
        AnswerInvalid: The answer is about something else.
        ConsortiumMismatch: The broker serves another consortium.
        EvidenceRefused: Its evidence does not hold.
        BrokerUnreachable: It does not answer.
    """
    nonce = random(32).hex()
    answer = client.keys(app_id=app_id, compose_hash=compose_hash, nonce=nonce)
    facts = {
        "consortium": (answer.consortium_id, consortium.consortium_id),
        "app id": (answer.app_id, app_id),
        "compose hash": (answer.compose_hash, compose_hash),
        "nonce": (answer.nonce, nonce),
    }
    for what, (got, expected) in facts.items():
        if got != expected:
            raise AnswerInvalid(
                f"the broker's keys are for another {what}",
                check=what,
                got=got,
                expected=expected,
                hint="use the consortium file and the broker that belong together",
            )
    named = [(key.owner, key.owner_id) for key in answer.keys]
    expected_owners = [(owner.name, owner.owner_id) for owner in consortium.owners]
    if named != expected_owners:
        raise AnswerInvalid(
            "the broker's keys are for other owners than the consortium's",
            check="owners",
            got=", ".join(name for name, _ in named),
            expected=", ".join(name for name, _ in expected_owners),
        )
    binding = Binding(KEYS_PURPOSE, answer.transcript())
    verified = verify(answer.evidence, pin.appraisal, now, binding=binding, collateral=collateral)
    verdict = appraise(
        verified,
        pin.appraisal,
        binding=binding,
        compose_hash=pin.compose_hash,
        app_id=None,
    )
    return AttestedBroker(
        consortium_id=answer.consortium_id,
        app_id=answer.app_id,
        compose_hash=answer.compose_hash,
        keys={key.owner: from_base64(key.public_key) for key in answer.keys},
        signing_key=from_base64(answer.signing_key, length=32),
        evidence=answer.evidence,
        verdict=verdict,
    )
