"""What owners and guests hand in over HTTP: all that makes a broker write into its ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2
from release_world import ROOT, ReleaseWorld, ids_of
from world import DAY, NOW, founded, identity

from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.client.grant import Grant, renew
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.policies import OwnerPolicy
from sealtrain.consortium.succession import propose, with_signature
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import LeaseStale
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.http_signature import sign_request
from sealtrain.signing.target import Target

# One for all: making one reads the machine's certificates. No connection outlives its request.
HTTP = httpx2.Client(trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0))

(BROKER,) = ids_of(ROOT)
A, B, C = "hospital-a", "hospital-b", "hospital-c"
CHECKPOINT = (7, "ce" * 32)


def approval(world: ReleaseWorld, owner: str = C) -> bytes:
    return approved(world, owner).to_bytes()


def approved(world: ReleaseWorld, owner: str = C) -> Envelope:
    return world.decision(owner, datasets=[], not_after=world.clock() + DAY)


def revocation(world: ReleaseWorld, owner: str, target: Target | None = None) -> Envelope:
    return world.decision(owner, revoke=True, target=target or world.target)


def signed(
    url: str,
    body: bytes,
    *,
    owner: str = "hospital-c",
    broker: str = BROKER,
    at: int = NOW,
    nonce: str | None = None,
) -> dict[str, str]:
    nonce = nonce or os.urandom(16).hex()
    signer = identity(owner).signer
    return sign_request("POST", url, body, signer, broker=broker, created=at, nonce=nonce)


def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str | None]:
    answered = HTTP.post(url, content=body, headers=headers)
    return answered.status_code, answered.json().get("error", {}).get("code")


@dataclass
class Asking:
    """Owners and a guest of one world, who ask one broker."""

    world: ReleaseWorld
    attested: AttestedBroker
    url: str
    grant: Grant | None = None

    def owner(self, name: str) -> BrokerClient:
        me = identity(name).signer
        return BrokerClient(self.url, signer=me, broker=BROKER, clock=self.world.clock)

    def approve(self, owner: str = C) -> Envelope:
        return approved(self.world, owner)

    def revoke(self, owner: str = B) -> Envelope:
        return revocation(self.world, owner)

    def withdrawal(self) -> Envelope:
        made = Withdrawal.of(
            [self.world.sealed[C].dataset_id],
            consortium_id=self.world.consortium.consortium_id,
            owner=identity(C).public,
            signed_at=NOW,
        )
        return sign_owned(made, identity(C).signer)

    def policy(self) -> Envelope:
        made = OwnerPolicy.of(
            consortium_id=self.world.consortium.consortium_id,
            owner=identity(A).public,
            appraisal=None,
            lease_seconds=600,
            previous=None,
            signed_at=NOW,
        )
        return sign_owned(made, identity(A).signer)

    def succession(self) -> Envelope:
        before = self.world.consortium
        after = founded("the-next-one", own_data_consent=False)
        file = propose(before, after, identity(A).signer, ledgers=[], not_after=NOW + DAY)
        for name in (B, C):
            file = with_signature(file, identity(name).signer)
        return file.verify().envelope

    def obtain(self, **changed: Any) -> Grant:
        with BrokerClient(self.url) as client:
            return self.world.obtain(wire=client, attested=self.attested, **changed)

    def renew(self, checkpoint: tuple[int, str] | None = CHECKPOINT) -> Grant:
        assert self.grant is not None
        with BrokerClient(self.url) as client:
            collect = self.world.collect(self.world.guest())
            return renew(client, self.attested, collect, self.grant, checkpoint=checkpoint)


def run_begun(world: ReleaseWorld, url: str) -> Asking:
    """A guest that holds a lease."""
    made = Asking(world, world.attest(), url)
    made.grant = made.obtain()
    return made


def _handing_in(
    owner: str, kind: str, what: Callable[[Asking], Envelope]
) -> Callable[[Asking], None]:
    made: dict[int, Envelope] = {}

    def act(asking: Asking) -> None:
        document = made.setdefault(id(asking), what(asking))
        with asking.owner(owner) as client:
            client.hand_in(kind, document)

    return act


def _release(asking: Asking) -> None:
    asking.obtain(run_id=os.urandom(16).hex())


def _renewal(asking: Asking) -> None:
    asking.renew()


def _failure(asking: Asking) -> None:
    grant = asking.grant or asking.obtain()
    # A lease that was given back already is no news.
    with BrokerClient(asking.url) as client, suppress(LeaseStale):
        client.report_failure(grant.run_id, "training-failed", grant.lease_id, grant.lease_key)


ACTS: Mapping[str, Callable[[Asking], None]] = {
    "approval": _handing_in(C, "approval", Asking.approve),
    "revocation": _handing_in(B, "approval", Asking.revoke),
    "dataset": _handing_in(C, "dataset", lambda asking: asking.world.seal(C, name="more").envelope),
    "withdrawal": _handing_in(C, "withdrawal", Asking.withdrawal),
    "owner-policy": _handing_in(A, "owner-policy", Asking.policy),
    "succession": _handing_in(A, "succession", Asking.succession),
    "release": _release,
    "renewal": _renewal,
    "failure": _failure,
}
"""Kind → what makes an entry of it. What an owner hands in is the same each time."""
