"""Before the first step, the guest checks the records against the recipe's rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.files import atomic_write

if TYPE_CHECKING:
    from sealtrain.guest.guestrun import GuestRun
    from sealtrain.recipe.schema import Recipe
    from sealtrain.training.data.sources import SealedFolder
    from sealtrain.training.data.validation.columns import CountTokens

__all__ = ["REPORT_NAME", "token_counter", "validate_data"]

REPORT_NAME = "validation.json"


def validate_data(run: GuestRun) -> None:
    """Check all records of a run that has rules for them; record in the run log that they hold.

    Raises:
        ValidationFailed: A rule does not hold.
        SealRefused, DataInvalid: A dataset is damaged.
    """
    rules = run.recipe.validation
    if rules is None:
        return
    from sealtrain.training.data.validation.check import check

    noted: dict[str, Any] = {"rules_sha256": sha256_hex(rules.to_bytes())}

    def publish(report: dict[str, Any]) -> None:
        if run.recipe.release_policy.logs != "structured":
            return
        data = canonical_json(report)
        atomic_write(run.settings.out / REPORT_NAME, data, mode=0o600, overwrite=True)
        noted["report_sha256"] = sha256_hex(data)

    counter = token_counter(run.recipe, run.base, run.model)
    check(rules, run.sources, count_tokens=counter, publish=publish)
    run.record("data.validated", noted)


def token_counter(
    recipe: Recipe, base: Path, sealed: SealedFolder | None = None
) -> CountTokens | None:
    """Counts tokens of a text, where a rule asks for it."""
    rules = recipe.validation
    if rules is None or all(rule.max_tokens is None for rule in rules.columns.values()):
        return None
    from sealtrain.training.models.base import build_tokenizer

    tokenizer: Any = build_tokenizer(recipe, base, sealed)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
