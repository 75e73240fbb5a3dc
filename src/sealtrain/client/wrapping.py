"""Wrap a data key for the brokers of one recipe: one gets it whole, several get a share each."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sealtrain.base.secret import Random
from sealtrain.client.broker_proof import AttestedBroker
from sealtrain.errors import UsageError
from sealtrain.keys.shares import check_threshold, split_key
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.stanza import (
    BrokerBinding,
    RecipeBinding,
    Stanza,
    wrap_for_recipe,
    wrap_share,
)
from sealtrain.signing.identity import PublicIdentity


def check_brokers(brokers: Sequence[AttestedBroker], threshold: int | None) -> None:
    """Return if a key can be wrapped for these brokers so.

    Raises:
        UsageError: No broker, one twice, no threshold for several or one for a single broker, or
            not more than half of them are needed.
    """
    if len({broker.named_as for broker in brokers}) != len(brokers) or not brokers:
        raise UsageError(
            "each broker is named once",
            check="brokers",
            got=", ".join(broker.named_as[:16] for broker in brokers) or "none",
            hint="two broker files of one broker make no second broker",
        )
    if (threshold is None) != (len(brokers) == 1):
        raise UsageError(
            "how many of the brokers must agree?" if threshold is None else "one broker agrees",
            check="threshold",
            got=threshold,
            expected="--threshold K for several brokers, and none for one",
        )
    if threshold is not None:
        check_threshold(threshold, len(brokers))


def wrap_for_brokers(
    key: DataKey,
    *,
    dataset_id: str,
    owner: PublicIdentity,
    brokers: Sequence[AttestedBroker],
    threshold: int | None,
    random: Random = os.urandom,
) -> tuple[Stanza, ...]:
    """The stanzas that let brokers release a dataset for the recipe they were asked about.

    Args:
        key: The dataset's data key.
        dataset_id: 32 hex digits.
        owner: Whose dataset it is.
        brokers: What they proved, all for one recipe.
        threshold: How many of several brokers give the key back; ``None`` for a single one.
        random: Source of the identifier that shares have in common.

    Raises:
        UsageError: As ``check_brokers``.
        ApprovalUnknown: A broker does not serve this owner.
    """
    check_brokers(brokers, threshold)
    publics = [HpkePublicKey(broker.key_of(owner.name)) for broker in brokers]
    recipe = RecipeBinding(brokers[0].app_id, brokers[0].compose_hash, owner.owner_id)
    bindings = [BrokerBinding.of(recipe, broker.broker_id) for broker in brokers]
    if threshold is None:
        return (
            wrap_for_recipe(key, dataset_id=dataset_id, binding=bindings[0], public=publics[0]),
        )
    shares = split_key(key, threshold=threshold, count=len(brokers), random=random)
    return tuple(
        wrap_share(share, dataset_id=dataset_id, binding=binding, public=public)
        for binding, public, share in zip(bindings, publics, shares, strict=True)
    )
