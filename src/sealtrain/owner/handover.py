"""An owner's dataset under the owner's new keys; its records and its data key stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.files import atomic_write
from sealtrain.client.connection import own_key
from sealtrain.consortium.datasets import (
    load_dataset_manifest,
    read_dataset_envelope,
    reissue_dataset,
    verify_dataset,
)
from sealtrain.errors import SignatureInvalid, UsageError
from sealtrain.sealing.description import MANIFEST_NAME
from sealtrain.sealing.rewrap import read_stanzas, rewrap
from sealtrain.sealing.stanza import wrap_for_owner

if TYPE_CHECKING:
    from sealtrain.keys.identity import Identity


def hand_over(sealed: Path, former: Identity, me: Identity) -> None:
    """Give a dataset's owner stanza and signature to another identity of the same owner.

    Stanzas for brokers stay: they are for recipes of the consortium before, which knows the owner
    by the former keys.

    Args:
        sealed: The owner's sealed folder.
        former: The identity that opens it so far.
        me: The identity that opens it from now on.

    Raises:
        UsageError: The two identities are of different owners.
        SignatureInvalid: The dataset is neither the former identity's nor, after an interruption,
            the new one's.
    """
    if former.name != me.name:
        raise UsageError(
            "the former identity is of another owner",
            check="--former",
            got=former.name,
            expected=me.name,
        )
    if _is_of(sealed, former):
        _hand_over(sealed, former, me)
    load_dataset_manifest(sealed, me.public)
    _, stanzas = read_stanzas(sealed)
    before = ("owner", former.public.owner_id)
    gone = [stanza for stanza in stanzas if (stanza.kind, stanza.recipient) == before]
    if gone:
        rewrap(sealed, data_key=own_key(sealed, me), drop=gone)


def _is_of(sealed: Path, owner: Identity) -> bool:
    try:
        load_dataset_manifest(sealed, owner.public)
    except SignatureInvalid:
        return False
    return True


def _hand_over(sealed: Path, former: Identity, me: Identity) -> None:
    """Add a stanza for the new identity and sign anew; both open it if this is interrupted."""
    key = own_key(sealed, former)
    dataset_id, _ = read_stanzas(sealed)
    mine = wrap_for_owner(
        key, dataset_id=dataset_id, owner_id=me.public.owner_id, public=me.sealing.public
    )
    rewrap(sealed, data_key=key, add=[mine])
    envelope = read_dataset_envelope(sealed)
    manifest = verify_dataset(envelope, former.public)
    signed = reissue_dataset(
        envelope,
        me.signer,
        app_id=manifest.app_id,
        compose_hash=manifest.compose_hash,
        sealed_at=to_rfc3339(system_clock()),
        owner_id=me.public.owner_id,
    )
    atomic_write(sealed / MANIFEST_NAME, signed.to_bytes(), overwrite=True)
