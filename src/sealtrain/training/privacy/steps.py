"""DP-SGD in any Hugging Face trainer: Poisson sampling, one gradient a record, clipping, noise.

``made_private(Trainer, work)`` is the trainer's class with three things replaced:

1. its loader draws, for every step, each record by a coin of its own. The coins are secret: drawn
   from the recipe's public seed, they would reveal which records took part, and sampling would hide
   nothing;
2. its step takes a gradient for each record (Opacus' hooks), cuts each to ``max_grad_norm``, sums
   in float64, adds noise from ``privacy.noise`` to the sum and divides by the *expected* number of
   records. A batch that exceeds memory is processed in parts of ``per_device_train_batch_size``.
   No layer draws random numbers meanwhile (``privacy.determinism``);
3. its training ends with a check of the weights: every trained tensor must differ from its value
   before. Adapters whose gradients never reached the optimizer have been handed out as private
   models before (opacus#820).

The trainer's running loss stays 0: epsilon covers every figure that is computed from training
records. Sampling depends on the secret of the run and the step alone, noise on the step's sums too,
so a resumed run equals the uninterrupted one on processors that compute the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sealtrain.errors import UsageError
from sealtrain.recipe.conversations import read_rows
from sealtrain.recipe.phases.classify import ClassifyTextColumns
from sealtrain.training.data.columns import Projection
from sealtrain.training.data.hugging import as_iterable_dataset
from sealtrain.training.errors import PrivacyBroken
from sealtrain.training.privacy.accounting import make_plan
from sealtrain.training.privacy.clipping import ClippedSums, list_trained_parameters
from sealtrain.training.privacy.determinism import require_apart, without_draws
from sealtrain.training.privacy.noise import round_to_grid
from sealtrain.training.privacy.record import lot

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.sources import Source
    from sealtrain.training.privacy.accounting import Plan
    from sealtrain.training.privacy.noise import NoiseSource

_SOURCE = "sealtrain_source"


def training_rows(
    work: TrainingContext[PhaseRecipe], names: Mapping[str, str], *, numbered: bool = False
) -> Any:
    """Training rows as a ``datasets.IterableDataset``: endless and shuffled, or for DP each once.

    Args:
        work: recipe and sources.
        names: Column of the data → name it gets in the rows.
        numbered: Rows of a stream carry their position, as ``ROW``.
    """
    if work.recipe.privacy.dp != "sgd":
        stream = work.training_stream(names)
        stream.numbered = numbered
        return as_iterable_dataset(stream)
    rows: Any = _EachOnce(work.train_sources, names)
    return as_iterable_dataset(rows)


def private_arguments(recipe: Any) -> dict[str, Any]:
    """``TrainingArguments`` that DP-SGD fixes; none without it.

    A trainer step is one draw, in however many parts; the trainer's own clipping comes too late.
    """
    if recipe.privacy.dp != "sgd":
        return {}
    return {
        "per_device_train_batch_size": lot(recipe.trainer),
        "gradient_accumulation_steps": 1,
        "max_grad_norm": 0.0,
        "include_num_input_tokens_seen": "no",
    }


def make_private(trainer: type[Any], work: TrainingContext[PhaseRecipe]) -> type[Any]:
    """``trainer`` itself, or its private subclass where the recipe asks for DP-SGD.

    Args:
        trainer: ``transformers.Trainer`` or a subclass.
        work: its ``plan`` is set here.

    Raises:
        UsageError: The run has no secret to draw noise from.
        PrivacyBroken: No noise keeps the recipe's promise.
    """
    recipe = work.recipe
    if recipe.privacy.dp != "sgd":
        return trainer
    if work.noise is None:
        raise UsageError(
            "private training needs the secret of its run", hint="give train() the run's secret"
        )
    plan = make_plan(
        recipe.privacy,
        work.train_sources,
        batch=lot(recipe.trainer),
        steps=recipe.trainer.max_steps,
    )
    work.plan = plan
    noise = work.noise.derive("sgd")
    at_once = recipe.trainer.per_device_train_batch_size

    class PrivateTrainer(trainer):  # type: ignore[misc]  # a class chosen at run time
        """The trainer, private."""

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            if self.args.world_size != 1:
                raise UsageError(
                    "private training runs in one process",
                    got=f"{self.args.world_size} processes",
                    hint="start it on one accelerator",
                )
            # Rows that a trainer leaves out (longer than the model reads) never take part.
            self._rows = list(self.train_dataset)
            self._draws = _Draws(noise, _thresholds(plan, self._rows), plan.steps)
            self._gradients = RecordGradients(self.model, plan, noise)
            if self._rows and recipe.columns.kind != "tabular":
                most = min(37, getattr(recipe.trainer, "max_length", None) or 37)
                short, long = (self._row_of(length) for length in (max(1, most // 4), most))
                require_apart(self.model, partial(self._losses, self.model), short, long)

        def _row_of(self, tokens: int) -> dict[str, Any]:
            """A row that is no record's, of about so many tokens, in the form of those here."""
            made = dict(self._rows[0])
            if isinstance(recipe.columns, ClassifyTextColumns):
                made[recipe.columns.text] = "0 " * tokens
            for name, value in made.items():
                if isinstance(value, list):
                    made[name] = [1] * tokens if name != "input_ids" else [*range(3, 3 + tokens)]
            return made

        def _losses(self, model: Any, rows: list[Any]) -> Any:
            return record_losses(
                model,
                {
                    name: tensor.to(self.args.device)
                    for name, tensor in self.data_collator(rows).items()
                },
                self.args.label_smoothing_factor,
            )

        def get_train_dataloader(self) -> Any:
            from torch.utils.data import DataLoader

            loader: Any = DataLoader(self._draws, batch_size=1, collate_fn=_only)  # type: ignore[arg-type]
            return self.accelerator.prepare(loader)

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            import torch

            rows = inputs["rows"].tolist()
            for at in range(0, len(rows), at_once):
                part = [self._rows[row] for row in rows[at : at + at_once]]
                with without_draws(model):
                    losses = self._losses(model, part)
                    self.accelerator.backward(losses.sum())
                self._gradients.take(len(losses))
            self._gradients.give(step=self.state.global_step)
            return torch.zeros((), device=self.args.device)

        def train(self, *args: Any, **settings: Any) -> Any:
            before = _digests(self.model)
            done = super().train(*args, **settings)
            self._gradients.detach()
            unchanged = [name for name, digest in _digests(self.model).items()
                         if before[name] == digest]  # fmt: skip
            if unchanged and self.state.global_step:
                raise PrivacyBroken(
                    "private training left weights as they were",
                    check="weights",
                    got=f"{len(unchanged)} of {len(before)} tensors unchanged",
                    expected="noise alone changes every trained tensor",
                    hint="the optimizer never saw the private gradients, or learning_rate was 0",
                )
            return done

    return PrivateTrainer


class RecordGradients:
    """Gradients of single records, clipped and summed; then the noised mean as ``.grad``."""

    def __init__(self, model: Any, plan: Plan, noise: NoiseSource) -> None:
        """Attach to the trainable parameters of ``model``. Raises as ``ClippedSums``."""
        self._model, self._plan, self._noise = model, plan, noise
        self._sums = ClippedSums(model, plan.privacy.max_grad_norm)

    def detach(self) -> None:
        """Take the hooks off the model."""
        self._sums.detach()

    def take(self, records: int) -> None:
        """Clip and add the gradients that the last ``backward`` left for ``records`` records.

        Raises:
            ModelInvalid: A parameter does not have a gradient for each record.
        """
        self._sums.take(records)

    def give(self, *, step: int) -> None:
        """Set every trainable parameter's gradient to the noised sum over the expected records.

        Args:
            step: Optimizer steps done before this one; with the sums themselves it chooses the
                noise. So a step that is repeated has its noise again only where its sums are the
                same to the last bit: another processor's are not, and noise that both have would
                cancel in their difference.
        """
        import torch

        deviation = self._plan.noise_multiplier * self._plan.privacy.max_grad_norm
        sums = {name: summed.cpu().numpy() for name, summed in self._sums.pop().items()}
        mark = _mark(sums)
        for name, parameter in list_trained_parameters(self._model):
            drawn = self._noise.gaussian_noise(parameter.numel(), deviation, step, name, mark)
            total = drawn.reshape(tuple(parameter.shape))
            if name in sums:
                total = total + sums[name]
            mean = torch.from_numpy(round_to_grid(total, deviation) / self._plan.batch)
            parameter.grad = mean.to(device=parameter.device, dtype=parameter.dtype)


def _mark(sums: Mapping[str, Any]) -> str:
    """Digest of sums, arrays by name. It leaves only by way of the secret that noise comes from."""
    found = hashlib.sha256()
    for name in sorted(sums):
        array = sums[name]
        found.update(f"{name}/{array.dtype}/{array.shape}/".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def record_losses(model: Any, batch: dict[str, Any], smoothing: float) -> Any:
    """Loss of every record, float (records,): of its label, or the mean over its own tokens.

    Args:
        model: Gives logits (records, labels) or (records, tokens, vocabulary).
        batch: Inputs and ``labels``, int64 (records,) or (records, tokens) with -100 where none.
        smoothing: Label smoothing, 0 to 1.
    """
    from torch.nn.functional import cross_entropy

    labels = batch.pop("labels")
    if labels.dim() == 1:
        scores = model(**batch).logits.float()
        return cross_entropy(scores, labels, reduction="none", label_smoothing=smoothing)
    logits = model(**batch, use_cache=False).logits[:, :-1].float()
    wanted = labels[:, 1:]
    losses = cross_entropy(
        logits.transpose(1, 2),
        wanted,
        ignore_index=-100,
        reduction="none",
        label_smoothing=smoothing,
    )
    return losses.sum(1) / (wanted != -100).sum(1).clamp(min=1)


class _EachOnce:
    """Every training row once, source after source, as ``training.data.hugging`` reads a stream."""

    def __init__(self, sources: Sequence[Source], names: Mapping[str, str]) -> None:
        import pyarrow as pa

        self._projection = Projection(sources, list(names), names)
        self.stream = self
        self.schema = self._projection.schema.append(pa.field(_SOURCE, pa.int64()))
        self.position = 0

    def rows(self, start: int | None = None) -> Iterator[dict[str, Any]]:
        for number, source in enumerate(self._projection.sources):
            for batch in range(len(source.dataset.batch_rows)):
                for row in read_rows(self._projection.read(number, batch)):
                    yield row | {_SOURCE: number}


class _Draws:
    """Rows of each step, as a data set of ``steps`` items."""

    def __init__(self, noise: NoiseSource, thresholds: Any, steps: int) -> None:
        self._noise, self._thresholds, self._steps = noise, thresholds, steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> dict[str, Any]:
        import torch

        if not 0 <= step < self._steps:
            raise IndexError(step)
        return {"rows": torch.from_numpy(self._noise.choose(self._thresholds, "rows", step))}


def _thresholds(plan: Plan, rows: list[dict[str, Any]]) -> Any:
    """Chance of every row in 2**-64, uint64 (rows,)."""
    import numpy as np

    chances = [min(int(rate * 2.0**64), (1 << 64) - 1) for rate in plan.rates]
    if any(_SOURCE not in row for row in rows):
        raise PrivacyBroken(
            "the trainer does not read one row for each record",
            check="sampling",
            hint="leave out settings that join or split records, such as packing",
        )
    return np.array([chances[row.pop(_SOURCE)] for row in rows], dtype=np.uint64)


def _digests(model: Any) -> dict[str, bytes]:
    from sealtrain.training.checkpoints.statefile import bytes_of

    return {
        name: hashlib.sha256(bytes_of(parameter.detach().cpu().contiguous())).digest()
        for name, parameter in list_trained_parameters(model)
    }


def _only(items: list[Any]) -> Any:
    return items[0]
