"""A data key in n shares, one for each broker, of which any k give it back (spec/keys.md §5).

The shares are SLIP-39 mnemonics (one group, no passphrase). Each travels with the SHA-256 of all n,
so a broker that hands out another share than it was given is named, and the others are combined.
``2k > n``: any two sets of k brokers have one in common, so no run is hidden from all that another
run asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field
from shamir_mnemonic import EncryptedMasterSecret, MnemonicError, Share, decode_mnemonics
from shamir_mnemonic import recover_ems as recover
from shamir_mnemonic import split_ems as split

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.base.secret import Random, Secret
from sealtrain.errors import DataInvalid, SealtrainError, UsageError
from sealtrain.sealing.datakey import KEY_BYTES, DataKey

MAX_SHARES = 16
MAX_DOCUMENT_BYTES = 2048
_IDENTIFIER_BITS = 15


class _Document(StrictModel):
    """What one broker keeps: its share, and the SHA-256 of every share in their order."""

    digests: tuple[Hex64, ...] = Field(min_length=2, max_length=MAX_SHARES)
    mnemonic: str = Field(max_length=400, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldShare:
    """A share that is the one its own list of digests names."""

    name: str
    share: Share
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedShares:
    """What shares of several brokers came to.

    Attributes:
        key: The data key, ``None`` where fewer than the threshold agree.
        threshold: How many are needed; 0 where no share was readable.
        wrong: Names of those whose share is not the one that the others' digests name; without a
            key, of those whose share is not even the one that their own digests name.
    """

    key: DataKey | None
    threshold: int
    wrong: tuple[str, ...]


def check_threshold(threshold: int, count: int) -> None:
    """Return if a key may be shared so.

    Raises:
        UsageError: Not 2 to 16 shares, or not more than half of them are needed.
    """
    if not 2 <= count <= MAX_SHARES:
        raise UsageError(
            "a key is shared by 2 to 16 brokers", check="threshold", got=f"{count} brokers"
        )
    if not count < 2 * threshold <= 2 * count:
        raise UsageError(
            "more than half of the brokers must be needed",
            check="threshold",
            got=f"{threshold} of {count}",
            expected=f"{count // 2 + 1} to {count} of {count}",
            hint="with fewer, two runs could be shown to brokers that never hear of each other",
        )


def split_key(
    key: DataKey, *, threshold: int, count: int, random: Random = os.urandom
) -> tuple[Secret, ...]:
    """Share a data key.

    Args:
        threshold: How many shares give it back.
        count: How many there are.
        random: Source of the identifier the shares have in common; the library draws the rest.

    Returns:
        A document for each broker, secret until it lies inside a stanza.

    Raises:
        UsageError: As ``check_threshold``.
    """
    check_threshold(threshold, count)
    identifier = int.from_bytes(random(2), "big") % (1 << _IDENTIFIER_BITS)
    # The key is uniformly random already, so it takes the place of what a passphrase would give.
    whole = EncryptedMasterSecret(identifier, True, 0, key.reveal())
    (shares,) = split(1, [(threshold, count)], whole)
    mnemonics = [share.mnemonic() for share in shares]
    digests = [sha256_hex(text.encode()) for text in mnemonics]
    return tuple(
        Secret(canonical_json({"digests": digests, "mnemonic": text})) for text in mnemonics
    )


def join_key(documents: Mapping[str, Secret]) -> JoinedShares:
    """Combine what brokers handed out, leaving out what does not fit.

    1. A share is one that its own list of digests names at its place.
    2. Shares with one list belong together; the largest set is the owner's, because fewer than a
       threshold of brokers cannot outnumber a threshold of honest ones.
    3. The brokers whose shares are outside that set are named.

    Args:
        documents: By the name of the broker that handed it out.
    """
    held = [
        part for name, text in documents.items() if (part := _read_share(name, text)) is not None
    ]
    by_list: dict[tuple[str, ...], list[_HeldShare]] = {}
    for part in held:
        by_list.setdefault(part.digests, []).append(part)
    chosen = max(by_list.values(), key=len, default=[])
    threshold = chosen[0].share.member_threshold if chosen else 0
    key = _recover_key([part.share for part in chosen], threshold)
    fitting = {part.name for part in (held if key is None else chosen)}
    wrong = tuple(name for name in documents if name not in fitting)
    return JoinedShares(key=key, threshold=threshold, wrong=wrong)


def _read_share(name: str, document: Secret) -> _HeldShare | None:
    try:
        text = parse_json(document.reveal(), max_bytes=MAX_DOCUMENT_BYTES, max_depth=3)
        read = load_model(_Document, text, DataInvalid, "share")
        share = Share.from_mnemonic(read.mnemonic)
        count = len(read.digests)
        check_threshold(share.member_threshold, count)
    except (SealtrainError, MnemonicError):
        return None
    alone = (share.group_index, share.group_threshold, share.group_count) == (0, 1, 1)
    plain = (share.extendable, share.iteration_exponent, len(share.value)) == (True, 0, KEY_BYTES)
    named = share.index < count and read.digests[share.index] == sha256_hex(read.mnemonic.encode())
    if not (alone and plain and named):
        return None
    return _HeldShare(name=name, share=share, digests=read.digests)


def _recover_key(shares: Sequence[Share], threshold: int) -> DataKey | None:
    distinct = {share.index: share for share in shares}
    if threshold == 0 or len(distinct) < threshold:
        return None
    used = [share.mnemonic() for share in list(distinct.values())[:threshold]]
    try:
        return DataKey(recover(decode_mnemonics(used)).ciphertext)
    except MnemonicError:
        # The owner made them so: each is what every list names, and yet they do not fit together.
        return None
