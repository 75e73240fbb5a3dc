"""``trust``: write the file of what an auditor trusts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.attest.policy import load_policy
from sealtrain.base.encoding import to_base64
from sealtrain.base.files import atomic_write
from sealtrain.base.yamltext import yaml_text
from sealtrain.cli.brokers import BrokerFiles
from sealtrain.cli.output import Json, emit
from sealtrain.client.connection import attested_brokers, target_of
from sealtrain.consortium.members import Consortium
from sealtrain.errors import UsageError
from sealtrain.manifest.trust import parse_trust

__all__ = ["new"]


def new(
    consortium: Annotated[Path, typer.Option(help="The consortium file.")],
    deployment: Annotated[Path, typer.Option(help="app-compose.json of the recipe.")],
    policy: Annotated[Path, typer.Option(help="Appraisal policy for guests.")],
    brokers: BrokerFiles,
    threshold: Annotated[
        int | None,
        typer.Option(min=1, help="So many of several brokers must have released each dataset."),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("trust.yaml"),
    as_json: Json = False,
) -> None:
    """Write a trust file: consortium, recipe, brokers and appraisal policy, all pinned.

    Each broker attests itself first; its signing key is taken from that evidence.
    """
    if threshold is None and len(brokers) > 1:
        raise UsageError(
            "--threshold is missing: how many of the brokers must have released each dataset",
            check="--threshold",
            expected="as many as the data was sealed for; 1 where each owner has an own broker",
        )
    appraisal = load_policy(policy)
    target = target_of(deployment)
    attested = attested_brokers(brokers, deployment)
    document = {
        "version": 1,
        "consortium_id": Consortium.load(consortium).consortium_id,
        "recipe_hash": target.recipe_hash,
        "compose_hash": target.compose_hash,
        "app_id": target.app_id,
        "brokers": {
            "signing_keys": [to_base64(broker.signing_key) for broker in attested],
            "threshold": threshold or 1,
            "datasets": "all",
        },
        "appraisal": appraisal.to_dict(),
        "simulated": "accept-insecure" if appraisal.platform == "simulator" else "refuse",
    }
    parse_trust(document)
    atomic_write(out, yaml_text(document).encode())
    simulated = any(broker.simulated for broker in attested)
    emit(
        as_json,
        {"trust": str(out), "recipe_hash": target.recipe_hash, "simulated": simulated},
        [f"trust        {out}", f"recipe hash  {target.recipe_hash}"],
    )
