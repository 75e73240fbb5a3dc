"""Lock a recipe: pin everything it names by digest; write the lock and the deployment document.

Deterministic: the same recipe, folders and installation give the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import atomic_write, make_folder, read_bounded
from sealtrain.base.limits import MAX_DEPLOYMENT_BYTES
from sealtrain.errors import AlreadyExists, DataInvalid, UsageError
from sealtrain.recipe.compose import build_compose, compose_hash, launch_scripts, lock_text
from sealtrain.recipe.diff import RecipeChange, diff
from sealtrain.recipe.document import require_same
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.fields import resolve_inside
from sealtrain.recipe.installation import Installation, measure_installation
from sealtrain.recipe.kinds import distributions_of
from sealtrain.recipe.lockfile import MAX_BROKERS, HandOnPin, HubPin, Lock, load_lock, parse_lock
from sealtrain.recipe.models import measure_models
from sealtrain.recipe.schema import PhaseRecipe, load_recipe
from sealtrain.recipe.scripts import read_scripts, script_problem
from sealtrain.recipe.scriptsettings import refuse_settings
from sealtrain.signing.target import Target

__all__ = [
    "COMPOSE_NAME",
    "LOCK_NAME",
    "Installation",
    "Lock",
    "LockedRecipe",
    "load_lock",
    "lock_recipe",
    "measure_installation",
    "parse_lock",
    "read_policy",
    "require_scripts",
]

LOCK_NAME = "recipe.lock.json"
COMPOSE_NAME = "app-compose.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRecipe:
    """A deployment document, the lock in it, and the target that owners approve.

    The document is compared with the lock, and the target computed, where the value is made: no
    caller can give a target, and none of the four changes afterwards.

    Args:
        lock: The lock, parsed from the bytes that the document holds.
        compose_bytes: The deployment document.

    Raises:
        LockInvalid: The document is not the one that the lock gives.
    """

    lock: Lock
    compose_bytes: bytes
    lock_bytes: bytes = field(init=False)
    target: Target = field(init=False)
    """What a decision is about: app id, compose hash and recipe hash."""

    def __post_init__(self) -> None:
        """Compare document and lock, and compute the target of both."""
        lock_bytes = self.lock.to_bytes()
        document = build_compose(self.lock, lock_bytes)
        require_same(self.compose_bytes, document, launch_scripts(self.lock))
        target = Target(
            app_id=self.lock.recipe.hardware.app_id or compose_hash(self.compose_bytes)[:40],
            compose_hash=compose_hash(self.compose_bytes),
            recipe_hash=sha256_hex(lock_bytes),
        )
        object.__setattr__(self, "lock_bytes", lock_bytes)
        object.__setattr__(self, "target", target)

    @classmethod
    def parse(cls, compose_bytes: bytes) -> Self:
        """Read the bytes of a deployment document, such as the one that a guest measured.

        Raises:
            LockInvalid: Sealtrain did not write this document.
        """
        return cls(lock=parse_lock(lock_text(compose_bytes)), compose_bytes=compose_bytes)

    @classmethod
    def load(cls, deployment: Path) -> Self:
        """Read a deployment document, once: what is reviewed is what is sealed for and approved.

        Args:
            deployment: ``app-compose.json``, which has the lock in it.

        Raises:
            LockInvalid: Sealtrain did not write this document.
            DataInvalid: The file is missing or too long.
        """
        try:
            data = read_bounded(deployment, MAX_DEPLOYMENT_BYTES)
        except DataInvalid as error:
            if deployment.exists():
                raise
            hint = "lock the recipe first: sealtrain lock recipe.yaml --out locked"
            raise error.with_message(error.message, hint=hint) from None
        return cls.parse(data)

    @property
    def recipe_hash(self) -> str:
        """SHA-256 of the lock's bytes."""
        return self.target.recipe_hash

    @property
    def compose_hash(self) -> str:
        """SHA-256 of the deployment document's bytes."""
        return self.target.compose_hash

    @property
    def app_id(self) -> str:
        """Identity of the deployment, 40 hex digits."""
        return self.target.app_id

    @property
    def recipe(self) -> PhaseRecipe:
        """What the lock pins."""
        return self.lock.recipe

    def changes(self, since: LockedRecipe | None = None) -> list[RecipeChange]:
        """What an owner reviews: all that the lock fixes, or what changed since another one."""
        return diff(None if since is None else since.lock, self.lock)

    def write(self, out_dir: Path, *, overwrite: bool = False) -> None:
        """Write both files, or none; files that already hold these bytes are left alone.

        Args:
            out_dir: Folder for them; made where it is missing.
            overwrite: Replace another lock.

        Raises:
            AlreadyExists: The folder has another lock or document, and ``overwrite`` is false.
        """
        files = {LOCK_NAME: self.lock_bytes, COMPOSE_NAME: self.compose_bytes}
        changed = {
            name: data
            for name, data in files.items()
            if not ((out_dir / name).is_file() and (out_dir / name).read_bytes() == data)
        }
        for name in changed:
            if (out_dir / name).exists() and not overwrite:
                raise AlreadyExists(
                    f"{out_dir / name} holds another lock",
                    hint="lock into another folder; approvals of the old one stay with it",
                )
        fresh = [out_dir / name for name in changed if not (out_dir / name).exists()]
        with make_folder(out_dir):
            try:
                for name, data in changed.items():
                    atomic_write(out_dir / name, data, overwrite=overwrite)
            except BaseException:
                for path in fresh:
                    path.unlink(missing_ok=True)
                raise


def lock_recipe(
    recipe_path: Path,
    *,
    consortium_id: str,
    brokers: Collection[str],
    installation: Installation | None = None,
    hub: Mapping[str, HubPin] | None = None,
) -> LockedRecipe:
    """Lock the recipe at ``recipe_path``; paths inside it are relative to its folder.

    Args:
        recipe_path: ``recipe.yaml``.
        consortium_id: SHA-256 of the consortium document, 64 hex digits.
        brokers: Ids of the brokers that guests of this recipe obey, 64 hex digits each.
        installation: Code and packages to pin; those of this machine when ``None``.
        hub: Commit and licence of each model of the hub that the recipe names, whose files lie in
            the model's folder by now (``client.hub.bring_models``).

    Raises:
        UsageError: No broker, the same broker twice, or too many brokers.
        RecipeInvalid: The recipe breaks its schema, a script cannot be pinned, or the recipe that
            the model is handed on to cannot take it.
        LockInvalid: That recipe's deployment document is none, or the brokers and the threshold of
            the model's key do not fit.
        ModelInvalid: A model or tokenizer folder is missing or breaks the rules of modelfolder.py.
        TrustInvalid: The appraisal policy that the recipe names is missing or malformed.
        ExtraMissing: A package that training needs is missing.
    """
    if len(set(brokers)) != len(brokers) or not 1 <= len(brokers) <= MAX_BROKERS:
        raise UsageError(
            "a lock names each broker once",
            check="brokers",
            got=", ".join(broker[:16] for broker in brokers) or "none",
            expected=f"1 to {MAX_BROKERS} brokers",
            hint="give --broker once for each broker file",
        )
    recipe = load_recipe(recipe_path)
    measured = installation or measure_installation(recipe)
    base_dir = recipe_path.parent
    models = measure_models(recipe, base_dir)
    wanted = distributions_of(recipe.collaboration)
    unresolved = {
        "version": 2,
        "consortium_id": consortium_id,
        "brokers": tuple(sorted(brokers)),
        "recipe": recipe,
        "code": tuple(pin for pin in measured.code if pin.name in wanted),
        "environment": measured.environment,
        "scripts": require_scripts(recipe, base_dir, measured),
        "model": models.model,
        "tokenizer": models.tokenizer,
        "models": models.further,
        "policy": read_policy(recipe, base_dir),
        "hub": dict(hub) if hub else None,
        "handed_on": _read_hand_on(recipe, base_dir, consortium_id, brokers),
    }
    # Through bytes and back, so that every reader accepts the written lock.
    lock = parse_lock(Lock.model_validate(unresolved).to_bytes())
    return LockedRecipe(lock=lock, compose_bytes=build_compose(lock))


def read_policy(recipe: PhaseRecipe, base_dir: Path) -> dict[str, Any] | None:
    """The appraisal policy that parties demand of each other; ``None`` without one.

    Raises:
        ModelInvalid: The file is missing, or lies behind a symbolic link.
        TrustInvalid: The file is not an appraisal policy.
    """
    named = getattr(recipe.collaboration, "policy", None)
    if named is None:
        return None
    from sealtrain.attest.policy import load_policy

    return load_policy(resolve_inside(base_dir, named)).to_dict()


def _read_hand_on(
    recipe: PhaseRecipe, base_dir: Path, consortium_id: str, brokers: Collection[str]
) -> HandOnPin | None:
    """Pin the recipe that the model is handed on to, which was locked before."""
    named = recipe.release_policy.model.handed_on
    if named is None:
        return None
    locked = LockedRecipe.load(resolve_inside(base_dir, named.deployment))
    lock = locked.lock
    model = lock.recipe.sealed_model
    if model is None:
        raise RecipeInvalid(
            "the recipe that the model is handed on to has no sealed model",
            check="handed on",
            got=lock.recipe.name,
            expected="model.sealed, and a dataset of role model",
        )
    if lock.recipe.exports_model and lock.handed_on is None:
        raise RecipeInvalid(
            "the recipe that the model is handed on to seals its own model to persons",
            check="handed on",
            got=", ".join(lock.recipe.release_policy.model.recipients),
            expected="phase evaluate, or a recipe that hands its model on as well",
        )
    if lock.consortium_id != consortium_id:
        raise RecipeInvalid(
            "the recipe that the model is handed on to is another consortium's",
            check="handed on",
            got=lock.consortium_id,
            expected=consortium_id,
        )
    if not set(brokers) <= set(lock.brokers):
        raise RecipeInvalid(
            "the recipe that the model is handed on to does not obey each of the brokers",
            check="handed on",
            got=", ".join(lock.brokers),
            expected=", ".join(sorted(brokers)),
            hint="lock both recipes for the same brokers",
        )
    return HandOnPin(**locked.target.to_dict(), owner=model.owner, dataset=model.name)


def require_scripts(
    recipe: PhaseRecipe, base_dir: Path, installation: Installation
) -> dict[str, str]:
    """Texts of a recipe's scripts by path, which import nothing but what a lock pins.

    Raises:
        RecipeInvalid: A script is missing or cannot be pinned, or imports something else.
    """
    texts = read_scripts(recipe.scripts, base_dir)
    problem = script_problem(texts, recipe.scripts, installation.importable.top_level)
    if problem is not None:
        raise RecipeInvalid(problem.message, check="scripts", got=problem.module, hint=problem.hint)
    refuse_settings(texts)
    return texts
