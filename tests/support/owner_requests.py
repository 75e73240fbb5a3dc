"""What owners hand in and how they sign it, sent without a client of ours."""

from __future__ import annotations

import os
from typing import Any

import httpx
from manifest_world import identity
from release_world import DAY, NOW, ROOT, ReleaseWorld, ids_of

from sealtrain.consortium.approvals import Decision, Target, sign_decision
from sealtrain.signing.http_signature import sign_request

# One for all: making one reads the machine's certificates. No connection outlives its request.
HTTP = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))

(BROKER,) = ids_of(ROOT)


def approval(world: ReleaseWorld, owner: str = "hospital-c") -> bytes:
    made = Decision.approve(
        consortium_id=world.consortium.consortium_id,
        target=world.target,
        needs=world.needs,
        signed_at=world.clock(),
        not_after=world.clock() + DAY,
    )
    return sign_decision(made, identity(owner).signer).to_bytes()


def revocation(world: ReleaseWorld, owner: str, target: Target | None = None) -> Any:
    made = Decision.revoke(
        consortium_id=world.consortium.consortium_id,
        target=target or world.target,
        signed_at=world.clock(),
    )
    return sign_decision(made, identity(owner).signer)


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
