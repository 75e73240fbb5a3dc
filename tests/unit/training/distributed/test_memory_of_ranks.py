"""Each line of docs/reference/memory-of-ranks.md, counted on a small model in two ranks."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collecting import COLLECTING
from rank_threads import in_ranks
from training_world import LLAMA, RUN_ID, checkpoint_store

if not COLLECTING:
    import torch
    from peft import LoraConfig, get_peft_model
    from tensor_bytes import TensorBytes
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.recipe.backends import Fsdp
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.checkpoints.shardsaver import ShardSaver
    from sealtrain.training.distributed.sharded import Sharded
    from sealtrain.training.model_files import plan_files
    from sealtrain.training.models.merge_by_module import MergeByModule

PAGE = Path(__file__).resolve().parents[4] / "docs/reference/memory-of-ranks.md"
RANKS, WIDTH = 2, 4
BLOCK = 4096
STEPS_BYTES = 4
"""Of AdamW's count of steps, which each rank has whole."""


def local(tensors: Any) -> int:
    """Bytes of this rank's parts."""
    parts = (each.to_local() if hasattr(each, "to_local") else each for each in tensors)
    return sum(part.numel() * part.element_size() for part in parts)


def count(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """By line of the page what its formula says, and what was counted, in each rank."""

    def work(rank: int) -> dict[str, tuple[float, float]]:
        torch.manual_seed(1)
        config = {name: value for name, value in LLAMA.items() if name != "model_type"}
        # Wide enough that the plans which ranks pickle for each other are a small part: some 80 kB,
        # held a moment longer where the thread of another rank still reads them.
        config |= {"num_hidden_layers": 4, "hidden_size": 192, "tie_word_embeddings": False}
        model = LlamaForCausalLM(LlamaConfig(**config))
        parameters = sum(each.numel() for each in model.parameters())
        tensors = len(list(model.parameters()))
        layer = sum(each.numel() for each in model.model.layers[0].parameters())
        machinery = Sharded(Fsdp(name="fsdp", ranks=RANKS))
        machinery.share_out(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        own = WIDTH * parameters / RANKS
        ids = torch.arange(32).reshape(2, 16)
        model(input_ids=ids, labels=ids).loss.backward()
        lines = {
            "weights": (own, local(model.parameters())),
            "gradients": (own, local(each.grad for each in model.parameters())),
        }
        optimizer.step()
        optimizer.zero_grad()
        states = [each for state in optimizer.state.values() for each in state.values()]
        lines["moments"] = (2 * own + STEPS_BYTES * tensors, local(states))
        block: Any = model.model.layers[0]
        block.unshard()
        lines["gathered layers"] = (WIDTH * layer, local(block.parameters()))
        block.reshard()
        saver = ShardSaver(checkpoint_store(folder), RUN_ID)
        wrapped = SimpleNamespace(optimizer=optimizer)
        with TensorBytes() as counted:
            wanted = CheckpointRef(counter=1, step=1) if rank == 0 else None
            saver.save(wanted, machinery.state(model, wrapped))
        saver.settle(wait=True, make_room=lambda: None)
        saver.close()
        lines["checkpoint"] = (3 * own, counted.most)
        trainer = SimpleNamespace(model=model, args=SimpleNamespace(device=torch.device("cpu")))
        shared = machinery.share_model(trainer)
        with TensorBytes() as counted:
            if rank:
                shared.follow()
            else:
                made = plan_files(shared.outline, None).weights
                for _ in made.blocks(shared.lead(made.order)):
                    pass
        # What a rank has itself it sends from where it lies.
        lines["delivery"] = (0 if rank else 2 * BLOCK, counted.most)
        lines["delivery of a merge"] = deliver_a_merge(
            rank, LlamaForCausalLM(LlamaConfig(**config))
        )
        return lines

    done = in_ranks(RANKS, work)
    return {name: [each[name] for each in done] for name in done[0]}


def deliver_a_merge(rank: int, base: Any) -> tuple[float, float]:
    """As ``count``, of one line."""
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))
    largest = max(
        module.weight.numel()
        for name, module in model.named_modules()
        if name.endswith(".base_layer")
    )
    machinery = Sharded(Fsdp(name="fsdp", ranks=RANKS))
    machinery.share_out(model)
    trainer = SimpleNamespace(model=model, args=SimpleNamespace(device=torch.device("cpu")))
    shared = machinery.share_model(trainer)
    with TensorBytes() as counted:
        if rank:
            shared.follow()
        else:
            merge = MergeByModule(shared.outline)
            made = plan_files(merge.merged, None, merge).weights
            for _ in made.blocks(shared.lead(made.order)):
                pass
    # Tensor, sum, what is added in float32, and what the look for NaN makes: one more and booleans.
    return (0 if rank else (3 * WIDTH + 4 + 3) * largest), counted.most


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.claim("C734", "C771")
def test_each_line_is_what_a_rank_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("weight_file", "distributed.shared_model"):
        monkeypatch.setattr(f"sealtrain.training.{module}.BLOCK_BYTES", BLOCK)
    lines = count(tmp_path)
    for name, ranks in lines.items():
        # Of an uneven tensor one rank has a row more.
        for formula, counted in ranks:
            assert counted == pytest.approx(formula, rel=0.1, abs=4096), name
    listed = re.findall(r"^\| ([a-z ]+) \|.*\| counted \|$", PAGE.read_text(), re.MULTILINE)
    assert set(lines) | {"base in four bits"} == set(listed)


def test_a_base_in_four_bits_takes_what_its_line_says() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    weights = torch.randn(512, 1024)
    for double, bytes_each in ((False, 1 / 2 + 4 / 64), (True, 1 / 2 + 1 / 64 + 4 / 64 / 256)):
        packed, scales = functional.quantize_4bit(
            weights, quant_type="nf4", compress_statistics=double
        )
        held = [packed, scales.absmax]
        held += [scales.state2.absmax] if double else []
        assert local(held) == pytest.approx(bytes_each * weights.numel(), rel=0.01)
