"""A Transformers model cut between two layers: the owner runs the front, a guest the back.

    cut = CutModel(model, layers=6)
    activations = cut.front(input_ids, attention_mask)        # embeddings and layers 0 … 5, frozen
    loss = cut.back.model(inputs_embeds=activations, attention_mask=attention_mask, labels=labels)

Both halves are the model itself with parts taken out, so nothing of its arithmetic is written a
second time, and layers keep their numbers and names: what PEFT trains on the back loads onto the
whole model. No architecture is known by name. Each half is tried on a few tokens when it is made,
and a model whose halves do not compute what the whole did, bit for bit, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final, cast

import torch
from torch import nn

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.checkpoints.randomness import pause_training

_TRIAL: Final = (3, 5)
"""Rows and tokens that a half is tried on; the last two tokens of the last row are padding.

Three rows: two would pass for a pair where an architecture's layers give one.
"""


class _Passed(nn.Module):
    """Stands where a layer stood that the other half has."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        # Some models ask a layer what kind it is before they call it.
        said = {name: value for name, value in vars(layer).items() if isinstance(value, (str, int))}
        vars(self).update({name: value for name, value in said.items() if name[0] != "_"})

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden_states


class _Outlet(_Passed):
    """Keeps the input of the first layer of the other half."""

    reached: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        self.reached = hidden_states
        return hidden_states


class _Inlet:
    """Gives a back's first layer the activations, whatever the model makes of them before it.

    Models scale, shift and normalise ``inputs_embeds`` as if they came from their own table.
    """

    def __init__(self) -> None:
        # Held until the next call: recomputing activations in a backward comes back for it.
        self._given: torch.Tensor | None = None

    def take(self, _module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        """Pre-hook of the base model."""
        self._given = kwargs.get("inputs_embeds")
        if self._given is None:
            raise ModelInvalid(
                "the back of a cut model reads activations, not tokens", expected="inputs_embeds"
            )

    def put(self, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        """Pre-hook of the first layer."""
        if args:
            return (self._given, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self._given}


class Front(nn.Module):
    """Embeddings and the first layers, frozen, without dropout.

    Args:
        model: A Transformers model; it is used up.
        layers: How many of its layers belong to the front.

    Raises:
        ModelInvalid: It has not so many, or cannot be cut.
    """

    def __init__(self, model: Any, layers: int) -> None:
        super().__init__()
        base = _base(model).requires_grad_(False).eval()
        name, whole = _check_base(base, layers)
        self.layers = layers
        """How many layers it has."""
        self.width = int(base.config.hidden_size)
        """Numbers of one token's activation."""
        ids, mask = _trial_tokens(base)
        expected = _record_call(
            base, whole[layers], lambda: base(input_ids=ids, attention_mask=mask)
        )
        self._outlet = _Outlet(whole[layers])
        rest = [_Passed(layer) for layer in whole[layers + 1 :]]
        base.set_submodule(name, nn.ModuleList([*whole[:layers], self._outlet, *rest]))
        self.base = base
        _same(_try_call(lambda: self(ids, mask)), expected)

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Input of the back's first layer.

        Args:
            input_ids: int64 (rows, tokens), padded on the right.
            attention_mask: int64 (rows, tokens).

        Returns:
            (rows, tokens, width) in the model's dtype.
        """
        self.base(input_ids=input_ids, attention_mask=attention_mask)
        reached, self._outlet.reached = self._outlet.reached, None
        return cast(torch.Tensor, reached)

    def train(self, mode: bool = True) -> Front:
        """Nothing changes: a frozen front has no dropout, or its activations could not be kept."""
        return super().train(False)


class Back:
    """The layers behind the cut and the head.

    Attributes:
        model: The Transformers model. It takes activations as ``inputs_embeds``, with
            ``attention_mask`` and ``labels`` as ever, and is trained, adapted and measured as ever.
        layers: How many layers the front has.
        width: Numbers of one token's activation.

    Args:
        model: A Transformers model; changed in place.
        layers: How many of its layers belong to the front.

    Raises:
        ModelInvalid: It has not so many, or cannot be cut.
    """

    def __init__(self, model: Any, layers: int) -> None:
        base = _base(model)
        self._name, whole = _check_base(base, layers)
        self._parked = list(whole[:layers])
        self.model = model
        self.layers = layers
        self.width = int(base.config.hidden_size)
        self._base = base
        ids, mask = _trial_tokens(base)
        with pause_training(model):
            outputs: list[torch.Tensor] = []

            def on_call() -> None:
                outputs.append(_first(model(input_ids=ids, attention_mask=mask)))

            activations = _record_call(base, whole[layers], on_call)
            self._take_out(whole)
            got = _try_call(lambda: _first(model(inputs_embeds=activations, attention_mask=mask)))
        _same(got, outputs[0])

    @property
    def numbers(self) -> list[int]:
        """Numbers of its layers, as the whole model counts them."""
        return list(range(self.layers, len(self._list())))

    def whole(self) -> Any:
        """The whole model, its back as it is now. The back is used up."""
        layers = [*self._parked, *list(self._list())[self.layers :]]
        for hook in self._hooks:
            hook.remove()
        self._base.set_submodule(self._name, nn.ModuleList(layers))
        return self.model

    def _list(self) -> nn.ModuleList:
        return cast(nn.ModuleList, self._base.get_submodule(self._name))

    def _take_out(self, whole: nn.ModuleList) -> None:
        passed = [_Passed(layer) for layer in self._parked]
        self._base.requires_grad_(False)
        for layer in whole[self.layers :]:
            layer.requires_grad_(True)
        self._base.set_submodule(self._name, nn.ModuleList([*passed, *whole[self.layers :]]))
        inlet = _Inlet()
        self._hooks = [
            self._base.register_forward_pre_hook(inlet.take, with_kwargs=True),
            whole[self.layers].register_forward_pre_hook(inlet.put, with_kwargs=True),
        ]


class CutModel:
    """Both halves of one model, for where they are in one place: tests and measurements.

    Attributes:
        front: What an owner runs.
        back: What the server trains; it is the model that was given.

    Args:
        model: A Transformers model; changed in place.
        layers: How many of its layers belong to the front: 0 for the embeddings alone, at most all
            but one.

    Raises:
        ModelInvalid: It has not so many, or cannot be cut.
    """

    def __init__(self, model: Any, *, layers: int) -> None:
        self.front = Front(deepcopy(_base(model)), layers)
        self.back = Back(model, layers)


def layer_list(base: nn.Module) -> tuple[str, nn.ModuleList]:
    """The list of a base model's layers, and its name.

    Raises:
        ModelInvalid: The model has no list of layers, or more than one.
    """
    count = getattr(getattr(base, "config", None), "num_hidden_layers", None)
    lists = [
        (name, part)
        for name, part in base.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == count
    ]
    # Layers may hold lists of as many parts; what holds the layers lies above them.
    outer = [
        (name, part)
        for name, part in lists
        if not any(name.startswith(f"{other}.") for other, _ in lists)
    ]
    if len(outer) != 1:
        raise ModelInvalid(
            "the model has no list of layers that could be cut",
            check="model",
            got=f"{len(outer)} lists of {count} parts",
            expected="one",
        )
    return outer[0]


def _base(model: Any) -> Any:
    """The model without its head."""
    return getattr(model, "base_model", model)


def _check_base(base: nn.Module, layers: int) -> tuple[str, nn.ModuleList]:
    name, whole = layer_list(base)
    if not 0 <= layers < len(whole):
        raise ModelInvalid(
            "the model cannot be cut there",
            check="layers",
            got=layers,
            expected=f"0 to {len(whole) - 1}: the back needs a layer",
        )
    return name, whole


def _trial_tokens(base: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens from the whole vocabulary and a mask with padding; both int64 (rows, tokens)."""
    rows, tokens = _TRIAL
    count = base.get_input_embeddings().weight.shape[0]
    device = next(base.parameters()).device
    ids = torch.arange(1, rows * tokens + 1, device=device).mul(7919).remainder(count)
    mask = torch.ones(_TRIAL, dtype=torch.int64, device=device)
    mask[-1, -2:] = 0
    return ids.view(_TRIAL), mask


def _record_call(base: nn.Module, layer: nn.Module, call: Callable[[], object]) -> torch.Tensor:
    """Arguments of a layer during a call."""
    seen: list[torch.Tensor] = []

    def record(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    hook = layer.register_forward_pre_hook(record, with_kwargs=True)
    try:
        _try_call(call)
    finally:
        hook.remove()
    if len(seen) != 1 or not isinstance(seen[0], torch.Tensor):
        raise _uncut("its layers are called in another way")
    return seen[0]


def _try_call(call: Callable[[], Any]) -> Any:
    try:
        with torch.no_grad():
            return call()
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _uncut(type(error).__name__) from error


def _same(got: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(got, expected):
        raise _uncut("other numbers than the whole model")


def _uncut(got: str) -> ModelInvalid:
    return ModelInvalid(
        "this architecture cannot be cut",
        check="model",
        got=got,
        hint="an encoder as BERT or a decoder as Llama can",
    )


def _first(outputs: Any) -> torch.Tensor:
    return cast(torch.Tensor, outputs[0])
