"""Tiny recipes, sealed records and one call that trains them, for tests of training."""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from sealing_world import KEY, repeatable, sealed_folder

from sealtrain.recipe.missing import missing_values
from sealtrain.recipe.schema import PhaseRecipe, parse_recipe
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.store import SealedStore
from sealtrain.training.data.sources import Source

RUN_ID = "ab" * 16
OWNERS = ("hospital-a", "hospital-b")
CANARY = "canary-6f1e9c"

LLAMA = {
    "model_type": "llama",
    "vocab_size": 259,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
LORA = {"method": "lora", "r": 2, "lora_dropout": 0.2, "target_modules": ["q_proj", "v_proj"]}
TRAINER = {
    "max_steps": 8,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 16,
    "learning_rate": 0.01,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 2,
    "seed": 7,
    "logging_steps": 2,
    "save_steps": 3,
}


def releasing(*metrics: str) -> dict[str, Any]:
    """A release policy: these metrics for everybody, the model for the first owner."""
    recipients = {"recipients": [OWNERS[0]]}
    return {"metrics": list(metrics), "round_to": 8, "model": recipients}


def document(**changed: Any) -> dict[str, Any]:
    """A recipe of two hospitals, a test split of the first one's included, with changes."""
    return {
        "version": 1,
        "name": "tiny",
        "phase": "sft",
        "model": {"config": LLAMA, "init_seed": 7, "tokenizer": {"kind": "bytes"}},
        "datasets": [
            *({"owner": owner, "name": "records", "role": "train"} for owner in OWNERS),
            {"owner": OWNERS[0], "name": "held-out", "role": "test"},
        ],
        "columns": {"prompt": "prompt", "completion": "completion"},
        "peft": None,
        "privacy": {"dp": "none"},
        "release_policy": releasing("loss", "accuracy", "majority", "f1", "auroc"),
        "hardware": {
            "platforms": ["simulator"],
            "tier": "processor",
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    } | changed


def sft(*, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """Full weights on prompts and completions, with changes."""
    settings = TRAINER | {"max_length": 64} | (trainer or {})
    return parse_recipe(document(trainer=settings, **changed))


def classify(*, trainer: dict[str, Any] | None = None, **changed: Any) -> PhaseRecipe:
    """A classifier of two columns of numbers, with changes."""
    tabular = {
        "phase": "classify",
        "model": {
            "config": {"model_type": "sealtrain-tabular", "hidden_size": 8, "dropout": 0.1},
            "init_seed": 1,
        },
        "columns": {"features": ["size", "spread"], "label": "finding"},
        "labels": ["benign", "malignant"],
    }
    return parse_recipe(document(trainer=TRAINER | (trainer or {}), **(tabular | changed)))


def records(count: int, label: str) -> list[dict[str, Any]]:
    """Records every recipe here can read. Each holds the canary."""
    source = random.Random(label)  # noqa: S311 - test records
    rows = []
    for number in range(count):
        size, spread = source.gauss(500, 90), source.gauss(0, 0.1)
        finding = "malignant" if (size - 500) / 90 + spread * 10 > 0 else "benign"
        note = f"{label} {number} {CANARY}" + " long" * (number % 7)
        rows.append(
            {
                "prompt": f"{note}: {size:.0f}?",
                "completion": f" {finding}",
                "text": f"{note} {finding}",
                "messages": [
                    {"role": "user", "content": note},
                    {"role": "assistant", "content": finding},
                ],
                "size": size,
                "spread": spread,
                "finding": finding,
            }
        )
    return rows


def write_records(
    folder: Path,
    count: int = 40,
    *,
    made: Callable[[int, str], list[dict[str, Any]]] = records,
) -> dict[str, Path]:
    """JSONL of every dataset, by ``owner.name``; ``made`` gives so many records for a label."""
    paths = {}
    for owner, name in ((OWNERS[0], "records"), (OWNERS[1], "records"), (OWNERS[0], "held-out")):
        rows = made(count if name == "records" else count // 2, f"{owner}.{name}")
        paths[f"{owner}.{name}"] = path = folder / f"{owner}.{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return paths


def seal_records(paths: dict[str, Path], out: Path) -> dict[str, SealedDataset]:
    """Seal each file under a fixed key, and open it."""
    return {
        key: sealed_folder(path, out / f"{key}.sealed", salt=key).open()
        for key, path in paths.items()
    }


def reopen_records(out: Path) -> dict[str, SealedDataset]:
    """Open what ``seal_records`` left, in another process."""
    return {
        folder.name.removesuffix(".sealed"): SealedDataset.open(
            folder,
            # The first bytes drawn from the folder's source of randomness are its data key.
            DataKey.generate(repeatable(folder.name.removesuffix(".sealed"))),
            root=(folder / "dataset.json").read_text(),
        )
        for folder in sorted(out.glob("*.sealed"))
    }


def sources_of(wanted: PhaseRecipe, datasets: dict[str, Any]) -> list[Source]:
    """The recipe's datasets as training takes them."""
    return [
        Source(
            role=dataset.role,
            owner=dataset.owner,
            name=dataset.name,
            weight=dataset.weight,
            dataset=datasets[f"{dataset.owner}.{dataset.name}"],
            missing=missing_values(wanted),
        )
        for dataset in wanted.datasets
        if dataset.role != "model"
    ]


def checkpoint_store(folder: Path) -> SealedStore:
    return SealedStore(folder, KEY, label="checkpoint", random=repeatable(str(folder)))


class Interrupted(Exception):
    """Raised in place of a crash."""


class StopsAfter:
    """A lease that ends after a step."""

    def __init__(self, step: int, *, boundaries: bool = False) -> None:
        self.step, self.boundaries = step, boundaries
        self.anchored = 0
        self.asked: list[tuple[int, int, int]] = []

    def must_stop(self, step: int, *, ahead: int, span: int, sealing: float | None) -> bool:
        assert sealing is None or sealing > 0
        self.asked.append((step, ahead, span))
        return step >= self.step and not (self.boundaries and ahead)

    def end_training(self) -> NoReturn:
        raise Interrupted


@dataclass(slots=True)
class Ran:
    """What one training gave."""

    trained: Any = None
    history: list[tuple[int, dict[str, float | None]]] = field(default_factory=list)
    checkpoints: list[Any] = field(default_factory=list)

    @property
    def weights(self) -> str:
        """Digest of the weights."""
        files = self.trained.files
        name = "model.safetensors" if "model.safetensors" in files else "adapter_model.safetensors"
        return hashlib.sha256(files[name]).hexdigest()


def run(
    wanted: PhaseRecipe,
    sources: Sequence[Source],
    store: Any,
    *,
    resume: Any = None,
    stop_at: int | None = None,
    base_dir: Path = Path(),
    on_checkpoint: Callable[[Any], None] | None = None,
    secret: DataKey | None = None,
    monitor: Any = None,
    model: Any = None,
    lease_keeper: Any = None,
    standins: Any = None,
) -> Ran:
    """Train; with ``stop_at``, until the first checkpoint at or after that step."""
    from sealtrain.training.run import Checkpoints, Inputs, Reporting, train

    ran = Ran()

    def checkpointed(ref: Any) -> None:
        ran.checkpoints.append(ref)
        if on_checkpoint is not None:
            on_checkpoint(ref)
        if stop_at is not None and ref.step >= stop_at:
            raise Interrupted

    try:
        ran.trained = train(
            wanted,
            run_id=RUN_ID,
            inputs=Inputs(
                base_dir=base_dir,
                sources=sources,
                model=model,
                secret=secret,
            ),
            checkpoints=Checkpoints(
                store=store,
                on_checkpoint=checkpointed,
                resume=resume,
                lease_keeper=lease_keeper,
            ),
            reporting=Reporting(
                on_metrics=lambda step, values: ran.history.append((step, values)),
                monitor=monitor,
            ),
            standins=standins,
        )
    except Interrupted:
        # Training had gone on while the checkpoint was sealed; a journal does not keep that.
        ran.history = [logged for logged in ran.history if logged[0] <= ran.checkpoints[-1].step]
    return ran


def measured(ran: Ran) -> tuple[Any, ...]:
    """What two equal trainings have in common."""
    done = ran.trained
    return ran.weights, done.metrics, done.steps, done.samples_seen, done.tokens


def runs_of(
    recipes: Mapping[str, Callable[[], PhaseRecipe]],
    sealed: dict[str, Any],
    stores: Path,
    base_dir: Path = Path(),
) -> Callable[[str], Ran]:
    """The uninterrupted run of each recipe over sealed data, made once."""

    @functools.cache
    def ran(name: str) -> Ran:
        recipe = recipes[name]()
        store = checkpoint_store(stores / name)
        return run(recipe, sources_of(recipe, sealed), store, base_dir=base_dir)

    return ran


class PlainDataset:
    """Record batches in the clear behind the interface of a sealed dataset."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = list(batches)
        self.dataset_id, self.root = "d1" * 16, "00" * 32
        self.schema = self._batches[0].schema
        self.batch_rows = tuple(batch.num_rows for batch in self._batches)

    def batch(self, number: int) -> Any:
        return self._batches[number]


def numbered(sizes: Sequence[int], first: int = 0) -> PlainDataset:
    """Batches of these sizes whose column ``id`` counts from ``first``."""
    import pyarrow as pa

    batches = []
    for size in sizes:
        column = pa.array(range(first, first + size), pa.int64())
        batches.append(pa.RecordBatch.from_arrays([column], names=["id"]))
        first += size
    return PlainDataset(batches)


def source_of(
    dataset: Any,
    *,
    weight: float = 1.0,
    owner: str = OWNERS[0],
    max_records: int | None = None,
    columns: dict[str, str] | None = None,
) -> Source:
    return Source(
        role="train",
        owner=owner,
        name="records",
        weight=weight,
        dataset=dataset,
        max_records=max_records,
        columns=columns or {},
    )


SECRET = DataKey(b"\x07" * 32)
"""Stands for what a run's key would give."""

SGD: dict[str, Any] = {
    "dp": "sgd",
    "target_epsilon": 8.0,
    "delta": 1e-4,
    "noise_multiplier": 1.0,
    "accountant": "rdp",
}
RANGES = {"size": [200.0, 800.0], "spread": [-0.4, 0.4]}
POLICY = releasing("accuracy", "majority", "f1", "auroc", "eval_loss")
STEADY = {"learning_rate": 0.05, "lr_scheduler_type": "constant", "warmup_steps": 0}


def private_classify(
    *, privacy: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None, **changed: Any
) -> PhaseRecipe:
    """A private classifier of two columns of numbers, with changes."""
    settings = SGD | {"feature_ranges": RANGES} | (privacy or {})
    model = {"config": {"model_type": "sealtrain-tabular", "hidden_size": 8}, "init_seed": 1}
    return classify(
        trainer=STEADY | (trainer or {}),
        **({"privacy": settings, "release_policy": POLICY, "model": model} | changed),
    )


def private_sft(
    *, privacy: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None, **changed: Any
) -> PhaseRecipe:
    """Private LoRA on prompts and completions, with changes."""
    adapter = LORA | {"lora_dropout": 0.0}
    rest = {"privacy": SGD | (privacy or {}), "release_policy": POLICY, "peft": adapter}
    return sft(trainer=STEADY | (trainer or {}), **(rest | changed))


RECIPES = {
    "classify-dp": private_classify,
    "classify-dp-in-parts": functools.partial(
        private_classify,
        trainer={"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3},
    ),
    "sft-lora-dp": private_sft,
}
