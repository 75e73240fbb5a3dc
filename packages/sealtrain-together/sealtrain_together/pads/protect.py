"""Have an untrusted accelerator make a model's frozen linear products.

    model = get_peft_model(base, LoraConfig(...))
    with start_accelerator(device="cuda") as there:
        protect(model, RemoteAccelerator(there.host, there.port))
        trainer.train()

1. Layers are ``nn.Linear`` whose weights are frozen. **Their weights become public.** What an
   adapter added (LoRA and all else that PEFT keeps beside a base layer) never does, frozen or not.
2. Layers that read the same tensor (query, key and value; gate and up) are stacked.
3. Everything else stays in the guest, in the precision it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from torch import nn

from sealtrain.recipe.errors import ModelInvalid
from sealtrain_together.pads.accelerator import Accelerator
from sealtrain_together.pads.engine import Engine, Inside, UnderPads
from sealtrain_together.pads.freivalds import CHECKS
from sealtrain_together.pads.linear import PadsLinear, Stack
from sealtrain_together.pads.matrix import BITS
from sealtrain_together.pads.pads import Supplier
from sealtrain_together.pads.prefetch import PREFETCH_BYTES

SHARED_INPUTS: Final[tuple[tuple[str, ...], ...]] = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
    ("gate_proj", "up_proj"),
    ("wi_0", "wi_1"),
)
"""Names of sibling layers that Transformers' models call with one tensor."""
_OTHER_INPUTS: Final = ("cross", "encoder_attn", "EncDecAttention")
"""Parts of the names of attention whose keys read another tensor than its queries."""
_BASE: Final = "base_layer"

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protected:
    """Result of ``protect``.

    Attributes:
        engine: Multiplies, and counts what that takes.
        layers: Names of the layers whose products leave the guest, stack by stack.
        inside: Names of the linear layers that stayed.
    """

    engine: UnderPads
    layers: tuple[tuple[str, ...], ...]
    inside: tuple[str, ...]


def protect(
    model: nn.Module,
    accelerator: Accelerator,
    *,
    supplier: Supplier | None = None,
    checks: int = CHECKS,
    prefetch: int = PREFETCH_BYTES,
    skip: Sequence[str] = (),
    shared: Sequence[tuple[str, ...]] = SHARED_INPUTS,
    bits: int = BITS,
) -> Protected:
    """Swap the frozen linear layers of a model for ones whose products are made under pads.

    Args:
        model: Changed in place. Adapters are put on before, not after.
        accelerator: Multiplies; sees the frozen weights as int8 and uniform numbers.
        supplier: Makes pads: a dealer or a pool; the guest itself when ``None``.
        checks: Secret vectors each product is checked with, 1 to 4.
        prefetch: Bytes of pads that may be made ahead of their use, in a thread; 0 for none.
        skip: Layers that stay in the guest: names as ``named_modules`` has them, or their ends
            (``lm_head``, ``layers.0.mlp.up_proj``), as adapters' target modules are named.
        shared: Names of sibling layers that are called with one tensor.
        bits: Of activations and gradients, 8 to 12.

    Raises:
        ModelInvalid: No layer is frozen, an adapter is merged, a name is unknown, or a matrix does
            not fit the field.
        AcceleratorUnreachable: The accelerator or the supplier does not answer.
    """
    stacks = _stacks(model, skip, shared)
    engine = UnderPads(accelerator, supplier=supplier, checks=checks, prefetch=prefetch)
    _swap(model, stacks, engine, bits)
    inside = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    return Protected(
        engine=engine,
        layers=tuple(tuple(stack) for stack in stacks),
        inside=tuple(inside),
    )


def quantise(
    model: nn.Module,
    *,
    engine: Engine | None = None,
    skip: Sequence[str] = (),
    shared: Sequence[tuple[str, ...]] = SHARED_INPUTS,
    bits: int = BITS,
) -> tuple[tuple[str, ...], ...]:
    """The same layers with the same arithmetic, multiplied in the guest: what pads are exact to.

    Args:
        model: Changed in place.
        engine: Multiplies; in the guest when ``None``.
        skip: As ``protect``.
        shared: As ``protect``.
        bits: As ``protect``.

    Returns:
        Names of the layers, stack by stack.

    Raises:
        ModelInvalid: As ``protect``.
    """
    stacks = _stacks(model, skip, shared)
    _swap(model, stacks, engine or Inside(), bits)
    return tuple(tuple(stack) for stack in stacks)


def restore(model: Model) -> Model:
    """Put frozen ``nn.Linear`` layers of the int8 weights back, in place.

    This is the model that was trained: merge and save adapters on this base.
    """
    for name, layer in list_protected(model):
        model.set_submodule(name, layer.plain())
    return model


@dataclass
class IntegerWeights:
    """``StandIns``: frozen layers have the int8 weights, and are multiplied as ever, in the guest.

    Attributes:
        skip: As ``protect``.
        layers: Names of the layers, stack by stack, once they were put in.
    """

    skip: Sequence[str] = ()
    layers: tuple[tuple[str, ...], ...] = ()

    def put_in(self, model: Any) -> None:
        """As ``StandIns.put_in``. Raises ``ModelInvalid`` as ``protect``."""
        self.layers = quantise(model, skip=self.skip)
        restore(model)

    def take_out(self, model: Any) -> None:
        """They stay: this is the model that was trained."""


def list_protected(model: nn.Module) -> list[tuple[str, PadsLinear]]:
    """Layers whose products an engine makes, by name."""
    return [(name, part) for name, part in model.named_modules() if isinstance(part, PadsLinear)]


def _stacks(
    model: nn.Module, skip: Sequence[str], shared: Sequence[tuple[str, ...]]
) -> list[list[str]]:
    """Names of the layers to swap, those with one input together."""
    skipped = _list_skipped(model, skip)
    stacks: dict[tuple[str, object], list[str]] = {}
    for name in _iterate_frozen(model):
        if name in skipped:
            continue
        parent, _, leaf = name.removesuffix(f".{_BASE}").rpartition(".")
        group: object = next((names for names in shared if leaf in names), leaf)
        if any(part in parent for part in _OTHER_INPUTS):
            group = leaf
        inputs = model.get_submodule(name).in_features
        stacks.setdefault((parent, (group, inputs)), []).append(name)
    if not stacks:
        raise ModelInvalid(
            "the model has no frozen linear layer",
            hint="freeze the base, or put a LoRA adapter on it, before it is protected",
        )
    return list(stacks.values())


def _list_skipped(model: nn.Module, skip: Sequence[str]) -> set[str]:
    """Names of all layers that ``skip`` means."""
    named = [name for name, _ in model.named_modules()]
    found: set[str] = set()
    for layer in skip:
        ends = (layer, f"{layer}.{_BASE}")
        meant = {name for name in named for end in ends if f".{name}".endswith(f".{end}")}
        if not meant:
            raise ModelInvalid("the model has no such layer", check="skip", got=layer)
        found |= meant
    return found


def _iterate_frozen(model: nn.Module) -> Iterator[str]:
    """Names of frozen linear layers that are no part of an adapter."""
    adapters: list[str] = []
    for name, part in model.named_modules():
        if any(f"{name}.".startswith(f"{inner}.") for inner in adapters):
            continue
        # PEFT's trained copy of a layer with its original, and its makers of virtual tokens.
        saved = isinstance(getattr(part, "modules_to_save", None), nn.ModuleDict)
        if saved or name.rpartition(".")[2] == "prompt_encoder":
            adapters.append(name)
        elif isinstance(getattr(part, _BASE, None), nn.Module):
            if getattr(part, "merged", False):
                raise ModelInvalid(
                    "an adapter is merged into a layer that would become public",
                    got=name,
                    hint="unmerge it first",
                )
            adapters += [f"{name}.{child}" for child, _ in part.named_children() if child != _BASE]
        elif type(part) is nn.Linear and not part.weight.requires_grad:
            yield name


def _swap(model: nn.Module, stacks: list[list[str]], engine: Engine, bits: int) -> None:
    """Swap all layers, or none where one cannot be."""
    swapped: dict[str, PadsLinear] = {}
    for names in stacks:
        parts = map(model.get_submodule, names)
        layers = [part for part in parts if isinstance(part, nn.Linear)]
        try:
            stack = Stack([layer.weight for layer in layers], engine, bits=bits)
        except ModelInvalid as error:
            raise ModelInvalid(
                f"{names[0]}: {error.message}",
                check=error.check,
                got=error.got,
                expected=error.expected,
                hint="leave it in the guest: name it in skip",
            ) from error
        for member, (name, layer) in enumerate(zip(names, layers, strict=True)):
            swapped[name] = PadsLinear(stack, member, layer)
    for name, instead in swapped.items():
        model.set_submodule(name, instead)
