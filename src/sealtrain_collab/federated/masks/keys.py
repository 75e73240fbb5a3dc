"""Keys between the parties of a masked sum (spec/masked-sums.md §3, §4).

Two parties share a secret that each sealed a half of to the other's key; the lead, which carries
the halves, has none. Envelopes, and the agreement on who survived, are under keys that follow.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sealtrain.base.canonical import canonical_json
from sealtrain.base.secret import Secret
from sealtrain.errors import ChannelBroken
from sealtrain.sealing.datakey import derivation_info

__all__ = ["PURPOSE", "Pair", "Place", "half_info", "pair_seed", "public_of", "self_seed"]

PURPOSE: Final = "sealtrain/masked-sums/v1"
_NONCE: Final = bytes(12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which sum something is for.

    Attributes:
        run_id: Of the whole run.
        round: From 1.
        attempt: 32 hex digits that the lead drew for this attempt.
    """

    run_id: str
    round: int
    attempt: str

    @property
    def parts(self) -> tuple[str, str, str]:
        """As parts of a derivation."""
        return self.run_id, str(self.round), self.attempt


def half_info(place: Place, members: str, *, sender: str, receiver: str) -> bytes:
    """HPKE ``info`` of the half of a pair's secret that one party seals to the other.

    Args:
        place: Of the sum.
        members: Digest of the introductions of all members.
        sender: Party that drew it.
        receiver: Party that opens it.
    """
    return canonical_json({
        "purpose": PURPOSE, "run_id": place.run_id, "round": place.round,
        "attempt": place.attempt, "members": members, "from": sender, "to": receiver,
    })  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What one party shares with another for one attempt.

    Attributes:
        place: Of the sum.
        members: Digest of the introductions of all members.
        me: This party.
        peer: The other one.
        secret: Both halves, that of the party with the smaller name first.
    """

    place: Place
    members: str
    me: str
    peer: str
    secret: Secret

    def seal(self, plaintext: bytes) -> bytes:
        """This party's one envelope to the peer."""
        key = self._key("masked-envelope", self.me, self.peer)
        return AESGCM(key.reveal()).encrypt(_NONCE, plaintext, b"")

    def open(self, envelope: bytes) -> Secret:
        """The peer's envelope.

        Raises:
            ChannelBroken: It is not the peer's for this attempt, or was altered.
        """
        key = self._key("masked-envelope", self.peer, self.me)
        try:
            return Secret(AESGCM(key.reveal()).decrypt(_NONCE, envelope, b""))
        except (InvalidTag, ValueError) as error:
            raise ChannelBroken(
                "what the lead brought of another party does not open",
                owner=self.peer,
                check="mask envelope",
                hint="it was altered, or is of another party, round or attempt",
            ) from error

    def tag(self, survivors: Sequence[str], *, sent: bool) -> str:
        """Code of a set of survivors, from this party to the peer or back; 64 hex digits."""
        ends = (self.me, self.peer) if sent else (self.peer, self.me)
        key = self._key("masked-agreement", *ends)
        return hmac.digest(key.reveal(), canonical_json(list(survivors)), "sha256").hex()

    def _key(self, purpose: str, sender: str, receiver: str) -> Secret:
        parts = (*self.place.parts, self.members, sender, receiver)
        return _derived(self.secret.reveal(), purpose, *parts)


def self_seed(secret: Secret, place: Place, party: str) -> Secret:
    """Seed of a party's own mask."""
    return _derived(secret.reveal(), "masked-self", *place.parts, party)


def pair_seed(
    private: X25519PrivateKey, mine: tuple[str, bytes], peer: tuple[str, bytes], place: Place
) -> Secret:
    """Seed of the mask that one of two parties adds and the other takes off.

    Args:
        private: Of one of them.
        mine: Its name and public key.
        peer: Name and public key of the other.
        place: Of the sum.

    Raises:
        ChannelBroken: The peer's key is a point of low order, which agrees on no secret.
    """
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(peer[1]))
    except ValueError as error:
        raise ChannelBroken(
            "a party's mask key agrees on no secret", owner=peer[0], check="mask key"
        ) from error
    (first, first_key), (second, second_key) = sorted((mine, peer))
    parts = (*place.parts, first, second, first_key.hex(), second_key.hex())
    return _derived(shared, "masked-pair", *parts)


def public_of(private: X25519PrivateKey) -> bytes:
    """Its public key, 32 bytes."""
    return private.public_key().public_bytes_raw()


def _derived(secret: bytes, purpose: str, *parts: str) -> Secret:
    info = derivation_info(purpose, *parts)
    return Secret(HKDF(hashes.SHA256(), 32, None, info).derive(secret))
