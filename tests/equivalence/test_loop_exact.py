"""A plain PyTorch loop: sealed equals plaintext, and a resumed run the uninterrupted one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import (
    RUN_ID,
    Interrupted,
    PlainDataset,
    StopsAfter,
    checkpoint_store,
    classify,
    seal_records,
    sources_of,
    write_records,
)

from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.training.checkpoints.checkpoint import newest
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.telemetry.metric_gate import MetricGate

if not COLLECTING:
    from sealtrain.training.checkpoints.loop import RunLoop
    from sealtrain.training.checkpoints.run_context import RunContext

RECIPE = classify(trainer={"max_steps": 9})


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("loop")
    return dict(seal_records(write_records(folder), folder))


def run(
    datasets: dict[str, Any],
    store: Any,
    *,
    stop_at: int | None = None,
    resume: Any = None,
    lease_keeper: StopsAfter | None = None,
) -> tuple[str, list[Any], RunLoop]:
    """Train a perceptron with dropout; its digest, what was released, the loop."""
    import torch

    released: list[Any] = []

    def checkpointed(ref: Any) -> None:
        if stop_at is not None and ref.step >= stop_at:
            raise Interrupted

    context = RunContext(
        run_id=RUN_ID,
        store=store,
        gate=MetricGate(
            RECIPE.release_policy, lambda step, values: released.append((step, values))
        ),
        on_checkpoint=checkpointed,
        resume=resume,
        lease_keeper=lease_keeper,
    )
    train = [source for source in sources_of(RECIPE, datasets) if source.role == "train"]
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    loop = RunLoop(
        context,
        RecordStream(train, ["size", "spread", "finding"], seed=7),
        RECIPE.trainer,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
    )
    try:
        for batch in loop.batches():
            features = torch.tensor([batch["size"], batch["spread"]], dtype=torch.float32).T
            labels = torch.tensor([name == "malignant" for name in batch["finding"]]).long()
            loss = torch.nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            loop.log(loss=loss)
    except Interrupted:
        pass
    finally:
        context.close()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(weights).hexdigest(), released, loop


@pytest.mark.claim("C24")
def test_sealed_records_train_as_plain_ones(sealed: dict[str, Any], tmp_path: Path) -> None:
    plain = {
        key: PlainDataset([dataset.batch(number) for number in range(dataset.num_batches)])
        for key, dataset in sealed.items()
    }
    first, losses, loop = run(sealed, checkpoint_store(tmp_path / "sealed"))
    second, same, _ = run(plain, checkpoint_store(tmp_path / "plain"))
    assert (first, losses) == (second, same)
    assert [step for step, _ in losses] == [2, 3, 4, 6, 8, 9]
    assert (loop.steps, loop.rows) == (9, 36)


@pytest.mark.claim("C23")
def test_a_resumed_loop_is_the_uninterrupted_one(sealed: dict[str, Any], tmp_path: Path) -> None:
    whole, losses, _ = run(sealed, checkpoint_store(tmp_path / "whole"))
    store = checkpoint_store(tmp_path / "parts")
    broken, before, _ = run(sealed, store, stop_at=3)
    assert broken != whole
    ref = newest(store, None)
    assert ref is not None
    resumed, after, loop = run(sealed, store, resume=ref)
    assert resumed == whole
    assert [logged for logged in before if logged[0] <= ref.step] + after == losses
    assert (loop.steps, loop.rows) == (9, 36)


@pytest.mark.claim("C23")
def test_a_loop_stopped_within_an_interval_tells_the_same_to_the_last_digit(
    sealed: dict[str, Any], tmp_path: Path
) -> None:
    whole, losses, _ = run(sealed, checkpoint_store(tmp_path / "whole"))
    store = checkpoint_store(tmp_path / "parts")
    _, before, loop = run(sealed, store, lease_keeper=StopsAfter(5))
    assert loop.steps == 5
    assert [step for step, _ in before] == [2, 3, 4]
    resumed, after, _ = run(sealed, store, resume=newest(store, None))
    assert resumed == whole
    assert before + after == losses


def test_a_checkpoint_of_another_model_is_refused(sealed: dict[str, Any], tmp_path: Path) -> None:
    import torch

    store = checkpoint_store(tmp_path)
    run(sealed, store, stop_at=3)
    context = RunContext(
        run_id=RUN_ID,
        store=store,
        gate=MetricGate(RECIPE.release_policy, lambda *_: None),
        on_checkpoint=lambda _: None,
        resume=newest(store, None),
    )
    other = torch.nn.Linear(3, 3)
    with pytest.raises(CheckpointRefused):
        RunLoop(
            context,
            RecordStream(sources_of(RECIPE, sealed)[:1], ["size"], seed=7),
            RECIPE.trainer,
            model=other,
            optimizer=torch.optim.SGD(other.parameters(), lr=0.1),
        )
