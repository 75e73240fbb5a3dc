"""A cut model is the whole model: the same bits forward, in training, and put together again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.training.model_files import SPARSE_FILE
from sealtrain.training.models.merging import merge_folder

if not COLLECTING:
    import torch
    from cut_world import DECODERS, ENCODERS, batch_of, lora, model_of, trained
    from peft import get_peft_model
    from safetensors.torch import load

    from sealtrain.training.models.sparse import put_on
    from sealtrain_together.cut.activations import (
        Expected,
        Form,
        collate,
        decode,
        encode,
        rows_of,
    )
    from sealtrain_together.cut.back_model import back_files, merge_whole, with_sparse
    from sealtrain_together.cut.cut import CutModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.usefixtures("one_thread"),
]
STEPS = 3


def through_wire(cut: CutModel, batch: dict[str, torch.Tensor], form: Form) -> dict[str, Any]:
    """A batch as the back gets it: made, encoded, decoded and padded again."""
    mask = batch["attention_mask"]
    rows = rows_of(cut.front(batch["input_ids"], mask), mask, batch["labels"], form)
    expected = Expected(
        form=form, width=32, max_tokens=16, labels=97, per_token=batch["labels"].dim() == 2
    )
    return collate(decode(encode(rows), expected, rows=len(rows)))


@pytest.mark.parametrize(
    ("kind", "layers"),
    [(kind, layers) for kind in ("bert", "llama") for layers in (0, 1, 3)]
    + [(kind, 2) for kind in ("roberta", "modernbert", "qwen3", "gemma3_text")],
)
def test_both_halves_compute_what_the_whole_model_computes(kind: str, layers: int) -> None:
    whole, batch = model_of(kind).eval(), batch_of(kind)
    cut = CutModel(model_of(kind).eval(), layers=layers)
    with torch.no_grad():
        expected = whole(**batch)
        got = cut.back.model(**through_wire(cut, batch, "float32"))
    valid = batch["attention_mask"] == 1  # nobody reads logits of padding
    if kind in ENCODERS:
        assert torch.equal(got.logits, expected.logits)
    else:
        assert torch.equal(got.logits[valid], expected.logits[valid])
    assert torch.equal(got.loss, expected.loss)


def test_no_kind_of_model_is_left_out() -> None:
    assert {*ENCODERS, *DECODERS} == {
        "bert", "roberta", "modernbert", "llama", "qwen3", "gemma3_text",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_training_the_back_is_training_the_whole_model_with_a_frozen_front(kind: str) -> None:
    batches = [batch_of(kind, seed) for seed in range(STEPS)]
    cut = CutModel(model_of(kind), layers=2)
    torch.manual_seed(8)
    back = get_peft_model(cut.back.model, lora(kind, cut.back.numbers))
    whole = model_of(kind)
    torch.manual_seed(8)
    whole = get_peft_model(whole, lora(kind, [2, 3]))
    sent = [through_wire(cut, batch, "float32") for batch in batches]
    losses, weights = trained(back, sent)
    expected_losses, expected = trained(whole, batches)
    assert losses == expected_losses
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)


@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize(("form", "tolerance"), [("bfloat16", 0.01), ("int8", 0.03)])
def test_a_shorter_wire_costs_little(kind: str, form: Form, tolerance: float) -> None:
    """Largest difference of logits, as a share of their spread: bf16 1 %, int8 3 %."""
    whole, batch = model_of(kind).eval(), batch_of(kind)
    cut = CutModel(model_of(kind).eval(), layers=2)
    with torch.no_grad():
        expected = whole(**batch).logits
        got = cut.back.model(**through_wire(cut, batch, form)).logits
    if kind == "llama":
        valid = batch["attention_mask"] == 1
        expected, got = expected[valid], got[valid]
    assert (got - expected).abs().max() < tolerance * expected.std()
    assert not torch.equal(got, expected)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_what_was_trained_loads_onto_the_whole_model(kind: str) -> None:
    batches = [batch_of(kind)] * STEPS
    cut = CutModel(model_of(kind), layers=1)
    model = get_peft_model(cut.back.model, lora(kind, cut.back.numbers))
    sent = [through_wire(cut, batch, "float32") for batch in batches]
    assert with_sparse(model, cut.back, 0.05, batches=sent[:1])
    losses, _ = trained(model, sent)
    assert losses[-1] < losses[0]
    with torch.no_grad():
        expected = model(**sent[0]).logits
    files = back_files(model, None)
    fresh = get_peft_model(put_on(model_of(kind), load(files[SPARSE_FILE])), lora(kind, [1, 2, 3]))
    from peft import set_peft_model_state_dict

    told: Any = set_peft_model_state_dict(fresh, load(files["adapter_model.safetensors"]))
    assert not told.unexpected_keys
    valid = batches[0]["attention_mask"] == 1
    with torch.no_grad():
        got = fresh.eval()(**batches[0]).logits
        if kind == "llama":
            got, expected = got[valid], expected[valid]
        assert torch.equal(got, expected)
        together = merge_whole(model, cut.back).eval()(**batches[0]).logits
    if kind == "llama":
        together = together[valid]
    torch.testing.assert_close(together, expected, atol=1e-5, rtol=1e-4)


def test_activations_made_again_for_a_backward_are_the_same() -> None:
    """Activation checkpointing calls layers a second time, after the forward has ended."""
    batch = batch_of("llama")
    losses = []
    for again in (False, True):
        cut = CutModel(model_of("llama"), layers=1)
        if again:
            cut.back.model.activation_checkpointing_enable()
        cut.back.model.train()
        inputs = through_wire(cut, batch, "float32")
        loss = cut.back.model(**inputs).loss
        loss.backward()
        first = cut.back.model.model.layers[1].self_attn.q_proj.weight.grad
        assert first is not None
        losses.append((loss.item(), first.clone()))
    assert losses[0][0] == losses[1][0]
    assert torch.equal(losses[0][1], losses[1][1])


def test_the_merge_command_puts_entries_and_adapter_into_the_base(tmp_path: Path) -> None:
    """Both were trained together: one without the other is another model."""
    batch = batch_of("bert")
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    model_of("bert").save_pretrained(base)
    cut = CutModel(model_of("bert"), layers=2)
    model = get_peft_model(cut.back.model, lora("bert", cut.back.numbers))
    sent = [through_wire(cut, batch, "float32")] * STEPS
    with_sparse(model, cut.back, 0.05, batches=sent[:1])
    trained(model, sent)
    adapter.mkdir()
    for name, content in back_files(model, None).items():
        (adapter / name).write_bytes(content)
    merged = merge_folder(adapter, base)
    assert SPARSE_FILE not in merged
    weights = load(merged["model.safetensors"])
    expected = merge_whole(model, cut.back).state_dict()
    assert weights.keys() <= expected.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name])
    name = "bert.encoder.layer.3.intermediate.dense.weight"  # no adapter there, only entries
    assert not torch.equal(weights[name], model_of("bert").state_dict()[name])
