"""``recipe.lock.json``: a recipe with everything it names resolved to digests, as canonical JSON.

``recipe_hash`` is SHA-256 of the file's bytes. Reading checks:

1. canonical bytes (RFC 8785), at most ``MAX_LOCK_BYTES``;
2. every field of the schema, and the recipe by its own schema;
3. the recipe is normalised: defaults written out, so equal recipes have equal locks;
4. scripts, model and tokenizer entries fit the recipe, those of further models too;
5. it holds the appraisal policy that the recipe names, normalised, or none if it names none;
6. it names 1 to ``MAX_BROKERS`` brokers, sorted, without a duplicate;
7. it pins the recipe that the model is handed on to, or none if its recipe names none, and the
   brokers can share the model's key as the recipe says;
8. it names the commit of each model of the hub that its recipe names, and of no other;
9. its ``code`` pins sealtrain, and the rooms that the recipe's kind of collaboration names.

It holds no time, no host name, no absolute path. Format: spec/recipe.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, field_validator

from sealtrain.base.canonical import parse_canonical
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import read_bounded
from sealtrain.base.models import Hex40, Hex64, OwnerName, StrictModel, load_model
from sealtrain.errors import DataInvalid, TrustInvalid
from sealtrain.recipe.collaboration import is_none
from sealtrain.recipe.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.fields import RecipePath, Text
from sealtrain.recipe.installation import CodePin, EnvironmentPin, code_sha256
from sealtrain.recipe.kinds import distributions_of
from sealtrain.recipe.modelspec import Model, ModelFromConfig
from sealtrain.recipe.schema import AnyRecipe, PhaseRecipe
from sealtrain.recipe.scripts import MAX_SCRIPT_BYTES, ScriptText, too_long

if TYPE_CHECKING:
    from sealtrain.attest.policy import AppraisalPolicy

MAX_LOCK_BYTES = 192 << 10
MAX_BROKERS = 16
MAX_LICENCE_CHARS = 128


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


class HandOnPin(StrictModel):
    """The recipe to whose guests the model is handed on: its target, and its sealed model.

    Attributes:
        app_id: Of its deployment.
        compose_hash: Of its deployment document.
        recipe_hash: Of its lock.
        owner: Owner of its sealed model, who adopts the model.
        dataset: Name of its sealed model.
    """

    app_id: Hex40
    compose_hash: Hex64
    recipe_hash: Hex64
    owner: OwnerName
    dataset: OwnerName


class HubPin(StrictModel):
    """Where the engineer took a model of the hub from, and under which licence.

    Readers of a lock ask no hub, so they cannot compare either: the model's digest pins it.

    Attributes:
        commit: To which locking resolved the recipe's revision, by the engineer's word.
        licence: As the model's card names it; ``None`` where it names none.
    """

    commit: Hex40
    licence: Annotated[Text, StringConstraints(min_length=1, max_length=MAX_LICENCE_CHARS)] | None

    @property
    def licence_words(self) -> str:
        """The licence as a person reads it, with its source."""
        if self.licence is None:
            return "its card names no licence"
        return f"licence: {self.licence}, as its card says"


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
    code: tuple[CodePin, ...] = Field(min_length=1, max_length=8)
    environment: EnvironmentPin
    scripts: dict[RecipePath, ScriptText]
    model: Annotated[ModelPin | SealedModelPin, Discriminator("kind")]
    tokenizer: TokenizerPin
    models: dict[OwnerName, FurtherModelPin]
    policy: dict[str, Any] | None = Field(default=None, exclude_if=is_none)
    handed_on: HandOnPin | None = Field(default=None, exclude_if=is_none)
    hub: dict[OwnerName, HubPin] | None = Field(default=None, exclude_if=is_none)

    @field_validator("brokers")
    @classmethod
    def _check_brokers(cls, brokers: tuple[str, ...]) -> tuple[str, ...]:
        if list(brokers) != sorted(set(brokers)):
            raise ValueError("brokers are not sorted, or one is named twice")
        return brokers

    @property
    def origins(self) -> dict[str, str]:
        """Where each model of the hub is from, in a few words, by the model's name.

        The commit is the engineer's word, so the words say so and name the digest that counts.
        """
        further = {name: pins.model for name, pins in self.models.items()}
        pinned = {"model": self.model, **further}
        return {
            name: f"{model.id} at commit {pin.commit} by the engineer's word; what counts is "
            f"SHA-256 {pinned[name].sha256}; {pin.licence_words}"
            for name, model in self.recipe.hub_models.items()
            for pin in [(self.hub or {})[name]]
        }

    @property
    def appraisal(self) -> AppraisalPolicy | None:
        """The policy that parties demand of each other's guests, if the recipe names one."""
        from sealtrain.attest.policy import policy_from_dict  # loads every TEE's rules

        return None if self.policy is None else policy_from_dict(self.policy)

    @property
    def script_digests(self) -> dict[str, str]:
        """SHA-256 of each script by path, beginning with the main script."""
        return {path: sha256_hex(self.scripts[path].encode()) for path in self.recipe.scripts}

    @property
    def code_sha256(self) -> str:
        """One digest of all code that it pins, 64 hex digits (spec/recipe.md §3)."""
        return code_sha256(self.code)

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
    data = read_bounded(path, MAX_LOCK_BYTES)
    try:
        return parse_lock(data)
    except LockInvalid as error:
        if path.suffix.lower() not in (".yaml", ".yml"):
            raise
        raise error.with_message(
            f"{path.name} is a recipe, and no lock of one",
            hint="lock it with sealtrain lock, or judge it as it is with sealtrain recipe check",
        ) from None


class LockSource:
    """The file of a lock, read and parsed at most once in a process.

    Several steps before a key look at the lock. The operator can replace the file between two of
    them; every step after the first sees what the first one read.
    """

    def __init__(self, path: Path) -> None:
        """Read nothing yet.

        Args:
            path: ``recipe.lock.json``.
        """
        self.path = path.absolute()
        self._read: tuple[Lock, bytes] | None = None

    def __eq__(self, other: object) -> bool:
        """The same file; what either has read of it does not count."""
        return isinstance(other, LockSource) and self.path == other.path

    def __hash__(self) -> int:
        """Of the path."""
        return hash(self.path)

    @property
    def lock(self) -> Lock:
        """The lock. Raises as ``load_lock`` where the file was not read yet."""
        return self._once()[0]

    @property
    def lock_bytes(self) -> bytes:
        """The bytes that ``lock`` was parsed from."""
        return self._once()[1]

    def _once(self) -> tuple[Lock, bytes]:
        if self._read is None:
            data = read_bounded(self.path, MAX_LOCK_BYTES)
            self._read = parse_lock(data), data
        return self._read


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
        lock = load_model(Lock, value, LockInvalid, "lock")
    except RecipeInvalid as error:
        raise LockInvalid(f"lock: {error.message}", check="lock", hint=error.hint) from error
    if lock.to_bytes() != data:
        raise LockInvalid("lock is not normalised: a default is left out", check="lock")
    _fits(lock, lock.recipe)
    return lock


def _fits(lock: Lock, recipe: PhaseRecipe) -> None:
    pinned = tuple(pin.name for pin in lock.code)
    if pinned != (needed := distributions_of(recipe.collaboration)):
        raise LockInvalid(
            "lock pins other parts of sealtrain than a guest of its recipe needs",
            check="code",
            got=", ".join(pinned),
            expected=", ".join(needed),
            hint="lock again: sealtrain lock",
        )
    if lock.scripts.keys() != set(recipe.scripts):
        raise LockInvalid("lock holds other scripts than its recipe names", check="scripts")
    if too_long(lock.scripts):
        raise LockInvalid(
            "the lock's scripts together are too long",
            check="scripts",
            expected=f"at most {MAX_SCRIPT_BYTES} bytes",
        )
    _policy_fits(lock, recipe)
    _hand_on_fits(lock, recipe)
    if recipe.schedule is not None and recipe.schedule.continues == "last":
        _one_broker_continues(lock)
    _hub_fits(lock, recipe)
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


def _policy_fits(lock: Lock, recipe: PhaseRecipe) -> None:
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


def _hand_on_fits(lock: Lock, recipe: PhaseRecipe) -> None:
    named = recipe.release_policy.model.handed_on
    if (named is None) != (lock.handed_on is None):
        raise LockInvalid(
            "lock pins the recipe that the model is handed on to exactly where its recipe names it",
            check="handed on",
            got="none" if lock.handed_on is None else "one",
            expected="none" if named is None else named.deployment,
        )
    if named is None:
        return
    count, threshold = len(lock.brokers), named.threshold
    if not (threshold is None if count == 1 else count < 2 * (threshold or 0) <= 2 * count):
        raise LockInvalid(
            "the model's key cannot be shared over the brokers as the recipe says",
            check="threshold",
            got=f"threshold {threshold} of {count} brokers",
            expected="null for one broker; of several, more than half of them",
            hint="set release_policy.model.handed_on.threshold, then run: sealtrain lock",
        )


def _one_broker_continues(lock: Lock) -> None:
    """Brokers do not know of each other: of two, each could hold another run for the newest."""
    if len(lock.brokers) > 1:
        raise LockInvalid(
            "runs of this recipe begin with the model of the run before, at one broker",
            check="brokers",
            got=f"{len(lock.brokers)} brokers",
            expected="one",
            hint="lock with one broker, or write continue: base",
        )


def _hub_fits(lock: Lock, recipe: PhaseRecipe) -> None:
    named = recipe.hub_models
    pins = lock.hub or {}
    if pins.keys() != named.keys() or lock.hub == {}:
        raise LockInvalid(
            "lock names commits of other models of the hub than its recipe names",
            check="hub",
            got=", ".join(sorted(pins)) or "none",
            expected=", ".join(sorted(named)) or "none",
            hint="lock by sealtrain lock, which brings models from the hub",
        )
    for name, model in named.items():
        if model.commit not in (None, pins[name].commit):
            raise LockInvalid(
                f"lock names another commit of {model.id} than its recipe",
                check="hub",
                got=pins[name].commit,
                expected=model.commit,
            )


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
