"""The run that a walk is about, played once: found, lock, seal, approve, train, pin trust.

Three made-up hospitals, two of which give 24 made-up records each. Broker and guest are processes
of their own on the simulator, as in a rehearsal; the folder that they leave is what
``sealtrain_console.walk`` replays.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

from sealtrain.base.clock import system_clock
from sealtrain.base.yamltext import yaml_text
from sealtrain.consortium.members import Consortium
from sealtrain.errors import AlreadyExists
from sealtrain.keys.identity import Identity
from sealtrain.owner.auditing import pin_trust
from sealtrain.owner.owner import Owner
from sealtrain.owner.recipe import Recipe
from sealtrain_console.walk.prepared_run import (
    DATASET,
    OWNERS,
    READ_FROM,
    Prepared,
    is_fresh,
    is_walk,
    mark,
)
from sealtrain_rehearsal.rehearsal import ON_SIMULATOR
from sealtrain_rehearsal.simulation import Simulation, rehearsal

if TYPE_CHECKING:
    from sealtrain.recipe.lock import LockedRecipe

_RECORDS: Final = 24
RECIPE: Final[dict[str, Any]] = ON_SIMULATOR | {
    "name": "walk",
    "description": "Names the diagnosis from two measurements of a biopsy.",
    "phase": "sft",
    "model": {
        "config": {
            "model_type": "llama",
            "vocab_size": 259,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "tie_word_embeddings": True,
        },
        "init_seed": 7,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [{"owner": owner, "name": DATASET, "role": "train"} for owner in READ_FROM],
    "columns": {"prompt": "prompt", "completion": "completion"},
    "trainer": {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "max_length": 64,
        "seed": 7,
        "logging_steps": 2,
        "save_steps": 3,
    },
    "peft": None,
    "release_policy": {
        "metrics": ["loss"],
        "round_to": 4,
        "model": {"recipients": list(READ_FROM)},
    },
}
"""What the walk trains, as its recipe says it."""


def prepare_run(
    folder: Path, *, anew: bool = False, on_step: Callable[[str], None] = lambda _line: None
) -> Prepared:
    """The walk's run: the one that lies in a folder, or one that is played there now.

    Args:
        folder: The walk's own folder; an earlier walk in it is replaced where it is not fresh.
        anew: Play it in any case.
        on_step: Called with a line for each step.

    Raises:
        AlreadyExists: The folder holds something other than a walk.
        SealtrainError: What a step refused.
    """
    now = system_clock()
    if not anew and is_fresh(folder, now=now):
        return Prepared(folder.resolve())
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0):
            _make_room(folder)
            mark(folder, now=None)
            _play(folder, on_step)
            mark(folder, now=now)
    except Timeout:
        raise AlreadyExists(
            f"another walk is preparing {folder}",
            hint="wait until it is ready, or choose another --out",
        ) from None
    return Prepared(folder)


def _make_room(folder: Path) -> None:
    """An empty folder, in the place of an earlier walk at most.

    Raises:
        AlreadyExists: The folder holds something other than a walk.
    """
    if folder.exists() and not folder.is_dir():
        raise AlreadyExists(f"{folder} is no folder", hint="choose another --out")
    if folder.is_dir() and any(folder.iterdir()):
        if not is_walk(folder):
            raise AlreadyExists(
                f"{folder} holds something other than a walk", hint="choose another --out"
            )
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True, mode=0o700)


def _play(folder: Path, on_step: Callable[[str], None]) -> None:
    (folder / "recipe.yaml").write_text(yaml_text(RECIPE))
    on_step(f"{len(OWNERS)} owners found a consortium: two of them must approve")
    identities = {name: Identity.generate(name) for name in OWNERS}
    private = {name: identity.save_pair(folder / name)[0] for name, identity in identities.items()}
    consortium = Consortium.found(
        name="walk", owners=[identity.public for identity in identities.values()], approve=2
    )
    consortium.save(folder / "consortium.json")
    on_step("a broker starts in a simulated guest")
    with rehearsal(folder / "simulation", consortium) as simulation:
        recipe = Recipe.load(folder / "recipe.yaml").check(consortium)
        locked = recipe.lock(consortium, simulation.brokers, out=folder / "engineer")
        _lock_another(folder, consortium, simulation)
        (folder / "sealed").mkdir()
        for name in READ_FROM:
            on_step(f"{name} seals {_RECORDS} records and approves")
            owner = Owner(identity=private[name], brokers=simulation.brokers, consortium=consortium)
            _give(owner, folder, locked)
        on_step("the guest proves itself, gets the keys and trains (15 seconds)")
        simulation.train(recipe, locked, folder / "sealed")
        trust = pin_trust(consortium, locked, simulation.brokers, simulation.policy)
        trust.save(folder / "trust.yaml")


def _lock_another(folder: Path, consortium: Consortium, simulation: Simulation) -> None:
    """Lock the recipe with another seed: what attackers would run."""
    other = folder / "other"
    other.mkdir()
    changed = RECIPE | {"trainer": RECIPE["trainer"] | {"seed": 8}}
    (other / "recipe.yaml").write_text(yaml_text(changed))
    Recipe.load(other / "recipe.yaml").lock(consortium, simulation.brokers, out=other)


def _give(owner: Owner, folder: Path, locked: LockedRecipe) -> None:
    """Seal the owner's records, register them and approve the recipe."""
    source = folder / owner.name / f"{DATASET}.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in _records(owner.name)))
    out = folder / "sealed" / f"{owner.name}.{DATASET}.sealed"
    owner.seal(source, out, name=DATASET, locked=locked)
    owner.approve(locked, expecting=locked.recipe_hash)


def _records(owner: str) -> list[dict[str, str]]:
    """Made-up records, the same at each walk."""
    source = random.Random(owner)  # noqa: S311  # made-up records
    records = []
    for number in range(_RECORDS):
        size = source.gauss(14, 3)
        finding = "malignant" if size > 14.5 else "benign"
        prompt = f"{owner} patient {number}: radius {size:.1f} mm?"
        records.append({"prompt": prompt, "completion": f" {finding}"})
    return records
