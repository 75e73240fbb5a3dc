"""``policy``: what an owner asks of guests that read their data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sealtrain.attest.open_values import open_values
from sealtrain.attest.policy import AppraisalPolicy, load_policy
from sealtrain.base.clock import system_clock
from sealtrain.base.tiers import WORDS, or_stronger
from sealtrain.cli.approvals import ConsortiumFile, IdentityFile, confirm
from sealtrain.cli.brokers import BrokerFiles, at_each, exit_for
from sealtrain.cli.durations import Duration
from sealtrain.cli.ledgermemory import StateFile
from sealtrain.cli.output import Json, emit, say
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.connection import watch_ledger
from sealtrain.client.pin import load_pin
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.owner_document import sign_owned
from sealtrain.consortium.policies import OwnerPolicy, SignedPolicy
from sealtrain.errors import UsageError
from sealtrain.keys.identity import Identity
from sealtrain.owner.owner_files import one_memory


def set_policy(
    identity: IdentityFile,
    brokers: BrokerFiles,
    appraisal: Annotated[
        Path | None, typer.Argument(help="Appraisal policy for guests; see policy new.")
    ] = None,
    lease_seconds: Annotated[
        int | None,
        typer.Option(
            click_type=Duration("s", least=60, most=604800), help="Longest lease on your keys."
        ),
    ] = None,
    consortium: ConsortiumFile = Path("consortium.json"),
    state: StateFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Ask more of guests that read your data than the broker asks of all.

    It touches runs only whose recipe names data of yours, from the next release or renewal on.
    """
    if appraisal is None and lease_seconds is None:
        raise UsageError(
            "neither a policy nor --lease-seconds was given",
            expected="an appraisal policy, --lease-seconds, or both",
            hint="to ask for nothing any more: sealtrain policy clear",
        )
    rules = None if appraisal is None else load_policy(appraisal)
    _submit(rules, lease_seconds, identity, brokers, consortium, state, yes, as_json)


def clear(
    identity: IdentityFile,
    brokers: BrokerFiles,
    consortium: ConsortiumFile = Path("consortium.json"),
    state: StateFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    as_json: Json = False,
) -> None:
    """Ask for nothing of your own any more: what the broker asks of all suffices."""
    _submit(None, None, identity, brokers, consortium, state, yes, as_json)


def show(
    brokers: BrokerFiles,
    consortium: ConsortiumFile = Path("consortium.json"),
    as_json: Json = False,
) -> None:
    """List what each owner asks, as the owners signed it."""
    members = Consortium.load(consortium)

    def at(broker: Path) -> dict[str, SignedPolicy]:
        with BrokerClient.at(load_pin(broker)) as client:
            return client.policies(members)

    answers = at_each(brokers, at)
    lines = [
        f"{url}  {line}"
        for url, found in answers.done.items()
        for line in [_line(policy) for policy in found.values()] or ["no owner asks for more"]
    ]
    emit(
        as_json,
        {
            "brokers": {
                url: {name: policy.document.to_dict() for name, policy in found.items()}
                for url, found in answers.done.items()
            },
            "failed": list(answers.failed),
        },
        lines,
    )
    exit_for(answers)


def _submit(
    appraisal: AppraisalPolicy | None,
    lease_seconds: int | None,
    identity: Path,
    brokers: list[Path],
    consortium: Path,
    state: Path | None,
    yes: bool,
    as_json: bool,
) -> None:
    one_memory(state, len(brokers))
    members, owner = Consortium.load(consortium), Identity.load(identity)
    members.owner(owner.name)
    if not as_json:
        say(f"You are about to ask: {_describe_demands(appraisal, lease_seconds)}")
    confirm("SET", yes)

    def at(broker: Path) -> dict[str, Any]:
        with watch_ledger(broker, members, identity, state) as watch:
            # Each broker has a policy of its own in force, which the new one continues.
            before = watch.client.policies(members).get(owner.name)
            envelope = sign_owned(
                OwnerPolicy.of(
                    consortium_id=members.consortium_id,
                    owner=owner.public,
                    appraisal=appraisal,
                    lease_seconds=lease_seconds,
                    previous=None if before is None else before.digest,
                    signed_at=system_clock(),
                ),
                owner.signer,
            )
            index = watch.client.hand_in(OwnerPolicy.entry_kind, envelope)
            watch.confirm_recorded(index, envelope.to_bytes())
            return {"index": index, "digest": envelope.digest}

    answers = at_each(brokers, at)
    emit(
        as_json,
        {"brokers": answers.done, "failed": list(answers.failed)},
        [f"{url}: in force, entry {answer['index']}" for url, answer in answers.done.items()],
    )
    exit_for(answers)


def _line(signed: SignedPolicy) -> str:
    asked = _describe_demands(signed.document.appraisal, signed.document.lease_seconds)
    return f"{signed.owner.name}  since {signed.document.signed_at}  {asked}"


def _describe_demands(appraisal: AppraisalPolicy | None, lease_seconds: int | None) -> str:
    parts = []
    if appraisal is not None:
        gpu = appraisal.gpu if isinstance(appraisal.gpu, str) else "attested"
        parts.append(f"platform {appraisal.platform} ({appraisal.cpu.tee}), accelerators {gpu}")
        parts.append(f"tier {or_stronger(appraisal.tier)}: {WORDS[appraisal.tier]}")
        parts += [f"LEFT OPEN {field}: any {words}" for field, words in open_values(appraisal)]
    if lease_seconds is not None:
        parts.append(f"leases of at most {lease_seconds} s")
    return "; ".join(parts) or "nothing of your own"
