"""Checks 8, 9 and 15: which recipe ran, whether it is the trusted one, and what it let out."""

from __future__ import annotations

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import (
    ClaimContradicted,
    DataInvalid,
    EgressRefused,
    LockInvalid,
    RecipeChanged,
    TrustMismatch,
)
from sealtrain.manifest.checks.case import Case
from sealtrain.manifest.checks.privacy import privacy_kept
from sealtrain.recipe.compose import extract_lock
from sealtrain.recipe.lockfile import parse_lock

__all__ = ["policy_kept", "recipe_is_measured", "trusted_one"]


def recipe_is_measured(case: Case) -> str:
    """(8) The measured deployment document embeds exactly the lock that the statement shows."""
    recorded = case.predicate.recipe
    try:
        lock_bytes = canonical_json(recorded.lock)
        lock = parse_lock(lock_bytes)
    except (DataInvalid, LockInvalid) as error:
        raise ClaimContradicted(
            f"the recipe lock in the manifest is not a lock: {error.message}", check="recipe"
        ) from error
    if sha256_hex(lock_bytes) != recorded.recipe_hash:
        raise ClaimContradicted(
            "the recipe lock does not hash to the recipe hash beside it",
            check="recipe hash",
            got=sha256_hex(lock_bytes),
            expected=recorded.recipe_hash,
        )
    _refuse_other_consortium(case, lock.consortium_id)
    if case.predicate.deployment.platform not in lock.recipe.hardware.platforms:
        raise ClaimContradicted(
            "the recipe does not allow the platform it ran on",
            check="platform",
            got=case.predicate.deployment.platform,
            expected=" or ".join(lock.recipe.hardware.platforms),
        )
    # Known from here on, so that later checks report on it even where the quote does not hold.
    case.lock = lock
    verified = case.need_verified()
    lock.recipe.hardware.require_key_provider(verified.key_provider)
    try:
        measured = extract_lock(verified.app_compose)
    except LockInvalid as error:
        raise RecipeChanged(
            f"the measured deployment document is not one that sealtrain writes: {error.message}",
            check="recipe",
        ) from error
    if measured != lock_bytes:
        raise RecipeChanged(
            "the guest measured another recipe than the manifest shows",
            check="recipe",
            got=sha256_hex(measured),
            expected=recorded.recipe_hash,
        )
    further = "".join(
        f"; {name} model {pin.model.sha256[:16]}…" for name, pin in lock.models.items()
    )
    return (
        f"{lock.recipe.name}, {recorded.recipe_hash[:16]}…, embedded in what was measured{further}"
    )


def trusted_one(case: Case) -> str:
    """(9) Consortium, recipe, compose hash and app id are those the trust file pins."""
    deployment = case.predicate.deployment
    found = {
        "consortium_id": case.predicate.consortium.consortium_id,
        "recipe_hash": case.predicate.recipe.recipe_hash,
        "compose_hash": deployment.compose_hash,
        "app_id": deployment.app_id,
    }
    pinned = []
    for name, got in found.items():
        expected = getattr(case.trust, name)
        if expected == "any":
            continue
        if got != expected:
            raise TrustMismatch(
                f"the manifest is about another {name.replace('_', ' ')} than you trust",
                check=name.replace("_", " "),
                got=got,
                expected=expected,
                hint="compare with the owners what they founded and approved",
            )
        pinned.append(name.replace("_", " "))
    return "as pinned: " + ", ".join(pinned)


def policy_kept(case: Case) -> str:
    """(15) Metrics, recipients and privacy are what the approved recipe lets out."""
    recipe = case.need_lock().recipe
    allowed = recipe.release_policy
    run = case.predicate.run
    for values in (*(point.values for point in run.history), run.metrics):
        for name, value in values.items():
            if name not in allowed.metrics:
                raise EgressRefused(
                    "the manifest reports a metric that the recipe does not release",
                    check="release policy",
                    got=name,
                    expected=", ".join(allowed.metrics) or "no metric",
                )
            if value is not None and round(value, allowed.round_to) != value:
                raise EgressRefused(
                    "a metric is reported more finely than the recipe allows",
                    check="release policy",
                    got=f"{name} with more than {allowed.round_to} decimal places",
                    expected=f"at most {allowed.round_to}",
                )
    recipients = case.predicate.outputs.recipients
    if recipients != allowed.model.recipients:
        raise ClaimContradicted(
            "the outputs are sealed to other recipients than the recipe names",
            check="recipients",
            got=", ".join(recipients),
            expected=", ".join(allowed.model.recipients),
        )
    strangers = set(recipients) - {owner.name for owner in case.predicate.consortium.owners}
    if strangers:
        raise ClaimContradicted(
            "the recipe names recipients who are no owners of this consortium",
            check="recipients",
            got=", ".join(sorted(strangers)),
        )
    private = privacy_kept(case)
    names = ", ".join(sorted(run.metrics)) or "no metric"
    return f"released {names}; outputs sealed to {', '.join(recipients)}{private}"


def _refuse_other_consortium(case: Case, locked_for: str) -> None:
    consortium_id = case.predicate.consortium.consortium_id
    if locked_for != consortium_id:
        raise ClaimContradicted(
            "the recipe was locked for another consortium than the manifest shows",
            check="consortium",
            got=locked_for,
            expected=consortium_id,
        )
