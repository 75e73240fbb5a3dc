"""Cutting models, choosing entries, and messages of activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING

from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.model_files import SPARSE_FILE

if not COLLECTING:
    import torch
    from cut_world import SHAPE, batch_of, lora, model_of
    from peft import get_peft_model
    from safetensors.torch import load, save
    from torch import nn

    from sealtrain.training.models.sparse import SparseLinear, fold, put_on, sparse_files
    from sealtrain_together.cut.activations import (
        Expected,
        Form,
        collate,
        decode,
        encode,
        restore_row,
        rows_of,
    )
    from sealtrain_together.cut.cut import Back, CutModel, Front
    from sealtrain_together.cut.spf import back_linears, sparsify

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.usefixtures("one_thread"),
]


def expected_rows(**changed: Any) -> Expected:
    values: dict[str, Any] = {
        "form": "float32",
        "width": 6,
        "max_tokens": 8,
        "labels": 5,
        "per_token": False,
    }
    return Expected(**values | changed)


def some_rows(form: Form, *, per_token: bool = False) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    activations = torch.randn(3, 8, 6, generator=generator)
    mask = (torch.arange(8) < torch.tensor([8, 1, 5])[:, None]).to(torch.int64)
    labels = torch.tensor([0, 4, 2])
    return rows_of(activations, mask, labels[:, None].expand(3, 8) if per_token else labels, form)


# -- the cut ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [-1, 4, 9])
def test_a_cut_leaves_the_back_a_layer(layers: int) -> None:
    with pytest.raises(ModelInvalid, check=carries(check="layers")) as refused:
        Front(model_of("bert"), layers)
    assert refused.value.got == str(layers)


def test_a_front_holds_its_layers_alone_and_learns_nothing() -> None:
    cut = CutModel(model_of("bert"), layers=1)
    whole = sum(parameter.numel() for parameter in model_of("bert").bert.encoder.parameters())
    kept = sum(parameter.numel() for parameter in cut.front.base.encoder.parameters())
    assert kept == whole / 4
    assert not any(parameter.requires_grad for parameter in cut.front.parameters())
    cut.front.train()
    batch = batch_of("bert")
    once, again = (cut.front(batch["input_ids"], batch["attention_mask"]) for _ in range(2))
    assert torch.equal(once, again)  # no dropout
    assert not once.requires_grad


def test_a_back_trains_what_is_behind_the_cut_and_reads_no_tokens() -> None:
    back = Back(model_of("llama"), 3)
    trained = {name for name, tensor in back.model.named_parameters() if tensor.requires_grad}
    assert trained
    assert all(".layers.3." in name or name.startswith("lm_head") for name in trained)
    with pytest.raises(ModelInvalid, check=carries(expected="inputs_embeds")):
        back.model(**batch_of("llama"))


def test_a_whole_model_comes_back() -> None:
    batch = batch_of("bert")
    with torch.no_grad():
        expected = model_of("bert").eval()(**batch).logits
        whole = Back(model_of("bert").eval(), 2).whole()
        assert torch.equal(whole(**batch).logits, expected)


@pytest.mark.parametrize("name", ["front", "back"])
def test_an_architecture_whose_halves_are_not_the_whole_is_refused(name: str) -> None:
    """DeBERTa's layers give more than hidden states; ALBERT has one layer, many times."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    half: Any = {"front": Front, "back": Back}[name]
    for kind, problem in (("deberta-v2", "ValueError"), ("albert", "0 lists")):
        auto: Any = AutoModelForSequenceClassification
        model = auto.from_config(AutoConfig.for_model(kind, **SHAPE))
        with pytest.raises(ModelInvalid, match=problem):
            half(model, 1)


def test_a_layer_that_remembers_is_refused() -> None:
    """The trial finds what no name tells: here a layer that adds what it was given before."""
    model = model_of("bert")
    layer = model.bert.encoder.layer[0]
    plain, seen = layer.forward, [torch.zeros(())]

    def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(hidden_states.mean())
        result: torch.Tensor = plain(hidden_states + seen[-2], *args, **kwargs)
        return result

    layer.forward = forward
    with pytest.raises(
        ModelInvalid, check=carries(check="model", got="other numbers than the whole model")
    ):
        Front(model, 1)


# -- sparse entries ---------------------------------------------------------------------------


def test_the_entries_with_the_largest_gradients_train_and_no_other() -> None:
    cut = CutModel(model_of("bert").eval(), layers=2)
    model = get_peft_model(cut.back.model, lora("bert", cut.back.numbers))
    names = back_linears(model, cut.back)
    assert len(names) == 2 * 6
    assert not any("lora" in name or "classifier" in name or ".layer.1." in name for name in names)
    batch = batch_of("bert")
    inputs = collate(
        rows_of(
            cut.front(batch["input_ids"], batch["attention_mask"]),
            batch["attention_mask"],
            batch["labels"],
            "float32",
        )
    )
    weight = model.get_submodule(names[0]).weight
    weight.requires_grad_(True)
    model(**inputs).loss.backward()
    gradient = weight.grad.abs().flatten()
    model.zero_grad()
    weight.requires_grad_(False)
    count = sparsify(model, names, 0.1, batches=[inputs])
    layer = model.get_submodule(names[0])
    assert isinstance(layer, SparseLinear)
    assert layer.entries.numel() == round(0.1 * 32 * 32)
    assert set(layer.index.tolist()) == set(gradient.topk(layer.entries.numel()).indices.tolist())
    assert count == sum(model.get_submodule(name).entries.numel() for name in names)
    frozen = layer.layer.weight.clone()
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=1.0
    )
    model(**inputs).loss.backward()
    optimizer.step()
    changed = (layer.weight != frozen).flatten().nonzero().flatten()
    assert 0 < len(changed) <= layer.entries.numel()
    assert set(changed.tolist()) <= set(layer.index.tolist())
    assert torch.equal(layer.layer.weight, frozen)


def test_rows_are_chosen_by_their_norm_without_data() -> None:
    layer = nn.Linear(3, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, -9.0, 0.5, 3.0])[:, None].expand(4, 3))
    model = nn.Sequential(layer)
    assert sparsify(model, ["0"], 0.5, by="rows") == 6
    assert model[0].index.tolist() == [3, 4, 5, 9, 10, 11]  # type: ignore[operator]


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UsageError, check=carries(expected="above 0, at most 1")):
        sparsify(nn.Sequential(nn.Linear(2, 2)), ["0"], share, by="rows")


def test_small_steps_are_not_lost_to_a_short_weight() -> None:
    layer = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    sparse = SparseLinear(layer, torch.arange(16))
    with torch.no_grad():
        before = sparse.entries.clone()
        for _ in range(64):
            sparse.entries.add_(1e-4)  # each below half a unit in the last place of bfloat16
    torch.testing.assert_close(sparse.entries.detach(), before + 64e-4)
    assert not torch.equal(sparse.weight, layer.weight)


def test_entries_go_into_a_file_and_out_of_it() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    plain = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    plain.load_state_dict(model.state_dict())
    model[0] = SparseLinear(model[0], torch.tensor([1, 4, 8]))  # type: ignore[arg-type]
    with torch.no_grad():
        next(model[0].parameters()).copy_(torch.tensor([7.0, 8.0, 9.0]))
    files = sparse_files(model)
    inputs = torch.randn(2, 3)
    expected = model(inputs)
    assert torch.equal(put_on(plain, load(files[SPARSE_FILE]))(inputs), expected)
    assert torch.equal(fold(model)(inputs), expected)
    assert type(model[0]) is nn.Linear
    assert sparse_files(model) == {}


OTHER_ENTRIES: dict[str, tuple[Callable[[], dict[str, torch.Tensor]], type[Exception]]] = {
    "one entry twice": (lambda: {"0.index": torch.tensor([1, 1])}, DataInvalid),
    "before the first": (lambda: {"0.index": torch.tensor([-1, 2])}, ModelInvalid),
    "behind the last": (lambda: {"0.index": torch.tensor([1, 9])}, ModelInvalid),
    "too few places": (lambda: {"0.index": torch.tensor([1])}, DataInvalid),
    "places of 32 bits": (lambda: {"0.index": torch.tensor([1, 2]).int()}, DataInvalid),
    "not a number": (lambda: {"0.entries": torch.tensor([1.0, float("nan")])}, DataInvalid),
    "places without entries": (lambda: {"1.index": torch.tensor([1])}, DataInvalid),
    "another name": (lambda: {"other": torch.tensor([1])}, DataInvalid),
    "a layer more": (
        lambda: {"9.index": torch.tensor([1]), "9.entries": torch.tensor([1.0])},
        ModelInvalid,
    ),
}


@pytest.mark.parametrize("name", OTHER_ENTRIES)
def test_a_file_of_entries_for_something_else_is_refused(name: str) -> None:
    changed, kind = OTHER_ENTRIES[name]
    tensors = {"0.index": torch.tensor([1, 2]), "0.entries": torch.tensor([1.0, 2.0])}
    with pytest.raises(kind):
        put_on(nn.Sequential(nn.Linear(3, 3)), tensors | changed())


# -- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_a_message_brings_what_was_put_in(form: Form, per_token: bool) -> None:
    rows = some_rows(form, per_token=per_token)
    message = encode(rows)
    expected = expected_rows(form=form, per_token=per_token)
    assert len(message) <= expected.max_bytes(len(rows))
    got = decode(message, expected, rows=3)
    for row, other in zip(rows, got, strict=True):
        assert torch.equal(row.values, other.values)
        assert torch.equal(row.labels, other.labels)
        assert torch.equal(restore_row(row, torch.float32), restore_row(other, torch.float32))
    batch = collate(got)
    assert batch["inputs_embeds"].shape == (3, 8, 6)
    assert batch["attention_mask"].sum(1).tolist() == [8, 1, 5]
    assert batch["labels"].shape == ((3, 8) if per_token else (3,))
    assert not batch["inputs_embeds"][1, 1:].any()


def test_int8_is_within_half_a_step_of_each_token() -> None:
    plain, short = some_rows("float32"), some_rows("int8")
    for timing, other in zip(plain, short, strict=True):
        step = timing.values.abs().amax(1, keepdim=True) / 127
        assert ((restore_row(other, torch.float32) - timing.values).abs() <= step / 2 * 1.001).all()


OTHER_MESSAGES: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
    "a row of no tokens": lambda: {"lengths": torch.tensor([8, 0, 6], dtype=torch.int32)},
    "a row too long": lambda: {"lengths": torch.tensor([9, 1, 4], dtype=torch.int32)},
    "too few rows": lambda: {"lengths": torch.tensor([8, 1], dtype=torch.int32)},
    "lengths of 64 bits": lambda: {"lengths": torch.tensor([8, 1, 5])},
    "values too wide": lambda: {"values": torch.zeros(14, 7)},
    "a token too many": lambda: {"values": torch.zeros(15, 6)},
    "values of 16 bits": lambda: {"values": torch.zeros(14, 6, dtype=torch.float16)},
    "infinite values": lambda: {"values": torch.full((14, 6), float("inf"))},
    "a label too high": lambda: {"labels": torch.tensor([0, 5, 2], dtype=torch.int32)},
    "a label below zero": lambda: {"labels": torch.tensor([0, -1, 2], dtype=torch.int32)},
    "a label left out": lambda: {"labels": torch.tensor([-100, 1, 2], dtype=torch.int32)},
    "scales": lambda: {"scales": torch.ones(14)},
}


@pytest.mark.parametrize("name", OTHER_MESSAGES)
def test_a_message_that_is_not_as_the_recipe_says_is_refused(name: str) -> None:
    tensors = load(encode(some_rows("float32")))
    with pytest.raises(DataInvalid, check=carries(check="activations")):
        decode(save(tensors | OTHER_MESSAGES[name]()), expected_rows(), rows=3)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    tensors = load(encode(some_rows("int8")))
    tensors["scales"][3] = scale
    with pytest.raises(DataInvalid, check=carries(check="activations", expected="finite, above 0")):
        decode(save(tensors), expected_rows(form="int8"), rows=3)


@pytest.mark.parametrize("message", [b"", b"\xff" * 64, b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(DataInvalid, check=carries(check="activations")):
        decode(message, expected_rows(), rows=3)
