"""The ledger: an append-only Merkle log of owners' and the broker's acts. See ``spec/ledger.md``.

An entry is canonical JSON ``{"kind", "at", "body"}``. ``append`` returns once it is on disk. The
tree is RFC 6962's, and signed heads are C2SP checkpoints. On opening, everything is recomputed from
the entries and compared with the stored hashes (``audit``); a tree head kept elsewhere reveals even
a consistent rewrite of the whole file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from sealtrain.base.canonical import JsonValue, canonical_json, parse_canonical, parse_json
from sealtrain.base.clock import Clock, system_clock, to_rfc3339
from sealtrain.errors import (
    DataInvalid,
    EntryUnknown,
    LedgerInconsistent,
    LimitExceeded,
    SignatureInvalid,
)
from sealtrain.ledger.backend import BUSY_SECONDS, Place
from sealtrain.ledger.proofs import LedgerProof, verify_extension, verify_proof
from sealtrain.ledger.rotation import KIND as ROTATION
from sealtrain.ledger.rotation import Rotation, lineage, read_rotation
from sealtrain.ledger.tree import another_meta
from sealtrain.signing import merkle
from sealtrain.signing.ed25519 import Ed25519Signer, key_id
from sealtrain.signing.note import SignedNote
from sealtrain.signing.tree_head import TreeHead, sign_tree_head, verify_tree_head

if TYPE_CHECKING:
    from sealtrain.ledger.store import LedgerStore, PendingEntries

__all__ = [
    "KIND",
    "MAX_ENTRY_BYTES",
    "MAX_PAGE",
    "Ledger",
    "LedgerProof",
    "verify_extension",
    "verify_proof",
]

MAX_ENTRY_BYTES = 256 << 10
MAX_BATCH = 10_000
MAX_PAGE = 1000
MAX_PAGE_BYTES = MAX_ENTRY_BYTES
"""Longest page of entries, in bytes: it bounds the cost of any page."""
_ROTATED = b'"kind":"rotation"'
KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
"""Spelling of an entry's kind."""


class Ledger:
    """One log in one place; any thread of any number of processes may append."""

    def __init__(
        self,
        store: LedgerStore,
        *,
        origin: str,
        signer: Ed25519Signer,
        clock: Clock,
        former: Sequence[Ed25519Signer] = (),
    ) -> None:
        self._store = store
        self._here = threading.local()
        self._head = (-1, "")  # the tree head signed last: entries of one batch share it
        self._signer = signer
        self._former = tuple(former)
        self._clock = clock
        self.origin = origin
        self.keys: tuple[bytes, ...] = (signer.public,)
        """Keys that signed it, oldest first."""

    @classmethod
    def open(
        cls,
        where: Place,
        *,
        origin: str,
        signer: Ed25519Signer,
        clock: Clock = system_clock,
        audit: bool = True,
        former: Sequence[Ed25519Signer] = (),
        patience: float = BUSY_SECONDS,
    ) -> Self:
        """Open a ledger, or start one.

        Args:
            where: File, whose folder must exist; or a database on a server.
            origin: Name of the log, without spaces or plus signs; fixed for its life.
            signer: Key that signs its checkpoints: the one it was made with, or the one that
                rotations in it lead to.
            clock: Time of new entries.
            audit: Recompute everything first.
            former: Keys it had before, which sign its tree heads too.
            patience: Seconds to wait while another thread or process appends.

        Raises:
            LedgerInconsistent: Of another origin or key, or changed from outside.
            SignatureInvalid: The key was rotated away, or rotations do not lead to it.
            Unreachable: The file or database cannot be opened.
            ConfigError: The database's settings do not make commits durable.
        """
        from sealtrain.ledger.store import LedgerStore

        # Rotations may have led to the signer from the key that the ledger was made with.
        meta = {"origin": origin, "key_id": signer.key_id}
        store = LedgerStore(where, meta, any_key=True, patience=patience)
        try:
            ledger = cls(store, origin=origin, signer=signer, clock=clock, former=former)
            if audit:
                ledger.audit()
            ledger._follow_rotations()
        except BaseException:
            store.close()
            raise
        return ledger

    def close(self) -> None:
        """Close the file or the connections."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, kind: str, body: dict[str, JsonValue]) -> int:
        """Append one entry; it is on disk when this returns.

        Args:
            kind: ``[a-z][a-z0-9-]{0,31}``, such as ``"approval"``.
            body: JSON object, without secrets.

        Returns:
            Its index, from 0.

        Raises:
            DataInvalid: The kind's spelling, or the body has no canonical form.
            LimitExceeded: The entry is longer than ``MAX_ENTRY_BYTES``.
            Unreachable: It could not be written; the ledger is as before.
        """
        return self.append_all([(kind, body)])[0]

    def append_all(self, items: Iterable[tuple[str, dict[str, JsonValue]]]) -> range:
        """Append entries together, all or none; arguments and errors as ``append``.

        Returns:
            Their indices.
        """
        at = to_rfc3339(self._clock())
        entries = [_entry_bytes(kind, at, body) for kind, body in items]
        if len(entries) > MAX_BATCH:
            raise LimitExceeded(
                "too many entries at once", got=len(entries), expected=f"at most {MAX_BATCH}"
            )
        pending: PendingEntries | None = getattr(self._here, "pending", None)
        first = (pending or self._store).append(entries)
        return range(first, first + len(entries))

    def pending(self, connection: Any) -> PendingEntries:
        """Entries that will be written together, with a transaction of the broker's tables.

        Args:
            connection: The driver's, in that transaction.
        """
        return self._store.pending(connection)

    @contextmanager
    def adding_to(self, pending: PendingEntries) -> Iterator[None]:
        """Entries of this thread wait there meanwhile: not on disk, not readable, not provable."""
        self._here.pending = pending
        try:
            yield
        finally:
            self._here.pending = None

    @property
    def stored(self) -> LedgerStore:
        """The store beneath it, to read."""
        return self._store

    @property
    def size(self) -> int:
        """Number of entries."""
        return self._store.size()

    def entry(self, index: int) -> dict[str, JsonValue]:
        """The entry at ``index``.

        Raises:
            EntryUnknown: The ledger has no entry at ``index``.
        """
        found = self._store.read(index, 1) if index >= 0 else []
        if not found:
            raise EntryUnknown(
                "no such ledger entry", got=index, expected=f"below {self.size}", check="index"
            )
        return _entry(found[0])

    def entries(self, start: int = 0, limit: int = MAX_PAGE) -> list[dict[str, JsonValue]]:
        """Up to ``limit`` (at most ``MAX_PAGE``) entries from ``start`` on."""
        limit = max(0, min(limit, MAX_PAGE))
        return [_entry(data) for data in self._store.read(max(0, start), limit)]

    def page(self, start: int, limit: int, max_bytes: int = MAX_PAGE_BYTES) -> list[bytes]:
        """Entries from ``start`` on as they are stored: canonical JSON.

        Args:
            start: Index of the first, from 0.
            limit: At most so many, and at most ``MAX_PAGE``.
            max_bytes: Of all together; the first one comes in any case.
        """
        return self._store.page(start, min(limit, MAX_PAGE), max_bytes)

    def root(self, size: int | None = None) -> str:
        """Root over the first ``size`` entries (all when ``None``), 64 hex digits.

        Raises:
            EntryUnknown: There are not that many entries.
        """
        return self._store.subtree(0, self._within(size)).hex()

    def checkpoint(self, size: int | None = None) -> str:
        """A tree head as a signed note.

        Args:
            size: Number of entries; all when ``None``.

        Raises:
            EntryUnknown: There are not that many entries.
        """
        return self._sign(self._within(size))

    def proof(self, index: int) -> LedgerProof:
        """Entry, inclusion proof and tree head; enough for ``verify_proof``.

        Raises:
            EntryUnknown: There is no such entry.
        """
        kept = self._store.kept
        size = kept.size if index < kept.size else self.size
        written = kept.entry(index)
        entry = self.entry(index) if written is None else _entry(written)
        path = merkle.inclusion_path(index, size, self._store.subtree)
        return LedgerProof(
            entry=entry,
            index=index,
            size=size,
            path=tuple(digest.hex() for digest in path),
            checkpoint=self._sign(size),
        )

    def consistency(self, first: int, second: int | None = None) -> tuple[str, ...]:
        """Proof that the log of ``second`` entries extends the one of ``first``, hex hashes.

        Args:
            first: At least 1.
            second: At least ``first``; all entries when ``None``.

        Raises:
            EntryUnknown: There are not that many entries.
            ProofInvalid: The sizes cannot be compared.
        """
        path = merkle.consistency_path(first, self._within(second), self._store.subtree)
        return tuple(digest.hex() for digest in path)

    def rotations(self) -> list[tuple[int, Rotation]]:
        """Every change of its key, with the index of the entry.

        Raises:
            Refused: An entry says so and does not hold.
        """
        found, start = [], 0
        while page := self._store.read(start, MAX_PAGE):
            for index, data in enumerate(page, start):
                # Only a few are: the others are not parsed.
                if _ROTATED in data and (entry := _entry(data))["kind"] == ROTATION:
                    found.append((index, read_rotation(entry["body"], origin=self.origin)))
            start += len(page)
        return found

    def _follow_rotations(self) -> None:
        """Find the keys that lead from the ledger's first key to the signer's, or refuse."""
        made_with = self._store.made_with
        rotations = [rotation for _, rotation in self.rotations()]
        if not rotations and made_with != self._signer.key_id:
            raise another_meta(self.origin, "key_id", made_with, self._signer.key_id)
        before = lineage(made_with, self._signer.key_id, rotations)
        if strange := [signer.key_id for signer in self._former if signer.public not in before]:
            raise SignatureInvalid(
                "a former root secret is not one that this ledger's key followed",
                check="ledger key",
                got=", ".join(strange),
                expected=", ".join(key_id(key) for key in before) or "none: no rotation",
            )
        self.keys = (*before, self._signer.public)

    def audit(self, checkpoints: Iterable[str] = ()) -> TreeHead:
        """Recompute the whole ledger from its entries.

        Args:
            checkpoints: Signed notes of this ledger that were kept elsewhere.

        Returns:
            The current tree head.

        Raises:
            LedgerInconsistent: Stored entries or hashes do not fit together, or a tree head does
                not fit them.
            SignatureInvalid: A tree head is not of this ledger.
        """
        size = self._store.recompute()
        for text in checkpoints:
            kept = verify_tree_head(text, self._signer.public, origin=self.origin)
            got = self.root(kept.size) if kept.size <= size else f"only {size} entries"
            if got != kept.root:
                raise LedgerInconsistent(
                    "the ledger is not the one whose tree head was signed before",
                    check="ledger checkpoint",
                    got=got,
                    expected=f"{kept.root} at size {kept.size}",
                    hint="restore the ledger from a backup: entries were rewritten or cut off",
                )
        return TreeHead(origin=self.origin, size=size, root=self.root(size))

    def _sign(self, size: int) -> str:
        known, signed = self._head
        if known == size:
            return signed
        root = self._store.subtree(0, size).hex()
        head = TreeHead(origin=self.origin, size=size, root=root)
        signed = sign_tree_head(head, self._signer)
        for former in self._former:  # readers who have not learned of a rotation know only this key
            (line,) = SignedNote.from_text(sign_tree_head(head, former)).signatures
            signed = SignedNote.from_text(signed).with_signature(line).to_text()
        self._head = (size, signed)
        return signed

    def _within(self, size: int | None) -> int:
        present = self.size
        if size is None:
            return present
        if not 0 <= size <= present:
            raise EntryUnknown(
                "the ledger has fewer entries than the requested size",
                check="ledger size",
                got=size,
                expected=f"0 to {present}",
            )
        return size


def _entry_bytes(kind: str, at: str, body: dict[str, JsonValue]) -> bytes:
    if not KIND.fullmatch(kind) or not isinstance(body, dict):
        raise DataInvalid("ledger entry has no valid kind or body", expected=KIND.pattern)
    data = canonical_json({"kind": kind, "at": at, "body": body})
    if len(data) > MAX_ENTRY_BYTES:
        raise LimitExceeded(
            "ledger entry is too long",
            got=f"{len(data)} bytes",
            expected=f"at most {MAX_ENTRY_BYTES}",
        )
    # A float beyond 2**53 is written like an integer that readers refuse: refuse it now.
    parse_canonical(data)
    return data


def _entry(data: bytes) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = parse_json(data, max_bytes=MAX_ENTRY_BYTES)
    return entry
