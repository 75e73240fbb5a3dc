"""Compare a ledger with the broker's database. See ``spec/ledger.md`` §9."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sealtrain.consortium.documents import DOCUMENTS


@dataclass(frozen=True, slots=True)
class ReferringTable:
    """A table of the broker's database whose rows name ledger entries, by ``ledger_index``.

    Attributes:
        kinds: Of the entries.
        field: Of an entry, which the row has too.
        column: Its name in the table.
    """

    kinds: tuple[str, ...]
    field: str = "digest"
    column: str = "digest"


TABLES: Final[Mapping[str, ReferringTable]] = {
    "decisions": ReferringTable(("approval", "revocation")),
    "datasets": ReferringTable(("dataset",)),
    "manifests": ReferringTable(("manifest",), field="manifest_digest"),
    "owner_documents": ReferringTable(tuple(DOCUMENTS)),
    "successions": ReferringTable(("succession",)),
    "submissions": ReferringTable(("submission",)),
    "control_documents": ReferringTable(("run-event", "run-stop")),
    "reservations": ReferringTable(("release",), field="run_id", column="run_id"),
}
"""By name."""
_REFERRED: Final = {kind: table.field for table in TABLES.values() for kind in table.kinds}


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """What another database says of the ledger."""

    tables: Mapping[str, Mapping[int, str]]
    """By table: index of an entry → what it must hold."""
    runs: Mapping[str, int | None] = field(default_factory=dict)
    """Id of every run that got keys → index of its first release, where the database knows it."""


class Stated:
    """What entries state that a database must hold. Feed it every entry, in order."""

    def __init__(self) -> None:
        self._named: dict[int, tuple[str, Any]] = {}
        self._kept: dict[int, str] = {}
        self._datasets: dict[tuple[Any, ...], int] = {}
        self._runs: dict[str, int] = {}

    def entry(self, index: int, kind: str, body: Mapping[str, Any]) -> None:
        """Take an entry."""
        if kind not in _REFERRED:
            return
        self._named[index] = (kind, body.get(_REFERRED[kind]))
        if kind == "dataset":  # one manifest for each deployment, the newest
            key = tuple(
                body.get(name) for name in ("owner_id", "dataset_id", "app_id", "compose_hash")
            )
            self._kept.pop(self._datasets.get(key, -1), None)
            self._datasets[key] = index
        if kind == "release":
            self._runs.setdefault(str(body.get("run_id")), index)
        reserves = kind != "release" or body.get("privacy")
        begins = kind == "succession" and index == 0
        if reserves and not begins:
            self._kept[index] = kind

    def differences(self, references: References) -> Iterator[tuple[int, str]]:
        """Index and problem of each entry that only one of the two has."""
        known: set[int] = set()
        for name, wanted in references.tables.items():
            kinds = TABLES[name].kinds
            known |= wanted.keys()
            for index, value in sorted(wanted.items()):
                kind, named = self._named.get(index, ("", None))
                if kind not in kinds or named != value:
                    yield index, f"the broker's database has a {kinds[0]} {value} at this place"
        for index, kind in sorted(self._kept.items()):
            if index not in known:
                yield index, f"the broker's database has lost this {kind}"
        for run_id, index in sorted(self._runs.items(), key=lambda one: one[1]):
            if run_id not in references.runs:
                yield index, f"the broker's database has lost run {run_id}"
            elif references.runs[run_id] not in (None, index):
                yield index, f"the broker's database counts run {run_id} from another place"
