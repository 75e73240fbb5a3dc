"""A root secret in SLIP-39 mnemonics: shares on paper, of which any k give it back (spec/keys.md).

Plain SLIP-39: one group, extendable, no passphrase, so that any implementation can join the shares
when this one is gone. Fewer than k say nothing about the secret; k of them are the secret.
"""

from __future__ import annotations

from collections.abc import Mapping

from shamir_mnemonic import MnemonicError, Share, combine_mnemonics, generate_mnemonics

from sealtrain.base.secret import Secret
from sealtrain.errors import KeyFileInvalid, UsageError
from sealtrain.keys.derive import KEY_BYTES

MAX_ROOT_SHARES = 16


def split_root(root: Secret, *, threshold: int, count: int) -> tuple[Secret, ...]:
    """Share a root secret. The library draws its randomness from the system.

    Args:
        root: 32 bytes.
        threshold: How many shares give it back.
        count: How many there are.

    Returns:
        ``count`` mnemonics of 33 words.

    Raises:
        UsageError: Not 2 to 16 shares, or a threshold below 2 or above their number.
    """
    if not 2 <= threshold <= count <= MAX_ROOT_SHARES:
        raise UsageError(
            "a root secret is split into 2 to 16 shares, of which 2 or more are needed",
            check="threshold",
            got=f"{threshold} of {count}",
            hint="with a threshold of 1 each share would be the secret itself: copy the file",
        )
    if len(root) != KEY_BYTES:
        raise UsageError("secret has the wrong length", got=len(root), expected=KEY_BYTES)
    # Stretching protects a passphrase, and this secret has no passphrase.
    (mnemonics,) = generate_mnemonics(1, [(threshold, count)], root.reveal(), iteration_exponent=0)
    return tuple(Secret(mnemonic.encode()) for mnemonic in mnemonics)


def join_root(shares: Mapping[str, str]) -> Secret:
    """Give a root secret back.

    Args:
        shares: Where each mnemonic came from → its words. Exactly as many as are needed.

    Returns:
        32 bytes.

    Raises:
        KeyFileInvalid: One is misspelt or of another split, or there are too few or too many.
    """
    read = {name: _read(name, words) for name, words in shares.items()}
    if not read:
        raise KeyFileInvalid("no shares of a root secret were given", check="share")
    _one_split(read)
    try:
        root = combine_mnemonics([share.mnemonic() for share in read.values()])
    except MnemonicError:
        # Without "from": the library quotes words in some of its messages.
        raise KeyFileInvalid(
            "the shares do not give a root secret",
            check="share",
            hint="take other shares of the same split",
        ) from None
    if len(root) != KEY_BYTES:
        raise KeyFileInvalid(
            "the shares are of another secret", check="share", got=len(root), expected=KEY_BYTES
        )
    return Secret(root)


def _read(name: str, words: str) -> Share:
    try:
        return Share.from_mnemonic(" ".join(words.split()).lower())
    except (MnemonicError, ValueError):
        raise KeyFileInvalid(
            f"{name} is not a share of a root secret",
            check="share",
            expected="33 words whose checksum holds",
            hint="compare each word with the paper",
        ) from None


def _one_split(read: Mapping[str, Share]) -> None:
    (first, *others) = read.items()
    needed = first[1].member_threshold
    for name, share in others:
        if share.common_parameters() != first[1].common_parameters():
            raise KeyFileInvalid(
                f"{name} and {first[0]} are shares of different splits", check="share"
            )
    taken: dict[int, str] = {}
    for name, share in read.items():
        if share.index in taken:
            raise KeyFileInvalid(f"{name} and {taken[share.index]} are one share", check="share")
        taken[share.index] = name
    if len(read) != needed:
        raise KeyFileInvalid(
            f"{needed} shares give this root secret back",
            check="share",
            got=f"{len(read)} shares",
            expected=f"exactly {needed}, all different",
        )
