"""The library that trains, and the number of its processes: ``backend`` of a recipe.

Each backend has a class, chosen by ``name``; settings have the names of the library. An engineer's
own loop is not a backend: the recipe names it in ``scripts``.

Unsloth and Axolotl change unsupported settings, sometimes without a line on the terminal: they
switch packing off, and make two warm-up steps of one. The settings that owners approve must be
those that run, so a recipe that a backend would change is refused before it is locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import Field, field_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.fields import describe_keyword


class _AnyBackend(StrictModel):
    """What every backend has.

    Attributes:
        extra: Extra of sealtrain that installs it besides ``train``; the lock pins it too.
        packages: Requirements besides extras; the lock pins them too.
    """

    extra: ClassVar[str | None] = None
    packages: ClassVar[tuple[str, ...]] = ()

    ranks: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes of one guest that train together, each on its part of a batch.",
    )


class _Resizable(_AnyBackend):
    """A backend whose checkpoints another number of ranks can continue from."""

    resume_ranks: Annotated[
        tuple[Annotated[int, Field(ge=1, le=64)], ...], describe_keyword("uniqueItems", True)
    ] = Field(
        default=(),
        max_length=8,
        exclude_if=lambda numbers: not numbers,
        description="Other numbers of ranks that may continue a run; a step keeps its records.",
    )

    @field_validator("resume_ranks")
    @classmethod
    def _ascending(cls, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if list(numbers) != sorted(set(numbers)):
            raise ValueError("resume_ranks names each number once, in ascending order")
        return numbers


class Trl(_Resizable):
    """TRL's and Transformers' trainers; several ranks keep whole copies of the model (DDP)."""

    name: Literal["trl"]


class Fsdp(_Resizable):
    """The same trainers over ``torch.distributed.fsdp.fully_shard``: ranks share the model out."""

    name: Literal["fsdp"]
    reshard_after_forward: bool = Field(
        default=True, description="Gather weights again for the backward pass: less memory."
    )
    sharding_strategy: Literal["HYBRID_SHARD", "FULL_SHARD"] = Field(
        default="HYBRID_SHARD",
        exclude_if=lambda strategy: strategy == "HYBRID_SHARD",
        description="Who shares a model of several nodes out: the ranks of each guest, so that "
        "one reduced shard crosses, or all ranks, for a model that does not fit one guest.",
    )


class DeepSpeed(_AnyBackend):
    """The same trainers over DeepSpeed's ZeRO."""

    extra: ClassVar[str | None] = "deepspeed"

    name: Literal["deepspeed"]
    zero_stage: Literal[0, 1, 2, 3] = Field(
        description="What ranks share out: nothing, optimizer, gradients too, weights too."
    )
    offload: Literal["none", "cpu"] = Field(
        default="none", description="Where what is shared out lies between its uses."
    )


_ONLY_COPIES: Final = {
    "evaluate": "nothing is trained; backend trl shares the records out",
    "rlhf": "ranks sample answers of different lengths, each from a whole model",
}
"""Phases whose model ranks cannot share out, and why."""


def is_default(backend: Any) -> bool:
    """Whether the recipe means the same without this backend."""
    return bool(backend == DEFAULT)


def guests_of(recipe: Any) -> int:
    """Number of guests that share each step of a ``Recipe``."""
    how = recipe.collaboration
    return 1 if how is None else int(how.guests)


def numbers_of_guests(recipe: Any) -> frozenset[int]:
    """Numbers of guests that may train a ``Recipe``: its own and those that may continue a run."""
    how = recipe.collaboration
    return frozenset({1} if how is None else {how.guests, *how.resume_guests})


def processes_of(recipe: Any) -> int:
    """Number of processes that share each step of a ``Recipe``, in all its guests."""
    return int(recipe.backend.ranks) * guests_of(recipe)


def needs_group(backend: Any) -> bool:
    """Whether the backend needs a group of ``torch.distributed``, even for a single process."""
    return backend.ranks > 1 or isinstance(backend, (Fsdp, DeepSpeed))


def unfit(recipe: Any) -> str | None:
    """Why a ``Recipe`` cannot be trained by its backend; ``None`` if it can."""
    backend, trainer = recipe.backend, recipe.trainer
    if is_default(backend) and guests_of(recipe) == 1:
        return None
    if isinstance(backend, (Unsloth, Axolotl)):
        return unfit_for_tuner(recipe)
    what = f"backend {backend.name}" if backend.name != "trl" else "training in several processes"
    if recipe.scripts and backend.name != "trl":
        return f"{what} does not reach into a script of your own; backend trl runs it in each rank"
    if recipe.scripts and (len(numbers_of(backend)) > 1 or len(numbers_of_guests(recipe)) > 1):
        return "resume_ranks and resume_nodes are not for a script, which divides its own steps"
    if recipe.privacy.dp == "sgd":
        return f"{what} is not known to keep privacy dp: sgd"
    problem = _unfit_to_resize(recipe)
    if problem is not None:
        return problem
    packs = [name for name in ("packing", "padding_free") if getattr(trainer, name, False)]
    if packs:
        return (
            f"{what} does not go together with trainer.{packs[0]}: records are joined to rows, and "
            "a step would not take the same records for every division"
        )
    return None if backend.name == "trl" else _unfit_to_share_out(recipe)


_ONE_NUMBER: Final = {
    "evaluate": "it keeps no checkpoints",
    "rlhf": "a step's answers are divided among ranks",
    "embed": "the negatives of a batch come from all ranks",
}
"""Phases that continue with the recipe's number of ranks only, and why."""


def _unfit_to_resize(recipe: Any) -> str | None:
    """Why another number of ranks or of guests cannot continue the run."""
    backend, trainer = recipe.backend, recipe.trainer
    ranks, guests = numbers_of(backend), numbers_of_guests(recipe)
    other_ranks = getattr(backend, "resume_ranks", ())
    if not other_ranks and len(guests) == 1:
        return None
    name = "backend.resume_ranks" if other_ranks else "collaboration.resume_nodes"
    if recipe.phase in _ONE_NUMBER:
        return f"{name} is not for phase {recipe.phase}: {_ONE_NUMBER[recipe.phase]}"
    if getattr(trainer, "loss_type", None) == "kto":
        return f"{name} does not go together with loss_type kto: it compares a batch"
    if not isinstance(backend, _Resizable):
        return f"{name} is not for backend {backend.name}: its checkpoints are for one number"
    if backend.ranks in other_ranks:
        return f"backend.resume_ranks names other numbers than ranks: leave {backend.ranks} out"
    parts = trainer.gradient_accumulation_steps * processes_of(recipe)
    uneven = sorted({each * guest for each in ranks for guest in guests if parts % (each * guest)})
    if uneven:
        return (
            f"{name}: {uneven[0]} ranks do not divide the {parts} parts of a step "
            "(gradient_accumulation_steps times the ranks of all guests)"
        )
    return None


def numbers_of(backend: Any) -> frozenset[int]:
    """Numbers of ranks that may train: the recipe's own and those that may continue its run."""
    return frozenset({backend.ranks, *getattr(backend, "resume_ranks", ())})


def worlds_of(recipe: Any) -> frozenset[int]:
    """Numbers of processes, of all guests together, that may train a ``Recipe``."""
    guests = numbers_of_guests(recipe)
    return frozenset(each * guest for each in numbers_of(recipe.backend) for guest in guests)


class Division(NamedTuple):
    """Among how many a run goes on; ``None`` for the recipe's own number.

    Attributes:
        ranks: Of each guest.
        nodes: Guests that share each step.
    """

    ranks: int | None = None
    nodes: int | None = None


UNDIVIDED: Final = Division()
"""As the recipe says."""


def divide_among(recipe: Any, division: Division) -> Any:
    """The ``Recipe`` as other numbers train it: the same records in every step.

    Args:
        recipe: The approved recipe.
        division: Number of ranks, and of guests.

    Raises:
        RecipeInvalid: The recipe does not name these numbers.
    """
    backend, own = recipe.backend, guests_of(recipe)
    ranks = backend.ranks if division.ranks is None else division.ranks
    guests = own if division.nodes is None else division.nodes
    if (ranks, guests) == (backend.ranks, own):
        return recipe
    approved = numbers_of(backend)
    if guests not in numbers_of_guests(recipe):
        raise RecipeInvalid(
            "the recipe does not let this number of nodes continue the run",
            check="collaboration.resume_nodes",
            got=guests,
            expected=", ".join(map(str, sorted(numbers_of_guests(recipe)))),
            hint="resume with one of these, or lock a recipe whose collaboration.resume_nodes "
            "names it",
        )
    if ranks not in approved:
        raise RecipeInvalid(
            "the recipe does not let this number of ranks continue the run",
            check="backend.resume_ranks",
            got=ranks,
            expected=", ".join(map(str, sorted(approved))),
            hint="resume with one of these, or lock a recipe whose backend.resume_ranks names it"
            if isinstance(backend, _Resizable)
            else "resume with this number: the checkpoints of this backend are for no other",
        )
    parts = recipe.trainer.gradient_accumulation_steps * processes_of(recipe)
    how = recipe.collaboration
    return recipe.model_copy(
        update={
            "backend": backend.model_copy(update={"ranks": ranks}),
            "collaboration": how if how is None else how.with_guests(guests),
            "trainer": recipe.trainer.model_copy(
                update={"gradient_accumulation_steps": parts // (ranks * guests)}
            ),
        }
    )


def unfit_for_fp16(recipe: Any) -> str | None:
    """Why a ``Recipe`` cannot compute in float16; ``None`` if it can."""
    if recipe.model.dtype != "float32":
        return "needs model.dtype float32: only gradients of float32 weights are scaled back"
    if recipe.peft is not None and recipe.peft.quantization is not None:
        return "is not for peft.quantization: TRL holds the adapter in bfloat16 then"
    if recipe.scripts:
        return "does not reach into a script of your own"
    if recipe.phase == "rlhf":
        return "is not for phase rlhf: answers are sampled outside of the scaled loss"
    how = recipe.collaboration
    if how is not None and not how.takes_backend:
        return f"is not for collaboration {how.kind}: each party would scale its own loss"
    if recipe.backend.name not in ("trl", "fsdp"):
        return f"is not for backend {recipe.backend.name}, which has a scaler of its own"
    return None


def _unfit_to_share_out(recipe: Any) -> str | None:
    """Why ranks cannot share the model out; they may still hold copies."""
    backend, trainer, peft = recipe.backend, recipe.trainer, recipe.peft
    name = f"backend {backend.name}"
    if recipe.phase in _ONLY_COPIES:
        return f"{name} is not for phase {recipe.phase}: {_ONLY_COPIES[recipe.phase]}"
    if trainer.load_best_model_at_end:
        return (
            f"{name} does not go together with trainer.load_best_model_at_end: the best checkpoint "
            "would have to be shared out again after the last step"
        )
    if peft is not None and not peft.changes_weights:
        return (
            f"{name} does not go together with peft.method {peft.method}: it is computed outside "
            "the layers that are shared out"
        )
    if backend.name == "deepspeed":
        return _find_deepspeed_fault(recipe)
    if peft is not None and not _keeps_float32(recipe):
        return "backend fsdp shares out weights of one kind: adapters need model.dtype float32"
    return None


def _keeps_float32(recipe: Any) -> bool:
    """Whether all weights are float32; beside a base in four bits the others are."""
    quantized = recipe.peft is not None and recipe.peft.quantization is not None
    return quantized or recipe.model.dtype == "float32"


def _find_deepspeed_fault(recipe: Any) -> str | None:
    backend = recipe.backend
    if backend.offload != "none" and backend.zero_stage == 0:
        return "backend deepspeed offloads what is shared out: zero_stage 1 to 3"
    if not _keeps_float32(recipe):
        return "backend deepspeed keeps weights in float32: model.dtype float32; bf16 computes"
    if getattr(recipe.trainer, "mini_batch_size", None) is not None:
        return "backend deepspeed reduces a gradient once: no trainer.mini_batch_size"
    compares = recipe.phase == "dpo" and recipe.peft is None and recipe.trainer.kind != "orpo"
    if compares and backend.zero_stage == 3:
        return "backend deepspeed: zero_stage 3 shares the reference of dpo out too; give peft"
    return None


class _Tuner(StrictModel):
    """What both have.

    Attributes:
        packages: What the lock pins besides ``train``. They ask for older versions of what
            ``train`` holds, so no extra can install them: tools/backends does.
    """

    packages: ClassVar[tuple[str, ...]]
    extra: ClassVar[str | None] = None

    ranks: Literal[1] = 1

    @field_validator("ranks", mode="before")
    @classmethod
    def _one_process(cls, ranks: Any) -> Any:
        if ranks != 1:
            raise ValueError(
                "this library trains in one process; backends trl, fsdp and deepspeed take more"
            )
        return ranks


class Unsloth(_Tuner):
    """TRL's trainer over a model that Unsloth loads and speeds up: phase sft, one process."""

    packages: ClassVar[tuple[str, ...]] = ("unsloth==2026.10.9", "unsloth-zoo==2026.10.9")

    name: Literal["unsloth"]


class Axolotl(_Tuner):
    """Axolotl's loader, prompt strategies and trainer: phase sft, one process."""

    packages: ClassVar[tuple[str, ...]] = ("axolotl==0.19.0",)

    name: Literal["axolotl"]


def unfit_for_tuner(recipe: Any) -> str | None:
    """Why Unsloth or Axolotl cannot train a ``Recipe`` as it is written; ``None`` if it can."""
    name = recipe.backend.name
    if recipe.phase != "sft":
        return f"backend {name} trains phase sft only"
    problems = _list_obstacles(recipe)
    problem = next(problems, None) or next(_OWN[name](recipe), None)
    return None if problem is None else f"backend {name}: {problem}"


def _list_obstacles(recipe: Any) -> Iterator[str]:
    model, peft, trainer = recipe.model, recipe.peft, recipe.trainer
    if recipe.scripts:
        yield "a script brings its own trainer; leave one of them out"
    if model.kind != "folder" or getattr(model.tokenizer, "path", None) is None:
        yield "it loads a folder with weights and a tokenizer: model.path, no {kind: bytes}"
    if recipe.privacy.dp != "none":
        yield "its layers give no gradient for each record; privacy needs backend trl"
    if trainer.packing or trainer.padding_free:
        yield "it packs in ways of its own, or not at all; leave packing and padding_free out"
    if trainer.loss_type != "nll":
        yield "loss_type is nll"
    if peft is not None and (peft.method != "lora" or peft.use_dora):
        yield "peft is null or method lora without use_dora"
    if peft is not None and peft.method == "lora":
        if peft.init_lora_weights not in (True, False, "gaussian"):
            yield "init_lora_weights is true, false or gaussian"
        named = () if peft.target_modules == "all-linear" else peft.target_modules
        if {"embed_tokens", "lm_head"} & set(named):
            yield "it trains embed_tokens and lm_head in full: name them in modules_to_save"


def _unsloth(recipe: Any) -> Iterator[str]:
    wanted = None if recipe.peft is None else recipe.peft.quantization
    if wanted is None:
        return
    if wanted.bnb_4bit_quant_type != "nf4" or not wanted.bnb_4bit_use_double_quant:
        yield "it holds four bits as nf4 with bnb_4bit_use_double_quant: true"
    if wanted.bnb_4bit_compute_dtype != recipe.model.dtype:
        yield "bnb_4bit_compute_dtype is model.dtype"


def _axolotl(recipe: Any) -> Iterator[str]:
    peft, trainer = recipe.peft, recipe.trainer
    if recipe.audit is not None:
        yield "audit needs backend trl"
    if peft is not None and peft.quantization is not None:
        yield "peft.quantization needs backend trl or unsloth"
    if peft is not None and (peft.bias != "none" or peft.init_lora_weights is not True):
        yield "it knows no bias and no init_lora_weights"
    if trainer.bf16 != (recipe.model.dtype == "bfloat16"):
        yield "it trains in the type it loads: bf16: true with dtype: bfloat16, or neither"
    if trainer.max_length is None or trainer.truncation_mode != "keep_start":
        yield "it cuts records after max_length tokens: give max_length, truncation_mode keep_start"
    if trainer.warmup_steps == 1:
        yield "it makes two warmup_steps of one"
    for name in ("label_smoothing_factor", "eos_token", "pad_token"):
        if getattr(trainer, name):
            yield f"it knows no {name}"


_OWN = {"unsloth": _unsloth, "axolotl": _axolotl}


Backend = Annotated[Trl | Fsdp | DeepSpeed | Unsloth | Axolotl, Field(discriminator="name")]
"""Any backend a recipe can name."""

DEFAULT: Final = Trl(name="trl")
"""The default backend. A lock leaves it out, so that equal recipes have equal locks."""
