"""The differences between two locks, weighted and grouped, for an owner about to approve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from typing import Literal

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.recipe.lockfile import Lock

Severity = Literal["critical", "review", "routine"]
"""``critical``: whose data, what leaves, where, by which code. ``review``: how it trains."""

Area = Literal[
    "consortium",
    "brokers",
    "datasets",
    "release policy",
    "privacy",
    "collaboration",
    "hardware",
    "code",
    "model",
    "tokenizer",
    "environment",
    "trainer",
    "description",
]

AREAS: dict[Area, Severity] = {
    "consortium": "critical",
    "brokers": "critical",
    "datasets": "critical",
    "release policy": "critical",
    "privacy": "critical",
    "collaboration": "critical",
    "hardware": "critical",
    "code": "critical",
    "model": "critical",
    "tokenizer": "critical",
    "environment": "review",
    "trainer": "review",
    "description": "routine",
}
"""Areas in reading order, with their weight."""

# First matching prefix decides.
_AREA_OF: tuple[tuple[str, Area], ...] = (
    ("consortium_id", "consortium"),
    ("brokers", "brokers"),
    ("recipe.datasets", "datasets"),
    ("recipe.purpose", "datasets"),
    ("recipe.legal_basis", "datasets"),
    ("recipe.columns", "datasets"),
    ("recipe.schedule", "datasets"),
    ("recipe.validation", "datasets"),
    ("recipe.release_policy", "release policy"),
    ("recipe.monitoring", "release policy"),
    ("recipe.privacy", "privacy"),
    ("recipe.collaboration", "collaboration"),
    ("policy", "collaboration"),
    ("handed_on", "release policy"),
    ("recipe.hardware", "hardware"),
    ("code", "code"),
    ("scripts", "code"),
    ("recipe.scripts", "code"),
    ("recipe.packages", "environment"),
    ("recipe.model.tokenizer", "tokenizer"),
    ("tokenizer", "tokenizer"),
    ("recipe.model", "model"),
    ("recipe.reward", "model"),
    ("model", "model"),
    ("models", "model"),
    ("hub", "model"),
    ("environment", "environment"),
    ("recipe.name", "description"),
    ("recipe.description", "description"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChange:
    """One difference.

    Attributes:
        path: Where, as ``recipe.trainer.learning_rate`` or ``recipe.datasets[a/x].weight``.
        kind: Whether the value was added, removed or changed.
        before: Old value; ``None`` also where the old lock has none (see ``kind``).
        after: New value, likewise.
    """

    path: str
    kind: Literal["added", "removed", "changed"]
    before: JsonValue
    after: JsonValue
    area: Area
    severity: Severity

    @property
    def text_lines(self) -> list[str]:
        """For a script, its changed lines in the format of ``diff -u``; else an empty list."""
        if not self.path.startswith("scripts["):
            return []
        texts = (self.before, self.after)
        before, after = ([] if text is None else str(text).split("\n") for text in texts)
        return list(unified_diff(before, after, lineterm=""))[2:]

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON-ready form."""
        return {
            "path": self.path,
            "kind": self.kind,
            "before": self.before,
            "after": self.after,
            "area": self.area,
            "severity": self.severity,
        }


def diff(before: Lock | None, after: Lock) -> list[RecipeChange]:
    """Differences from ``before`` (nothing, for a first approval) to ``after``.

    Returns:
        Changes by area in the order of ``AREAS``, then by path. Empty only for equal locks.
    """
    old = dict(_leaves(before.to_dict(), "")) if before else {}
    new = dict(_leaves(after.to_dict(), ""))
    changes = [
        _change(path, path in old, path in new, old.get(path), new.get(path))
        for path in sorted(old.keys() | new.keys())
        if (path in old) != (path in new) or not _same(old[path], new[path])
    ]
    order = list(AREAS)
    return sorted(changes, key=lambda change: (order.index(change.area), change.path))


def _change(
    path: str, was: bool, is_now: bool, before: JsonValue, after: JsonValue
) -> RecipeChange:
    area: Area = next((area for prefix, area in _AREA_OF if _under(path, prefix)), "trainer")
    return RecipeChange(
        path=path,
        kind="changed" if was and is_now else "added" if is_now else "removed",
        before=before,
        after=after,
        area=area,
        severity=AREAS[area],
    )


def _under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith((f"{prefix}.", f"{prefix}["))


def _leaves(value: JsonValue, path: str) -> Iterator[tuple[str, JsonValue]]:
    if path == "recipe.datasets":
        # By name, so that reordering the list is not twenty changes, and a swap is a single change.
        for position, item in enumerate(value):
            place = f"{path}[{item['owner']}/{item.get('name', item.get('series'))}]"
            told = {key: part for key, part in item.items() if key not in ("owner", "name")}
            yield from _leaves({**told, "position": position}, place)
    elif path == "brokers":
        # Each by itself: an owner compares single ids, not a list of them.
        yield from ((f"{path}[{name}]", "named") for name in value)
    elif path == "code":
        for item in value:
            told = {key: part for key, part in item.items() if key != "name"}
            yield from _leaves(told, f"{path}[{item['name']}]")
    elif isinstance(value, dict) and value and not path.startswith("environment.packages["):
        bracket = path in ("environment.packages", "scripts", "recipe.model.config")
        for key, item in value.items():
            place = f"{path}[{key}]" if bracket else f"{path}.{key}" if path else key
            yield from _leaves(item, place)
    else:
        yield path, value


def _same(before: JsonValue, after: JsonValue) -> bool:
    # As bytes: True == 1 in Python, and to an owner they differ.
    return canonical_json(before) == canonical_json(after)
