"""``recipe.lock.json``: a recipe with everything it names resolved to digests, as canonical JSON.

``recipe_hash`` is SHA-256 of the file's bytes. Reading checks:

1. canonical bytes (RFC 8785), at most ``MAX_LOCK_BYTES``;
2. every field of the schema, and the recipe by its own schema;
3. the recipe is normalised: defaults written out, so equal recipes have equal locks;
4. scripts, model and tokenizer entries fit the recipe, those of further models too;
5. it holds the appraisal policy that the recipe names, normalised, or none if it names none;
6. it names 1 to ``MAX_BROKERS`` brokers, sorted, without a duplicate.

It holds no time, no host name, no absolute path. Format: spec/recipe.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, field_validator

from sealtrain.base.canonical import canonical_json, parse_canonical
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import read_bounded
from sealtrain.base.models import Hex64, OwnerName, StrictModel, load_model
from sealtrain.errors import DataInvalid, LockInvalid, RecipeInvalid, TrustInvalid
from sealtrain.recipe.collaboration import is_none
from sealtrain.recipe.fields import RecipePath
from sealtrain.recipe.installation import CodePin, EnvironmentPin
from sealtrain.recipe.modelspec import Model, ModelFromConfig
from sealtrain.recipe.schema import AnyRecipe, Recipe, parse_recipe
from sealtrain.recipe.scripts import MAX_SCRIPT_BYTES, ScriptText, too_long

if TYPE_CHECKING:
    from sealtrain.attest.policy import AppraisalPolicy

__all__ = [
    "MAX_BROKERS",
    "MAX_LOCK_BYTES",
    "FurtherModelPin",
    "Lock",
    "ModelPin",
    "SealedModelPin",
    "TokenizerPin",
    "load_lock",
    "parse_lock",
]

MAX_LOCK_BYTES = 192 << 10
MAX_BROKERS = 16


class ModelPin(StrictModel):
    """Digest of a model: its folder, or its configuration and seed."""

    kind: Literal["folder", "config"]
    sha256: Hex64


class SealedModelPin(StrictModel):
    """A sealed model: its owner's approval pins its root, as of every dataset."""

    kind: Literal["sealed"]
    sha256: None


class TokenizerPin(StrictModel):
    """Digest of the tokenizer's folder; the built-in one is measured with the code."""

    kind: Literal["folder", "bytes", "sealed", "none"]
    sha256: Hex64 | None


class FurtherModelPin(StrictModel):
    """Digests of a model that training reads besides the base model."""

    model: ModelPin
    tokenizer: TokenizerPin


class Lock(StrictModel):
    """The resolved recipe.

    Attributes:
        brokers: Ids of the brokers that may release keys for it (``signing.identity``), sorted. A
            guest obeys no other.
    """

    version: Literal[2]
    consortium_id: Hex64
    brokers: tuple[Hex64, ...] = Field(min_length=1, max_length=MAX_BROKERS)
    recipe: AnyRecipe
    code: CodePin
    environment: EnvironmentPin
    scripts: dict[RecipePath, ScriptText]
    model: Annotated[ModelPin | SealedModelPin, Discriminator("kind")]
    tokenizer: TokenizerPin
    models: dict[OwnerName, FurtherModelPin]
    policy: dict[str, Any] | None = Field(default=None, exclude_if=is_none)

    @field_validator("brokers")
    @classmethod
    def _sorted_and_once(cls, brokers: tuple[str, ...]) -> tuple[str, ...]:
        if list(brokers) != sorted(set(brokers)):
            raise ValueError("brokers are not sorted, or one is named twice")
        return brokers

    @property
    def appraisal(self) -> AppraisalPolicy | None:
        """The policy that parties demand of each other's guests, if the recipe names one."""
        from sealtrain.attest.policy import policy_from_dict  # loads every TEE's rules

        return None if self.policy is None else policy_from_dict(self.policy)

    @property
    def script_digests(self) -> dict[str, str]:
        """SHA-256 of each script by path, beginning with the main script."""
        return {path: sha256_hex(self.scripts[path].encode()) for path in self.recipe.scripts}

    def to_bytes(self) -> bytes:
        """The canonical bytes, whose SHA-256 is the recipe hash."""
        return canonical_json(self.to_dict())

    @property
    def recipe_hash(self) -> str:
        """SHA-256 of the lock's bytes, 64 hex digits."""
        return sha256_hex(self.to_bytes())


def load_lock(path: Path) -> Lock:
    """Read ``recipe.lock.json``.

    Raises:
        LockInvalid: One of the module's checks fails.
        DataInvalid: The file is missing.
    """
    return parse_lock(read_bounded(path, MAX_LOCK_BYTES))


def parse_lock(data: bytes) -> Lock:
    """Parse a lock's bytes. Raises ``LockInvalid`` as ``load_lock``."""
    try:
        value = parse_canonical(data, max_bytes=MAX_LOCK_BYTES)
    except DataInvalid as error:
        raise LockInvalid(
            f"lock: {error.message}",
            check="lock",
            got=error.got,
            expected=error.expected,
            hint="change the recipe instead of the lock, then run: sealtrain lock",
        ) from error
    if not isinstance(value, dict):
        raise LockInvalid("lock is not a JSON object", check="lock")
    try:
        recipe = parse_recipe(value.get("recipe"))
    except RecipeInvalid as error:
        raise LockInvalid(f"lock: {error.message}", check="lock", hint=error.hint) from error
    lock = load_model(Lock, value, LockInvalid, "lock")
    if lock.to_bytes() != data:
        raise LockInvalid("lock is not normalised: a default is left out", check="lock")
    _fits(lock, recipe)
    return lock


def _fits(lock: Lock, recipe: Recipe) -> None:
    if lock.scripts.keys() != set(recipe.scripts):
        raise LockInvalid("lock holds other scripts than its recipe names", check="scripts")
    if too_long(lock.scripts):
        raise LockInvalid(
            "the lock's scripts together are too long",
            check="scripts",
            expected=f"at most {MAX_SCRIPT_BYTES} bytes",
        )
    _policy_fits(lock, recipe)
    _model_fits(recipe.model, lock.model, lock.tokenizer)
    if lock.models.keys() != recipe.further_models.keys():
        raise LockInvalid(
            "lock pins other further models than its recipe names",
            check="models",
            got=", ".join(sorted(lock.models)) or "none",
            expected=", ".join(sorted(recipe.further_models)) or "none",
        )
    for name, model in recipe.further_models.items():
        _model_fits(model, lock.models[name].model, lock.models[name].tokenizer)


def _policy_fits(lock: Lock, recipe: Recipe) -> None:
    named = getattr(recipe.collaboration, "policy", None)
    if (named is None) != (lock.policy is None):
        raise LockInvalid(
            "lock holds an appraisal policy exactly where its recipe names one",
            check="policy",
            got="none" if lock.policy is None else "one",
            expected=named or "none",
        )
    try:
        normal = None if lock.appraisal is None else lock.appraisal.to_dict()
    except TrustInvalid as error:
        raise LockInvalid(f"lock: {error.message}", check="policy", hint=error.hint) from error
    if normal != lock.policy:
        raise LockInvalid("the lock's appraisal policy is not normalised", check="policy")


def _model_fits(model: Model, pin: ModelPin | SealedModelPin, tokenizer: TokenizerPin) -> None:
    if pin.kind != model.kind:
        raise LockInvalid("lock pins another kind of model than its recipe names", check="model")
    if isinstance(model, ModelFromConfig) and pin.sha256 != model.digest:
        raise LockInvalid(
            "lock pins another model than its recipe describes",
            check="model",
            got=pin.sha256,
            expected=model.digest,
        )
    kind = tokenizer_kind(model)
    if tokenizer.kind != kind or (tokenizer.sha256 is None) != (kind != "folder"):
        raise LockInvalid("lock pins another tokenizer than its recipe names", check="tokenizer")


def tokenizer_kind(model: Model) -> Literal["folder", "bytes", "sealed", "none"]:
    """Which kind of tokenizer a model uses."""
    if model.tokenizer is None:
        return "none"
    return getattr(model.tokenizer, "kind", "folder")
