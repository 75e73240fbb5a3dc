"""Owners as witnesses of a ledger: cosigning, quorums, and what a client remembers.

See ``spec/ledger.md`` §7 and §8. ``verify_witnessed`` checks, in this order, that

1. the tree head is signed by the log's key for the pinned origin,
2. every line with the name and key id of an owner is a cosignature of it that verifies,
3. no owner has two lines, and
4. at least ``quorum`` owners have one.

``LedgerMemory`` is one file with the newest tree head an owner saw. It changes only through
``advance``, which verifies that the log grew, so it never goes back; what contradicts it is kept as
evidence before the refusal is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock
from pydantic import Field

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.digests import sha256_hex
from sealtrain.base.encoding import from_base64, to_base64
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.base.models import Base64, StrictModel, load_model
from sealtrain.base.ownfiles import require_own
from sealtrain.errors import ConfigError, DataInvalid, LedgerInconsistent, SignatureInvalid
from sealtrain.ledger.proofs import verify_extension
from sealtrain.signing.cosignature import (
    CosignSigner,
    cosign,
    cosignature_key_id,
    verify_cosignature,
)
from sealtrain.signing.identity import PublicIdentity
from sealtrain.signing.note import NoteSignature, SignedNote, note_key_id
from sealtrain.signing.tree_head import TreeHead, verify_tree_head

_MAX_MEMORY_BYTES = 64 << 10


def witness_name(owner: str) -> str:
    """Key name of an owner's cosignatures.

    Args:
        owner: Name of the owner.
    """
    return f"sealtrain/witness/{owner}"


def cosign_tree_head(note: str, owner: str, signer: CosignSigner, *, at: int) -> NoteSignature:
    """An owner's cosignature of a tree head that ``LedgerMemory.advance`` returned.

    Args:
        note: The signed tree head.
        owner: Name of the owner.
        signer: The owner's witness key (``Identity.witness``).
        at: Now, seconds since the epoch.
    """
    return cosign(SignedNote.from_text(note).text, witness_name(owner), signer, at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """A tree head and the owners that cosigned it."""

    head: TreeHead
    times: dict[str, int]
    """Owner → time of the cosignature, in the order of the lines."""
    lines: dict[str, NoteSignature]
    """Owner → the line."""


def verify_witnessed(
    note: str,
    public_key: bytes,
    *,
    origin: str,
    witnesses: Iterable[PublicIdentity],
    quorum: int,
) -> Witnessed:
    """Return a tree head that enough owners cosigned.

    Args:
        note: The signed tree head with its cosignatures.
        public_key: The log's raw Ed25519 key, 32 bytes.
        origin: The log's pinned origin.
        witnesses: Whose cosignatures count.
        quorum: How many of them are needed; 0 checks those that are there.

    Raises:
        SignatureInvalid: A check of the module's list fails.
    """
    head = verify_tree_head(note, public_key, origin=origin)
    signed = SignedNote.from_text(note)
    known = {
        (name, cosignature_key_id(name, witness.witness_bytes)): witness
        for witness in witnesses
        for name in (witness_name(witness.name),)
    }
    times: dict[str, int] = {}
    lines: dict[str, NoteSignature] = {}
    for line in signed.signatures:
        owner = known.get((line.name, line.key_id))
        if owner is None:
            continue
        if owner.name in times:
            raise SignatureInvalid(
                "a witness cosigned one note twice", check="cosignature", owner=owner.name
            )
        times[owner.name] = verify_cosignature(signed.text, line, owner.witness_bytes)
        lines[owner.name] = line
    if len(times) < quorum:
        raise SignatureInvalid(
            "too few owners cosigned the ledger's tree head",
            check="witness quorum",
            got=f"{len(times)} ({', '.join(times) or 'nobody'})",
            expected=f"at least {quorum}",
            hint="have the other owners run: sealtrain log witness",
        )
    return Witnessed(head=head, times=times, lines=lines)


class _MemoryFile(StrictModel):
    version: Literal[1]
    origin: str = Field(max_length=256)
    public_key: Base64
    checkpoint: str = Field(max_length=_MAX_MEMORY_BYTES)


class LedgerMemory:
    """The newest tree head of one log that an owner saw. Get it from ``memory``."""

    def __init__(self, path: Path, kept: _MemoryFile | None) -> None:
        self._path = path
        self._kept = kept

    @property
    def public_key(self) -> bytes | None:
        """The log's key; ``None`` before the first tree head."""
        return None if self._kept is None else from_base64(self._kept.public_key, length=32)

    @property
    def note(self) -> str | None:
        """The signed tree head; ``None`` before the first."""
        return None if self._kept is None else self._kept.checkpoint

    @property
    def head(self) -> TreeHead | None:
        """The tree head; ``None`` before the first.

        Raises:
            SignatureInvalid: The file was edited.
        """
        if self._kept is None:
            return None
        key = from_base64(self._kept.public_key, length=32)
        return verify_tree_head(self._kept.checkpoint, key, origin=self._kept.origin)

    def advance(
        self,
        newer: str,
        path: Sequence[str] | None,
        public_key: bytes,
        *,
        origin: str,
        now: int,
        rotated_from: bytes | None = None,
    ) -> TreeHead:
        """Remember a newer tree head, once it is shown to extend the one remembered.

        Args:
            newer: As received.
            path: Consistency proof from the remembered size to the newer one, as hex hashes; empty
                at the first tree head; ``None`` when the broker gave none.
            public_key: The log's key, 32 bytes.
            origin: The log's origin.
            now: Seconds since the epoch, for the evidence.
            rotated_from: The key remembered, where the log is known to have another one since.

        Raises:
            SignatureInvalid: The tree head, or the one remembered, is not of this log and key.
            LedgerInconsistent: The log is shorter, or was rewritten or forked; evidence is kept.
        """
        if self._kept is None:
            after = verify_tree_head(newer, public_key, origin=origin)
        else:
            older = self._kept.checkpoint
            try:
                after = _extend(older, newer, path, public_key, origin, rotated_from)
            except LedgerInconsistent as error:
                self._accuse(newer, path, public_key, origin, now, error)
        if self._kept is None or rotated_from or newer != self._kept.checkpoint:
            self._keep(after, newer, public_key)
        return after

    def succeed(self, note: str, public_key: bytes, *, origin: str) -> TreeHead:
        """Remember another ledger instead; the caller verified that it follows this one.

        Args:
            note: Its newest tree head.
            public_key: Its key, 32 bytes.

        Raises:
            SignatureInvalid: The tree head is not of that ledger and key.
        """
        head = verify_tree_head(note, public_key, origin=origin)
        self._keep(head, note, public_key)
        return head

    def _keep(self, head: TreeHead, note: str, public_key: bytes) -> None:
        document = _MemoryFile(
            version=1,
            origin=head.origin,
            public_key=to_base64(public_key),
            # Without cosignatures: the file stays small, and what it says is the log's own word.
            checkpoint=_own_line_only(note, head.origin, public_key),
        )
        atomic_write(self._path, document.to_bytes(), mode=0o600, overwrite=True)
        self._kept = document

    def _accuse(
        self,
        newer: str,
        path: Sequence[str] | None,
        public_key: bytes,
        origin: str,
        now: int,
        error: LedgerInconsistent,
    ) -> None:
        document = canonical_json(
            {
                "version": 1,
                "origin": origin,
                "public_key": to_base64(public_key),
                "seen_at": to_rfc3339(now),
                "older": self.note,
                "newer": newer,
                "path": None if path is None else list(path),
            }
        )
        name = f"{self._path.name}.evidence-{sha256_hex(document)[:16]}.json"
        evidence = self._path.with_name(name)
        atomic_write(evidence, document, overwrite=True)
        raise LedgerInconsistent(
            error.message,
            check=error.check,
            got=error.got,
            expected=error.expected,
            hint=f"sign nothing for this broker; show the other owners {evidence.name}",
        ) from error


def read_memory(path: Path) -> LedgerMemory:
    """Read a memory file that is there, to look at it only.

    Raises:
        ConfigError: The file is missing, or is no memory of a ledger.
        SignatureInvalid: It was edited.
    """
    kept = LedgerMemory(path, _read(path))
    if kept.head is None:
        raise ConfigError(
            f"there is no memory of a ledger at {path}",
            check="state file",
            hint="sealtrain log witness makes one",
        )
    return kept


@contextmanager
def memory(path: Path) -> Iterator[LedgerMemory]:
    """Read a memory file, or begin one, and hold it against every other program meanwhile.

    Args:
        path: The file; its folder must exist.

    Raises:
        ConfigError: The file is not a memory of a ledger, or cannot be locked.
        SignatureInvalid: It was edited.
    """
    # The lock is another file: this one is replaced, and a lock belongs to the file that was.
    lock = FileLock(path.with_name(f".{path.name}.lock"), mode=0o600)
    try:
        path.parent.resolve(strict=True)  # the lock would make the folder
        lock.acquire()
    except OSError as error:
        raise ConfigError(
            f"cannot keep the ledger's tree head in {path.parent}",
            check="state file",
            got=error.strerror,
            hint="give a writable place with --memory",
        ) from error
    try:
        kept = LedgerMemory(path, _read(path))
        _ = kept.head
        yield kept
    finally:
        lock.release()


def _read(path: Path) -> _MemoryFile | None:
    require_own(path, ConfigError, check="state file")
    if not path.exists():
        return None
    try:
        data = read_bounded(path, _MAX_MEMORY_BYTES)
        value = parse_json(data, max_bytes=_MAX_MEMORY_BYTES, max_depth=2)
        kept = load_model(_MemoryFile, value, DataInvalid, "memory of the ledger")
        from_base64(kept.public_key, length=32)
    except DataInvalid as error:
        # Starting afresh would forget what the broker must still extend.
        raise ConfigError(
            f"{path} is not a memory of a ledger: {error.message}",
            check="state file",
            hint="restore it; only if it was never one, remove it",
        ) from error
    return kept


def _extend(
    older: str,
    newer: str,
    path: Sequence[str] | None,
    public_key: bytes,
    origin: str,
    rotated_from: bytes | None,
) -> TreeHead:
    if path is not None:
        return verify_extension(
            older, newer, path, public_key, origin=origin, rotated_from=rotated_from
        )
    before = verify_tree_head(older, rotated_from or public_key, origin=origin)
    after = verify_tree_head(newer, public_key, origin=origin)
    if after.size <= before.size:
        return verify_extension(
            older, newer, [], public_key, origin=origin, rotated_from=rotated_from
        )
    raise LedgerInconsistent(
        "the broker does not prove that its ledger extends the one seen before",
        check="ledger consistency",
        got="no consistency proof",
        expected=f"one from size {before.size} to {after.size}",
    )


def _own_line_only(note: str, origin: str, public_key: bytes) -> str:
    signed = SignedNote.from_text(note)
    own = (origin, note_key_id(origin, public_key))
    lines = tuple(
        signature for signature in signed.signatures if (signature.name, signature.key_id) == own
    )
    return SignedNote(text=signed.text, signatures=lines).to_text()
