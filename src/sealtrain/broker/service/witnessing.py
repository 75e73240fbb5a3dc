"""Keeps owners' cosignatures of the ledger's tree heads and serves them (spec/ledger.md §7).

A cosigned tree head is an owner's statement that the ledger had so many entries. If it does not
fit the ledger, the ledger's file was set back or replaced: the broker then does not start.
"""

from __future__ import annotations

from collections.abc import Iterable

from sealtrain.broker.service.parts import BrokerParts
from sealtrain.broker.store.cosignatures import CosignedNote
from sealtrain.errors import LedgerInconsistent
from sealtrain.ledger.ledger import MAX_PAGE_BYTES
from sealtrain.ledger.rotation import find_signing_key
from sealtrain.ledger.tree import fitting
from sealtrain.ledger.witness import Witnessed, verify_witnessed
from sealtrain.release.messages import CosignedCheckpoint, CosignedPage
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.note import MAX_SIGNATURE_LINES, SignedNote
from sealtrain.signing.tree_head import TreeHead

MAX_COSIGNED_PAGE = 100


class Witnessing:
    """Cosignatures of one broker's ledger. Thread-safe."""

    def __init__(self, parts: BrokerParts) -> None:
        """Compare the newest cosigned tree head with the ledger.

        Raises:
            LedgerInconsistent: Owners cosigned another ledger.
        """
        self._parts = parts
        with parts.store.reading() as transaction:
            newest = transaction.cosignatures.newest(1)
        if newest is not None:
            self._verify(_note(newest))

    def submit(self, asked: CosignedCheckpoint) -> CosignedPage:
        """Keep an owner's cosignature.

        Returns:
            The tree head with every cosignature of it so far.

        Raises:
            SignatureInvalid: It is not a tree head of this broker, or no owner cosigned it.
            LedgerInconsistent: A tree head of a history that this ledger does not have.
        """
        head = self._verify(asked.cosigned)
        ledger, consortium = self._parts.ledger, self._parts.consortium
        witnessed = self._verify_witnessed(asked.cosigned, consortium.owners, quorum=1)
        with self._parts.store.transaction() as transaction:
            for owner, line in witnessed.lines.items():
                transaction.cosignatures.add(
                    head.size,
                    # Signed anew: the broker keeps only the owners' lines of the submitted note.
                    note=ledger.checkpoint(head.size),
                    owner=owner,
                    line=line.to_line(),
                )
            kept = list(transaction.cosignatures.page(head.size, 1))
        return CosignedPage(checkpoints=tuple(_note(checkpoint) for checkpoint in kept))

    def page(self, start: int, limit: int) -> CosignedPage:
        """Cosigned tree heads of at least ``start`` entries, smallest first.

        At most ``MAX_COSIGNED_PAGE``, and of no more bytes than a page of entries; the first comes
        in any case.
        """
        with self._parts.store.reading() as transaction:
            kept = transaction.cosignatures.page(start, min(limit, MAX_COSIGNED_PAGE))
            notes = [_note(checkpoint) for checkpoint in kept]
        count = fitting((len(note.encode()) for note in notes), MAX_PAGE_BYTES)
        return CosignedPage(checkpoints=tuple(notes[:count]))

    def newest(self, quorum: int) -> CosignedPage:
        """The largest tree head that ``quorum`` owners cosigned; empty when there is none."""
        with self._parts.store.reading() as transaction:
            found = transaction.cosignatures.newest(quorum)
        return CosignedPage(checkpoints=() if found is None else (_note(found),))

    def _verify(self, note: str) -> TreeHead:
        ledger = self._parts.ledger
        found = self._verify_witnessed(note, (), quorum=0).head
        got = ledger.root(found.size) if found.size <= ledger.size else f"{ledger.size} entries"
        if got != found.root:
            raise LedgerInconsistent(
                "the ledger does not fit the tree head that owners cosigned",
                check="cosigned checkpoint",
                got=got,
                expected=f"{found.root} at size {found.size}",
                hint="restore the newest copy: the ledger's file was set back or replaced",
            )
        return found

    def _verify_witnessed(
        self, note: str, owners: Iterable[PublicIdentity], *, quorum: int
    ) -> Witnessed:
        """The origin under the ledger's current key, or under the key that signed the note."""
        ledger = self._parts.ledger
        key = find_signing_key(note, ledger.keys, origin=ledger.origin)
        return verify_witnessed(note, key, origin=ledger.origin, witnesses=owners, quorum=quorum)


def _note(kept: CosignedNote) -> str:
    note, lines = kept
    room = MAX_SIGNATURE_LINES - len(SignedNote.from_text(note).signatures)
    return note + "".join(lines[:room])
