"""The consortium document: the owners and their thresholds. See ``spec/consortium.md``.

A document is accepted when

1. it has between 1 and 64 owners, each a valid ``PublicIdentity`` whose sealing key is an HPKE key,
2. the owners stand in the order of their names and no name is used twice,
3. no two owners share a signing, sealing or witness key,
4. every threshold is written and between 1 and the number of owners.

Its identity is the SHA-256 of its canonical JSON, so an owner or guest that pins a
``consortium_id`` pins every key and every threshold. A change founds a successor with another id
(``consortium.succession``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Document, OwnerName, StrictModel
from sealtrain.consortium.errors import ApprovalUnknown, ConsortiumInvalid
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.needs import Needs, RecipeAction

MAX_OWNERS = 64
MAX_CONSORTIUM_BYTES = 256 << 10


class Thresholds(StrictModel):
    """How many owners an action takes; each is at least 1 and at most the number of owners."""

    approve: int = Field(ge=1)
    """To let a recipe run (k of n)."""
    revoke: int = Field(ge=1)
    """To stop it again."""
    amend_members: int = Field(ge=1)
    """To found a successor with other owners or keys."""
    amend_thresholds: int = Field(ge=1)
    """To found a successor with other thresholds, or another rule on own data."""
    raise_logging: int = Field(ge=1)
    """To let a recipe run that lets out more than the strictest log level."""
    export_model: int = Field(ge=1)
    """To let a recipe run whose model leaves the guest."""

    def count_required(self, needs: Needs) -> tuple[int, tuple[RecipeAction, ...]]:
        """Owners that must approve a recipe, and the actions that demand so many.

        Args:
            needs: Of the recipe.
        """
        demanded = {action: int(getattr(self, action)) for action in needs.actions}
        highest = max(demanded.values())
        return highest, tuple(action for action, count in demanded.items() if count == highest)


class Consortium(Document):
    """Owners, their public keys and the thresholds."""

    what = "consortium"
    refusal = ConsortiumInvalid
    max_bytes = MAX_CONSORTIUM_BYTES
    any_spelling = True

    version: Literal[2]
    name: OwnerName
    owners: tuple[PublicIdentity, ...] = Field(min_length=1, max_length=MAX_OWNERS)
    thresholds: Thresholds
    own_data_consent: bool
    """Owners whose data a recipe reads must be among those who approve, and each stops it alone."""

    @model_validator(mode="after")
    def _members_and_thresholds_fit(self) -> Self:
        names = [owner.name for owner in self.owners]
        if len(set(names)) != len(names):
            raise ValueError("two owners have the same name")
        if names != sorted(names):
            raise ValueError("owners must stand in the order of their names")
        for kind in ("signing_key", "sealing_key"):
            if len({getattr(owner, kind) for owner in self.owners}) != len(names):
                raise ValueError(f"two owners have the same {kind}: one person is one owner")
        witnesses = [owner.witness_key for owner in self.owners if owner.witness_key is not None]
        if len(set(witnesses)) != len(witnesses):
            raise ValueError("two owners have the same witness_key: one person is one owner")
        for owner in self.owners:
            try:
                HpkePublicKey(owner.sealing_bytes)
            except DataInvalid as error:
                raise ValueError(f"sealing_key of {owner.name}: {error}") from error
        for threshold, count in self.thresholds:
            if count > len(names):
                raise ValueError(f"{threshold} asks for more owners than there are")
        return self

    @classmethod
    def found(  # noqa: PLR0913  # each threshold by its name
        cls,
        *,
        name: str,
        owners: Iterable[PublicIdentity],
        approve: int | None = None,
        revoke: int = 1,
        amend_members: int | None = None,
        amend_thresholds: int | None = None,
        raise_logging: int | None = None,
        export_model: int | None = None,
        own_data_consent: bool = True,
    ) -> Self:
        """Write a consortium down; owners may come in any order.

        Args:
            name: Name of the consortium, as an owner's name.
            owners: Its members.
            approve: Owners that must approve a recipe, 1 to n; a majority when ``None``.
            revoke: Owners that suffice to revoke it, 1 to n.
            amend_members: Owners that may change owners and keys; all when ``None``.
            amend_thresholds: Owners that may change thresholds; all when ``None``.
            raise_logging: As ``approve`` when ``None``.
            export_model: As ``approve`` when ``None``.
            own_data_consent: Whether data is used only while its own owner approves.

        Raises:
            ConsortiumInvalid: A check of the module's list fails.
        """
        members = sorted(owners, key=lambda owner: owner.name)
        everyone = max(1, len(members))
        agreed = everyone // 2 + 1 if approve is None else approve
        return cls.from_dict(
            {
                "version": 2,
                "name": name,
                "owners": [owner.to_dict() for owner in members],
                "thresholds": {
                    "approve": agreed,
                    "revoke": revoke,
                    "amend_members": everyone if amend_members is None else amend_members,
                    "amend_thresholds": everyone if amend_thresholds is None else amend_thresholds,
                    "raise_logging": agreed if raise_logging is None else raise_logging,
                    "export_model": agreed if export_model is None else export_model,
                },
                "own_data_consent": own_data_consent,
            }
        )

    @cached_property
    def consortium_id(self) -> str:
        """SHA-256 of ``to_bytes()``, 64 hex digits."""
        return sha256_hex(self.to_bytes())

    def owner(self, name: str) -> PublicIdentity:
        """The owner of that name.

        Raises:
            ConsortiumInvalid: No owner has that name.
        """
        for owner in self.owners:
            if owner.name == name:
                return owner
        raise ConsortiumInvalid(
            "no owner of this name in the consortium",
            got=name,
            expected=", ".join(owner.name for owner in self.owners),
            hint="use a name from the consortium file",
        )

    def signer_of(self, envelope: Envelope, what: str) -> PublicIdentity:
        """The owner whose key id the one signature of ``envelope`` names; it is not verified yet.

        Args:
            envelope: As received.
            what: Name of the document, for messages.

        Raises:
            SignatureInvalid: Not one signature.
            ApprovalUnknown: It names no owner of this consortium.
        """
        if len(envelope.signatures) != 1:
            raise SignatureInvalid(
                f"a {what} carries exactly one signature",
                check="signatures",
                got=len(envelope.signatures),
                expected=1,
            )
        owner = self.owner_by_key_id(envelope.signatures[0].keyid)
        if owner is None:
            raise ApprovalUnknown(
                f"no owner of this consortium signed the {what}",
                check="signer",
                got=envelope.signatures[0].keyid,
                expected="the key of " + ", ".join(member.name for member in self.owners),
                hint="sign with the identity that the consortium file lists",
            )
        return owner

    def owner_by_key_id(self, key_id: str) -> PublicIdentity | None:
        """The owner with that signing key; ``None`` when no owner here has it."""
        return next((owner for owner in self.owners if owner.key_id == key_id), None)
