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
    from peft import IA3Config, LoraConfig, get_peft_model
    from safetensors.torch import load
    from tensor_bytes import TensorBytes
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    from sealtrain.recipe.backends import Fsdp
    from sealtrain.training.distributed.sharded import Sharded
    from sealtrain.training.model_files import plan_files, weight_files
    from sealtrain.training.models.merge_by_module import MergeByModule, merges_by_module
    from sealtrain.training.models.merging import merge_adapter

# PEFT reads an attribute of models that Transformers renames.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
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


def deliver(rank: int, shared: Any, *, merges: bool = False) -> bytes:
    if rank:
        shared.follow()
        return b""
    merge = MergeByModule(shared.outline) if merges else None
    made = plan_files(shared.outline if merge is None else merge.merged, None, merge)
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


@pytest.mark.claim("C774")
def test_a_rank_that_ends_while_tensors_are_read_leaves_the_first_with_a_short_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Less than it announced: what takes the file never counts it."""
    for module in ("weight_file", "distributed.shared_model"):
        monkeypatch.setattr(f"sealtrain.training.{module}.BLOCK_BYTES", 2_000)

    class Ends(Exception):
        """Of the other rank."""

    def read_half(source: Any, order: list[str]) -> None:
        for name in order[: len(order) // 2]:
            assert list(source.read(name)) == []
        raise Ends

    monkeypatch.setattr("sealtrain.training.distributed.shared_model.read_order", read_half)
    mine = models(RANKS, tie_word_embeddings=False)
    announced, delivered = [], []

    def work(rank: int) -> None:
        shared, _ = shared_out(rank, mine[rank])
        if rank:
            shared.follow()
        made = plan_files(shared.outline, None).weights
        announced.append(made.size)
        for block in made.blocks(shared.lead(made.order)):
            delivered.append(len(block))

    with pytest.raises(Ends):
        in_ranks(RANKS, work)
    assert 0 < sum(delivered) < announced[0]


ALL_LINEAR = {"r": 4, "target_modules": "all-linear"}
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("LoraConfig", ALL_LINEAR),
    "rslora with its biases": ("LoraConfig", ALL_LINEAR | {"use_rslora": True, "bias": "all"}),
    "dora": ("LoraConfig", ALL_LINEAR | {"use_dora": True}),
    "an embedding": ("LoraConfig", {"r": 4, "target_modules": ["embed_tokens", "o_proj"]}),
    "a head that learns whole": ("LoraConfig", ALL_LINEAR | {"modules_to_save": ["lm_head"]}),
    "ia3": (
        "IA3Config",
        {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    ),
}
BIASED = {"attention_bias": True, "mlp_bias": True}


def adapted(kind: str, settings: dict[str, Any], model: Any) -> Any:
    """A model whose adapter is of some size, as training would leave it."""
    config = IA3Config if kind == "IA3Config" else LoraConfig
    torch.manual_seed(2)
    made = get_peft_model(model, config(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


@pytest.mark.claim("C773")
@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("half", [False, True])
def test_a_merge_by_module_has_the_bits_of_pefts(
    name: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("weight_file", "distributed.shared_model"):
        monkeypatch.setattr(f"sealtrain.training.{module}.BLOCK_BYTES", 20_000)
    kind, settings = ADAPTERS[name]
    first, *others = models(1 + RANKS, tie_word_embeddings=False, vocab_size=131, **BIASED)
    if half:  # only where no two types share a layer: FSDP2 splits tensors of one type
        first, *others = (model.to(torch.bfloat16) for model in (first, *others))
    first, *others = (adapted(kind, settings, model) for model in (first, *others))
    if half:
        others = [model.to(torch.bfloat16) for model in others]
        first = first.to(torch.bfloat16)
    assert all(map(merges_by_module, others))
    whole = weight_files(merge_adapter(first, None, "float32"))["model.safetensors"]
    made = in_ranks(
        RANKS, lambda rank: deliver(rank, shared_out(rank, others[rank])[0], merges=True)
    )
    assert hashlib.sha256(made[0]).digest() == hashlib.sha256(whole).digest()
    assert not any(made[1:])


@pytest.mark.claim("C773")
def test_experts_that_lie_together_are_merged_and_published_apart() -> None:
    def experts() -> Any:
        torch.manual_seed(1)
        return MixtralForCausalLM(
            MixtralConfig(
                vocab_size=131,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                num_local_experts=2,
            )
        )

    names = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
    first, *others = (adapted("LoraConfig", names, experts()) for _ in range(1 + RANKS))
    whole = weight_files(merge_adapter(first, None, "float32"))["model.safetensors"]
    made = in_ranks(
        RANKS, lambda rank: deliver(rank, shared_out(rank, others[rank])[0], merges=True)
    )
    assert made[0] == whole
    assert any(".experts.1." in each for each in load(made[0]))


@pytest.mark.parametrize("names", [["lm_head"], ["embed_tokens"]])
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_a_tied_weight_that_an_adapter_changes_is_merged_whole(names: list[str]) -> None:
    tied, apart = small(tie_word_embeddings=True), small(tie_word_embeddings=False)
    settings = {"r": 4, "target_modules": names}
    assert not merges_by_module(adapted("LoraConfig", settings, tied))
    assert merges_by_module(adapted("LoraConfig", settings, apart))
    assert merges_by_module(adapted("LoraConfig", ALL_LINEAR, small(tie_word_embeddings=True)))


@pytest.mark.claim("C773")
def test_a_merge_that_is_not_finite_is_refused() -> None:
    mine = [adapted("LoraConfig", ALL_LINEAR, each) for each in models(1)]
    merge = MergeByModule(mine[0])
    name = next(each for each in merge.sources(merge.merged.state_dict()) if "lora_A" in each)
    path = merge.module_of(name)
    own = {
        each: torch.full(tensor.shape, 3e38)
        for each, tensor in merge.sources(merge.merged.state_dict()).items()
        if merge.module_of(each) == path
    }
    with pytest.raises(TrainingDiverged) as caught:
        merge.merge(own)
    assert caught.value.check == "weights"
