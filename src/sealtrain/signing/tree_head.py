"""Tree heads of a ledger: origin, size and root, signed as a note (C2SP tlog-checkpoint v1.0.0).

Ours have exactly three lines. ``verify_tree_head`` demands

1. a signature by the pinned key under the origin's name (see ``signing.note``),
2. the pinned origin in the first line,
3. a decimal size without leading zeros, below 2**53, and
4. a root of 32 bytes in canonical base64; for size 0 the root of the empty tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.errors import DataInvalid, SignatureInvalid
from sealtrain.signing import note
from sealtrain.signing.ed25519 import Ed25519Signer
from sealtrain.signing.merkle import EMPTY_ROOT, HASH_BYTES

_SIZE = re.compile(r"0|[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeHead:
    """Size and root of a ledger. Signed as a note, it is what C2SP calls a checkpoint."""

    origin: str
    size: int
    root: str
    """64 hex digits."""

    def to_text(self) -> str:
        """Text of the note: three lines."""
        return f"{self.origin}\n{self.size}\n{to_base64(bytes.fromhex(self.root))}\n"


def sign_tree_head(head: TreeHead, signer: Ed25519Signer, name: str | None = None) -> str:
    """The signed note of a tree head.

    Args:
        signer: The log's key.
        name: Key name; the origin when ``None``, which is what ``verify_tree_head`` expects.
    """
    return note.sign(head.to_text(), name or head.origin, signer).to_text()


def verify_tree_head(
    text: str, public_key: bytes, *, origin: str, name: str | None = None
) -> TreeHead:
    """Return the tree head in a signed note that passes the module's checks.

    Args:
        text: The note.
        public_key: The log's raw Ed25519 key, 32 bytes.
        origin: The log's pinned origin.
        name: Key name; the origin when ``None``.

    Raises:
        SignatureInvalid: A check fails.
    """
    body = note.verify(note.SignedNote.from_text(text), name or origin, public_key)
    lines = body.split("\n")
    if len(lines) != 4:  # three lines and the empty rest behind the last newline
        raise _refuse_malformed("it has other than three lines")
    first, size, root = lines[:3]
    if first != origin:
        raise SignatureInvalid(
            "tree head is of another log", check="ledger origin", got=first, expected=origin
        )
    if not _SIZE.fullmatch(size) or int(size) >= 2**53:
        raise _refuse_malformed("its size is not a decimal number")
    try:
        raw = from_base64(root, length=HASH_BYTES)
    except DataInvalid as error:
        raise _refuse_malformed(f"its root: {error}") from error
    if int(size) == 0 and raw != EMPTY_ROOT:
        raise _refuse_malformed("an empty log has another root")
    return TreeHead(origin=origin, size=int(size), root=raw.hex())


def _refuse_malformed(why: str) -> SignatureInvalid:
    return SignatureInvalid(f"not a signed tree head: {why}", check="checkpoint")
