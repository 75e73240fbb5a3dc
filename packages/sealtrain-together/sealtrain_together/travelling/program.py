"""Program ``loop``: a GPT-2 that learns from tokens in its buffer.

Model and optimizer stay in the accelerator's memory from trip to trip. The same code runs on a CPU
and, where there is one, on a CUDA device.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from sealtrain.base.canonical import JsonValue
from sealtrain.base.models import StrictModel, load_model
from sealtrain.base.secret import Random
from sealtrain.errors import DataInvalid, UsageError
from sealtrain.recipe.collaborations.travelling import program_of, token_bytes
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.privacy import SequencePrivacy
from sealtrain.training.checkpoints.kernels import deterministic
from sealtrain.training.finite import refuse_not_finite
from sealtrain.training.model_files import model_files
from sealtrain_together.travelling.bounds import PrivateSteps, bound_moves
from sealtrain_together.travelling.states import read_state, write_state

if TYPE_CHECKING:
    import torch

    from sealtrain.recipe.schema import PhaseRecipe

_drawing = threading.Lock()
"""torch has one source of first weights for all threads, and transformers loads on first use."""
_Size = Annotated[int, Field(ge=1, le=1 << 20)]


class ProgramSettings(StrictModel):
    """Model, optimizer and the form of a batch.

    Attributes:
        n_layer, n_head, n_embd: Of GPT-2.
        vocab_size: Every token must lie below.
        seq_len: Tokens of a sequence, T.
        batch_size: Sequences of a step, B.
        learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon: Of AdamW, constant.
        max_grad_norm: Gradients of a step are cut to this L2 norm; 0 for never, and where each
            sequence's own is cut already.
        dtype: Of parameters, gradients and moments.
        privacy: What hides single sequences; ``None`` for nothing.
        max_update_norm: How far one chunk may move the weights, L2; 0 for any.
        seed: Of the first weights.
        device: Where it computes.
    """

    version: Literal[1] = 1
    n_layer: _Size
    n_head: _Size
    n_embd: _Size
    vocab_size: Annotated[int, Field(ge=2, le=1 << 20)]
    seq_len: _Size
    batch_size: _Size
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    adam_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-8
    max_grad_norm: Annotated[float, Field(ge=0, le=1_000_000)] = 1.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    privacy: SequencePrivacy | None = None
    max_update_norm: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=1 << 32)]
    device: Literal["cpu", "cuda"] = "cpu"

    @classmethod
    def from_dict(cls, value: JsonValue) -> ProgramSettings:
        """Parse the JSON form. Raises ``DataInvalid``."""
        return load_model(cls, value, DataInvalid, "program settings")

    @classmethod
    def of(cls, recipe: PhaseRecipe, device: Literal["cpu", "cuda"]) -> ProgramSettings:
        """What a recipe means, on a device. Raises ``DataInvalid``."""
        return cls.from_dict({**program_of(recipe), "device": device})

    def to_dict(self) -> dict[str, JsonValue]:
        """JSON form; bounds that are not set and the type float32 are left out."""
        fields = super().to_dict()
        unset = {
            "dtype": self.dtype == "float32",
            "privacy": self.privacy is None,
            "max_update_norm": not self.max_update_norm,
        }
        return {name: field for name, field in fields.items() if not unset.get(name, False)}

    @property
    def step_bytes(self) -> int:
        """Bytes of the buffer that one step reads; the next step begins behind them."""
        return self.batch_size * self.sequence_bytes

    @property
    def sequence_bytes(self) -> int:
        """Bytes of one sequence."""
        return self.seq_len * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in the buffer."""
        return token_bytes(self.vocab_size)


class TravellingModel:
    """A model in training.

    Args:
        settings: What to build.
        state: Safetensors bytes of an earlier ``state``; ``None`` begins anew.
        random: Source of the secret that noise is drawn from.

    Raises:
        ModelInvalid: The state belongs to another model.
    """

    def __init__(
        self,
        settings: ProgramSettings,
        state: bytes | None = None,
        *,
        random: Random = os.urandom,
    ) -> None:
        import torch

        with _drawing:
            from transformers import GPT2Config, GPT2LMHeadModel

        self.settings = settings
        config = GPT2Config(
            n_layer=settings.n_layer,
            n_head=settings.n_head,
            n_embd=settings.n_embd,
            vocab_size=settings.vocab_size,
            n_positions=settings.seq_len,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        with _drawing:
            torch.manual_seed(settings.seed)
            model: Any = GPT2LMHeadModel(config)
        self.model = model.to(settings.device, getattr(torch, settings.dtype))
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_epsilon,
            weight_decay=settings.weight_decay,
            fused=False,
            foreach=settings.device == "cuda",  # a kernel for each tensor waits for Python
        )
        self._steps = 0
        self._private = (
            None
            if settings.privacy is None
            else PrivateSteps(self.model, settings.privacy, settings.batch_size, random)
        )
        self.moved: float | None = None
        """How far the last chunk moved the weights before it was cut; ``None`` for no bound, -1
        for not finite."""
        if state is not None:
            self.restore(state)

    def train(self, tokens: memoryview) -> tuple[int, float]:
        """Learn from the whole steps in ``tokens``.

        Args:
            tokens: Little endian, ``settings.token_bytes`` each.

        Returns:
            How many tokens were trained on, and the mean loss: nats for each token; 0 under
            privacy, which covers no such figure.

        Raises:
            DataInvalid: Not one whole step, or a token that the model has no row for.
            TrainingDiverged: The loss is not a finite number, and no bound takes the update back.
        """
        batches = self._batches(tokens)
        self.model.train()
        most = self.settings.max_update_norm
        if most:
            with bound_moves(self.model, self.optimizer, most) as moved:
                loss = self._learn(batches)
            self.moved = moved()
        else:
            loss = self._learn(batches)
            refuse_not_finite(self._steps, {"loss": loss})
        return batches.numel(), loss

    def gradient(self, tokens: memoryview) -> tuple[bytes, float]:
        """The gradient of the mean loss over ``tokens``, as ``train`` would compute it.

        Args:
            tokens: Whole sequences, at most those of one step.

        Returns:
            Float32 of all parameters, one after the other, and the loss.

        Raises:
            DataInvalid: As ``train``.
            UsageError: The program hides sequences; a bare gradient does not.
        """
        import torch

        if self._private is not None:
            raise UsageError(
                "a program that hides sequences gives no bare gradients",
                hint="leave privacy out of its settings, or let it train",
            )
        rows = self._batches(tokens, sequences=len(tokens) // self.settings.sequence_bytes)[0]
        self.model.train()
        with self._same_bits():
            loss = float(self._backward(rows))
        flat = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
        self.optimizer.zero_grad(set_to_none=True)
        return flat.cpu().numpy().astype("<f4", copy=False).tobytes(), loss

    def apply(self, gradient: bytes) -> None:
        """Take a step along a gradient as ``gradient`` gives it.

        Raises:
            DataInvalid: It is of another model.
        """
        import torch

        flat = torch.frombuffer(bytearray(gradient), dtype=torch.float32)
        named = list(self.model.parameters())
        if flat.numel() != sum(parameter.numel() for parameter in named):
            raise DataInvalid("a gradient belongs to another model", got=flat.numel())
        parts = torch.split(flat, [parameter.numel() for parameter in named])
        for parameter, part in zip(named, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.device)
        self._update()

    def _batches(self, tokens: memoryview, sequences: int | None = None) -> torch.Tensor:
        """The whole steps in ``tokens``, int64 (steps, sequences, seq_len)."""
        import numpy as np
        import torch

        settings = self.settings
        many = settings.batch_size if sequences is None else sequences
        step_bytes = many * settings.sequence_bytes
        steps = len(tokens) // step_bytes if step_bytes else 0
        if not steps:
            raise DataInvalid(
                "a chunk is shorter than one step",
                got=f"{len(tokens)} bytes",
                expected=f"at least {step_bytes or settings.sequence_bytes}",
            )
        kind = f"<u{settings.token_bytes}"
        ids = np.frombuffer(tokens[: steps * step_bytes], dtype=kind).astype(np.int64)
        if int(ids.max()) >= settings.vocab_size:
            raise DataInvalid(
                "a chunk holds a token beyond the vocabulary",
                expected=f"below {settings.vocab_size}",
            )
        return torch.from_numpy(ids).view(steps, many, settings.seq_len)

    def _learn(self, batches: torch.Tensor) -> float:
        """Take one step for each batch; the mean loss."""
        losses, total = [], 0.0
        with self._same_bits():
            for batch in batches:
                rows = batch.to(self.settings.device)
                if self._private is None:
                    losses.append(self._backward(rows))
                else:
                    self._private.backward(rows)
                self._update()
        for loss in losses:  # read here: a GPU that is asked in between waits for the next step
            total += float(loss)
        return total / len(batches)

    def _same_bits(self) -> AbstractContextManager[None]:
        """On a processor every kernel gives the same bits, for as many threads as it has."""
        return nullcontext() if self.settings.device == "cpu" else deterministic()

    def _backward(self, rows: torch.Tensor) -> torch.Tensor:
        import torch

        logits = self.model(input_ids=rows).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        torch.autograd.backward(loss)
        detached: torch.Tensor = loss.detach()
        return detached

    def _update(self) -> None:
        import torch

        if self.settings.max_grad_norm and self._private is None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._steps += 1

    def state(self) -> bytes:
        """Parameters, optimizer state and step, as safetensors; equal states are equal bytes."""
        return write_state(self.tensors(), self.settings.to_dict(), self._steps)

    def close(self) -> None:
        """Nothing of it runs between chunks."""

    def digest(self) -> str:
        """SHA-256 of the model state (spec/travelling.md §4), hex."""
        import torch

        digest = hashlib.sha256(f"step {self._steps}\n".encode())
        for name, tensor in self.tensors():
            shape = ",".join(map(str, tensor.shape))
            digest.update(f"{name} {tensor.dtype} [{shape}]\n".encode())
            flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(memoryview(flat.numpy().data))
        return digest.hexdigest()

    def files(self) -> dict[str, bytes]:
        """The model's files as ``from_pretrained`` reads them."""
        return model_files(self.model, None)

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._steps

    def list_fixed(self) -> list[tuple[str, torch.Tensor]]:
        """What training never changes, by name: buffers, and parameters without a gradient."""
        frozen = {
            f"model.{name}": parameter.detach()
            for name, parameter in self.model.named_parameters()
            if not parameter.requires_grad
        }
        beside = {f"buffer.{name}": buffer for name, buffer in self.model.named_buffers()}
        return sorted({**frozen, **beside}.items())

    def code(self) -> list[type]:
        """Classes whose functions compute: of the model's layers and of the optimizer."""
        objects = [*self.model.modules(), self.optimizer]
        classes = {kind for item in objects for kind in type(item).__mro__ if kind is not object}
        return sorted(classes, key=lambda kind: (kind.__module__, kind.__qualname__))

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The state by name: parameters, and what the optimizer keeps of each."""
        named = dict(self.model.named_parameters())
        tensors = {f"model.{name}": parameter.detach() for name, parameter in named.items()}
        for name, parameter in named.items():
            for part, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{part}"] = (
                    value.reshape(-1) if not value.dim() else value
                )
        return sorted(tensors.items())

    def restore(self, state: bytes) -> None:
        """Go on from an earlier ``state``. Raises ``ModelInvalid`` where it is another model's."""
        import torch

        tensors, self._steps = read_state(state, self.settings.to_dict())
        named = dict(self.model.named_parameters())
        expected = {f"model.{name}" for name in named}
        if {name for name in tensors if name.startswith("model.")} != expected:
            raise ModelInvalid("the model state belongs to another model")
        with torch.no_grad():
            for name, parameter in named.items():
                kept = tensors[f"model.{name}"]
                if kept.shape != parameter.shape:
                    raise ModelInvalid("the model state belongs to another model", got=name)
                parameter.copy_(kept)
                parts = {
                    part: tensors[f"optimizer.{name}.{part}"]
                    for part in ("step", "exp_avg", "exp_avg_sq")
                    if f"optimizer.{name}.{part}" in tensors
                }
                self.optimizer.state.pop(parameter, None)
                if parts:
                    self.optimizer.state[parameter] = {
                        part: value.reshape(()) if part == "step" else value.to(parameter.device)
                        for part, value in parts.items()
                    }


def rehearse(settings: ProgramSettings) -> None:
    """Do once, in small, all that a program does, so that it loads no code while it trains."""
    small = settings.model_copy(
        update={"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 8, "seq_len": 8}
    )
    program = TravellingModel(small)
    program.train(memoryview(bytes(small.step_bytes)))
    program.restore(program.state())
