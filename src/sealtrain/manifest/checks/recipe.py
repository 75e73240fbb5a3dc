"""Checks 8, 9 and 15: which recipe ran, whether it is the trusted one, and what it let out."""

from __future__ import annotations

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.tiers import or_stronger, reaches
from sealtrain.errors import DataInvalid, EgressRefused, RecipeChanged
from sealtrain.manifest.checks.case import Case
from sealtrain.manifest.checks.counts import counts_true
from sealtrain.manifest.checks.privacy import privacy_kept
from sealtrain.manifest.checks.served import rows_true
from sealtrain.manifest.errors import ClaimContradicted, TrustMismatch
from sealtrain.manifest.outputs import model_of
from sealtrain.recipe.compose import lock_text
from sealtrain.recipe.errors import LockInvalid
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.lockfile import Lock, parse_lock
from sealtrain.sealing.description import dataset_root
from sealtrain.sealing.trainedmodel import dataset_names


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
    if not reaches(case.predicate.deployment.tier, lock.recipe.hardware.tier):
        raise ClaimContradicted(
            "the machine it ran on proves less than the recipe asks for",
            check="tier",
            got=case.predicate.deployment.tier,
            expected=or_stronger(lock.recipe.hardware.tier),
        )
    # Known from here on, so that later checks report on it even where the quote does not hold.
    case.lock = lock
    verified = case.need_verified()
    lock.recipe.hardware.require_key_provider(verified.key_provider)
    try:
        measured = lock_text(verified.app_compose)
        if measured != lock_bytes:
            raise RecipeChanged(
                "the guest measured another recipe than the manifest shows",
                check="recipe",
                got=sha256_hex(measured),
                expected=recorded.recipe_hash,
            )
        LockedRecipe(lock=lock, compose_bytes=verified.app_compose)
    except LockInvalid as error:
        raise RecipeChanged(
            f"the measured deployment document is not one that sealtrain writes: {error.message}",
            check="recipe",
        ) from error
    further = "".join(
        f"; {name} model {pin.model.sha256[:16]}…" for name, pin in lock.models.items()
    )
    return (
        f"{lock.recipe.name}, {recorded.recipe_hash[:16]}…, embedded in what was measured{further}"
    )


def check_trusted(case: Case) -> str:
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
    """(15) Metrics, recipients, privacy and counts are what the approved recipe lets out."""
    lock = case.need_lock()
    allowed = lock.recipe.release_policy
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
    handed_on = _check_handed_on(case, lock)
    private = privacy_kept(case) + counts_true(case, lock) + rows_true(case, lock)
    names = ", ".join(sorted(run.metrics)) or "no metric"
    return f"released {names}; outputs sealed to {handed_on or ', '.join(recipients)}{private}"


def _check_handed_on(case: Case, lock: Lock) -> str | None:
    """The dataset that the outputs are is for the recipe that the lock pins; ``None`` for none."""
    stated, pin = case.predicate.outputs.dataset, lock.handed_on
    if (stated is None) != (pin is None):
        raise ClaimContradicted(
            "the outputs are handed on exactly where the recipe hands its model on",
            check="handed on",
            got="not handed on" if stated is None else f"to {stated.compose_hash}",
            expected="not handed on" if pin is None else f"to {pin.compose_hash}",
        )
    if stated is None or pin is None:
        return None
    owner = next(
        (member for member in case.predicate.consortium.owners if member.name == pin.owner), None
    )
    model = model_of(case.predicate, case.manifest.subjects)
    shards = () if model.dataset is None else model.dataset.shards
    found = {
        "owner": (stated.owner, pin.owner),
        "owner id": (stated.owner_id, None if owner is None else owner.owner_id),
        "dataset": (stated.name, pin.dataset),
        "app id": (stated.app_id, pin.app_id),
        "compose hash": (stated.compose_hash, pin.compose_hash),
        "files": (model.names, dataset_names(max(2, len(model.files)))),
    }
    for what, (got, expected) in found.items():
        if got != expected:
            raise ClaimContradicted(
                f"the outputs are handed on with another {what} than the recipe says",
                check="handed on",
                got=str(got),
                expected=str(expected),
            )
    root = dataset_root(stated.dataset_id, model.files[0].root, shards)
    if stated.root != root:
        raise ClaimContradicted(
            "the root of the handed on model is not that of its files",
            check="handed on",
            got=stated.root,
            expected=root,
        )
    return f"guests of {pin.compose_hash[:16]}… as {pin.owner}/{pin.dataset}"


def _refuse_other_consortium(case: Case, locked_for: str) -> None:
    consortium_id = case.predicate.consortium.consortium_id
    if locked_for != consortium_id:
        raise ClaimContradicted(
            "the recipe was locked for another consortium than the manifest shows",
            check="consortium",
            got=locked_for,
            expected=consortium_id,
        )
