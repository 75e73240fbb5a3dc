"""Proofs for readers that do not hold the ledger. See ``spec/ledger.md``.

``verify_proof`` (is this entry in the log that was signed?) checks

1. the proof follows its format,
2. its tree head is signed by the pinned key for the pinned origin,
3. the tree head has the size the proof is for, and
4. the path leads from the canonical bytes of the entry to the signed root.

``verify_extension`` (did the log only grow?) checks that both tree heads are signed and that the
consistency proof leads from the older root to the newer one. An owner or auditor who keeps the last
tree head and calls it on the next one detects a log that was rewritten, truncated or forked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.encoding import from_hex
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.errors import DataInvalid, LedgerInconsistent
from sealtrain.signing import merkle
from sealtrain.signing.errors import ProofInvalid
from sealtrain.signing.tree_head import TreeHead, verify_tree_head

_MAX_PATH = 64
_MAX_SIZE = 2**53 - 1


class LedgerProof(StrictModel):
    """An entry, its place, and the way to a signed root. Nothing here is verified yet."""

    entry: dict[str, JsonValue]
    index: int = Field(ge=0, le=_MAX_SIZE)
    size: int = Field(ge=1, le=_MAX_SIZE)
    path: tuple[Hex64, ...] = Field(max_length=_MAX_PATH)
    checkpoint: str = Field(max_length=512 << 10)

    @classmethod
    def from_dict(cls, data: JsonValue) -> Self:
        """Parse a JSON value. Raises ``ProofInvalid``."""
        return load_model(cls, data, ProofInvalid, "ledger proof")


def verify_proof(proof: LedgerProof, public_key: bytes, *, origin: str) -> dict[str, JsonValue]:
    """Return the entry when it is in the signed log.

    Args:
        proof: As received.
        public_key: The ledger's pinned Ed25519 key, 32 bytes.
        origin: The ledger's pinned origin.

    Raises:
        SignatureInvalid: The tree head is of another key or origin.
        ProofInvalid: Another of the module's checks fails.
    """
    head = verify_tree_head(proof.checkpoint, public_key, origin=origin)
    if head.size != proof.size:
        raise ProofInvalid(
            "ledger proof is for another size than its tree head",
            check="ledger size",
            got=proof.size,
            expected=head.size,
        )
    if set(proof.entry) != {"kind", "at", "body"}:
        raise ProofInvalid("ledger entry is not {kind, at, body}", check="ledger entry")
    try:
        leaf = merkle.leaf_hash(canonical_json(proof.entry))
    except DataInvalid as error:
        raise ProofInvalid(f"ledger entry: {error}", check="ledger entry") from error
    path = [bytes.fromhex(node) for node in proof.path]
    root = bytes.fromhex(head.root)
    merkle.verify_inclusion(leaf, proof.index, proof.size, path, root)
    return proof.entry


def verify_extension(
    older: str,
    newer: str,
    path: Sequence[str],
    public_key: bytes,
    *,
    origin: str,
    rotated_from: bytes | None = None,
) -> TreeHead:
    """Return the newer tree head when the log only grew since the older one.

    Args:
        older: Tree head kept from before.
        newer: Tree head received now.
        path: Consistency proof between their sizes, hex hashes; empty when the sizes are equal or
            the older log was empty.
        public_key: The ledger's pinned Ed25519 key, 32 bytes.
        origin: The ledger's pinned origin.
        rotated_from: The key that signed the older one, where the ledger has another key since.

    Raises:
        SignatureInvalid: A tree head is of another key or origin.
        LedgerInconsistent: The log was rewritten, truncated or forked.
    """
    before = verify_tree_head(older, rotated_from or public_key, origin=origin)
    after = verify_tree_head(newer, public_key, origin=origin)
    hint = "keep both tree heads: together they prove that the log was rewritten"
    if after.size < before.size:
        raise LedgerInconsistent(
            "the ledger is shorter than it was",
            check="ledger size",
            got=after.size,
            expected=f"at least {before.size}",
            hint=hint,
        )
    try:
        _extends(before, after, [from_hex(node) for node in path])
    except (ProofInvalid, DataInvalid) as error:
        raise LedgerInconsistent(
            f"the ledger does not extend the one seen before: {error.message}",
            check="ledger consistency",
            got=f"{after.root} at size {after.size}",
            expected=f"an extension of {before.root} at size {before.size}",
            hint=hint,
        ) from error
    return after


def _extends(before: TreeHead, after: TreeHead, path: Sequence[bytes]) -> None:
    if before.size:
        older, newer = bytes.fromhex(before.root), bytes.fromhex(after.root)
        merkle.verify_consistency(before.size, after.size, path, older, newer)
    elif path or (after.size == 0 and after.root != before.root):
        raise ProofInvalid("an empty ledger needs no proof", got=len(path), expected=0)
