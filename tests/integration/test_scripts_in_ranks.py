"""An engineer's script in two ranks of one guest, from sealing to a model that opens."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from stage import OWNERS, RECIPE, Stage, stage
from variants import variants

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sealtrain
from sealtrain.training.models.base import byte_tokenizer

tokenizer = byte_tokenizer()
torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=259, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128))


def collate(rows):
    texts = [row["prompt"] + row["completion"] for row in rows]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}

"""
TRAINER = (
    MODEL
    + """
from transformers import Trainer, TrainingArguments

several = TrainingArguments("out", use_cpu=True, report_to="none")
assert several.device.type == "cpu"
several._n_gpu = 4
assert several.n_gpu == 1  # C285: however many a machine has

trainer = Trainer(
    model,
    TrainingArguments(
        "out", max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=PARTS,
        learning_rate=3e-3, logging_steps=2, save_steps=4, remove_unused_columns=False,
        use_cpu=True, EXTRA),
    data_collator=collate, train_dataset=sealtrain.unwrap_dataset(),
    processing_class=tokenizer, callbacks=[sealtrain.SealedRun()])
trainer.train()
sealtrain.sign_manifest(trainer)
"""
)
LOADER = (
    MODEL
    + """
from accelerate import Accelerator
from torch.utils.data import DataLoader

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accelerator = Accelerator(cpu=True)
loader = DataLoader(sealtrain.unwrap_dataset(), batch_size=SIZE, collate_fn=collate)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loop = sealtrain.SealedLoop(model, optimizer, processing_class=tokenizer, loader=loader)
for batch in loop:
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    loop.log(loss=loss)
sealtrain.sign_manifest(loop)
"""
)
COLUMNS = """
import os

import torch

import sealtrain

torch.manual_seed(1)
model = torch.nn.Linear(8, 1)
if JOINED:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loop = sealtrain.SealedLoop(model, optimizer)
for batch in loop:
    codes = torch.tensor([[float(ord(mark)) / 64 for mark in f"{text:<8}"[-8:]]
                          for text in batch["prompt"]])
    loss = model(codes).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loop.log(loss=loss)
    if os.environ.get("RANK") == "1" and LEAVES:
        LEAVES_BY
sealtrain.sign_manifest(loop)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("own")) as made:
        yield made


def proposed(world: Stage, name: str, script: str, *, ranks: int, batch: int = 4) -> Path:
    recipe: dict[str, Any] = RECIPE | {
        "name": name,
        "scripts": ["train.py"],
        "datasets": RECIPE["datasets"][:2],
        "backend": {"name": "trl", "ranks": ranks},
        "trainer": RECIPE["trainer"]
        | {"max_steps": 8, "save_steps": 4, "per_device_train_batch_size": batch},
        "release_policy": RECIPE["release_policy"]
        | {"metrics": ["loss"], "round_to": 6, "logs": "structured"},
    }
    folder = world.propose(name, recipe, {"train.py": script})
    world.approve(folder, *OWNERS[:2])
    world.anew = ranks > 1  # ranks are forked before anything is loaded
    return folder


def trained(world: Stage, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights of an opened model, and what the manifest says of its run."""
    out = world.folder / f"{name}-model"
    run = world.folder / f"{name}-run"
    world.run("open", run, "--identity", world.identity("clinic-a"), "--out", out)
    envelope = json.loads((run / "manifest.json").read_bytes())["bundle"]["dsseEnvelope"]
    predicate = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
    finished = next(
        entry["fields"]
        for entry in predicate["run_log"]["entries"]
        if entry["event"] == "training.finished"
    )
    return load_file(out / "model.safetensors"), predicate["run"] | finished


def played(
    world: Stage, name: str, script: str, **how: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = proposed(world, name, script, **how)
    world.run(*world.train_words(folder, f"{name}-run"))
    return trained(world, name)


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of two weights of one name."""
    assert one.keys() == other.keys()
    return max(float(abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.nightly
@pytest.mark.claim("C285")
def test_two_ranks_of_a_trainer_end_with_the_weights_of_one(world: Stage) -> None:
    script = TRAINER.replace("EXTRA", "")
    alone, run_alone = played(world, "one", script.replace("PARTS", "2"), ranks=1)
    both, run_both = played(world, "two", script.replace("PARTS", "1"), ranks=2)
    assert apart(alone, both) == 0.0
    assert run_both["samples"] == run_alone["samples"] == 64
    assert run_both["metrics"]["loss"] == pytest.approx(run_alone["metrics"]["loss"], abs=2e-6)
    worlds = [run["environment"]["world_size"] for run in (run_alone, run_both)]
    assert worlds == ["1", "2"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "script"),
    [("loader", LOADER), ("columns", COLUMNS.replace("LEAVES:", "False:"))],
    ids=["loader", "columns"],
)
def test_two_ranks_of_a_loop_end_with_the_weights_of_one(
    world: Stage, name: str, script: str
) -> None:
    runs = []
    for ranks, size in ((1, 8), (2, 4)):
        text = script.replace("SIZE", str(size)).replace("JOINED", str(ranks > 1))
        runs.append(played(world, f"{name}-{ranks}", text, ranks=ranks, batch=size))
    (alone, run_alone), (both, run_both) = runs
    assert apart(alone, both) < 5e-6
    assert run_alone["samples"] == run_both["samples"] == 64
    loss = run_alone["metrics"]["loss"]
    assert run_both["metrics"]["loss"] == pytest.approx(loss, abs=2e-5)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_two_ranks_that_were_killed_go_on_to_the_same_weights(world: Stage) -> None:
    script = LOADER.replace("SIZE", "4")
    whole, run_whole = played(world, "whole", script, ranks=2)
    slow = script.replace(
        "for batch in loop:", "import time\nfor batch in loop:\n    time.sleep(1)"
    )
    folder = proposed(world, "killed", slow, ranks=2)
    out = world.folder / "killed-run"
    world.train_and_kill(folder, "killed-run", lambda: any((out / "checkpoints").glob("*")))
    world.run("resume", out)
    again, run_again = trained(world, "killed")
    assert apart(whole, again) == 0.0
    assert run_again["metrics"] == run_whole["metrics"]


UNSIGNING = {
    # Each rank trains by itself: rank 0's model saw half of what the manifest would say.
    "unjoined": (
        COLUMNS.replace("JOINED", "False").replace("LEAVES:", "False:"),
        "usage",
    ),
    "dispatched": (
        TRAINER.replace("PARTS", "1").replace(
            "EXTRA", "accelerator_config={'dispatch_batches': True}"
        ),
        "usage",
    ),
    "unsigned": (
        COLUMNS.replace("JOINED", "True")
        .replace("LEAVES_BY", "raise SystemExit(0)")
        .replace("LEAVES:", "loop.steps == 7:"),
        "script-failed",
    ),
    "dead": (
        COLUMNS.replace("JOINED", "True")
        .replace("LEAVES_BY", "os._exit(0)")
        .replace("LEAVES:", "loop.steps == 5:"),
        "rank-lost",
    ),
}
"""Scripts whose ranks end without one model that each of them trained, and the run's error."""


@pytest.mark.claim("C200")
@pytest.mark.parametrize("name", variants(UNSIGNING, each_time=[]))
def test_ranks_without_one_model_sign_nothing(world: Stage, name: str) -> None:
    script, error = UNSIGNING[name]
    folder = proposed(world, name, script, ranks=2)
    answer = world.try_run(*world.train_words(folder, f"{name}-run"))
    assert answer.error == error, answer.stdout
    assert not (world.folder / f"{name}-run" / "manifest.json").exists()
    assert not (world.folder / f"{name}-run" / "model").exists()
