"""Under pads a model learns what it learns without: the same bits, the W8 model's losses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from language_world import minilm

if not COLLECTING:
    import torch
    from pads_world import (
        Watched,
        accelerating,
        batches,
        dealing,
        dealt,
        tiny_model,
        trained,
    )

    from sealtrain_together.pads.accelerator import RemoteAccelerator
    from sealtrain_together.pads.exact_products import Float64
    from sealtrain_together.pads.pool import OwnPool
    from sealtrain_together.pads.protect import list_protected, protect, quantise, restore
    from sealtrain_together.pads.serving import Served, start_accelerator

STEPS = 3
ROWS = 2 * 12  # tokens of a batch
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Served]:
    """An accelerator that is another process."""
    with start_accelerator() as there:
        yield there


@pytest.fixture(scope="module")
def unmasked() -> tuple[list[float], list[torch.Tensor]]:
    """Training with the same arithmetic inside the guest."""
    model = tiny_model()
    quantise(model)
    return trained(model, STEPS)


def same(left: tuple[list[float], list[torch.Tensor]], right: Any) -> bool:
    return left[0] == right[0] and all(map(torch.equal, left[1], right[1]))


def test_training_on_another_process_under_pads_gives_the_same_bits(
    elsewhere: Served, unmasked: tuple[list[float], list[torch.Tensor]]
) -> None:
    model = tiny_model()
    accelerator = RemoteAccelerator(elsewhere.host, elsewhere.port)
    protection = protect(model, accelerator)
    assert same(trained(model, STEPS), unmasked)
    # Per layer q+k+v, o, gate+up and down, and the head, forward; backward nothing has to go
    # below the first layer's adapters but the products that lead to them.
    assert len(protection.layers) == 2 * 4 + 1
    assert protection.engine.spent.products >= STEPS * 2 * (2 * 4 + 1) - STEPS
    assert protection.engine.spent.bytes_out > 0
    assert all("lora" in name for name in protection.inside)
    accelerator.close()


def test_a_dealer_in_its_own_right_gives_the_same_bits(
    unmasked: tuple[list[float], list[torch.Tensor]],
) -> None:
    with accelerating() as there, dealing() as dealer:
        accelerator, supplier = RemoteAccelerator(*there), dealt(dealer)
        model = tiny_model()
        protect(model, accelerator, supplier=supplier, checks=2)
        assert same(trained(model, STEPS), unmasked)
        supplier.close()
        accelerator.close()


def test_a_pool_filled_twice_gives_the_same_bits(
    tmp_path: Path, unmasked: tuple[list[float], list[torch.Tensor]]
) -> None:
    pool = OwnPool(tmp_path / "pool", exact=Float64(), block_rows=16)
    model, accelerator = tiny_model(), Watched()
    protect(model, accelerator, supplier=pool)

    def refilled(step: int) -> None:
        if step in (0, 2):
            pool.fill(rows=2 * ROWS)

    assert same(trained(model, STEPS, before=refilled), unmasked)
    pool.close()


def test_prefixes_of_attention_are_trained_to_the_same_bits() -> None:
    """P-tuning v2: what is trained enters attention, which never leaves the guest."""
    from peft import PrefixTuningConfig

    results = []
    for change in (quantise, lambda model: protect(model, Watched())):
        model = tiny_model(PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))
        change(model)
        results.append(trained(model, 2))
    assert same(*results)
    assert results[0][0][0] != results[0][0][1]


def test_a_resumed_training_goes_on_bit_for_bit_under_other_pads(tmp_path: Path) -> None:
    whole, seen_before = by_trainer(tmp_path, None)
    resumed, seen_after = by_trainer(tmp_path, tmp_path / "checkpoint-1")
    assert resumed == whole
    for before, after in zip(seen_before[-len(seen_after) :], seen_after, strict=True):
        rows = torch.unique(torch.cat([before, after]), dim=0)
        assert len(rows) == len(before) + len(after)


def by_trainer(folder: Path, checkpoint: Path | None) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of Transformers' own loop, and what the accelerator saw."""
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    model, accelerator = tiny_model(), Watched()
    protect(model, accelerator)
    texts = [ids[0].tolist() for ids in batches(4)]
    arguments = TrainingArguments(
        str(folder),
        max_steps=2,
        save_steps=1,
        logging_steps=1,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        seed=3,
    )
    rows = Dataset.from_dict({"input_ids": texts, "labels": texts})
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, accelerator.seen


def test_minilm_under_pads_keeps_the_losses_of_its_int8_model() -> None:
    protected, whole = encoder(), encoder()
    accelerator = Watched()
    protect(protected, accelerator)
    quantise(whole)
    restore(whole)
    assert not list_protected(whole)
    under_pads, without = fine_tuned(protected), fine_tuned(whole)
    assert max(abs(a - b) for a, b in zip(under_pads, without, strict=True)) < 1e-3
    assert under_pads[-1] < under_pads[0]
    assert len(accelerator.matrices) == 6 * 4 + 1  # q+k+v, o, up, down, and the pooler


def encoder() -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import BertForSequenceClassification

    torch.manual_seed(3)
    base = BertForSequenceClassification.from_pretrained(minilm(), num_labels=3)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=["query", "value"], modules_to_save=["classifier"]
    )
    return get_peft_model(base.eval(), config).eval()  # without dropout: chance is the same anyway


def fine_tuned(model: Any) -> list[float]:
    """Losses of some steps on the same four texts."""
    torch.manual_seed(29)
    (ids,) = batches(1, rows=3, length=10, words=20_000)
    labels = torch.tensor([0, 1, 2])
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=2e-3)
    losses = []
    for _ in range(3):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
