"""``trust``: write down what an auditor takes as given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sealtrain.cli.output import Json, emit

__all__ = ["app"]

app = typer.Typer(help="The auditor's trust file.", no_args_is_help=True)


@app.command()
def new(
    consortium: Annotated[Path, typer.Option(help="The consortium file.")],
    deployment: Annotated[Path, typer.Option(help="app-compose.json of the recipe.")],
    policy: Annotated[Path, typer.Option(help="Appraisal policy for guests.")],
    broker: Annotated[Path, typer.Option(help="Broker file of the broker whose receipts count.")],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("trust.yaml"),
    as_json: Json = False,
) -> None:
    """Write a trust file: consortium, recipe, broker and appraisal policy, all pinned.

    The broker attests itself first; its signing key is taken from that evidence.
    """
    import yaml

    from sealtrain.attest.policy import load_policy
    from sealtrain.base.encoding import to_base64
    from sealtrain.base.files import atomic_write
    from sealtrain.cli.connection import attested_broker, target_of
    from sealtrain.consortium.members import Consortium
    from sealtrain.manifest.trust import parse_trust

    appraisal = load_policy(policy)
    target = target_of(deployment)
    _client, attested = attested_broker(broker, deployment)
    document = {
        "version": 1,
        "consortium_id": Consortium.load(consortium).consortium_id,
        "recipe_hash": target.recipe_hash,
        "compose_hash": target.compose_hash,
        "app_id": target.app_id,
        "broker": {"signing_key": to_base64(attested.signing_key)},
        "appraisal": appraisal.to_dict(),
        "simulated": "accept-insecure" if appraisal.platform == "simulator" else "refuse",
    }
    parse_trust(document)
    atomic_write(out, yaml.safe_dump(document, sort_keys=False).encode())
    emit(
        as_json,
        {"trust": str(out), "recipe_hash": target.recipe_hash, "simulated": attested.simulated},
        [f"trust        {out}", f"recipe hash  {target.recipe_hash}"],
    )
