"""``trust``: write the file of what an auditor trusts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.attest.policy import load_policy
from sealtrain.base.models import load_model
from sealtrain.cli.brokers import BrokerFiles, policy_of_document
from sealtrain.cli.output import Json, emit, say
from sealtrain.client.pin import load_pin
from sealtrain.consortium.chainfile import load_chain_file
from sealtrain.consortium.members import Consortium
from sealtrain.errors import TrustInvalid, UsageError
from sealtrain.manifest.trust import TrustedChain
from sealtrain.owner.trusting import require_threshold, trust_in
from sealtrain.recipe.lock import LockedRecipe

if TYPE_CHECKING:
    from sealtrain.attest.policy import AppraisalPolicy
    from sealtrain.base.canonical import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestPolicyOptions:
    """Where what guests must show is written."""

    policy: Annotated[
        Path | None,
        typer.Option(help="Appraisal policy for guests; the broker's own, unless given."),
    ] = None
    documents: Annotated[
        list[Path] | None,
        typer.Option(
            "--broker-deployment",
            help="broker-compose.json, the document that the broker file pins: its policy for "
            "guests is taken; repeat for each broker.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedChainOptions:
    """The owners' contract whose word receipts must carry."""

    chain: Annotated[
        Path | None,
        typer.Option(help="Chain file of the owners' contract: receipts must carry its word."),
    ] = None
    blocks: Annotated[
        list[str] | None,
        typer.Option("--chain-block", help="Hash of a block that you found on that chain; repeat."),
    ] = None

    def read_chain(self) -> TrustedChain | None:
        """``chain`` of the trust file.

        Raises:
            UsageError: One is given without the other.
            TrustInvalid: The chain file is malformed, or a hash.
        """
        if self.chain is None and not self.blocks:
            return None
        if self.chain is None or not self.blocks:
            raise UsageError(
                "a chain file and blocks of the chain go together",
                check="--chain" if self.chain is None else "--chain-block",
                hint="sealtrain verify lists the blocks that receipts rely on: look them up",
            )
        file = load_chain_file(self.chain)
        names = TrustedChain.model_fields.keys() - {"blocks"}
        fields = {name: value for name, value in file.to_dict().items() if name in names}
        hashes: list[JsonValue] = [block.lower().removeprefix("0x") for block in self.blocks]
        return load_model(TrustedChain, fields | {"blocks": hashes}, TrustInvalid, "--chain")


def new(
    consortium: Annotated[Path, typer.Option(help="The consortium file.")],
    deployment: Annotated[Path, typer.Option(help="app-compose.json of the recipe.")],
    brokers: BrokerFiles,
    demanded: GuestPolicyOptions,
    chain: TrustedChainOptions,
    threshold: Annotated[
        int | None,
        typer.Option(min=1, help="So many of several brokers must have released each dataset."),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("trust.yaml"),
    as_json: Json = False,
) -> None:
    """Write a trust file: consortium, recipe, brokers and appraisal policy, all pinned.

    Each broker attests itself first; its signing key is taken from that evidence. What guests must
    show is yours to say with --policy, or what the brokers ask by their measured documents.
    """
    require_threshold(threshold, len(brokers))
    decided = chain.read_chain()
    policy = demanded.policy
    appraisal = (
        _read_policy(brokers, demanded.documents or ()) if policy is None else load_policy(policy)
    )
    trusted, simulated = trust_in(
        Consortium.load(consortium),
        LockedRecipe.load(deployment),
        brokers,
        appraisal,
        threshold=threshold,
    )
    trusted = trusted.model_copy(update={"chain": decided})
    trusted.save(out)
    emit(
        as_json,
        {"trust": str(out), "recipe_hash": trusted.recipe_hash, "simulated": simulated},
        [f"trust        {out}", f"recipe hash  {trusted.recipe_hash}"],
    )


def _read_policy(brokers: Sequence[Path], documents: Sequence[Path]) -> AppraisalPolicy:
    """The one policy in the documents that the broker files pin."""
    policies = dict(map(policy_of_document, documents))
    pinned = [load_pin(broker).compose_hash for broker in brokers]
    missing = sorted(set(pinned) - policies.keys())
    if missing:
        raise UsageError(
            "nothing says what guests must show",
            check="--policy",
            got=", ".join(sorted(policies)) or "no --policy and no --broker-deployment",
            expected=f"a policy, or the document {missing[0]} that a broker file pins",
            hint="give --policy, or --broker-deployment with the file that owners reviewed",
        )
    found = [policies[digest] for digest in pinned]
    if any(policy != found[0] for policy in found):
        raise UsageError(
            "the brokers ask different things of guests",
            check="--policy",
            hint="say with --policy what you ask",
        )
    say("what guests must show: as the broker's measured document says; read it in the file")
    return found[0]
