"""An owner's record that it accounted for every file of an image (spec/images.md §10).

A record is canonical JSON in a DSSE envelope under ``PAYLOAD_TYPE``. ``verify_image_record`` checks

1. signature, format, consortium and owner, as ``consortium.owned`` does,
2. that recipe, image and code are those of the reader's lock, and
3. that it is not signed in the future.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import StringConstraints

from sealtrain.base.clock import from_rfc3339
from sealtrain.base.models import Hex64
from sealtrain.consortium.decisions import CLOCK_SKEW
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import OwnedDocument, SignedDocument, verify_owned
from sealtrain.errors import ImageRefused
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.errors import StatementInvalid
from sealtrain.signing.identity import PublicIdentity

PAYLOAD_TYPE: Final = "application/vnd.sealtrain.image-verification+json"
MAX_RECORD_BYTES: Final = 16 << 10
"""Of the envelope in its file."""


class ImageVerification(OwnedDocument):
    """The signed document.

    Attributes:
        recipe_hash: Of the lock that the image was accounted for with.
        image: Digest of the image, ``sha256:`` and 64 hex digits.
        code: Digest of sealtrain's code in the image.
    """

    payload_type = PAYLOAD_TYPE
    what = "image verification"
    max_bytes = 4096

    recipe_hash: Hex64
    image: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    code: Hex64

    @classmethod
    def of(
        cls,
        *,
        recipe_hash: str,
        image: str,
        code: str,
        consortium_id: str,
        owner: PublicIdentity,
        signed_at: int,
    ) -> ImageVerification:
        """Write a record.

        Args:
            recipe_hash: Of the lock.
            image: Digest of the image.
            code: Digest of sealtrain's code in it.
            consortium_id: Of the lock.
            owner: The owner who accounted for the image.
            signed_at: Now, seconds since the epoch.

        Raises:
            StatementInvalid: The document would break its format.
        """
        return cls.write(
            {"recipe_hash": recipe_hash, "image": image, "code": code},
            consortium_id=consortium_id,
            owner=owner,
            signed_at=signed_at,
        )


SignedImageVerification = SignedDocument[ImageVerification]
"""A record whose signature was verified, and its signer."""


def verify_image_record(
    envelope: Envelope,
    consortium: Consortium,
    *,
    recipe_hash: str,
    image: str | None,
    code: str,
    now: int,
) -> SignedImageVerification:
    """Return an owner's record, once the module's checks hold.

    Args:
        envelope: As received.
        consortium: Whose owners may sign.
        recipe_hash: Of the lock that it must be about.
        image: Digest that the lock names; ``None`` where it names no image.
        code: Code digest of the lock.
        now: Seconds since the epoch.

    Raises:
        ImageRefused: It is about another recipe, image or code.
        StatementInvalid: It is malformed, or signed in the future.
        SealtrainError: As ``owned.verify_owned``.
    """
    signed = verify_owned(ImageVerification, envelope, consortium)
    document = signed.document
    facts = {
        "recipe": (document.recipe_hash, recipe_hash),
        "image": (document.image, image),
        "code": (document.code, code),
    }
    for what, (got, expected) in facts.items():
        if got != expected:
            raise ImageRefused(
                f"the record is about another {what}",
                check="record",
                field=what,
                owner=signed.owner.name,
                got=got,
                expected=expected or "no image",
                hint="remove the record, and account for the image: sealtrain image verify",
            )
    if from_rfc3339(document.signed_at) > now + CLOCK_SKEW:
        raise StatementInvalid(
            "the record is signed in the future",
            check="signed_at",
            owner=signed.owner.name,
            got=document.signed_at,
            hint="compare the clocks, and ask its owner to verify the image again",
        )
    return signed
