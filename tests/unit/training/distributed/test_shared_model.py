"""A model that its ranks share out goes to its file tensor by tensor, with a whole one's bytes."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from collecting import COLLECTING
from rank_threads import in_ranks
from training_world import LLAMA

if not COLLECTING:
    import torch
    from safetensors.torch import load
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.recipe.backends import Fsdp
    from sealtrain.training.distributed.sharded import Sharded
    from sealtrain.training.model_files import plan_files, weight_files

RANKS = 2


def small(**changes: Any) -> Any:
    torch.manual_seed(1)
    config = {name: value for name, value in LLAMA.items() if name != "model_type"}
    return LlamaForCausalLM(LlamaConfig(**(config | changes)))


def spoil_nothing(_rank: int, _model: Any) -> None:
    """Leave the model as it is."""


def shared_out(rank: int, model: Any, spoil: Any = spoil_nothing) -> tuple[Any, Any]:
    """The shared model, and its rank's trainer."""
    machinery = Sharded(Fsdp(name="fsdp", ranks=RANKS))
    machinery.share_out(model)
    spoil(rank, model)
    trainer = SimpleNamespace(model=model, args=SimpleNamespace(device=torch.device("cpu")))
    return machinery.shared(trainer), trainer


def deliver(rank: int, shared: Any) -> bytes:
    if rank:
        shared.follow()
        return b""
    made = plan_files(shared.outline, None)
    return b"".join(made.weights.blocks(shared.lead(made.weights.order)))


def models(ranks: int, **changes: Any) -> list[Any]:
    """One model, once for each rank: threads share PyTorch's generator."""
    return [small(**changes) for _ in range(ranks)]


@pytest.mark.parametrize(("ranks", "tied"), [(2, False), (3, True)])
def test_the_file_has_the_bits_of_a_whole_models(
    ranks: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("weight_file", "distributed.shared_model"):
        monkeypatch.setattr(f"sealtrain.training.{module}.BLOCK_BYTES", 20_000)
    first, *others = models(1 + ranks, tie_word_embeddings=tied, vocab_size=131)  # uneven rows
    whole = weight_files(first)["model.safetensors"]
    made = in_ranks(ranks, lambda rank: deliver(rank, shared_out(rank, others[rank])[0]))
    assert hashlib.sha256(made[0]).digest() == hashlib.sha256(whole).digest()
    assert not any(made[1:])
    assert ("lm_head.weight" in load(made[0])) is not tied
