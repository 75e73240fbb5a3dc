"""Verify a whole ledger again and report every finding. See ``spec/ledger.md`` §9.

``Auditor`` takes the entries one after the other, from a file or a broker, and stops at nothing. It
compares the tree over them with every tree head it was given, and leaves what an entry means to
``audit_entries``. It trusts the consortium document and the log's key, and nothing in the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sealtrain.base.canonical import parse_canonical
from sealtrain.base.clock import from_rfc3339
from sealtrain.consortium.members import Consortium
from sealtrain.errors import DataInvalid, SealtrainError
from sealtrain.ledger.entry_rules import EntryRules
from sealtrain.ledger.ledger import KIND, MAX_ENTRY_BYTES
from sealtrain.ledger.references import References, Stated
from sealtrain.ledger.rotation import KIND as ROTATION
from sealtrain.ledger.rotation import Rotation, find_signing_key, keys_with, read_rotation
from sealtrain.ledger.witness import verify_witnessed
from sealtrain.signing import merkle
from sealtrain.signing.ed25519 import key_id
from sealtrain.signing.identity import broker_id
from sealtrain.signing.tree_head import TreeHead, verify_tree_head

BACKWARDS_SECONDS: Final = 60
"""Seconds by which an entry may be dated before an earlier one: writers wait for their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFailure:
    """A check that failed."""

    index: int | None
    """Index of the entry; ``None`` for a finding about no single entry."""
    check: str
    problem: str

    @property
    def where(self) -> str:
        """For people."""
        return "ledger" if self.index is None else f"entry {self.index}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {"index": self.index, "check": self.check, "problem": self.problem}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit."""

    origin: str
    size: int
    root: str
    kinds: dict[str, int]
    unknown: dict[str, int]
    """Kinds without a rule: only the form of such entries was checked."""
    checkpoints: int
    """Checkpoints that were compared."""
    cosignatures: int
    """Cosignatures of them that verify."""
    witnessed: dict[str, int]
    """Owner → entries of the largest tree head that the owner cosigned."""
    findings: tuple[AuditFailure, ...]
    """In the order of the entries, then findings about no single entry."""

    @property
    def holds(self) -> bool:
        """There are no findings."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "origin": self.origin,
            "size": self.size,
            "root": self.root,
            "holds": self.holds,
            "kinds": self.kinds,
            "unknown": self.unknown,
            "checkpoints": self.checkpoints,
            "cosignatures": self.cosignatures,
            "witnessed": self.witnessed,
            "findings": [finding.to_dict() for finding in self.findings],
        }


class Auditor:
    """One audit. Give it every entry in order, then ``finish``."""

    def __init__(
        self,
        consortium: Consortium,
        public_key: bytes,
        *,
        origin: str,
        checkpoints: Iterable[str] = (),
    ) -> None:
        """Begin.

        Args:
            consortium: As the auditor holds it.
            public_key: The log's key, 32 bytes, attested or pinned.
            origin: The log's origin.
            checkpoints: Signed notes, from any source; cosignatures on them are verified too.
        """
        self._rules = EntryRules(consortium)
        self._origin = origin
        self._tree = _Tree()
        self._findings: list[AuditFailure] = []
        self._kinds: Counter[str] = Counter()
        self._latest = 0
        self._stated = Stated()
        self._heads: list[TreeHead] = []
        self._cosignatures: set[tuple[int, str, str]] = set()
        self._witnessed: dict[str, int] = {}
        self._consortium = consortium
        self._public_key = public_key
        self._rotations: list[Rotation] = []
        self._made_with: str | None = None
        # The entries state the log's keys, so tree heads are verified after the entries.
        self._notes = list(checkpoints)
        self._roots: dict[int, str] = {}
        self._wanted = {size for note in self._notes if (size := _read_size(note)) is not None}
        self._see_root()

    @property
    def size(self) -> int:
        """Entries so far."""
        return self._tree.size

    def add_finding(self, check: str, problem: str, index: int | None = None) -> None:
        """Add a finding of the caller, who reads the entries."""
        self._findings.append(AuditFailure(index=index, check=check, problem=problem))

    def entry(self, data: bytes) -> None:
        """Take the next entry.

        Args:
            data: Its bytes as stored, or its canonical bytes as received.
        """
        index = self._tree.size
        self._tree.add(merkle.leaf_hash(data))
        self._see_root()
        try:
            kind, at, body = _parse(data)
        except DataInvalid as error:
            self.add_finding("entry form", error.message, index)
            return
        self._kinds[kind] += 1
        self._follow_time(at, index)
        for problem in self._rules.problems(kind, at, body):
            self.add_finding(kind, problem, index)
        if kind == ROTATION:
            self._rotate(body, index)
        self._stated.entry(index, kind, body)

    def take_key(self, key: str | None) -> None:
        """Take the key id that the log states it was made with.

        Args:
            key: Its key id.
        """
        self._made_with = key or ""

    def take_missing(self, leaf: bytes | None) -> None:
        """Take the place of an entry that is missing.

        Args:
            leaf: Its hash, where that is still stored.
        """
        self.add_finding("entry missing", "there is no such entry any more", self._tree.size)
        self._tree.add(leaf or bytes(merkle.HASH_BYTES))
        self._see_root()

    def finish(self, references: References | None = None) -> AuditReport:
        """Finish the audit and return its result.

        Args:
            references: The broker's database's statements about the ledger, if it is read too.
        """
        self._read_all()
        self._compare_heads()
        if references is not None:
            for index, problem in self._stated.differences(references):
                self.add_finding("database", problem, index)
        last = self._tree.size
        return AuditReport(
            origin=self._origin,
            size=last,
            root=self._tree.root().hex(),
            kinds=dict(sorted(self._kinds.items())),
            unknown=dict(sorted(self._rules.unknown.items())),
            checkpoints=len(self._heads),
            cosignatures=len(self._cosignatures),
            witnessed=dict(sorted(self._witnessed.items())),
            findings=tuple(
                sorted(self._findings, key=lambda one: last if one.index is None else one.index)
            ),
        )

    def _follow_time(self, at: int, index: int) -> None:
        """Report an entry whose time goes back; later entries are compared with its time."""
        back = self._latest - at
        if back > BACKWARDS_SECONDS:
            self.add_finding(
                "time", f"its time goes back by {back} s: the broker's clock was set", index
            )
            self._latest = at
        self._latest = max(self._latest, at)

    def _rotate(self, body: dict[str, Any], index: int) -> None:
        try:
            found = read_rotation(body, origin=self._origin)
        except SealtrainError as error:
            self.add_finding(ROTATION, error.message, index)
            return
        if self._rotations and self._rotations[-1].new != found.old:
            self.add_finding(
                ROTATION, "the ledger was rotated to another key than its signer", index
            )
            return
        self._rotations.append(found)

    def _read_all(self) -> None:
        """Verify the tree heads under the keys that rotations connect with the trusted one."""
        known = keys_with(self._public_key, self._rotations)
        ids = {broker_id(key) for key in known}
        for index, signed in self._rules.named:
            if not signed.decision.is_for(ids):
                problem = f"the decision of {signed.owner.name} is for other brokers"
                self.add_finding(signed.entry_kind, problem, index)
        order = [key for rotation in self._rotations for key in (rotation.old, rotation.new)]
        keys = [key for key in dict.fromkeys(order) if key in known] or [self._public_key]
        for note in self._notes:
            try:
                self._read(
                    note, self._consortium, find_signing_key(note, keys, origin=self._origin)
                )
            except SealtrainError as error:
                self.add_finding("checkpoint", f"a tree head does not verify: {error.message}")
        if self._made_with is not None and self._made_with not in {key_id(key) for key in keys}:
            made = f"{self._made_with:.80}"
            self.add_finding("file", f"it says it was made with {made}, not {key_id(keys[0])}")

    def _read(self, note: str, consortium: Consortium, public_key: bytes) -> None:
        try:
            head = verify_tree_head(note, public_key, origin=self._origin)
        except SealtrainError as error:
            self.add_finding("checkpoint", f"a tree head does not verify: {error.message}")
            return
        self._heads.append(head)
        try:
            found = verify_witnessed(
                note, public_key, origin=self._origin, witnesses=consortium.owners, quorum=0
            )
        except SealtrainError as error:
            problem = f"a cosignature at size {head.size} does not verify: {error.message}"
            self.add_finding("cosignature", problem)
            return
        for owner in found.times:
            self._cosignatures.add((head.size, head.root, owner))
            self._witnessed[owner] = max(self._witnessed.get(owner, 0), head.size)

    def _see_root(self) -> None:
        if self._tree.size in self._wanted:
            self._roots[self._tree.size] = self._tree.root().hex()

    def _compare_heads(self) -> None:
        good = 0
        for head in sorted(self._heads, key=lambda one: one.size):
            got = self._roots.get(head.size)
            if got is None:
                self.add_finding(
                    "checkpoint",
                    f"the ledger has {self._tree.size} entries, and a tree head was signed when "
                    f"it had {head.size}: entries are gone",
                )
            elif got != head.root:
                self.add_finding(
                    "checkpoint",
                    f"the entries give the root {got} at size {head.size}, and {head.root} was "
                    f"signed: one of the entries {good} to {head.size - 1} is not what it was",
                )
            else:
                good = head.size


def _read_size(note: str) -> int | None:
    """The size that a tree head names, unverified."""
    size = note.split("\n", 2)[1:2]
    return int(size[0]) if size and _SIZE.fullmatch(size[0]) else None


_SIZE = re.compile(r"0|[1-9][0-9]{0,15}")


class _Tree:
    """Roots of the full subtrees so far, tallest first."""

    def __init__(self) -> None:
        self.size = 0
        self._heads: list[tuple[int, bytes]] = []

    def add(self, leaf: bytes) -> None:
        level, value = 0, leaf
        while self._heads and self._heads[-1][0] == level:
            value = merkle.node_hash(self._heads.pop()[1], value)
            level += 1
        self._heads.append((level, value))
        self.size += 1

    def root(self) -> bytes:
        if not self._heads:
            return merkle.EMPTY_ROOT
        *rest, (_, value) = self._heads
        for _, left in reversed(rest):
            value = merkle.node_hash(left, value)
        return value


def _parse(data: bytes) -> tuple[str, int, dict[str, Any]]:
    entry = parse_canonical(data, max_bytes=MAX_ENTRY_BYTES)
    if not isinstance(entry, dict) or set(entry) != {"kind", "at", "body"}:
        raise DataInvalid("an entry is {kind, at, body}")
    kind, at, body = entry["kind"], entry["at"], entry["body"]
    if not isinstance(kind, str) or not isinstance(at, str) or not isinstance(body, dict):
        raise DataInvalid("an entry has a kind, a time and a body")
    if not KIND.fullmatch(kind):
        raise DataInvalid("an entry has another spelling of its kind")
    return kind, from_rfc3339(at), body
