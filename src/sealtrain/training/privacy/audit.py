"""Attacks on the trained model inside the guest: they measure how much it reveals of a record.

**Canary exposure** (Carlini et al. 2019). The guest derives random codes from the run's secret and
puts them among the training records. Afterwards it ranks the loss of each true code among codes
that the model was never trained on: ``exposure = log2(codes) - log2(rank)``. A model that has not
seen the canary has 1.4 bits on average; a model that can recite it has the most possible, 8 bits
with 256 codes.

**Membership** (Yeom et al. 2018). The area under the ROC curve of telling training records from
test records by their loss: 0.5 for a useless attack. It is the simplest attack, so it measures a
floor of the leakage, not a bound; only differential privacy bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.recipe.conversations import read_rows
from sealtrain.training.checkpoints.randomness import pause_training
from sealtrain.training.data.sources import Source
from sealtrain.training.data.stream import read_all
from sealtrain.training.finite import require_finite_answers
from sealtrain.training.privacy.record import CANARIES
from sealtrain.training.privacy.steps import record_losses

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.privacy.noise import NoiseSource

CODES = 256
_DIGITS = 12
_AT_MOST = 1000
_BATCH = 64


class InMemory:
    """Records in this process's memory, with the interface of a sealed dataset."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.dataset_id, self.root = "00" * 16, "00" * 32
        self.batch_rows: tuple[int, ...] = (batch.num_rows,)
        self.schema: pa.Schema | None = batch.schema
        self._batch = batch

    def batch(self, number: int) -> pa.RecordBatch:
        """The only batch."""
        return [self._batch][number]


def canary_source(recipe: Any, noise: NoiseSource | None) -> Source | None:
    """Canaries as a further source of training records; ``None`` if the recipe has none.

    Args:
        recipe: A ``Recipe``; its columns are text, or prompt and completion.
        noise: The run's source of noise.

    Raises:
        UsageError: The run has no secret to make canaries from.
    """
    import pyarrow as pa

    audit = getattr(recipe, "audit", None)
    if audit is None or not audit.canaries:
        return None
    rows = []
    for number, code in enumerate(_true_codes(audit.canaries, _need_noise(noise))):
        rows += [_write_canary(recipe.columns, number, code)] * audit.repetitions
    batch = pa.RecordBatch.from_pylist(rows)
    return Source(
        role="train", owner=CANARIES, name="canaries", weight=1.0, dataset=InMemory(batch)
    )


def _need_noise(noise: NoiseSource | None) -> NoiseSource:
    if noise is None:
        raise UsageError("canaries need the secret of the run", hint="give train() its secret")
    return noise


def audit_figures(
    work: TrainingContext[PhaseRecipe], model: Any, tokenizer: Any
) -> dict[str, float]:
    """The audit's metrics, by name.

    Args:
        work: After training.
        model: The trained model; left unchanged.
        tokenizer: Its tokenizer, ``None`` where it reads numbers.
    """
    audit = getattr(work.recipe, "audit", None)
    if audit is None:
        return {}
    figures: dict[str, float] = {}
    with pause_training(model):
        if audit.canaries:
            found = exposures(work.recipe, model, tokenizer, _need_noise(work.noise))
            figures["canary_exposure"] = sum(found) / len(found)
            figures["canary_exposure_max"] = max(found)
        if audit.membership and work.test_sources:
            figures["membership_auc"] = _membership(work, model, tokenizer)
    return figures


def exposures(recipe: Any, model: Any, tokenizer: Any, noise: NoiseSource) -> list[float]:
    """Exposure of every canary in bits, 0 to 8.

    Args:
        recipe: As ``canary_source``.
        model: In evaluation mode.
        tokenizer: Of the model.
        noise: The source that the canaries were derived from.
    """
    others = _codes(CODES - 1, noise, "others")
    found = []
    for number, code in enumerate(_true_codes(recipe.audit.canaries, noise)):
        rows = [_write_canary(recipe.columns, number, candidate) for candidate in (code, *others)]
        losses = _losses(recipe, model, tokenizer, rows)
        # Half of the ties rank ahead of the canary, so that a constant model exposes 1 bit.
        below = sum(loss < losses[0] for loss in losses[1:])
        equal = sum(loss == losses[0] for loss in losses[1:])
        found.append(math.log2(CODES) - math.log2(1 + below + equal / 2))
    return found


def _membership(work: TrainingContext[PhaseRecipe], model: Any, tokenizer: Any) -> float:
    from sklearn.metrics import roc_auc_score

    scores: list[float] = []
    member: list[int] = []
    trained = [source for source in work.train_sources if source.owner != CANARIES]
    for label, sources in ((1, trained), (0, work.test_sources)):
        rows = list(_some(sources, work.recipe.columns.names))
        scores += [-loss for loss in _losses(work.recipe, model, tokenizer, rows)]
        member += [label] * len(rows)
    return float(roc_auc_score(member, scores))


def _some(sources: Sequence[Source], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Up to ``_AT_MOST`` records, the same number of each source while they last."""
    share = max(1, _AT_MOST // max(1, len(sources)))
    for source in sources:
        left = share
        for batch in read_all([source], names):
            yield from read_rows(batch.slice(0, left))
            left -= min(left, batch.num_rows)
            if not left:
                break


def _losses(recipe: Any, model: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> list[float]:
    """Loss of every record, as training would have it. Raises ``TrainingDiverged``."""
    import torch

    found: list[float] = []
    with torch.no_grad():
        for at in range(0, len(rows), _BATCH):
            batch = _encode(recipe, tokenizer, rows[at : at + _BATCH])
            moved = {name: tensor.to(model.device) for name, tensor in batch.items()}
            losses = record_losses(model, moved, 0.0).double()
            require_finite_answers(losses, "losses")
            found += losses.tolist()
    return found


def _encode(recipe: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    if recipe.phase == "classify":
        from sealtrain.training.inputs.classifier import tabular_encoder, text_encoder

        if tokenizer is None:
            return tabular_encoder(recipe)(rows)
        return text_encoder(recipe, tokenizer)(rows)
    import torch

    columns, longest = recipe.columns, recipe.trainer.max_length
    batch = []
    for row in rows:
        before = row[columns.prompt] if columns.kind == "prompt-completion" else ""
        after = row[columns.completion] if before or columns.kind != "text" else row[columns.text]
        start = len(tokenizer(before, add_special_tokens=False)["input_ids"]) if before else 0
        ids = tokenizer(before + after, add_special_tokens=False)["input_ids"]
        batch.append(([*ids, tokenizer.eos_token_id][:longest], start))
    width = max(len(ids) for ids, _ in batch)
    inputs = torch.full((len(batch), width), tokenizer.pad_token_id, dtype=torch.int64)
    mask = torch.zeros_like(inputs)
    labels = torch.full_like(inputs, -100)
    for number, (ids, start) in enumerate(batch):
        inputs[number, : len(ids)] = torch.tensor(ids)
        mask[number, : len(ids)] = 1
        labels[number, start : len(ids)] = torch.tensor(ids[start:], dtype=torch.int64)
    return {"input_ids": inputs, "attention_mask": mask, "labels": labels}


def _write_canary(columns: Any, number: int, code: str) -> dict[str, Any]:
    """A canary as a record."""
    if columns.kind == "prompt-completion":
        return {columns.prompt: f"Audit code {number}: ", columns.completion: code}
    return {columns.text: f"Audit code {number}: {code}"}


def _true_codes(count: int, noise: NoiseSource) -> list[str]:
    return _codes(count, noise, "true")


def _codes(count: int, noise: NoiseSource, kind: str) -> list[str]:
    words = noise.derive("audit").words(count, kind)
    return [f"{int(word) % 10**_DIGITS:0{_DIGITS}d}" for word in words]
