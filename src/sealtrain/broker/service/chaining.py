"""The place of a run in a chain: which model it is lent, and where it is recorded.

See spec/schedule.md §4.

The guest repeats what its run ticket says, and an operator wrote that. So a broker compares it with
its own ledger before it records the manifest: a chain in a ledger has no gap and no fork.
"""

from __future__ import annotations

from typing import Any, cast

from sealtrain.broker.store.transaction import Transaction
from sealtrain.consortium.withdrawals import Withdrawal
from sealtrain.errors import RunChainBroken
from sealtrain.ledger.ledger import Ledger
from sealtrain.manifest.predicate import Predicate
from sealtrain.release.facts import Measured, NewestRun
from sealtrain.signing.continues import Continues
from sealtrain.signing.target import Target


def newest_run(transaction: Transaction, ledger: Ledger, target: Target) -> NewestRun | None:
    """The run of a deployment whose manifest was recorded last.

    Args:
        transaction: Alone in its commit, because the entries behind it are read.
        ledger: Of this broker.
        target: The deployment.
    """
    recorded = transaction.manifests_after(
        -1, app_id=target.app_id, compose_hash=target.compose_hash
    )
    if not recorded:
        return None
    body = _body(ledger, recorded[-1])
    number = body.get("continues", {}).get("number", 1) + 1
    return NewestRun(
        run_id=body["run_id"],
        next=Continues(manifest_digest=body["manifest_digest"], number=number),
    )


def began_after(transaction: Transaction, ledger: Ledger, run_id: str) -> Continues | None:
    """Which run's model a run began with, as the entry of its first release says."""
    index = transaction.first_release(run_id)
    named = None if index is None else _body(ledger, index).get("continues")
    return None if named is None else Continues.model_validate(named)


def run_of(transaction: Transaction, ledger: Ledger, continues: Continues | None) -> str | None:
    """Id of the run that another one follows; ``None`` where it follows none."""
    index = None if continues is None else transaction.manifest(continues.manifest_digest)
    return None if index is None else str(_body(ledger, index)["run_id"])


def withdrawn_before(
    transaction: Transaction, target: Target, measured: Measured
) -> dict[str, str]:
    """Withdrawn data of the runs whose models led to the newest one: dataset id → owner.

    Nothing of a recipe whose runs begin anew.
    """
    if not measured.follows:
        return {}
    return transaction.owner_documents.about_recorded_runs(
        Withdrawal.entry_kind, app_id=target.app_id, compose_hash=target.compose_hash
    )


def require_first(transaction: Transaction, predicate: Predicate) -> None:
    """Refuse a second beginning of a recipe whose runs begin with the model of the run before.

    Args:
        transaction: In which the manifest is to be recorded.
        predicate: Of the manifest, verified; it continues no other.

    Raises:
        RunChainBroken: A manifest of its deployment is recorded.
    """
    schedule = predicate.recipe.lock["recipe"].get("schedule") or {}
    if schedule.get("continue") != "last":
        return
    deployment = predicate.deployment
    recorded = transaction.manifests_after(
        -1, app_id=deployment.app_id, compose_hash=deployment.compose_hash
    )
    if recorded:
        raise _broken("number", 1, len(recorded) + 1)


def require_place(
    transaction: Transaction, ledger: Ledger, predicate: Predicate, continues: Continues
) -> None:
    """Refuse a manifest that does not follow the newest one of its chain.

    1. the manifest that it continues was recorded here, unless the recipe names several brokers:
       one of them may have missed it;
    2. that one is of a run of the same deployment, and its number is one less;
    3. no other recorded manifest continues it.

    Args:
        transaction: In which the manifest is to be recorded.
        ledger: Of this broker.
        predicate: Of the manifest, verified.
        continues: Its field.

    Raises:
        RunChainBroken: One of these does not hold.
    """
    before = transaction.manifest(continues.manifest_digest)
    if before is None:
        if len(predicate.recipe.lock["brokers"]) > 1:
            return
        raise _broken("predecessor", continues.manifest_digest, "a manifest that is recorded here")
    body = _body(ledger, before)
    run = transaction.run(body["run_id"])
    deployment = predicate.deployment
    if run is None or (run.app_id, run.compose_hash) != (
        deployment.app_id,
        deployment.compose_hash,
    ):
        raise _broken("deployment", body["run_id"], "a run of the same deployment document")
    number = body.get("continues", {}).get("number", 1) + 1
    if continues.number != number:
        raise _broken("number", continues.number, number)
    later = transaction.manifests_after(
        before, app_id=deployment.app_id, compose_hash=deployment.compose_hash
    )
    for index in later:
        other = _body(ledger, index)
        if other.get("continues", {}).get("manifest_digest") == continues.manifest_digest:
            raise _broken("fork", other["manifest_digest"], "one manifest that continues it")


def _body(ledger: Ledger, index: int) -> dict[str, Any]:
    return cast("dict[str, Any]", ledger.entry(index)["body"])


def _broken(check: str, got: object, expected: object) -> RunChainBroken:
    return RunChainBroken(
        "the manifest does not follow the newest one of its chain",
        check=check,
        got=got,
        expected=expected,
        hint="name the newest manifest of the chain in the run ticket",
    )
