"""Before a run asks for keys it makes sure that it is what it will claim to be.

1. the guest's platform is one the recipe allows;
2. the deployment document the guest measured holds the very lock that is to run;
3. code, packages, base model and tokenizer are those of the lock.

Nothing here is trusted by the broker, which checks evidence itself: failing early is a kindness.
"""

from __future__ import annotations

from dataclasses import dataclass

from sealtrain.attest.guest import Guest, open_guest
from sealtrain.base.files import read_bounded
from sealtrain.errors import LockInvalid, PlatformMismatch, RecipeChanged
from sealtrain.recipe.compose import app_id_of, compose_hash, extract_lock
from sealtrain.recipe.lock import Lock, parse_lock
from sealtrain.recipe.measure import check_environment
from sealtrain.runner.settings import RunSettings

__all__ = ["Admitted", "admit"]

_MAX_LOCK = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A lock that runs in the guest that measured it."""

    lock: Lock
    lock_bytes: bytes
    app_id: str
    compose_hash: str
    guest: Guest


def admit(settings: RunSettings) -> Admitted:
    """Check platform, measured lock and environment.

    Raises:
        PlatformMismatch: Check 1.
        RecipeChanged: Check 2.
        EnvironmentChanged: Check 3.
        LockInvalid: The lock is malformed.
        GuestApiUnreachable: No guest answers at its address.
        UsageError: The address does not fit the platform.
    """
    lock_bytes = read_bounded(settings.lock, _MAX_LOCK)
    lock = parse_lock(lock_bytes)
    allowed = lock.recipe.hardware.platforms
    if settings.platform not in allowed:
        raise PlatformMismatch(
            "the recipe does not allow this platform",
            check="platform",
            got=settings.platform,
            expected=" or ".join(allowed),
            hint="hardware.platforms is part of what the owners approved",
        )
    guest = open_guest(
        settings.platform,
        settings.guest,
        collateral=settings.collateral,
        gpu_collateral=settings.gpu_collateral,
    )
    compose = guest.app_compose()
    measured = _measured_lock(compose)
    if measured != lock_bytes:
        raise RecipeChanged(
            "the guest measured another recipe than the one to run",
            check="recipe hash",
            got=lock.recipe_hash,
            expected=parse_lock(measured).recipe_hash,
            hint="start the guest with the app-compose.json that belongs to this lock",
        )
    check_environment(lock, settings.base)
    return Admitted(
        lock=lock,
        lock_bytes=lock_bytes,
        app_id=app_id_of(compose, lock),
        compose_hash=compose_hash(compose),
        guest=guest,
    )


def _measured_lock(compose: bytes) -> bytes:
    try:
        return extract_lock(compose)
    except LockInvalid as error:
        raise RecipeChanged(
            f"the guest measured no sealtrain recipe: {error.message}",
            check="recipe hash",
            hint="start the guest with the app-compose.json that sealtrain lock wrote",
        ) from error
