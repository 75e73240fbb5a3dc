"""Valid locks of every kind, and thousands of changed ones."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants import OTHERS, Steps, at, near, places
from policies import intel
from world import INSTALLATION, OWNERS, RECIPE

from sealtrain.base.yamltext import yaml_text
from sealtrain.recipe.lock import lock_recipe
from sealtrain.recipe.modelspec import ModelFromFolder
from sealtrain.recipe.schema import load_recipe

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED: dict[str, Any] = json.loads((ROOT / "spec/schema/recipe.schema.json").read_text("utf-8"))
_TIMES = {"starts_at": "2027-01-04T00:00:00Z", "ends_at": "2027-01-07T00:00:00Z", "runs": 3}
_FEDERATED = {
    "kind": "federated",
    "policy": "policy.yaml",
    "rounds": 3,
    "local_steps": 100,
    "min_parties": 2,
    "aggregation": "exact",
}
FURTHER: dict[str, dict[str, Any]] = {
    "cron": {"schedule": _TIMES | {"when": "cron", "cron": "0 3 * * *", "continue": "base"}},
    "new data": {
        "schedule": _TIMES | {"when": "new-data", "least_seconds": 86_400, "continue": "base"}
    },
    "ranks": {"backend": {"name": "trl", "ranks": 2, "resume_ranks": [1]}},
    "deepspeed": {"backend": {"name": "deepspeed", "ranks": 2, "zero_stage": 2}},
    "federated": {"collaboration": _FEDERATED},
    "cut": {"collaboration": {"kind": "cut", "policy": "policy.yaml", "layers": 1}},
    "pads": {"collaboration": {"kind": "pads", "pads": "own"}},
    "nodes": {"collaboration": {"kind": "nodes", "nodes": 2, "policy": "policy.yaml"}},
    "travelling": {
        "phase": "cpt",
        "model": {
            "config": {
                "model_type": "gpt2",
                "n_layer": 1,
                "n_head": 2,
                "n_embd": 16,
                "vocab_size": 64,
            },
            "init_seed": 1,
        },
        "datasets": [dataset for dataset in RECIPE["datasets"] if dataset["role"] == "train"],
        "columns": {"tokens": "ids"},
        "trainer": {"max_steps": 9, "block_size": 16, "lr_scheduler_type": "constant"},
        "peft": None,
        "collaboration": {"kind": "travelling", "policy": "policy.yaml", "buffer_bytes": 4096},
    },
    "stated": {"purpose": "care", "legal_basis": "consent"},
    "image": {
        "hardware": {
            "platforms": ["dstack", "simulator"],
            "tier": "processor",
            "image": f"registry.example/sealtrain:1@sha256:{'5a' * 32}",
            "key_provider": "kms",
            "key_provider_id": "3059301306",
            "app_id": "ab" * 20,
            "gpu": "nvidia",
        }
    },
    "series": {
        "datasets": [
            {"owner": OWNERS[0], "series": "biopsies", "role": "train"},
            {"owner": OWNERS[1], "name": "biopsies", "role": "train", "max_records": 5},
        ]
    },
    "script": {"scripts": ["train.py"]},
    "monitored": {
        "monitoring": {
            "system_metrics": True,
            "alerts": [{"when": "loss-not-finite"}],
            "alert_to": "file",
        },
        "audit": {"canaries": 2},
    },
}
"""What a lock of no ready recipe says, over the recipe of ``world``."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed lock: of which, where and how; it is made when it is asked for."""

    name: str
    valid: Any
    path: Steps
    label: str
    change: Callable[[Any, Any], None]

    def __str__(self) -> str:
        return f"{self.name}: {'.'.join(map(str, self.path))} {self.label}"

    @property
    def kind(self) -> tuple[str, ...]:
        """What is the same of mutants of two locks that say the same: phase, place, change."""
        place = ("*" if isinstance(step, int) else step for step in self.path)
        return (self.valid["recipe"]["phase"], *place, self.label)

    @property
    def field(self) -> str:
        """The field of the recipe that is changed, ``section.name``; else the lock's."""
        names = [step for step in self.path if isinstance(step, str)]
        return ".".join(names[1:3] if names[0] == "recipe" else names[:1])

    @property
    def document(self) -> Any:
        """The changed lock."""
        copied = copy.deepcopy(self.valid)
        self.change(at(copied, self.path[:-1]), self.path[-1])
        return copied


def locks(folder: Path) -> dict[str, Any]:
    """A lock of each ready recipe, each vector, and each of ``FURTHER``; by name."""
    found = {}
    for path in sorted((ROOT / "recipes").glob("*.yaml")):
        found[path.stem] = _locked(folder / path.stem, path.read_bytes())
    for name, changed in FURTHER.items():
        text = yaml_text(RECIPE | changed)
        found[name] = _locked(folder / name, text.encode())
    cases = json.loads((ROOT / "vectors/recipe/compose.json").read_text("utf-8"))["cases"]
    return found | {f"vector {case['name']}": json.loads(case["lock"]) for case in cases}


def lock_with(folder: Path, changes: str | None) -> Any:
    """A lock of the recipe of ``world``, or of one of ``FURTHER``."""
    recipe = RECIPE if changes is None else RECIPE | FURTHER[changes]
    return _locked(folder / str(changes), yaml_text(recipe).encode())


def _locked(folder: Path, recipe: bytes) -> Any:
    path = folder / "recipes/recipe.yaml"
    path.parent.mkdir(parents=True)
    path.write_bytes(recipe)
    (path.parent / "policy.yaml").write_text(yaml_text(intel()))
    (path.parent / "train.py").write_text("import json\n")
    read = load_recipe(path)
    for model in (read.model, *read.further_models.values()):
        if isinstance(model, ModelFromFolder):
            _save_model((path.parent / model.path).resolve())
    locked = lock_recipe(
        path, consortium_id="c0" * 32, brokers=["b0" * 32], installation=INSTALLATION
    )
    shutil.rmtree(folder)
    return json.loads(locked.lock_bytes)


def _save_model(folder: Path) -> None:
    """The look of a model; nobody reads its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (folder / "tokenizer.json").write_text("{}")


def _said(schema: Any, keywords: tuple[str, ...]) -> Iterator[Any]:
    """What a schema says by some keywords, at any depth."""
    if isinstance(schema, dict):
        for keyword, value in schema.items():
            if keyword in keywords and not isinstance(value, dict):
                yield from value if isinstance(value, list) else [value]
            yield from _said(value, keywords)
    elif isinstance(schema, list):
        for part in schema:
            yield from _said(part, keywords)


BOUNDS = sorted(
    set(
        _said(
            PUBLISHED,
            ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        )
    )
)
WORDS = sorted({value for value in _said(PUBLISHED, ("enum", "const")) if isinstance(value, str)})
_LENGTHS = sorted(set(_said(PUBLISHED, ("maxLength", "maxItems", "maxProperties"))))
NUMBERS = (-0.5, 1e-9, 0.25, 1e300, *BOUNDS, *(bound + 1 for bound in BOUNDS if bound < 2**53 - 1))
TEXTS = (
    *("False", "1", "caf\u00e9", "a\u200bb", "a\nb", "a ", "A", "-a", "a--b", "../a", "../../a"),
    *("a/../b", "/a", "a/b", ".a", "a" * 40 + "@sha256:" + "0" * 64, "0.1", "a==1", "a\n"),
    *("_a", "2027-01-05T00:00:00Z", "2027-02-30T00:00:00Z", "0 4 * * *", "0 25 * * *", "\u0661"),
    *("x" * (length + more) for length in _LENGTHS if length <= 1024 for more in (0, 1)),
    "\U0001f9ec" * 128,
    "\U0001f9ec" * 129,
)


def _set(value: Any) -> Callable[[Any, Any], None]:
    return lambda parent, last: parent.__setitem__(last, value)


def _removed(parent: Any, last: Any) -> None:
    del parent[last]


def _accompanied(parent: Any, last: Any) -> None:
    parent[f"{last}_"] = parent[last]


def mutants(name: str, document: Any) -> Iterator[Mutant]:
    """Every place of a lock changed: type, bound, length, word, unknown and missing fields."""
    for path in places(document):
        own = at(document, path)
        yield Mutant(name, document, path, "removed", _removed)
        if isinstance(path[-1], str):
            yield Mutant(name, document, path, "accompanied", _accompanied)
        changes = [("near", near(own)), *((f"= {other!r}", other) for other in OTHERS), *_like(own)]
        for label, value in changes:
            yield Mutant(name, document, path, label, _set(value))


def _like(own: Any) -> Iterator[tuple[str, Any]]:
    """Values of the same type or beside it, and of every length and bound that the schema names."""
    if own is None or isinstance(own, bool | int | float):
        for number in NUMBERS:
            yield f"= {number!r}", number
    if own is None or isinstance(own, str):
        for text in (*TEXTS, *WORDS):
            yield f"= {text[:40]!r} of {len(text)}", text
    if isinstance(own, list) and own:
        for length in _LENGTHS:
            if length <= 256:
                yield f"of {length + 1} items", [own[0]] * (length + 1)
    if isinstance(own, dict) and own:
        yield "emptied", {}
        value = next(iter(own.values()))
        for length in _LENGTHS:
            if length <= 256:
                yield f"with {length + 1} more", own | {f"x{n}": value for n in range(length + 1)}
