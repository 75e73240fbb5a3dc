"""Records of owners who accounted for a lock's image: written, and read before an approval.

An owner's own record lies beside its identity file, under a name that holds owner and recipe; those
of other owners come from them. What a record must be is in ``consortium.verifications``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.files import read_bounded
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.verifications import (
    MAX_RECORD_BYTES,
    ImageVerification,
    verify_image_record,
)
from sealtrain.errors import UsageError
from sealtrain.signing.dsse import Envelope

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.consortium.verifications import SignedImageVerification
    from sealtrain.keys.identity import Identity
    from sealtrain.owner.owner_files import OwnerFiles
    from sealtrain.recipe.lock import Lock


def image_of(lock: Lock) -> str | None:
    """Digest of the image that a lock names; ``None`` where it names none."""
    named = lock.recipe.hardware.image
    return None if named is None else named.rpartition("@")[2]


def require_image(lock: Lock) -> str:
    """Digest of the image that a lock names.

    Raises:
        UsageError: It names none.
    """
    image = image_of(lock)
    if image is None:
        raise UsageError(
            "the lock names no image, so there is none to sign for",
            check="--lock",
            hint="leave --identity out; recipes for the simulator have no image",
        )
    return image


def own_record(identity: Path, name: str, lock: Lock) -> Path:
    """Where an owner's record about a lock's image lies, unless the owner says another place."""
    return identity.parent / f"{name}.image-{lock.recipe_hash[:16]}.json"


def sign_image_record(keys: Identity, lock: Lock, *, now: int) -> Envelope:
    """Sign that the image of a lock is accounted for.

    Args:
        keys: Of the owner who accounted for it with this lock, without a finding.
        lock: Names the image.
        now: Seconds since the epoch.

    Raises:
        UsageError: The lock names no image.
    """
    document = ImageVerification.of(
        recipe_hash=lock.recipe_hash,
        image=require_image(lock),
        code=lock.code_sha256,
        consortium_id=lock.consortium_id,
        owner=keys.public,
        signed_at=now,
    )
    return sign_owned(document, keys.signer)


def image_records(
    owner: OwnerFiles, lock: Lock, consortium: Consortium, others: Iterable[Path] = (), *, now: int
) -> tuple[SignedImageVerification, ...]:
    """Every record about a lock's image that lies here, the newest of each owner, by name.

    Args:
        owner: The reading owner; its own record counts where there is one.
        lock: Of the recipe that is to be approved.
        consortium: Of the lock; its owners' records count.
        others: Files of records that other owners sent.
        now: Seconds since the epoch.

    Raises:
        DataInvalid: A file of ``others`` cannot be read.
        SealtrainError: A record does not hold: as ``verifications.verify_image_record``.
    """
    own = own_record(owner.identity, owner.keys.name, lock)
    files = [*([own] if own.exists() or own.is_symlink() else []), *others]
    return verify_records(files, lock, consortium, now=now)


def verify_records(
    files: Iterable[Path], lock: Lock, consortium: Consortium, *, now: int
) -> tuple[SignedImageVerification, ...]:
    """The newest record of each owner among some files, by name. Arguments as ``image_records``."""
    newest: dict[str, SignedImageVerification] = {}
    for file in files:
        signed = verify_image_record(
            Envelope.from_bytes(read_bounded(file, MAX_RECORD_BYTES)),
            consortium,
            recipe_hash=lock.recipe_hash,
            image=image_of(lock),
            code=lock.code_sha256,
            now=now,
        )
        known = newest.get(signed.owner.name)
        if known is None or known.document.signed_at < signed.document.signed_at:
            newest[signed.owner.name] = signed
    return tuple(newest[name] for name in sorted(newest))
