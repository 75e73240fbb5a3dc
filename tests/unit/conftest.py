"""Three owners and their consortium, for the tests of documents and of the ledger."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealtrain.base.secret import Secret
from sealtrain.consortium.members import Consortium
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.signing.dsse import Ed25519Signer
from sealtrain.signing.identity import PublicIdentity


@dataclass(frozen=True)
class Member:
    public: PublicIdentity
    signer: Ed25519Signer


def member(name: str, number: int) -> Member:
    seed = bytes([number]) * 32
    signer = Ed25519Signer(Ed25519PrivateKey.from_private_bytes(seed))
    sealing = HpkePrivateKey(Secret(seed)).public.raw
    return Member(PublicIdentity.of(name, signing_key=signer.public, sealing_key=sealing), signer)


@pytest.fixture(scope="session")
def members() -> dict[str, Member]:
    return {name: member(name, number) for number, name in enumerate(("ada", "ben", "cyd"), 1)}


@pytest.fixture(scope="session")
def outsider() -> Member:
    return member("eve", 9)


@pytest.fixture(scope="session")
def consortium(members: dict[str, Member]) -> Consortium:
    owners = [member.public for member in members.values()]
    return Consortium.found(name="labs", owners=owners, approve=2, own_data_consent=False)
