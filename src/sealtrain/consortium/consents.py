"""An owner's consent to training on activations of its records (spec/split-cut.md §3).

A consent is canonical JSON in a DSSE envelope under ``PAYLOAD_TYPE``; ``consortium.owned`` checks
it. It names one run of one deployment, so it says nothing about any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import Hex32, Hex40, Hex64, OwnerName, StrictModel
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import OwnedDocument, SignedDocument, verify_owned
from sealtrain.errors import RunMismatch
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.target import Target

PAYLOAD_TYPE = "application/vnd.sealtrain.cut-consent+json"
_MAX_DATASETS = 256


class ConsentedDataset(StrictModel):
    """A sealed dataset whose activations the owner sends.

    Attributes:
        dataset_id: Of the sealed dataset.
        name: Its name in the recipe.
        root: Root of the hash tree over its ciphertext: which version.
        rows: How many records the owner sends.
    """

    dataset_id: Hex32
    name: OwnerName
    root: Hex64
    rows: int = Field(ge=1, le=2**53 - 1)


class Consent(OwnedDocument):
    """The signed document.

    Attributes:
        run_id: Of the run, as the server's guest said on the attested channel.
        app_id: Of the deployment.
        compose_hash: As the guest measured it.
        recipe_hash: Of the lock in it.
        datasets: In the order of their ids, none twice.
    """

    payload_type = PAYLOAD_TYPE
    what = "consent"
    max_bytes = 64 << 10

    run_id: Hex32
    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    datasets: tuple[ConsentedDataset, ...] = Field(min_length=1, max_length=_MAX_DATASETS)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        ids = [dataset.dataset_id for dataset in self.datasets]
        if ids != sorted(set(ids)):
            raise ValueError("datasets must stand in the order of their ids, none twice")
        return self

    @classmethod
    def of(
        cls,
        datasets: Iterable[ConsentedDataset],
        *,
        run_id: str,
        target: Target,
        consortium_id: str,
        owner: PublicIdentity,
        signed_at: int,
    ) -> Self:
        """Write a consent.

        Args:
            datasets: In any order.
            run_id: 32 hex digits.
            target: The deployment and the recipe in it.
            consortium_id: The owner's consortium.
            owner: The owner of the datasets.
            signed_at: Now, seconds since the epoch.

        Raises:
            StatementInvalid: The document would break its format.
        """
        listed: list[JsonValue] = [
            dataset.to_dict() for dataset in sorted(datasets, key=lambda named: named.dataset_id)
        ]
        own: dict[str, JsonValue] = {
            "run_id": run_id,
            "app_id": target.app_id,
            "compose_hash": target.compose_hash,
            "recipe_hash": target.recipe_hash,
            "datasets": listed,
        }
        return cls.write(own, consortium_id=consortium_id, owner=owner, signed_at=signed_at)


SignedConsent = SignedDocument[Consent]
"""A consent whose signature was verified, and its signer."""


def verify_consent(
    envelope: Envelope, consortium: Consortium, *, run_id: str, target: Target
) -> SignedConsent:
    """An owner's consent to one run.

    Args:
        envelope: As received.
        consortium: Whose owners may sign.
        run_id: Of the run that it must name.
        target: The deployment and recipe that it must name.

    Raises:
        RunMismatch: It is to another run, deployment or recipe.
        SealtrainError: As ``owned.verify_owned``.
    """
    signed = verify_owned(Consent, envelope, consortium)
    document = signed.document
    facts = {
        "run": (document.run_id, run_id),
        "app id": (document.app_id, target.app_id),
        "compose hash": (document.compose_hash, target.compose_hash),
        "recipe": (document.recipe_hash, target.recipe_hash),
    }
    for what, (got, expected) in facts.items():
        if got != expected:
            raise RunMismatch(
                f"the consent is to another {what}",
                check="consent",
                owner=signed.owner.name,
                got=got,
                expected=expected,
                hint="an owner consents to one run of one recipe at a time",
            )
    return signed
