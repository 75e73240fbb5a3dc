"""An engineer's script on two nodes, in Accelerate's and in torchrun's way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from stage import RECIPE, Stage, stage

from sealtrain.manifest import form

if not COLLECTING:
    from nodes_world import Nodes, recipe_of, weights

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.claim("C763"),
]

LEAD, OTHER = "127.0.0.8", "127.0.0.9"
"""Where the nodes have their ends of what leads to each other; within a guest it is 127.0.0.1."""
HOLDS_NOTHING = """
import os
import socket

def leads_out(number):
    try:
        with socket.socket(fileno=os.dup(int(number))) as sock:
            if sock.family == socket.AF_UNIX:
                return False
            ends = sock.getsockname()[0], sock.getpeername()[0]
    except OSError:  # no socket, or one without a peer
        return False
    return any(end in ends for end in ("LEAD", "OTHER"))

assert not any(map(leads_out, os.listdir("/proc/self/fd")))
"""
TORCHRUN = (
    HOLDS_NOTHING
    + """
import torch
import torch.distributed as dist

import sealtrain

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
local, each = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
assert rank == int(os.environ["GROUP_RANK"]) * each + local
if world > each:
    dist.init_process_group("gloo")  # as under torchrun; in one guest there is one already
assert (dist.get_rank(), dist.get_world_size()) == (rank, world) and world == WORLD
found = torch.tensor([float(rank)])
dist.all_reduce(found)
assert found.item() == world * (world - 1) / 2
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
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
sealtrain.sign_manifest(loop)
"""
)
ACCELERATE = (
    HOLDS_NOTHING
    + """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
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


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == WORLD
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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("scripts")) as made:
        made.anew = True  # ranks are forked before anything is loaded
        yield made


def made_by(
    world: Stage, name: str, script: str, *, nodes: int, ranks: int
) -> tuple[dict[str, Any], Path]:
    """Weights of a script on so many ranks, and the folder of its run."""
    count = nodes * ranks
    label = f"{name}-{nodes}-{ranks}"
    out = f"{label}-run"
    size = 8 // count  # records of a step
    recipe = recipe_of(nodes, ranks=ranks, steps=8, scripts=["train.py"])
    recipe["trainer"] |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": 1}
    recipe["release_policy"] = RECIPE["release_policy"] | {
        "metrics": ["loss"], "round_to": 6, "logs": "structured"
    }  # fmt: skip
    text = script.replace("WORLD)", f"{count})").replace("== WORLD", f"== {count}")
    text = text.replace("SIZE,", f"{size},").replace("LEAD", LEAD).replace("OTHER", OTHER)
    made = Nodes(world, label, recipe, files={"train.py": text})
    if nodes == 1:
        with world.part(*world.train_words(made.folder, out)) as alone:
            assert alone.wait_for_end(within=300)["steps"] == 8
    else:
        with (
            made.lead(out, listen=f"{LEAD}:0") as (lead, place),
            made.join(1, place, listen=f"{OTHER}:0") as other,
        ):
            assert lead.wait_for_end(within=300)["steps"] == 8
            other.wait_for_end(within=60)
        manifest = world.folder / out / "manifest.json"
        verdict = world.run("verify", manifest, "--trust", made.trust())
        assert all(check["outcome"] == "passed" for check in verdict["checks"])
    return weights(made.opened(out)), world.folder / out


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("name", "script"), [("torchrun", TORCHRUN), ("accelerate", ACCELERATE)])
def test_a_script_on_two_nodes_ends_with_the_weights_of_one_guest(
    world: Stage, name: str, script: str, ranks: int
) -> None:
    import torch

    both, run = made_by(world, name, script, nodes=2, ranks=ranks)
    one, _ = made_by(world, name, script, nodes=1, ranks=2 * ranks)
    assert one.keys() == both.keys()
    for tensor in one:
        torch.testing.assert_close(both[tensor], one[tensor], rtol=1e-4, atol=1e-6)
    predicate = form.read((run / "manifest.json").read_bytes()).predicate
    assert {"own-script", "nodes-evidence"} <= {limit.id for limit in predicate.limits}
