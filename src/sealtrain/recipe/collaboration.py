"""How several parties train together: ``collaboration`` of a recipe (spec/recipe.md §2.14).

Each kind has settings of its own, chosen by ``kind``: ``recipe.kinds`` lists them, and this module
has what they share. Without it one guest trains on all data. Where parties prove themselves to each
other, ``policy`` names the appraisal policy that they demand; the lock holds that document whole,
so owners approve it with the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, get_args

from pydantic import AllowInfNan, Field

from sealtrain.base.models import StrictModel
from sealtrain.errors import UsageError
from sealtrain.recipe.backends import is_default
from sealtrain.recipe.fields import RecipePath

DECRYPTED_IN_A_GUEST = "The measured code decrypts records in the memory of a guest only."
"""Where records are in the clear unless a kind of collaboration says otherwise."""
Norm = Annotated[float, AllowInfNan(False), Field(gt=0, le=1e9)]
"""Bound on the L2 norm of an update."""


def is_none(value: Any) -> bool:
    """Whether a recipe means the same without it: left out of a lock, as one always was."""
    return value is None


class PrivacyPromise(NamedTuple):
    """What a collaboration promises of privacy, instead of the recipe's ``privacy``.

    Attributes:
        dp: Name of the kind of privacy, as in ``privacy.dp`` of a manifest.
        text: The promise in a few words, for a report.
    """

    dp: str
    text: str


class CollaborationSettings(StrictModel):
    """Settings of one kind of collaboration, and what the core has to know of the kind.

    Attributes:
        phases: Phases that it trains.
        shares_out: Several parties take part, each with its own data.
        party_role: What a party does; ``None`` where one guest holds all data.
        keys_from_brokers: Brokers release data keys to its guests.
        summary: What the kind is, in one sentence for a report.
        decrypted: Where records were in the clear, in one sentence for an export.
        limits: Ids of what a manifest of this kind leaves open (``manifest.limits``).
        takes_backend: Its guests train with any backend and number of ranks that ``misfit`` allows:
            they are ranks of one group, and each of them holds all data.
    """

    phases: ClassVar[tuple[str, ...]]
    shares_out: ClassVar[bool] = False
    party_role: ClassVar[str | None] = None
    keys_from_brokers: ClassVar[bool] = True
    summary: ClassVar[str]
    decrypted: ClassVar[str] = DECRYPTED_IN_A_GUEST
    limits: ClassVar[tuple[str, ...]]
    takes_backend: ClassVar[bool] = False

    @classmethod
    def limits_of(cls, written: Mapping[str, Any]) -> tuple[str, ...]:
        """Ids of what a manifest of this kind leaves open.

        Args:
            written: ``collaboration`` as the manifest's lock has it; only its form was checked.
        """
        return cls.limits

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """Name of the kind; a field with one value in each class."""

    @property
    def guests(self) -> int:
        """Number of guests that share each step of the training."""
        return 1

    @property
    def resume_guests(self) -> tuple[int, ...]:
        """Other numbers of guests that may continue a run."""
        return ()

    def with_guests(self, guests: int) -> Self:
        """These settings for another number of guests that continue a run.

        Args:
            guests: One of ``resume_guests``, or the settings' own.
        """
        return self

    def ports(self, ranks: int) -> int:
        """Number of ports that a guest's document opens for other machines.

        Args:
            ranks: Processes of one guest.
        """
        return 2

    @property
    def helpers(self) -> tuple[str, ...]:
        """Machines that a run has to be given the addresses of: names in ``RunSettings``."""
        return ()

    @property
    def privacy_promise(self) -> PrivacyPromise | None:
        """What it promises of privacy by itself; ``None`` for nothing."""
        return None

    @property
    def lead_sees(self) -> str | None:
        """What the guest that merges sees of each party's part, in a few words for an owner."""
        return None

    @property
    def accelerator_sees(self) -> str | None:
        """What a machine that multiplies and is no guest sees, in a few words for an owner."""
        return None

    @property
    def extras(self) -> tuple[str, ...]:
        """Extras of sealtrain that its guests need besides those of every recipe."""
        return ()

    def parties_needed(self, holders: int) -> int:
        """How many parties with data have to take part.

        Args:
            holders: Owners whose records the recipe trains on.
        """
        return 1

    def misfit(self, recipe: Any) -> str | None:
        """Why a ``Recipe`` cannot be trained with these settings; ``None`` if it can."""
        raise NotImplementedError


class PartiesSettings(CollaborationSettings):
    """Settings of a kind in which guests prove themselves to each other."""

    shares_out: ClassVar[bool] = True
    decrypted: ClassVar[str] = (
        "The measured code decrypts records in the memory of their owners' guests only."
    )

    policy: RecipePath = Field(
        description="Appraisal policy that each party demands of another's guest; the lock holds "
        "the document."
    )


_Kind = TypeVar("_Kind", bound=CollaborationSettings)


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
    return tuple(sorted({dataset.owner for dataset in recipe.datasets if dataset.role == "train"}))


def misfit(recipe: Any) -> str | None:
    """Why a ``Recipe`` cannot be trained in its kind of collaboration; ``None`` if it can."""
    how: CollaborationSettings | None = recipe.collaboration
    if how is None:
        return None
    what = f"collaboration {how.kind}"
    if recipe.phase not in how.phases:
        return f"{what} is for phase {' and '.join(how.phases)}"
    unfit: Mapping[str, bool] = {
        f"privacy dp: {recipe.privacy.dp}": recipe.privacy.dp != "none",
        "a script of your own": bool(recipe.scripts) and not how.takes_backend,
        "a backend": not (how.takes_backend or is_default(recipe.backend)),
    }
    if how.shares_out:
        unfit = {
            **unfit,
            "validation": recipe.validation is not None,
            "monitoring": recipe.monitoring is not None,
            "audit": getattr(recipe, "audit", None) is not None,
            "datasets.max_records": any(dataset.max_records for dataset in recipe.datasets),
        }
    named = [name for name, wanted in unfit.items() if wanted]
    if named:
        return f"{what} does not go together with {named[0]}"
    return how.misfit(recipe)


def misfit_of_text_adapter(
    recipe: Any, what: str, methods: tuple[str, ...] = ("lora",)
) -> str | None:
    """Why a ``Recipe`` does not train one of these adapters on text; ``None`` if it does.

    Args:
        recipe: To train.
        what: Asks for that, for the message.
        methods: ``peft.method``, unquantized.
    """
    if recipe.columns.kind in ("image", "tabular"):
        return f"{what} reads text"
    peft = recipe.peft
    if peft is None or peft.method not in methods or peft.quantization is not None:
        return f"{what} trains peft.method {' or '.join(methods)}, unquantized"
    return None
