"""``status``: would keys be released for a recipe now; if not, what is missing from whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sealtrain.base.clock import to_rfc3339
from sealtrain.cli.brokers import BrokerFiles, policy_of_document
from sealtrain.cli.durations import Duration
from sealtrain.cli.ledgermemory import read_given
from sealtrain.cli.output import Json, emit, progress_items, quote_path
from sealtrain.cli.runoptions import Collateral, GpuCollateral
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.client.grants import WantedKey
from sealtrain.client.pin import load_pin
from sealtrain.errors import UsageError
from sealtrain.owner.owner_files import one_memory
from sealtrain.owner.readiness import GuestHere, Obstacle, PlannedRun, Readiness, Together, ask
from sealtrain.recipe.lock import LockedRecipe

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.owner.ledger_audit import Progress
    from sealtrain.owner.readiness import AtHand
    from sealtrain.recipe.recipe import PhaseRecipe

_EXCHANGE_SECONDS: Final = 30.0

_SAID: Final = {
    "refused": "no",
    "guest-unproven": "yes, if the guest proves itself",
    "released": "yes",
}
_APPROVE: Final = (
    "sealtrain approve --deployment {deployment} --identity {owner}.identity.json --broker {broker}"
)
_COMMANDS: Final = {
    "approvals-missing": _APPROVE,
    "approval-expired": _APPROVE,
    "approval-revoked": f"{_APPROVE} --lift-revocation",
    "approval-spent": f"{_APPROVE} --runs N",
    "series-mismatch": "sealtrain register SEALED --identity {owner}.identity.json "
    "--deployment {deployment} --broker {broker}",
    "recipe-changed": "sealtrain recipe diff",
    "dataset-unknown": "sealtrain seal DATA --name {dataset} --identity {owner}.identity.json "
    "--deployment {deployment} --broker {broker}",
    "dataset-mismatch": f"{_APPROVE} --data SEALED",
    "no-stanza": "sealtrain rewrap SEALED --identity {owner}.identity.json "
    "--deployment {deployment} --broker {broker}",
    "dataset-withdrawn": "sealtrain lock",
    "purpose-mismatch": "sealtrain lock",
    "retention-ended": "sealtrain rewrap SEALED --identity {owner}.identity.json "
    "--deployment {deployment} --broker {broker} --data-use FILE",
    "consortium-mismatch": "sealtrain lock",
    "broker-not-approved": "sealtrain lock",
    "platform-mismatch": "sealtrain lock",
    "ledger-inconsistent": "sealtrain log audit --broker {broker}",
    "broker-unreachable": "sealtrain broker status --broker {broker}",
}
"""What helps against a refusal; the engineer or the owner named types it."""
_APPROVED_LAST: Final = frozenset(
    code for code, command in _COMMANDS.items() if command.startswith(_APPROVE)
)
"""An owner who did nothing yet seals first: an approval pins what is sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAsked:
    """What is known of the run besides its recipe."""

    data: Annotated[
        list[str] | None,
        typer.Option(help="Sealed datasets that the run will get, to be looked at too; repeat."),
    ] = None
    run: Annotated[
        Path | None,
        typer.Option(
            "--interrupted", help="Folder of an interrupted run: would it be released to go on?"
        ),
    ] = None
    threshold: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="So many of several brokers open each dataset [as its owner sealed it].",
        ),
    ] = None
    platform: Annotated[
        str | None, typer.Option(help="What will prove the guest, to see that the lock allows it.")
    ] = None
    guest: Annotated[
        str | None,
        typer.Option(help="In the guest: where its evidence comes from, as for train; with it."),
    ] = None
    collateral: Collateral = None
    gpu_collateral: GpuCollateral = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefOptions:
    """What the broker's word is compared with, and how long it may take."""

    state: Annotated[
        Path | None,
        typer.Option(
            "--memory", help="Your memory of the ledger (see log witness): it must not be older."
        ),
    ] = None
    broker_document: Annotated[
        list[Path] | None,
        typer.Option(
            "--broker-deployment",
            help="broker-compose.json, the document that the broker file pins: with --guest, the "
            "guest is judged under its policy; repeat for each broker.",
        ),
    ] = None
    patience: Annotated[
        int,
        typer.Option(
            click_type=Duration("s", least=1, most=86400), help="How long for each broker."
        ),
    ] = 60


def status(
    deployment: Annotated[Path, typer.Option(help="app-compose.json of the recipe.")],
    brokers: BrokerFiles,
    about: RunAsked,
    belief: BeliefOptions,
    as_json: Json = False,
) -> None:
    """Say whether train would be given keys now; if not, who has to do what.

    Each broker proves itself, its whole ledger is verified, and what owners signed in it is judged
    by the function that the broker decides with. Exits 0 where keys would be released to a guest
    that proves itself, otherwise as train would; --guest proves this one. What is only the broker's
    word is named. Of several brokers all must release, or as many as --threshold says.
    """
    one_memory(belief.state, len(brokers))
    if (about.threshold or 1) > len(brokers):
        raise UsageError(
            "fewer brokers are asked than open a dataset",
            check="--threshold",
            got=f"{len(brokers)} with --broker",
            expected=f"at least {about.threshold}",
            hint="give --broker once for each broker file",
        )
    run = _run(deployment, about, belief.broker_document or [])
    _key, notes = read_given(belief.state, None, [])
    found: dict[str, Readiness] = {}
    for path in brokers:
        pin = load_pin(path)
        with BrokerClient.at(pin, timeout=_EXCHANGE_SECONDS, total=belief.patience) as client:
            found[pin.url] = ask(
                client,
                pin,
                run,
                progress=_within(belief.patience, shown=not as_json),
                notes=notes,
            )
    files = dict(zip(found, brokers, strict=True))
    datasets = tuple((dataset.owner, dataset.name) for dataset in run.lock.recipe.datasets)
    together = Together(brokers=found, datasets=datasets, threshold=about.threshold)
    obstacle = together.obstacle
    emit(
        as_json,
        {
            "verdict": together.verdict,
            "code": None if obstacle is None else obstacle.error.code,
            "needed": together.needed,
            "brokers": {
                url: _as_json(outlook, deployment, files[url]) for url, outlook in found.items()
            },
        },
        _lines(together, deployment, files),
    )
    if obstacle is not None:
        raise typer.Exit(obstacle.error.exit_code)


def _run(deployment: Path, about: RunAsked, documents: Sequence[Path]) -> PlannedRun:
    locked = LockedRecipe.load(deployment)
    lock, target = locked.lock, locked.target
    platforms = lock.recipe.hardware.platforms
    run_id = None
    if about.run is not None:
        from sealtrain.guest.settings import load_run

        run_id = load_run(about.run)[1]
    return PlannedRun(
        lock=lock,
        target=target,
        platform=about.platform or platforms[0],
        run_id=run_id,
        at_hand=None if not about.data else partial(_at_hand, about.data, lock.recipe),
        guest=_guest(about, documents),
    )


def _guest(about: RunAsked, documents: Sequence[Path]) -> GuestHere | None:
    """The guest that this runs in, where one is named."""
    if about.guest is None:
        return None
    if about.platform is None:
        raise UsageError(
            "a guest is named without what proves it",
            check="--platform",
            expected="--platform beside --guest, as for train",
        )
    from sealtrain.attest.guest import open_guest, platform_of

    guest = open_guest(
        platform_of(about.platform),
        about.guest,
        collateral=about.collateral,
        gpu_collateral=about.gpu_collateral,
    )
    policies = dict(map(policy_of_document, documents))
    return GuestHere(collect=guest.evidence, policy=policies.get)


def _at_hand(places: Sequence[str], recipe: PhaseRecipe, consortium: Consortium) -> AtHand:
    """The sealed datasets of a recipe, as ``train`` would find them."""
    from sealtrain.guest.datasets import find_datasets
    from sealtrain.guest.settings import place_of

    found = find_datasets([place_of(place) for place in places], recipe, consortium)
    at_hand: dict[tuple[str, str], tuple[WantedKey, ...]] = {}
    for dataset in found:
        key = (dataset.manifest.owner, dataset.manifest.name)
        at_hand[key] = (*at_hand.get(key, ()), dataset.wanted)
    return at_hand


def _within(seconds: int, *, shown: bool) -> Progress:
    """Progress of reading a ledger that ends after so many seconds, however long the ledger is."""

    @contextmanager
    def progress(size: int) -> Iterator[Callable[[int], None]]:
        until = time.monotonic() + seconds
        with progress_items("reading the ledger", size, shown=shown) as advance:

            def on_entries(entries: int) -> None:
                advance(entries)
                if time.monotonic() > until:
                    raise BrokerUnreachable(
                        "the broker's ledger was not read to its end in time",
                        check="ledger",
                        expected=f"{size} entries within {seconds} s",
                        hint="ask again with a longer --patience",
                    )

            yield on_entries

    return progress


def _commands(obstacle: Obstacle, deployment: Path, broker: Path) -> list[str]:
    """What each owner whom it is about types, or the engineer; nothing where nothing helps."""
    pattern = _COMMANDS.get(obstacle.error.code, "")
    owners = (obstacle.error.owner or "OWNER").split(", ")
    commands = (
        pattern.format(
            deployment=quote_path(deployment),
            broker=quote_path(broker),
            owner=owner,
            dataset=obstacle.dataset or "NAME",
        )
        for owner in owners
    )
    return [command for command in dict.fromkeys(commands) if command]


def _in_order(obstacles: Sequence[Obstacle]) -> list[Obstacle]:
    """Approvals last: they pin what the other commands make."""
    return sorted(obstacles, key=lambda obstacle: obstacle.error.code in _APPROVED_LAST)


def _as_json(readiness: Readiness, deployment: Path, broker: Path) -> dict[str, Any]:
    told = readiness.to_dict()
    told["obstacles"] = [
        obstacle.to_dict() | {"commands": _commands(obstacle, deployment, broker)}
        for obstacle in _in_order(readiness.obstacles)
    ]
    return told


def _lines(together: Together, deployment: Path, files: Mapping[str, Path]) -> list[str]:
    lines = [f"train would get keys  {_SAID[together.verdict]}"]
    if len(files) > 1:
        lines.append(
            f"brokers         {len(together.lenders)} of {len(files)} would release, "
            f"{together.needed} needed, as the data is sealed"
        )
    for url, outlook in together.brokers.items():
        lines.append(f"broker          {url}")
        for obstacle in _in_order(outlook.obstacles):
            error = obstacle.error
            about = " ".join(word for word in (error.owner, obstacle.dataset) if word)
            lines.append(f"  no            [{error.code}] {error.message}")
            if about:
                lines.append(f"    about       {about}")
            lines += [f"    expected    {error.expected}"] if error.expected else []
            lines += [f"    hint        {error.hint}"] if error.hint else []
            lines += [
                f"    command     {command}"
                for command in _commands(obstacle, deployment, files[url])
            ]
        if outlook.valid_until is not None:
            lines.append(f"  approved      until {to_rfc3339(outlook.valid_until)}")
        lines += [f"  standing      {used.owner}: {used.in_words}" for used in outlook.standing]
        for kept in outlook.retention:
            soon = f"; REMINDER: {max(0, kept.days_left)} days left" if kept.ending else ""
            until = f"{to_rfc3339(kept.until)}{soon}"
            lines.append(f"  retention     {kept.owner}/{kept.dataset} until {until}")
        lines += [f"  not proven    {what}" for what in outlook.unproven]
    return lines
