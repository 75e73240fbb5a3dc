"""Before a run asks for keys, the guest checks that it is the guest its evidence will describe.

1. the guest's platform is one the recipe allows, and the machine has the compiler or the
   accelerator that the recipe's engine settings need;
2. the deployment document the guest measured holds the very lock that is to run;
3. code, packages, base model and tokenizer are those of the lock;
4. the recipe's scripts import nothing that the lock does not pin and set nothing that a run cannot
   follow, and a process that serves only this run can import nothing else from now on.

The guest copies everything that the operator could still change afterwards: the lock as it was
read, its scripts, and every file of models and tokenizers, from the very bytes that were hashed.
From here on the run reads that copy and never the operator's folder again.

The broker checks evidence itself and does not rely on these checks; owners do, because the code is
measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sealtrain.attest.errors import PlatformMismatch
from sealtrain.attest.guest import Guest, open_guest
from sealtrain.base.digests import sha256_hex
from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.base.tiers import Tier
from sealtrain.errors import RecipeChanged
from sealtrain.guest.engines import require_engines
from sealtrain.guest.errors import ImportRefused
from sealtrain.guest.sandbox.imports import import_only_pinned
from sealtrain.guest.settings import RunSettings
from sealtrain.recipe.compose import lock_text
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.importable import Importable
from sealtrain.recipe.lock import Lock, LockedRecipe
from sealtrain.recipe.measure import check_environment
from sealtrain.recipe.models import BASE, place_in
from sealtrain.recipe.scripts import script_problem
from sealtrain.recipe.scriptsettings import refuse_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A lock that runs in the guest that measured it.

    Attributes:
        locked: The deployment document that the guest measured, with its lock.
        guest: Collects evidence.
        tier: What that evidence proves of the machine.
        taken: Copies of models, tokenizers and scripts, as the lock pins them.
        importable: Modules of the packages that the lock pins.
    """

    locked: LockedRecipe
    guest: Guest
    tier: Tier
    taken: PrivateFolder
    importable: Importable

    @property
    def base(self) -> Path:
        """The folder of the copies, from which the recipe's paths start."""
        return self.taken.path / BASE


def admit(settings: RunSettings, *, alone: bool = False) -> Admitted:
    """Check platform, measured lock, environment and imports.

    Args:
        settings: Where everything is.
        alone: This process serves only the run: it imports nothing unpinned until it ends.

    Raises:
        PlatformMismatch, ExtraMissing: Check 1.
        RecipeChanged: Check 2.
        EnvironmentChanged: Check 3.
        ImportRefused, RecipeInvalid: Check 4.
        LockInvalid: The lock is malformed.
        GuestApiUnreachable: No guest answers at its address.
        CollateralUnreachable: What its evidence needs of the vendor cannot be had.
        UsageError: The address does not fit the platform.
    """
    lock = settings.recipe_lock
    allowed = lock.recipe.hardware.platforms
    if settings.platform not in allowed:
        raise PlatformMismatch(
            "the recipe does not allow this platform",
            check="platform",
            got=settings.platform,
            expected=" or ".join(allowed),
            hint="run on a platform of hardware.platforms, which the owners approved",
        )
    require_engines(lock.recipe)
    guest = open_guest(
        settings.platform,
        settings.guest,
        collateral=settings.collateral,
        gpu_collateral=settings.gpu_collateral,
    )
    locked = _read_measured_lock(guest.app_compose(), lock, settings.lock_bytes)
    # Asked before the border closes: what a platform fetches once for its evidence is here then.
    tier = guest.tier()
    taken = PrivateFolder()
    try:
        here = check_environment(lock, settings.base, into=taken)
        _take_scripts(lock, here.importable, taken)
        if alone:
            import_only_pinned(here.importable)
    except BaseException:
        taken.close()
        raise
    return Admitted(
        locked=locked,
        guest=guest,
        tier=tier,
        taken=taken,
        importable=here.importable,
    )


def _take_scripts(lock: Lock, importable: Importable, taken: PrivateFolder) -> None:
    """Copy the scripts beside the models, for scripts that read their own folder."""
    (taken.path / BASE).mkdir(exist_ok=True)
    problem = script_problem(lock.scripts, lock.recipe.scripts, importable.top_level)
    if problem is not None:
        raise ImportRefused(problem.message, check="imports", got=problem.module, hint=problem.hint)
    refuse_settings(lock.scripts)
    for path, text in lock.scripts.items():
        with taken.writer(place_in(path)) as file:
            file.write(text.encode())


def _read_measured_lock(compose: bytes, lock: Lock, lock_bytes: bytes) -> LockedRecipe:
    """The lock in the document that the guest measured; it must hold these very bytes."""
    try:
        measured = lock_text(compose)
        if measured != lock_bytes:
            raise RecipeChanged(
                "the guest measured a different lock than the one to run",
                check="recipe hash",
                got=lock.recipe_hash,
                expected=sha256_hex(measured),
                hint="start the guest with the app-compose.json that belongs to this lock",
            )
        return LockedRecipe(lock=lock, compose_bytes=compose)
    except LockInvalid as error:
        raise RecipeChanged(
            f"the guest measured no sealtrain recipe: {error.message}",
            check="recipe hash",
            hint="start the guest with the app-compose.json that sealtrain lock wrote",
        ) from error
