"""The trust file of an auditor: consortium, recipe, brokers and appraisal policy, all pinned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.encoding import to_base64
from sealtrain.client.connection import attest_brokers
from sealtrain.errors import UsageError
from sealtrain.manifest.trust import Trust, parse_trust

if TYPE_CHECKING:
    from sealtrain.attest.policy import AppraisalPolicy
    from sealtrain.consortium.members import Consortium
    from sealtrain.recipe.lock import LockedRecipe


def require_threshold(threshold: int | None, brokers: int) -> None:
    """Refuse to guess how many of several brokers must have released a dataset.

    Raises:
        UsageError: There are several brokers and no threshold.
    """
    if threshold is None and brokers > 1:
        raise UsageError(
            "--threshold is missing: how many of the brokers must have released each dataset",
            check="--threshold",
            expected="as many as the data was sealed for; 1 where each owner has an own broker",
        )


def trust_in(
    consortium: Consortium,
    deployment: LockedRecipe,
    brokers: Sequence[Path],
    policy: AppraisalPolicy,
    *,
    threshold: int | None = None,
) -> tuple[Trust, bool]:
    """Pin what an auditor trusts. Each broker attests itself first, and its key comes from that.

    Args:
        consortium: As the auditor holds it.
        brokers: Broker files.
        policy: What guests must show; a policy of the simulator accepts simulated runs.
        threshold: So many of several brokers must have released each dataset.

    Returns:
        The trust, and whether a broker's evidence comes from a simulator, which proves nothing.

    Raises:
        UsageError: There are several brokers and no threshold.
        BrokerNotApproved: The lock does not name a broker.
        EvidenceRefused: A broker's evidence does not verify.
    """
    require_threshold(threshold, len(brokers))
    target = deployment.target
    attested = attest_brokers(brokers, deployment)
    trust = parse_trust(
        {
            "version": 1,
            "consortium_id": consortium.consortium_id,
            "recipe_hash": target.recipe_hash,
            "compose_hash": target.compose_hash,
            "app_id": target.app_id,
            "brokers": {
                "signing_keys": [to_base64(broker.signing_key) for broker in attested],
                "threshold": threshold or 1,
                "datasets": "all",
            },
            "appraisal": policy.to_dict(),
            "simulated": "accept-insecure" if policy.platform == "simulator" else "refuse",
        }
    )
    return trust, any(broker.simulated for broker in attested)
