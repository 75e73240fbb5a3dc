"""How several parties train together: ``collaboration`` of a recipe (spec/recipe.md §2.14).

One class a kind, chosen by ``kind``. Without it one guest trains on all data. Where parties prove
themselves to each other, ``policy`` names the appraisal policy that they demand; the lock holds
that document whole, so owners approve it with the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar, get_args

from pydantic import AllowInfNan, Field, StringConstraints, model_validator

from sealtrain.base.models import OwnerName, StrictModel
from sealtrain.errors import UsageError
from sealtrain.recipe.backends import is_default
from sealtrain.recipe.fields import RecipePath
from sealtrain.recipe.privacy import SequencePrivacy
from sealtrain_collab.federated.patients import PatientPrivacy, cannot_hide_patients
from sealtrain_collab.travelling.recipe import cannot_travel

__all__ = [
    "Collaboration",
    "Cut",
    "Federated",
    "Pads",
    "Travelling",
    "holders_of",
    "is_none",
    "is_shared_out",
    "misfit",
    "of_kind",
]

Positive = Annotated[int, Field(ge=1, le=(1 << 53) - 1)]
Norm = Annotated[float, AllowInfNan(False), Field(gt=0, le=1e9)]
Layer = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.]{0,199}$")]

_SECONDS_A_WEEK: Final = 604_800


def is_none(value: Any) -> bool:
    """Whether a recipe means the same without it: left out of a lock, as one always was."""
    return value is None


class _Parties(StrictModel):
    """What every kind has in which guests prove themselves to each other."""

    shares_out: ClassVar[bool] = True

    policy: RecipePath = Field(
        description="Appraisal policy that each party demands of another's guest; the lock holds "
        "the document."
    )


class Travelling(_Parties):
    """One accelerator goes from holder to holder; no data leaves a holder but for its memory."""

    kind: Literal["travelling"]
    buffer_bytes: int = Field(
        ge=2, le=1 << 40, description="Dataset buffer of the accelerator; a trip fills half of it."
    )
    max_tokens: dict[OwnerName, Positive] | Positive | None = Field(
        default=None,
        description="Most tokens that are trained on: of each owner by name, or of every owner; "
        "null for all they have.",
    )
    seal_every: int = Field(
        default=8, ge=1, le=1_000_000, description="Trips between two sealed states."
    )
    max_update_norm: Norm | None = Field(
        default=None, description="No chunk moves all weights together further than this, L2."
    )
    sequence_privacy: SequencePrivacy | None = Field(
        default=None,
        description="Noise that hides single sequences; what it costs each holder stands in the "
        "run log.",
    )

    def limit_of(self, owner: str) -> int | None:
        """Most tokens of an owner that are trained on; ``None`` for all."""
        given = self.max_tokens
        return given.get(owner) if isinstance(given, dict) else given


class Federated(_Parties):
    """Each party trains an adapter on its own data; an attested aggregator merges them."""

    kind: Literal["federated"]
    rounds: int = Field(ge=1, le=10_000, description="Merges from the first adapter to the last.")
    local_steps: int = Field(
        ge=1, le=1_000_000, description="Optimizer steps of a party in a round."
    )
    min_parties: int = Field(
        ge=2, le=256, description="Updates that a round needs; it fails with fewer."
    )
    round_seconds: int = Field(
        default=600, ge=1, le=_SECONDS_A_WEEK, description="Updates that come later do not count."
    )
    aggregation: Literal["exact", "ffa", "fedavg", "median", "trimmed-mean"] = Field(
        description="How updates are merged."
    )
    trim: int | None = Field(
        default=None,
        ge=1,
        le=127,
        description="Of trimmed-mean: values left out at either end, for each number of the "
        "update.",
    )
    max_update_norm: Norm | None = Field(
        default=None, description="Updates are cut to this L2 norm before they are merged."
    )
    patient_privacy: PatientPrivacy | None = Field(
        default=None,
        exclude_if=is_none,
        description="Noise that hides single patients; left out of locks when there is none.",
    )

    @model_validator(mode="after")
    def _trim_leaves_something(self) -> Self:
        if (self.trim is None) != (self.aggregation != "trimmed-mean"):
            raise ValueError("trim and aggregation trimmed-mean go together")
        if self.trim is not None and 2 * self.trim >= self.min_parties:
            raise ValueError("trim leaves nothing of min_parties updates")
        return self


class Pads(StrictModel):
    """One guest trains; an untrusted accelerator multiplies for it under one-time pads."""

    shares_out: ClassVar[bool] = False

    kind: Literal["pads"]
    pads: Literal["own", "pool", "dealer"] = Field(
        description="Who makes them: this guest as it goes, this guest beforehand, another guest."
    )
    checks: Literal[1, 2] = Field(
        default=2,
        description="Secret vectors that each product is checked with; a wrong one passes all of n "
        "with 2^(-31 n).",
    )
    skip: tuple[Layer, ...] = Field(
        default=(),
        max_length=256,
        description="Layers that the guest computes itself, by name or the end of it.",
    )
    policy: RecipePath | None = Field(
        default=None, description="With pads: dealer, the policy that the dealer's guest must meet."
    )

    @model_validator(mode="after")
    def _dealer_proves_itself(self) -> Self:
        if (self.policy is None) != (self.pads != "dealer"):
            raise ValueError("policy and pads: dealer go together")
        if len(set(self.skip)) != len(self.skip):
            raise ValueError("skip names a layer twice")
        return self


class Cut(_Parties):
    """Clients run the frozen front of the model, the server's guest trains the back."""

    kind: Literal["cut"]
    layers: int = Field(ge=0, le=1000, description="Transformer layers of the front half.")
    spf_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the back's frozen weights that trains besides the adapter: those "
        "with the largest gradients.",
    )
    wire: Literal["bfloat16", "int8"] = Field(
        default="bfloat16", description="Numbers that activations are sent as."
    )


Collaboration = Annotated[Travelling | Federated | Pads | Cut, Field(discriminator="kind")]
"""Any way of training together that a recipe can name."""

_PHASES: Final[Mapping[str, tuple[str, ...]]] = {
    "travelling": ("cpt",),
    "federated": ("classify", "sft"),
    "pads": ("classify", "sft"),
    "cut": ("classify", "sft"),
}


_Kind = TypeVar("_Kind", Travelling, Federated, Pads, Cut)


def of_kind(recipe: Any, kind: type[_Kind]) -> _Kind:
    """The collaboration of a ``Recipe``, where it is the one that a role is for.

    Raises:
        UsageError: It is another one, or none.
    """
    how = recipe.collaboration
    if not isinstance(how, kind):
        (name,) = get_args(kind.model_fields["kind"].annotation)
        raise UsageError(
            "the recipe is for another collaboration than this role",
            check="collaboration",
            got="none" if how is None else how.kind,
            expected=f"collaboration: {{kind: {name}, …}}",
        )
    return how


def is_shared_out(recipe: Any) -> bool:
    """Whether a ``Recipe`` is for several parties, each with its own data."""
    return recipe.collaboration is not None and recipe.collaboration.shares_out


def holders_of(recipe: Any) -> tuple[str, ...]:
    """Owners whose records a ``Recipe`` trains on, sorted: the parties that hold data."""
    return tuple(sorted({one.owner for one in recipe.datasets if one.role == "train"}))


def misfit(recipe: Any) -> str | None:
    """Why a ``Recipe`` cannot be trained in its kind of collaboration; ``None`` if it can."""
    how = recipe.collaboration
    if how is None:
        return None
    what = f"collaboration {how.kind}"
    if recipe.phase not in _PHASES[how.kind]:
        return f"{what} is for phase {' and '.join(_PHASES[how.kind])}"
    unfit: Mapping[str, bool] = {
        f"privacy dp: {recipe.privacy.dp}": recipe.privacy.dp != "none",
        "a script of your own": bool(recipe.scripts),
        "a backend": not is_default(recipe.backend),
    }
    if how.shares_out:
        unfit = {
            **unfit,
            "validation": recipe.validation is not None,
            "monitoring": recipe.monitoring is not None,
            "audit": getattr(recipe, "audit", None) is not None,
            "datasets.max_records": any(one.max_records for one in recipe.datasets),
        }
    named = [name for name, wanted in unfit.items() if wanted]
    if named:
        return f"{what} does not go together with {named[0]}"
    if isinstance(how, Travelling):
        return _cannot_travel(recipe, how)
    if isinstance(how, Federated):
        return _cannot_merge(recipe, how)
    return _cannot_split(recipe, what)


def _cannot_travel(recipe: Any, how: Travelling) -> str | None:
    named = set(how.max_tokens) if isinstance(how.max_tokens, dict) else set()
    if strangers := sorted(named - set(holders_of(recipe))):
        return f"collaboration.max_tokens names {', '.join(strangers)}, who give no data to train"
    return cannot_travel(recipe)


def _cannot_merge(recipe: Any, how: Federated) -> str | None:
    method = getattr(recipe.peft, "method", None)
    if recipe.columns.kind in ("image", "tabular"):
        return "collaboration federated reads text"
    if method not in ("lora", "prefix_tuning") or recipe.peft.quantization is not None:
        return "collaboration federated trains peft.method lora or prefix_tuning, unquantized"
    if how.aggregation in ("exact", "ffa") and method != "lora":
        return f"collaboration.aggregation {how.aggregation} merges peft.method lora"
    if how.min_parties > len(holders_of(recipe)):
        return "collaboration.min_parties is above the number of owners who give data to train"
    if recipe.trainer.max_steps != how.rounds * how.local_steps:
        return "trainer.max_steps is collaboration.rounds times collaboration.local_steps"
    promised = how.patient_privacy
    return None if promised is None else cannot_hide_patients(recipe, promised)


def _cannot_split(recipe: Any, what: str) -> str | None:
    if recipe.columns.kind in ("image", "tabular"):
        return f"{what} reads text"
    peft = recipe.peft
    if peft is None or peft.method != "lora" or peft.quantization is not None:
        return f"{what} trains peft.method lora, unquantized"
    if peft.use_dora and isinstance(recipe.collaboration, Pads):
        return f"{what} works without peft.use_dora, which reads the weights of the base"
    return None
