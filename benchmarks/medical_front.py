"""The layers below every adapter, run once per record instead of once per step.

Adapters of every way lie on the encoder's upper layers, so what embeddings and lower layers make of
a record never changes. They are frozen and run without dropout, as the owners' half of a cut model
does (``sealtrain_together.cut``), and each record is read alone, so that its activations do not
depend on the batch it was first seen in. All ways use the same activations.

The head of a BERT reads the first token, so of the last layer only that token's output is computed,
from the keys and values of all tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from sealtrain_together.cut.cut import Front, layer_list


class KeptFront:
    """Activations of the records that were seen, by their tokens.

    Args:
        model: The encoder with its head; used up.
        layers: How many layers lie below the adapters.
    """

    def __init__(self, model: Any, layers: int) -> None:
        self.layers = layers
        self._front = Front(model, layers)
        self._kept: dict[tuple[int, ...], torch.Tensor] = {}

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Activations float32 (tokens, width) of one record.

        Args:
            tokens: int64 (tokens,), without padding.
        """
        key = tuple(tokens.tolist())
        if key not in self._kept:
            row = tokens[None]
            self._kept[key] = self._front(row, torch.ones_like(row))[0].clone()
        return self._kept[key]

    def put_in(self, model: Any, *, rounded: bool = False) -> None:
        """Replace embeddings and lower layers of a model by what was kept, in place.

        Args:
            model: An encoder with its head, and an adapter on its upper layers.
            rounded: To bfloat16, as activations travel between the halves of a cut model.
        """
        base = next(part for part in model.modules() if hasattr(part, "embeddings"))
        name, layers = layer_list(base)
        padding = base.config.pad_token_id or 0
        base.embeddings = _Embedded(self, base.embeddings, padding, rounded)
        passed = [_Passed() for _ in range(self.layers)]
        base.set_submodule(name, nn.ModuleList([*passed, *layers[self.layers :]]))
        first_token_only(model)


def first_token_only(model: Any) -> None:
    """Have the last layer compute the first token alone, in place."""
    base = next(part for part in model.modules() if hasattr(part, "embeddings"))
    attention = layer_list(base)[1][-1].attention
    attention.self.forward = partial(_of_first, attention.self)
    attention.output.register_forward_pre_hook(_as_short)


def _of_first(
    layer: Any,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    past_key_values: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """``BertSelfAttention`` with one query."""

    def heads(values: torch.Tensor) -> torch.Tensor:
        return values.unflatten(-1, (-1, layer.attention_head_size)).transpose(1, 2)

    query = heads(layer.query(hidden_states[:, :1]))
    key, value = heads(layer.key(hidden_states)), heads(layer.value(hidden_states))
    if past_key_values is not None:  # a learned prefix
        kept = getattr(past_key_values, "self_attention_cache", past_key_values)
        key, value = kept.update(key, value, layer.layer_idx)
    found = nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if attention_mask is None else attention_mask[:, :, :1],
        dropout_p=layer.dropout.p if layer.training else 0.0,
        scale=layer.scaling,
    )
    return found.transpose(1, 2).flatten(2), None


def _as_short(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Pre-hook of what adds the layer's input to its attention: as many tokens as that has."""
    attended, hidden_states = args
    return attended, hidden_states[:, : attended.shape[1]]


class _Embedded(nn.Module):
    """In the place of the embeddings: what the front makes of the tokens."""

    def __init__(self, front: KeptFront, before: Any, padding: int, rounded: bool) -> None:
        super().__init__()
        self._front, self._padding, self._rounded = front, padding, rounded
        # Models look it up to know which type their inputs have.
        self.word_embeddings = before.word_embeddings

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        rows = [self._front.of(ids[ids != self._padding]) for ids in input_ids]
        together = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return together.bfloat16().float() if self._rounded else together


class _Passed(nn.Module):
    """In the place of a layer whose work is done."""

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden_states
