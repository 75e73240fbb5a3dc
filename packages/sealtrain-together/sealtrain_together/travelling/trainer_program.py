"""Program ``trainer``: the recipe's own phase, which learns from rows in the lent buffer.

Base model, adapter, trainer, schedule and optimizer are those that the phase makes of the recipe
anywhere else; only its rows come from the buffer, chunk by chunk. Between two chunks the trainer
stands still. The state is then what training changes: weights with a gradient, the optimizer's, and
the random generator's. The rest of the model is of the recipe, and is compared at every boundary.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import Hex64, StrictModel, load_model
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.collaborations.travelling import WORD_BYTES, program_of
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.basefiles import add_base_files
from sealtrain.training.finite import refuse_not_finite
from sealtrain.training.model_files import model_files
from sealtrain_together.travelling.rows import read_rows, write_row
from sealtrain_together.travelling.states import read_state, write_state

if TYPE_CHECKING:
    import torch

    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.training.context import PhaseResult, TrainingContext
    from sealtrain.training.data.feed import Feed

_NO_RUN: Final = "00" * 16
"""Of a training that seals nothing, so that binds nothing to its run."""
_REHEARSED_TOKENS: Final = 8
_Size = Annotated[int, Field(ge=1, le=1 << 32)]


class TrainerSettings(StrictModel):
    """What is trained, and the form of its rows.

    Attributes:
        phase: Of the recipe.
        recipe: SHA-256 of its canonical JSON, as the lock holds it.
        seq_len: Words of a row.
        batch_size: Rows of an optimizer step.
        max_update_norm: How far one chunk may move the weights, L2; 0 for any.
        device: Where it computes.
    """

    version: Literal[1] = 1
    phase: Literal["cpt", "sft"]
    recipe: Hex64
    seq_len: _Size
    batch_size: _Size
    max_update_norm: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    device: Literal["cpu", "cuda"] = "cpu"

    @classmethod
    def from_dict(cls, value: JsonValue) -> TrainerSettings:
        """Parse the JSON form. Raises ``DataInvalid``."""
        return load_model(cls, value, DataInvalid, "program settings")

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON form; a bound that is not set is left out."""
        fields = super().to_dict()
        return {name: value for name, value in fields.items() if value or name != "max_update_norm"}

    @property
    def step_bytes(self) -> int:
        """Bytes of the buffer that one step reads; the next step begins behind them."""
        return self.batch_size * self.sequence_bytes

    @property
    def sequence_bytes(self) -> int:
        """Bytes of one row."""
        return self.seq_len * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of a word in the buffer."""
        return WORD_BYTES

    @property
    def privacy(self) -> None:
        """Nothing hides single rows."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a guest has of a recipe, besides its settings.

    Attributes:
        recipe: The lock's.
        base_dir: Folder that its paths start from.
    """

    recipe: PhaseRecipe
    base_dir: Path


class TrainerProgram:
    """A training that stands still between chunks; one at a time in a process, as of any trainer.

    Args:
        settings: Of ``training``.
        training: Recipe, and where its base lies.
        state: Safetensors bytes of an earlier ``state``; ``None`` begins anew.

    Raises:
        ModelInvalid: The base cannot be built, or the state belongs to another training.
        UsageError: The device is not there.
    """

    def __init__(
        self, settings: TrainerSettings, training: Training, state: bytes | None = None
    ) -> None:
        import pyarrow as pa
        import torch

        from sealtrain.training.data.feed import Feed

        expected = program_of(training.recipe)
        if {
            name: value for name, value in settings.to_dict().items() if name != "device"
        } != expected:
            raise ModelInvalid("the program is another recipe's", check="program")
        if settings.device == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                "this machine has no CUDA device", check="device", hint="leave --device cuda out"
            )
        self.settings = settings
        self.moved: float | None = None
        """As ``Program.moved``."""
        self._training = training
        self._before = 0
        """Steps before this process's."""
        self._losses: list[float] = []
        self._built: tuple[Any, Any] | None = None
        numbers = pa.list_(pa.int64())
        row = [0] * min(_REHEARSED_TOKENS, settings.seq_len)
        self._feed: Feed = Feed(
            pa.schema({"input_ids": numbers, "labels": numbers}), {"input_ids": row, "labels": row}
        )
        self._feed.begin(self._train)
        self._optimizer: Any = self._feed.trainer.optimizer
        self._random = _random_states(settings.device)
        """Of the training alone: between chunks others may draw in this process."""
        self._trained = [
            parameter for parameter in self._model.named_parameters() if parameter[1].requires_grad
        ]
        if state is not None:
            self.restore(state)

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._before + int(self._feed.trainer.state.global_step)

    def train(self, chunk: memoryview) -> tuple[int, float]:
        """Learn from the whole steps in ``chunk``.

        Args:
            chunk: Rows as words (``travelling.rows``).

        Returns:
            How many words were trained on, padding included, and the mean loss of the steps.

        Raises:
            DataInvalid: Not one whole step, or rows that the recipe does not mean.
            TripBroken: Training broke off, or had done all its steps.
            TrainingDiverged: As ``Program.train``.
        """
        from sealtrain_together.travelling.bounds import bound_moves

        settings = self.settings
        steps = len(chunk) // settings.step_bytes
        if not steps:
            raise DataInvalid(
                "a chunk is shorter than one step",
                got=f"{len(chunk)} bytes",
                expected=f"at least {settings.step_bytes}",
            )
        rows = read_rows(
            chunk[: steps * settings.step_bytes],
            settings.seq_len,
            int(self._model.get_input_embeddings().weight.shape[0]),
            rows_a_step=settings.batch_size,
            whole=settings.phase == "cpt",
        )
        self._losses.clear()
        if settings.max_update_norm:
            with bound_moves(self._model, self._optimizer, settings.max_update_norm) as moved:
                self._learn(rows)
            self.moved = moved()
        else:
            self._learn(rows)
            refuse_not_finite(self.steps, {"loss": sum(self._losses)})
        return steps * settings.batch_size * settings.seq_len, sum(self._losses) / steps

    def state(self) -> bytes:
        """What training changes, as safetensors; equal states are equal bytes."""
        return write_state(self.tensors(), self.settings.to_dict(), self.steps)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The state by name: trained weights, what the optimizer keeps of each, random state."""
        tensors = {f"model.{name}": parameter.detach() for name, parameter in self._trained}
        for name, parameter in self._trained:
            for part, value in self._optimizer.state.get(parameter, {}).items():
                if value is not None:
                    tensors[f"optimizer.{name}.{part}"] = _as_tensor(value)
        tensors |= {f"random.{device}": state for device, state in self._random.items()}
        return sorted(tensors.items())

    def list_fixed(self) -> list[tuple[str, torch.Tensor]]:
        """As ``Program.list_fixed``."""
        frozen = {
            f"model.{name}": parameter.detach()
            for name, parameter in self._model.named_parameters()
            if not parameter.requires_grad
        }
        beside = {f"buffer.{name}": buffer for name, buffer in self._model.named_buffers()}
        return sorted({**frozen, **beside}.items())

    def code(self) -> list[type]:
        """Classes whose functions compute: of layers, optimizer, trainer and collator."""
        trainer = self._feed.trainer
        objects = [*self._model.modules(), self._optimizer, trainer, trainer.data_collator]
        classes = {kind for item in objects for kind in type(item).__mro__ if kind is not object}
        return sorted(classes, key=lambda kind: (kind.__module__, kind.__qualname__))

    def restore(self, state: bytes) -> None:
        """Go on from an earlier ``state``. Raises ``ModelInvalid`` where it is another training's.

        The learning rate follows from the step.
        """
        import torch

        tensors, step = read_state(state, self.settings.to_dict())
        weights = {name: tensors.pop(f"model.{name}", None) for name, _ in self._trained}
        with torch.no_grad():
            for name, parameter in self._trained:
                kept = weights[name]
                if kept is None or kept.shape != parameter.shape or kept.dtype != parameter.dtype:
                    raise ModelInvalid("the model state belongs to another model", got=name)
                parameter.copy_(kept)
                parts = _parts_of(tensors, f"optimizer.{name}.")
                self._optimizer.state.pop(parameter, None)
                if parts:
                    self._optimizer.state[parameter] = {
                        part: value.to(parameter.device)
                        if isinstance(value, torch.Tensor) and value.dim()
                        else value
                        for part, value in parts.items()
                    }
        self._stand_at(step)
        # A device that the state does not know of goes on with the draws of its own.
        self._random |= _parts_of(tensors, "random.")

    def files(self) -> dict[str, bytes]:
        """The model's files as the phase leaves them; ends the training."""
        from sealtrain.training.models.merging import merge_adapter

        self._feed.end()
        if self._built is None:
            raise ModelInvalid("the training left no model", check="model")
        model, tokenizer = self._built
        recipe = self._training.recipe
        if recipe.peft is not None and recipe.peft.merge:
            model = merge_adapter(model, None, recipe.model.dtype)
        files = model_files(model, tokenizer)
        return add_base_files(files, recipe, self._training.base_dir, tokenizer)

    def close(self) -> None:
        """End the training: its thread is gone afterwards."""
        self._feed.end()

    @property
    def _model(self) -> Any:
        return self._feed.trainer.model

    def _learn(self, rows: list[dict[str, Any]]) -> None:
        import torch

        torch.set_rng_state(self._random["cpu"])
        if "cuda" in self._random and self.settings.device == "cuda":
            torch.cuda.set_rng_state(self._random["cuda"])
        self._feed.give(rows)
        self._random |= _random_states(self.settings.device)

    def _stand_at(self, step: int) -> None:
        """Let the trainer go on from a step of its schedule."""
        self._before = step - int(self._feed.trainer.state.global_step)
        schedule: Any = self._feed.trainer.lr_scheduler
        schedule = getattr(schedule, "scheduler", schedule)
        if step:
            schedule.last_epoch = step - 1
            schedule.step()

    def _train(self) -> None:
        recipe = _as_fed(self._training.recipe)
        machinery = _machinery(self._feed, self._losses, on_cpu=self.settings.device == "cpu")
        phase = import_module(f"sealtrain.training.phases.{recipe.phase}")
        with training_context(recipe, self._training.base_dir, machinery) as work:
            work.context.takes_back = bool(self.settings.max_update_norm)
            work.feed = self._feed
            result: PhaseResult = phase.train(work)
        self._built = result.model, result.tokenizer


def rehearse(settings: TrainerSettings, training: Training) -> None:
    """Train one step on rows of a few tokens, so that nothing is loaded while it trains later."""
    program = TrainerProgram(settings, training)
    step = memoryview(bytearray(settings.step_bytes))
    whole = settings.phase == "cpt"
    ids = [0] * (settings.seq_len if whole else min(_REHEARSED_TOKENS, settings.seq_len))
    for start in range(0, len(step), settings.sequence_bytes):
        write_row({"input_ids": ids}, step[start : start + settings.sequence_bytes])
    program.train(step)
    program.restore(program.state())
    program.close()


@contextmanager
def training_context(
    recipe: Any, base_dir: Path, machinery: Any
) -> Iterator[TrainingContext[PhaseRecipe]]:
    """A training that seals nothing and tells nothing.

    Args:
        recipe: To train.
        base_dir: Folder that its paths start from.
        machinery: Of its backend.
    """
    from sealtrain.training.checkpoints.kernels import deterministic
    from sealtrain.training.checkpoints.run_context import RunContext
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.telemetry.metric_gate import MetricGate

    context = RunContext(
        run_id=_NO_RUN,
        store=None,
        gate=MetricGate(recipe.release_policy),
        on_checkpoint=lambda ref: None,
        resume=None,
        arguments=recipe.trainer,
        machinery=machinery,
    )
    with (
        tempfile.TemporaryDirectory(prefix="sealtrain-") as scratch,
        closing(context),
        deterministic(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # a warning's text may quote a value
        yield TrainingContext(
            recipe=recipe,
            base_dir=base_dir,
            scratch=Path(scratch),
            train_sources=[],
            test_sources=[],
            context=context,
        )


def _as_fed(recipe: Any) -> Any:
    """The recipe for rows whose labels are made already: no record is read for them."""
    made = {"assistant_only_loss": False, "completion_only_loss": False}
    there = {name: setting for name, setting in made.items() if hasattr(recipe.trainer, name)}
    return recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update=there)})


def _machinery(feed: Feed, losses: list[float], *, on_cpu: bool) -> Any:
    """One process, whose trainer reads a feed.

    Args:
        feed: Its rows.
        losses: Gets the loss of each forward pass, as a part of its step's.
        on_cpu: Compute there whatever devices there are.
    """
    from sealtrain.training.distributed.machinery import Copies

    class Fed(Copies):
        """See above."""

        def arguments(self) -> dict[str, Any]:
            return {"use_cpu": on_cpu}

        def trainer(self, kind: type[Any]) -> type[Any]:
            class FedTrainer(kind):  # type: ignore[misc]  # a class chosen at run time
                """The phase's trainer, on rows that are given."""

                def get_train_dataloader(self) -> Any:
                    feed.trainer = self
                    # Accelerate's loader reads a batch ahead, which is not there yet.
                    return super().get_train_dataloader().base_dataloader

                def training_step(self, *inputs: Any, **named: Any) -> Any:
                    loss = super().training_step(*inputs, **named)
                    losses.append(float(loss))
                    return loss

            return FedTrainer

    return Fed()


def _random_states(device: str) -> dict[str, torch.Tensor]:
    import torch

    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if device == "cuda" else {})


def _as_tensor(value: Any) -> torch.Tensor:
    """A part of an optimizer's state; a plain number has 64 bits, as no tensor of one has."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.reshape(-1) if not value.dim() else value
    return torch.tensor([value], dtype=torch.int64 if isinstance(value, int) else torch.float64)


def _parts_of(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    """What ``_as_tensor`` was given, by part."""
    import torch

    parts: dict[str, Any] = {}
    for name in [name for name in tensors if name.startswith(prefix)]:
        part, value = name.removeprefix(prefix), tensors[name]
        if value.dtype in (torch.int64, torch.float64) and value.numel() == 1:
            parts[part] = value.item()
        elif part == "step":
            parts[part] = value.reshape(())
        else:
            parts[part] = value
    return parts
