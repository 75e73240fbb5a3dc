"""A script's own loader and Lightning: sealed equals plaintext, resumed equals uninterrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
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

from sealtrain.errors import UsageError
from sealtrain.training.checkpoints.checkpoint import newest
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.telemetry.metric_gate import MetricGate

if not COLLECTING:
    from sealtrain.training.checkpoints.loop import RunLoop
    from sealtrain.training.checkpoints.run_context import RunContext
    from sealtrain.training.data.hugging import Positioned, as_iterable_dataset

RECIPE = classify(trainer={"max_steps": 9})
STEPS = 9
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("loaders")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's logger makes a folder before it is taken out; in a run that lies in memory."""
    monkeypatch.chdir(tmp_path)


def context_of(
    store: Any, released: list[Any], stop_at: int | None, resume: Any, lease_keeper: Any
) -> RunContext:
    def checkpointed(ref: Any) -> None:
        if stop_at is not None and ref.step >= stop_at:
            raise Interrupted

    return RunContext(
        run_id=RUN_ID,
        store=store,
        gate=MetricGate(
            RECIPE.release_policy, lambda step, values: released.append((step, values))
        ),
        on_checkpoint=checkpointed,
        resume=resume,
        arguments=RECIPE.trainer,
        lease_keeper=lease_keeper,
    )


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    features = torch.tensor([[row["size"], row["spread"]] for row in rows], dtype=torch.float32)
    labels = torch.tensor([row["finding"] == "malignant" for row in rows]).long()
    return {"features": features, "labels": labels}


def perceptron() -> Any:
    import torch

    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)
    )


def loss_of(model: Any, batch: dict[str, Any]) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(model(batch["features"]), batch["labels"])


def accelerated(context: RunContext, stream: Positioned, loader: Any, model: Any) -> Any:
    """A loop over a loader that Accelerate prepared."""
    import torch
    from accelerate import Accelerator

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loop = RunLoop(context, loader, RECIPE.trainer, model=model, optimizer=optimizer)
    for batch in loop:
        loss = loss_of(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        loop.log(loss=loss)
    return loop


def plainly(context: RunContext, stream: Positioned, loader: Any, model: Any) -> Any:
    """A loop over PyTorch's own loader, whose collator draws random numbers."""
    import torch

    made = loader.collate_fn

    def noisy(rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = made(rows)
        return batch | {"features": batch["features"] + torch.randn(2)}

    loader.collate_fn = noisy
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loop = RunLoop(context, loader, RECIPE.trainer, model=model, optimizer=optimizer)
    for batch in loop.batches():
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loop.log(loss=loss)
    return loop


def lightened(context: RunContext, stream: Positioned, loader: Any, model: Any) -> Any:
    """A trainer of Lightning, with a scheduler and gradients accumulated over no batches."""
    import lightning
    import torch

    from sealtrain.training.checkpoints.lightning import RunLightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _index: int) -> Any:
            loss = loss_of(self.model, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]

    callback = RunLightning(context, lambda: stream)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    trainer.fit(Module(), loader)
    return callback


if not COLLECTING:
    Way = Callable[[RunContext, Positioned, Any, Any], Any]
WAYS = pytest.mark.parametrize("way", [accelerated, plainly, lightened])


def run(
    way: Way,
    datasets: dict[str, Any],
    store: Any,
    *,
    stop_at: int | None = None,
    resume: Any = None,
    lease_keeper: Any = None,
) -> tuple[str, list[Any], Any]:
    """Train a perceptron with dropout; its digest, what was released, what counted."""
    from torch.utils.data import DataLoader

    released: list[Any] = []
    context = context_of(store, released, stop_at, resume, lease_keeper)
    train = [source for source in sources_of(RECIPE, datasets) if source.role == "train"]
    stream = Positioned(RecordStream(train, ["size", "spread", "finding"], seed=7))
    loader = DataLoader(as_iterable_dataset(stream), batch_size=4, collate_fn=collate)
    model, counted = perceptron(), None
    try:
        counted = way(context, stream, loader, model)
    except Interrupted:
        pass
    finally:
        context.close()
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(weights).hexdigest(), released, counted


@WAYS
@pytest.mark.claim("C24")
def test_sealed_records_train_as_plain_ones(
    way: Way, sealed: dict[str, Any], tmp_path: Path
) -> None:
    plain = {
        key: PlainDataset([dataset.batch(number) for number in range(dataset.num_batches)])
        for key, dataset in sealed.items()
    }
    first, losses, counted = run(way, sealed, checkpoint_store(tmp_path / "sealed"))
    second, same, _ = run(way, plain, checkpoint_store(tmp_path / "plain"))
    assert (first, losses) == (second, same)
    assert [step for step, _ in losses] == [2, 3, 4, 6, 8, 9]
    assert (counted.steps, counted.rows) == (9, 36)


@WAYS
@pytest.mark.claim("C23")
def test_a_resumed_run_is_the_uninterrupted_one(
    way: Way, sealed: dict[str, Any], tmp_path: Path
) -> None:
    whole, losses, _ = run(way, sealed, checkpoint_store(tmp_path / "whole"))
    store = checkpoint_store(tmp_path / "parts")
    broken, before, _ = run(way, sealed, store, stop_at=3)
    assert broken != whole
    ref = newest(store, None)
    assert ref is not None
    resumed, after, counted = run(way, sealed, store, resume=ref)
    assert [logged for logged in before if logged[0] <= ref.step] + after == losses
    assert resumed == whole
    assert (counted.steps, counted.rows) == (9, 36)


@WAYS
@pytest.mark.claim("C23")
def test_a_run_that_stops_for_its_lease_goes_on_from_there(
    way: Way, sealed: dict[str, Any], tmp_path: Path
) -> None:
    whole, losses, _ = run(way, sealed, checkpoint_store(tmp_path / "whole"))
    store = checkpoint_store(tmp_path / "parts")
    _, before, _ = run(way, sealed, store, lease_keeper=StopsAfter(5))
    resumed, after, _ = run(way, sealed, store, resume=newest(store, None))
    assert resumed == whole
    assert before + after == losses


@pytest.mark.parametrize("wrong", ["workers", "other data"])
def test_a_loader_whose_place_in_the_data_nothing_knows_is_refused(
    wrong: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    from torch.utils.data import DataLoader

    train = [source for source in sources_of(RECIPE, sealed) if source.role == "train"]
    stream = Positioned(RecordStream(train, ["size", "spread", "finding"], seed=7))
    data: Any = as_iterable_dataset(stream) if wrong == "workers" else [{"size": 1}]
    loader = DataLoader(data, batch_size=4, num_workers=2 if wrong == "workers" else 0)
    context = context_of(checkpoint_store(tmp_path), [], None, None, None)
    model = perceptron()
    with pytest.raises(UsageError) as refused:
        RunLoop(context, loader, RECIPE.trainer, model=model, optimizer=None)
    assert refused.value.check == "loader"
