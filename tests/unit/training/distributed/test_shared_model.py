"""A model that its ranks share out goes to its file tensor by tensor, with a whole one's bytes."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from collecting import COLLECTING
from rank_threads import in_ranks
from training_world import LLAMA

from sealtrain.errors import UsageError
from sealtrain.training.errors import TrainingDiverged

if not COLLECTING:
    import torch
    from safetensors.torch import load
    from tensor_bytes import TensorBytes
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
    return machinery.share_model(trainer), trainer


def deliver(rank: int, shared: Any) -> bytes:
    if rank:
        shared.follow()
        return b""
    made = plan_files(shared.outline, None)
    return b"".join(made.weights.blocks(shared.lead(made.weights.order)))


def models(ranks: int, **changes: Any) -> list[Any]:
    """One model, once for each rank: threads share PyTorch's generator."""
    return [small(**changes) for _ in range(ranks)]


@pytest.mark.claim("C770")
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


@pytest.mark.claim("C771")
def test_no_rank_holds_more_than_a_block_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    block = 2_000
    for module in ("weight_file", "distributed.shared_model"):
        monkeypatch.setattr(f"sealtrain.training.{module}.BLOCK_BYTES", block)
    mine = models(RANKS, num_hidden_layers=4, tie_word_embeddings=False)
    size = 4 * sum(each.numel() for each in mine[0].parameters())

    def work(rank: int) -> tuple[int, int]:
        shared, _ = shared_out(rank, mine[rank])
        there = 0
        with TensorBytes() as counted:
            if rank:
                shared.follow()
            else:
                made = plan_files(shared.outline, None)
                for each in made.weights.blocks(shared.lead(made.weights.order)):
                    there += len(each)
        return counted.most, there

    (first, made), (other, _) = in_ranks(RANKS, work)
    assert made > size > 20 * block
    # The one that goes by and the next; and the names, which all agree on.
    assert max(first, other) <= 2 * block + 4096


@pytest.mark.claim("C770")
@pytest.mark.parametrize("wrong", ["shape", "type", "not finite"])
def test_a_rank_with_another_part_ends_all_before_anything_is_written(wrong: str) -> None:
    mine = models(RANKS)
    errors = {}

    def spoil(rank: int, model: Any) -> None:
        if rank != 1:
            return
        layer = model.model.layers[0].input_layernorm
        if wrong == "shape":
            layer.register_buffer("own", torch.zeros(3))
        elif wrong == "type":
            layer.register_buffer("own", torch.zeros(4, dtype=torch.float64))
        else:
            with torch.no_grad():
                layer.weight.to_local().fill_(float("nan"))

    def work(rank: int) -> None:
        if wrong != "not finite":
            mine[rank].model.layers[0].input_layernorm.register_buffer("own", torch.zeros(4))
        try:
            deliver(rank, shared_out(rank, mine[rank], spoil)[0])
        except (UsageError, TrainingDiverged) as error:
            errors[rank] = error.code, error.check, error.got

    in_ranks(RANKS, work)
    assert errors.keys() == {0, 1}
    assert errors[0] == errors[1]
    code, check, _ = errors[0]
    expected = ("training-diverged", "weights") if wrong == "not finite" else ("usage", "ranks")
    assert (code, check) == expected
