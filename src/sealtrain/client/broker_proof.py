"""Attest, then pin: take a broker's keys only after it proved what and which it is (spec §2).

``attest_broker`` and ``fetch_keys`` check, in order:

1. the answer is about the nonce, and of keys the consortium and recipe, that were asked for;
2. the owners of keys are exactly the consortium's, in their order;
3. the evidence verifies under the pin's policy, comes from the deployment the pin names and commits
   to every field of the answer;
4. the signing key is the pin's, or one that rotations lead to from it;
5. of keys: the recipe's lock names the broker, by its id or a former id.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from sealtrain.attest.appraise import Verdict, appraise
from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import Binding
from sealtrain.attest.verify import verify
from sealtrain.base.encoding import from_base64
from sealtrain.base.secret import Random
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.ledger_keys import rotations_to
from sealtrain.client.pin import BrokerPin
from sealtrain.consortium.errors import ApprovalUnknown
from sealtrain.consortium.members import Consortium
from sealtrain.errors import BrokerNotApproved
from sealtrain.ledger.rotation import Rotation
from sealtrain.release.errors import AnswerInvalid
from sealtrain.release.messages import IDENTITY_PURPOSE, KEYS_PURPOSE, ledger_origin
from sealtrain.signing.errors import BrokerMismatch
from sealtrain.signing.identity import broker_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedIdentity:
    """Which broker answers, by its own evidence.

    Attributes:
        consortium_id: The consortium it serves.
        signing_key: Ed25519 public key of its receipts and its ledger, 32 bytes.
        named_as: By which id it is known where that was asked: its own, or a former one.
        verdict: What its evidence was worth.
    """

    consortium_id: str
    signing_key: bytes
    named_as: str
    verdict: Verdict

    @property
    def broker_id(self) -> str:
        """Its present id, 64 hex digits."""
        return broker_id(self.signing_key)

    @property
    def simulated(self) -> bool:
        """Its evidence came from a simulator and proves nothing about hardware."""
        return self.verdict.simulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A recipe's deployment, and the brokers that may release its keys.

    Attributes:
        app_id: 40 hex digits.
        compose_hash: Of the deployment document, 64 hex digits.
        brokers: Ids of the brokers that the recipe's lock names.
    """

    app_id: str
    compose_hash: str
    brokers: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedBroker:
    """A broker that proved itself and that a recipe's lock names, with its keys for that recipe.

    Attributes:
        keys: HPKE public key (1216 bytes) by owner name.
        signing_key: Ed25519 public key of its receipts and its ledger, 32 bytes.
        named_as: By which id the lock names it: its own, or a former one.
        rotations: That led to its key, newest first; none where file and lock name its present id.
        evidence: What it showed.
        verdict: What that was worth.
    """

    consortium_id: str
    app_id: str
    compose_hash: str
    keys: dict[str, bytes]
    signing_key: bytes
    named_as: str
    rotations: tuple[Rotation, ...]
    evidence: Evidence
    verdict: Verdict

    @property
    def broker_id(self) -> str:
        """Its present id, 64 hex digits."""
        return broker_id(self.signing_key)

    @property
    def ids(self) -> tuple[str, ...]:
        """Its id and the former ids that it proved, newest first."""
        return (self.broker_id, *(broker_id(rotation.old) for rotation in self.rotations))

    @property
    def since_named(self) -> tuple[Rotation, ...]:
        """The rotations from the key that the lock names to the present one, oldest first."""
        place = self.ids.index(self.named_as)
        return tuple(reversed(self.rotations[:place]))

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


def attest_broker(
    client: BrokerClient,
    *,
    compose_hash: str,
    appraisal: AppraisalPolicy,
    now: int,
    random: Random = os.urandom,
) -> AttestedIdentity:
    """Have a broker prove which one it is, to a client without a broker file.

    Args:
        compose_hash: SHA-256 of the deployment document that it must run.
        appraisal: Policy its evidence must meet.
        now: Verification time, seconds since the epoch.
        random: Source of the nonce.

    Raises:
        AnswerInvalid: The answer is to another question.
        EvidenceRefused: Its evidence does not hold.
        BrokerUnreachable: It does not answer.
    """
    nonce = random(32).hex()
    answer = client.identity(nonce)
    _same({"nonce": (answer.nonce, nonce)})
    verdict = _appraise(
        answer.evidence,
        Binding(IDENTITY_PURPOSE, answer.transcript()),
        appraisal,
        compose_hash=compose_hash,
        now=now,
    )
    key = from_base64(answer.signing_key, length=32)
    return AttestedIdentity(
        consortium_id=answer.consortium_id,
        signing_key=key,
        named_as=broker_id(key),
        verdict=verdict,
    )


def attest_pinned_broker(
    client: BrokerClient,
    pin: BrokerPin,
    consortium_id: str,
    *,
    now: int,
    brokers: Collection[str] = (),
    random: Random = os.urandom,
) -> AttestedIdentity:
    """Have the broker of a broker file prove which one it is.

    Args:
        client: Of the broker at ``pin.url``.
        pin: What it must prove.
        consortium_id: Of the consortium that it must serve.
        now: Verification time, seconds since the epoch.
        brokers: Ids of the brokers that a recipe's lock names, where it is about a recipe.
        random: Source of the nonce.

    Raises:
        BrokerMismatch: It is another broker than the file names.
        BrokerNotApproved: ``brokers`` are given, and it is none of them.
        AnswerInvalid: The answer is about another consortium, or to another question.
        EvidenceRefused: Its evidence does not hold.
        BrokerUnreachable: It does not answer.
    """
    found = attest_broker(
        client, compose_hash=pin.compose_hash, appraisal=pin.appraisal, now=now, random=random
    )
    _same({"consortium": (found.consortium_id, consortium_id)})
    rotations = _ask_rotations(client, pin, found.signing_key, consortium_id, brokers)
    if not brokers:
        return found
    return replace(found, named_as=_name_broker(pin, found.signing_key, rotations, brokers))


def fetch_keys(
    client: BrokerClient,
    pin: BrokerPin,
    consortium: Consortium,
    deployed: Deployed,
    *,
    now: int,
    random: Random = os.urandom,
    collateral: Collateral | None = None,
) -> AttestedBroker:
    """Have a broker prove itself and take its keys for one recipe.

    Args:
        client: Of the broker at ``pin.url``.
        pin: What it must prove.
        consortium: As the asker holds it.
        deployed: The recipe's deployment, and the brokers of its lock.
        now: Verification time, seconds since the epoch.
        random: Source of the nonce.
        collateral: The asker's own collateral; ``None`` uses what the broker sends, which is signed
            and must be valid at ``now`` but may be the oldest that still is.

    Raises:
        AnswerInvalid: The answer is about something else.
        ConsortiumMismatch: The broker serves another consortium.
        EvidenceRefused: Its evidence does not hold.
        BrokerMismatch: It is another broker than the file names.
        BrokerNotApproved: The lock does not name it.
        BrokerUnreachable: It does not answer.
    """
    nonce = random(32).hex()
    answer = client.keys(app_id=deployed.app_id, compose_hash=deployed.compose_hash, nonce=nonce)
    _same(
        {
            "consortium": (answer.consortium_id, consortium.consortium_id),
            "app id": (answer.app_id, deployed.app_id),
            "compose hash": (answer.compose_hash, deployed.compose_hash),
            "nonce": (answer.nonce, nonce),
        }
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
    verdict = _appraise(
        answer.evidence,
        Binding(KEYS_PURPOSE, answer.transcript()),
        pin.appraisal,
        compose_hash=pin.compose_hash,
        now=now,
        collateral=collateral,
    )
    key = from_base64(answer.signing_key, length=32)
    rotations = _ask_rotations(client, pin, key, consortium.consortium_id, deployed.brokers)
    return AttestedBroker(
        consortium_id=answer.consortium_id,
        app_id=answer.app_id,
        compose_hash=answer.compose_hash,
        keys={owner_key.owner: from_base64(owner_key.public_key) for owner_key in answer.keys},
        signing_key=key,
        named_as=_name_broker(pin, key, rotations, deployed.brokers),
        rotations=rotations,
        evidence=answer.evidence,
        verdict=verdict,
    )


def _same(facts: dict[str, tuple[str, str]]) -> None:
    """(1) The answer is about what was asked."""
    for what, (got, expected) in facts.items():
        if got != expected:
            raise AnswerInvalid(
                f"the broker's answer is about another {what}",
                check=what,
                got=got,
                expected=expected,
                hint="use the consortium file and the broker that belong together",
            )


def _appraise(
    evidence: Evidence,
    binding: Binding,
    policy: AppraisalPolicy,
    *,
    compose_hash: str,
    now: int,
    collateral: Collateral | None = None,
) -> Verdict:
    """(3) The broker's own evidence holds."""
    verified = verify(evidence, policy, now, binding=binding, collateral=collateral)
    return appraise(verified, policy, binding=binding, compose_hash=compose_hash, app_id=None)


def _ask_rotations(
    client: BrokerClient,
    pin: BrokerPin,
    key: bytes,
    consortium_id: str,
    brokers: Collection[str],
) -> tuple[Rotation, ...]:
    """(4) The broker is the pin's. Rotations are asked for only where its present key does not do.

    Returns:
        Those that led to ``key``, newest first; none where the pin and ``brokers`` name it.
    """
    if key == pin.key and (not brokers or broker_id(key) in brokers):
        return ()
    rotations = rotations_to(client, key, origin=ledger_origin(consortium_id))
    if pin.key not in {key, *(rotation.old for rotation in rotations)}:
        raise BrokerMismatch(
            f"the broker at {pin.url} is another one than its broker file names",
            check="broker",
            got=broker_id(key),
            expected=pin.broker_id,
            hint="ask its operator why; for a broker that was set up anew, write another file: "
            "sealtrain broker pin",
        )
    return rotations


def _name_broker(
    pin: BrokerPin, key: bytes, rotations: tuple[Rotation, ...], brokers: Collection[str]
) -> str:
    """(5) By which id the lock names the broker: of several, the newest."""
    ids = [broker_id(public_key) for public_key in (key, *(rotation.old for rotation in rotations))]
    for id_ in ids:
        if id_ in brokers:
            return id_
    raise BrokerNotApproved(
        f"the recipe's lock does not name the broker at {pin.url}",
        check="broker",
        got=ids[0],
        expected=" or ".join(sorted(brokers)),
        hint="name the brokers that the owners approved, or lock the recipe anew for this one: "
        "sealtrain lock --broker",
    )
