"""What the accelerator computes: a GPT-2 that learns from tokens in its buffer.

Model and optimizer stay in the accelerator's memory from trip to trip. The same code runs on a CPU
and, where there is one, on a CUDA device.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.models import StrictModel, load_model
from sealtrain.errors import DataInvalid, ModelInvalid

if TYPE_CHECKING:
    import torch

__all__ = ["Program", "ProgramSettings"]

TOKEN_BYTES = 2
MAX_STATE_BYTES = 4 << 30
_Size = Annotated[int, Field(ge=1, le=1 << 20)]


class ProgramSettings(StrictModel):
    """Model, optimizer and the form of a batch.

    Attributes:
        n_layer, n_head, n_embd: Of GPT-2.
        vocab_size: Every token must lie below.
        seq_len: Tokens of a sequence, T.
        batch_size: Sequences of a step, B.
        learning_rate: Of AdamW, constant.
        seed: Of the first weights.
        device: Where it computes.
    """

    version: Literal[1] = 1
    n_layer: _Size
    n_head: _Size
    n_embd: _Size
    vocab_size: Annotated[int, Field(ge=2, le=1 << 16)]
    seq_len: _Size
    batch_size: _Size
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    seed: Annotated[int, Field(ge=0, lt=1 << 32)]
    device: Literal["cpu", "cuda"] = "cpu"

    @classmethod
    def from_dict(cls, value: JsonValue) -> ProgramSettings:
        """Parse the JSON form. Raises ``DataInvalid``."""
        return load_model(cls, value, DataInvalid, "program settings")

    @property
    def step_bytes(self) -> int:
        """Bytes of the buffer that one step reads; the next step begins behind them."""
        return self.batch_size * self.seq_len * TOKEN_BYTES


class Program:
    """A model in training.

    Args:
        settings: What to build.
        state: Safetensors bytes of an earlier ``state``; ``None`` begins anew.

    Raises:
        ModelInvalid: The state belongs to another model.
    """

    def __init__(self, settings: ProgramSettings, state: bytes | None = None) -> None:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        self.settings = settings
        torch.manual_seed(settings.seed)
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
        model: Any = GPT2LMHeadModel(config)
        self._model = model.to(settings.device)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=settings.learning_rate, fused=False, foreach=False
        )
        self._steps = 0
        if state is not None:
            self._restore(state)

    def train(self, tokens: memoryview) -> tuple[int, float]:
        """Learn from the whole steps in ``tokens``.

        Args:
            tokens: uint16, little endian.

        Returns:
            How many tokens were trained on, and the mean loss (nats for each token).

        Raises:
            DataInvalid: Not one whole step, or a token that the model has no row for.
        """
        import numpy as np
        import torch

        settings = self.settings
        steps = len(tokens) // settings.step_bytes
        if not steps:
            raise DataInvalid(
                "a chunk is shorter than one step",
                got=f"{len(tokens)} bytes",
                expected=f"at least {settings.step_bytes}",
            )
        ids = np.frombuffer(tokens[: steps * settings.step_bytes], dtype="<u2").astype(np.int64)
        if int(ids.max()) >= settings.vocab_size:
            raise DataInvalid(
                "a chunk holds a token beyond the vocabulary",
                expected=f"below {settings.vocab_size}",
            )
        batches = torch.from_numpy(ids).view(steps, settings.batch_size, settings.seq_len)
        self._model.train()
        total = 0.0
        for batch in batches:
            rows = batch.to(settings.device)
            logits = self._model(input_ids=rows).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            torch.autograd.backward(loss)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            total += float(loss.detach())
        self._steps += steps
        return ids.size, total / steps

    def state(self) -> bytes:
        """Parameters, optimizer state and step, as safetensors."""
        from safetensors.torch import save

        metadata = {"step": str(self._steps), "settings": canonical_json(self._kept()).decode()}
        return save({name: one.cpu().contiguous() for name, one in self._tensors()}, metadata)

    def digest(self) -> str:
        """SHA-256 of the model state (spec/travelling.md §4), hex."""
        import torch

        digest = hashlib.sha256(f"step {self._steps}\n".encode())
        for name, tensor in self._tensors():
            shape = ",".join(map(str, tensor.shape))
            digest.update(f"{name} {tensor.dtype} [{shape}]\n".encode())
            flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(memoryview(flat.numpy().data))
        return digest.hexdigest()

    def _kept(self) -> dict[str, JsonValue]:
        return self.settings.to_dict()

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        named = dict(self._model.named_parameters())
        tensors = {f"model.{name}": one.detach() for name, one in named.items()}
        for name, one in named.items():
            for part, value in self._optimizer.state.get(one, {}).items():
                tensors[f"optimizer.{name}.{part}"] = (
                    value.reshape(-1) if not value.dim() else value
                )
        return sorted(tensors.items())

    def _restore(self, state: bytes) -> None:
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(state)
        except SafetensorError as error:
            raise ModelInvalid("the model state is no safetensors file") from error
        # Loaded above, so the header is whole and JSON; the library shows no metadata of bytes.
        header = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])
        metadata = header.get("__metadata__", {})
        if metadata.get("settings") != canonical_json(self._kept()).decode():
            raise ModelInvalid("the model state belongs to another program")
        self._steps = int(metadata["step"])
        named = dict(self._model.named_parameters())
        expected = {f"model.{name}" for name in named}
        if {name for name in tensors if name.startswith("model.")} != expected:
            raise ModelInvalid("the model state belongs to another model")
        with torch.no_grad():
            for name, one in named.items():
                kept = tensors[f"model.{name}"]
                if kept.shape != one.shape:
                    raise ModelInvalid("the model state belongs to another model", got=name)
                one.copy_(kept)
                parts = {
                    part: tensors[f"optimizer.{name}.{part}"]
                    for part in ("step", "exp_avg", "exp_avg_sq")
                    if f"optimizer.{name}.{part}" in tensors
                }
                if parts:
                    self._optimizer.state[one] = {
                        part: value.reshape(()) if part == "step" else value.to(one.device)
                        for part, value in parts.items()
                    }
