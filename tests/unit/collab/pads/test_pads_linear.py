"""Layers whose products are made elsewhere: shapes, sharing, gradients, numbers that are none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.errors import UsageError
from sealtrain.recipe.errors import ModelInvalid

if not COLLECTING:
    import torch
    from pads_world import Watched, tiny_model
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    from sealtrain_together.pads.engine import Inside, UnderPads
    from sealtrain_together.pads.linear import PadsLinear, Stack
    from sealtrain_together.pads.matrix import PublicMatrix, round_rows, stochastically_rounded
    from sealtrain_together.pads.protect import list_protected, protect, quantise, restore

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

if not COLLECTING:

    class Counting(Inside):
        """Multiplies in the guest and counts."""

        def __init__(self) -> None:
            super().__init__()
            self.asked: list[tuple[str, int]] = []

        def product(
            self, matrix: PublicMatrix, direction: Any, entries: torch.Tensor
        ) -> torch.Tensor:
            self.asked.append((direction, len(entries)))
            return super().product(matrix, direction, entries)

    class Siblings(nn.Module):
        """Three layers with one input, and one behind them."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.q_proj, self.k_proj, self.v_proj = (
                nn.Linear(12, 16),
                nn.Linear(12, 8),
                nn.Linear(12, 8),
            )
            self.o_proj = nn.Linear(8, 12, bias=False)
            self.requires_grad_(False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            mixed = self.q_proj(inputs)[..., :8] * self.k_proj(inputs) + self.v_proj(inputs)
            return inputs + self.o_proj(mixed)


def gradient(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(4)
    leaf = inputs.clone().requires_grad_()
    model(leaf).square().sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.fixture
def inputs() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(2, 5, 12)


def test_layers_with_one_input_take_one_product_each_way(inputs: torch.Tensor) -> None:
    model, engine = Siblings(), Counting()
    stacks = quantise(model, engine=engine)
    assert stacks == (("q_proj", "k_proj", "v_proj"), ("o_proj",))
    gradient(model, inputs)
    assert engine.asked == [("forward", 10), ("forward", 10), ("backward", 10), ("backward", 10)]


def test_results_and_gradients_are_those_of_the_int8_model_but_for_12_bits(
    inputs: torch.Tensor,
) -> None:
    model, whole = Siblings(), Siblings()
    quantise(model)
    quantise(whole)
    restore(whole)
    assert type(whole.q_proj) is nn.Linear
    assert not whole.q_proj.weight.requires_grad
    for mine, right in (
        (model(inputs), whole(inputs)),
        (gradient(model, inputs), gradient(whole, inputs)),
    ):
        assert 0 < float((mine - right).norm() / right.norm()) < 2e-3


def test_restored_weights_are_the_original_ones_to_half_a_step() -> None:
    model, before = Siblings(), Siblings()
    quantise(model)
    restore(model)
    step = before.q_proj.weight.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((model.q_proj.weight - before.q_proj.weight).abs() <= 0.51 * step).all())
    assert torch.equal(model.q_proj.bias, before.q_proj.bias)


def test_outputs_are_shared_for_the_same_tensor_only(inputs: torch.Tensor) -> None:
    model, engine = Siblings(), Counting()
    quantise(model, engine=engine)
    first = model.q_proj(inputs)
    assert torch.equal(model.q_proj(inputs), first)  # asked twice: made anew
    assert len(engine.asked) == 2
    assert torch.equal(model.k_proj(inputs.clone()), model.k_proj(inputs))
    inputs.mul_(2)  # the same tensor, changed in place
    assert not torch.allclose(model.q_proj(inputs), first)
    with torch.no_grad():
        without = model.k_proj(inputs)
    assert not without.requires_grad
    leaf = inputs.clone().requires_grad_()
    with torch.no_grad():
        model.q_proj(leaf)
    assert model.k_proj(leaf).requires_grad  # not what was made without gradients


def test_a_layer_that_is_asked_after_a_backward_pass_has_its_gradient(inputs: torch.Tensor) -> None:
    model, whole = Siblings(), Siblings()
    quantise(model)
    quantise(whole)
    restore(whole)
    leaves = []
    for item in (model, whole):
        leaf = inputs.clone().requires_grad_()
        item.q_proj(leaf).sum().backward()  # makes what k gives, too
        item.k_proj(leaf).sum().backward()
        leaves.append(leaf.grad)
    mine, right = leaves
    assert mine is not None
    assert right is not None
    assert float((mine - right).norm() / right.norm()) < 2e-3


def test_gradients_are_rounded_by_chance_whose_mean_is_the_gradient(inputs: torch.Tensor) -> None:
    model, whole = Siblings(), Siblings()
    quantise(model, bits=8)  # coarse, so that rounding shows
    quantise(whole, bits=8)
    weights = torch.linspace(-1, 1, 16)

    def round_rows(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        leaf = inputs.clone().requires_grad_()
        (model.q_proj(leaf) * weights).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    assert torch.equal(round_rows(1), round_rows(1))
    assert not torch.equal(round_rows(1), round_rows(2))
    right = weights.expand(2, 5, 16) @ restore(whole).q_proj.weight
    once = float((round_rows(1) - right).norm())
    many = torch.stack([round_rows(seed) for seed in range(200)]).mean(dim=0)
    assert float((many - right).norm()) < 0.25 * once


def test_siblings_of_cross_attention_are_apart() -> None:
    model = nn.ModuleDict({"cross_attn": Siblings(), "self_attn": Siblings()})
    assert quantise(model) == (
        ("cross_attn.q_proj",),
        ("cross_attn.k_proj",),
        ("cross_attn.v_proj",),
        ("cross_attn.o_proj",),
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("self_attn.o_proj",),
    )


def test_recomputed_activations_get_new_pads_and_the_same_gradients(inputs: torch.Tensor) -> None:
    model, accelerator = Siblings(), Watched()
    protect(model, accelerator)

    class Recomputed(nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return checkpoint(model, given, use_reentrant=False)

    assert torch.equal(gradient(Recomputed(), inputs), gradient(model, inputs))
    rows = torch.cat([seen for seen in accelerator.seen if seen.shape[1] == 12])
    assert len(torch.unique(rows, dim=0)) == len(rows)


def test_no_gradient_is_made_where_none_is_wanted(inputs: torch.Tensor) -> None:
    engine = Counting()
    layer = nn.Linear(12, 4).requires_grad_(False)
    layer.bias.requires_grad_()
    masked = PadsLinear(Stack([layer.weight], engine), 0, layer)
    masked(inputs).sum().backward()
    assert layer.bias.grad is not None
    assert engine.asked == [("forward", 10)]


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64"])
def test_the_models_precision_is_kept(name: str, inputs: torch.Tensor) -> None:
    dtype = getattr(torch, name)
    model = Siblings().to(dtype)
    right = model(inputs.to(dtype))
    quantise(model)
    mine = model(inputs.to(dtype))
    assert mine.dtype == right.dtype
    assert float((mine - right).float().norm() / right.float().norm()) < 3e-2
    assert gradient(model, inputs.to(dtype)).dtype == dtype
    assert restore(model).q_proj.weight.dtype == dtype


def test_mixed_precision_around_it_makes_no_difference_to_exactness(inputs: torch.Tensor) -> None:
    results = []
    for change in (quantise, lambda model: protect(model, Watched())):
        model = Siblings()
        change(model)
        with torch.autocast("cpu", torch.bfloat16):
            results.append((model(inputs), gradient(model, inputs)))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("shape", [(12,), (1, 12), (0, 12), (2, 3, 1, 12)])
def test_inputs_have_any_number_of_sides(shape: tuple[int, ...]) -> None:
    layer = nn.Linear(12, 4).requires_grad_(False)
    masked = PadsLinear(Stack([layer.weight], UnderPads(Watched())), 0, layer)
    given = torch.ones(shape, requires_grad=True)
    right, mine = layer(given), masked(given)
    assert mine.shape == right.shape
    assert torch.allclose(mine, right, atol=2e-2)
    mine.sum().backward()
    assert given.grad is not None
    assert given.grad.shape == given.shape
    turned = torch.ones(12, 5).T  # not contiguous
    assert torch.allclose(masked(turned), layer(turned), atol=2e-2)


def test_a_gradient_of_a_gradient_is_refused(inputs: torch.Tensor) -> None:
    model = Siblings()
    quantise(model)
    leaf = inputs.clone().requires_grad_()
    (first,) = torch.autograd.grad(model(leaf).square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_in_its_row_and_inside(bad: float, inputs: torch.Tensor) -> None:
    inputs[0, 1, 4] = bad
    model, accelerator = Siblings(), Watched()
    protect(model, accelerator)
    outputs = model(inputs)
    assert outputs[0, 1].isnan().all()
    rest = torch.cat([outputs[0, :1], outputs[0, 2:], outputs[1]])
    assert rest.isfinite().all()


def test_rows_without_size_are_zeros_and_tiny_ones_too() -> None:
    rows = torch.tensor([[0.0, -0.0], [1e-44, 0.0], [3e38, -3e38], [1e-30, -2e-30]])
    entries, scale = round_rows(rows, 2047)
    assert entries.tolist() == [[0, 0], [0, 0], [2047, -2047], [1024, -2047]]
    assert scale.isfinite().all()
    assert bool((scale > 0).all())


def test_chance_rounds_to_the_mean_and_never_beyond_the_bound() -> None:
    torch.manual_seed(0)
    rows = torch.full((20_000, 2), 0.3)
    rows[:, 1] = 2047.0
    entries, scale = stochastically_rounded(rows, 2047, None)
    assert torch.equal(scale, torch.ones(20_000, 1))
    assert set(entries[:, 0].tolist()) == {0, 1}
    assert abs(float(entries[:, 0].double().mean()) - 0.3) < 0.02
    assert set(entries[:, 1].tolist()) == {2047}
    again = stochastically_rounded(rows, 2047, torch.Generator().manual_seed(9))[0]
    assert torch.equal(
        again, stochastically_rounded(rows, 2047, torch.Generator().manual_seed(9))[0]
    )


def test_a_copied_model_gives_the_same_and_shares_the_weights(inputs: torch.Tensor) -> None:
    model = Siblings()
    protect(model, Watched())
    other = copy.deepcopy(model)
    assert torch.equal(other(inputs), model(inputs))
    assert other.q_proj.stack is model.q_proj.stack


def test_layers_to_skip_are_named_as_adapters_name_their_targets() -> None:
    model = tiny_model()
    protection = protect(model, Watched(), skip=["lm_head", "layers.0.self_attn.q_proj"])
    inside = [name for name in protection.inside if "lora" not in name]
    assert [name.removeprefix("base_model.model.") for name in inside] == [
        "model.layers.0.self_attn.q_proj.base_layer",
        "lm_head",
    ]
    with pytest.raises(ModelInvalid, check=carries(check="skip", got="_head")):
        protect(tiny_model(), Watched(), skip=["_head"])


def test_trained_layers_stay_in_the_guest_and_skipped_ones_too() -> None:
    model = Siblings()
    model.k_proj.weight.requires_grad_()
    protection = protect(model, Watched(), skip=["o_proj"])
    assert protection.layers == (("q_proj", "v_proj"),)
    assert protection.inside == ("k_proj", "o_proj")
    assert [name for name, _ in list_protected(model)] == ["q_proj", "v_proj"]


def test_a_model_without_a_frozen_layer_is_refused_whole() -> None:
    model = Siblings().requires_grad_()
    with pytest.raises(ModelInvalid):
        protect(model, Watched())
    with pytest.raises(ModelInvalid, check=carries(check="skip", got="q_porj")):
        protect(Siblings(), Watched(), skip=["q_porj"])


def test_weights_that_are_no_numbers_or_too_many_are_refused() -> None:
    model = Siblings()
    model.o_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(ModelInvalid, match="o_proj"):
        protect(model, Watched())
    assert list_protected(model) == []  # not one of them
    protect(model, Watched(), skip=["o_proj"])
    with pytest.raises(ModelInvalid, check=carries(got="(1, 65537)")):
        PublicMatrix(torch.ones(1, (1 << 16) + 1, dtype=torch.int8))
    widest = PublicMatrix(torch.full((1, 1 << 16), -127, dtype=torch.int8))
    assert (widest.largest("forward"), widest.largest("backward")) == (129, 2047)
    with pytest.raises(UsageError):
        PublicMatrix(torch.ones(3, 3, dtype=torch.int8), bits=7)


def test_an_adapter_sits_on_its_base_layer_as_before() -> None:
    model = tiny_model()
    names = protect(model, Watched()).layers
    attention = "base_model.model.model.layers.0.self_attn."
    assert names[0] == (
        f"{attention}q_proj.base_layer",
        f"{attention}k_proj",
        f"{attention}v_proj.base_layer",
    )
    with pytest.raises(AttributeError):  # merging into weights that are elsewhere
        model.merge_adapter()
    restore(model)
    model.merge_adapter()


def test_a_protected_engine_counts_what_it_took(inputs: torch.Tensor) -> None:
    model = Siblings()
    engine = protect(model, Watched(), checks=2).engine
    assert isinstance(engine, UnderPads)
    gradient(model, inputs)
    spent = engine.spent
    assert (spent.products, spent.rows) == (4, 40)
    assert spent.bytes_out == 4 * 10 * (12 + 8 + 12 + 32)
    assert spent.bytes_in == 4 * 10 * (32 + 12 + 8 + 12)
    parts = (spent.pads, spent.masking, spent.waiting, spent.opening, spent.checking)
    assert min(parts) > 0
