"""Options of every command that runs inside a guest, and the settings they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.platforms import PLATFORMS
from sealtrain.base.stages import say_stages, unsaid
from sealtrain.cli.output import require_text, say
from sealtrain.errors import SealtrainError, UsageError

if TYPE_CHECKING:
    from sealtrain.guest.guest import Surroundings
    from sealtrain.guest.settings import RunSettings

LockFile = Annotated[Path, typer.Argument(help="recipe.lock.json")]
BrokerFiles = Annotated[
    list[Path],
    typer.Option("--broker", help="Broker file (made by: sealtrain broker pin); repeat for each."),
]
Data = Annotated[
    list[str],
    typer.Option(help="Sealed dataset, a folder of them, or a URL of one (https, s3); repeat."),
]
Collateral = Annotated[
    str | None, typer.Option(help="Collateral of TDX, dstack's too: file:… or https://…")
]
GpuCollateral = Annotated[
    str | None, typer.Option(help="Collateral of the accelerators' reports: file:…")
]
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 for any.")]
ANYWHERE = "127.0.0.1:0"
Threads = Annotated[int, typer.Option(min=1, max=1024, help="Threads, on the CPU.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestOptions:
    """The guest that a run is in."""

    platform: Annotated[str, typer.Option(help=f"{PLATFORMS}: what proves the guest.")]
    guest: Annotated[
        str,
        typer.Option(help="Socket of the guest API; elsewhere PLATFORM:DEVICE?compose=FILE."),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Files beside the guest's own: what its evidence is verified with, and the recipe's."""

    collateral: Collateral = None
    gpu_collateral: GpuCollateral = None
    base: Annotated[
        Path | None,
        typer.Option(help="Folder the recipe's paths start from [where it was locked]."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """The brokers to ask and the sealed data."""

    brokers: BrokerFiles
    data: Data


def run_settings(
    lock: Path,
    guest: GuestOptions,
    files: FileOptions,
    *,
    out: Path,
    brokers: Sequence[Path] = (),
    data: Sequence[str] = (),
) -> RunSettings:
    """Settings of a run from the options of a command.

    Args:
        lock: The recipe's lock.
        guest: As the command was given it.
        files: The same.
        out: Folder for what the run makes.
        brokers: Broker files of the brokers to ask.
        data: Sealed datasets.

    Raises:
        UsageError: No such platform, or a folder whose name is no text.
    """
    from sealtrain.attest.guest import platform_of
    from sealtrain.guest.settings import RunSettings, place_of
    from sealtrain.recipe.basefolder import base_of

    require_text(out, "--out")  # trainers write paths into files of UTF-8
    return RunSettings(
        lock=lock,
        platform=platform_of(guest.platform),
        guest=guest.guest,
        collateral=files.collateral,
        gpu_collateral=files.gpu_collateral,
        brokers=tuple(brokers),
        data=tuple(place_of(place) for place in data),
        base=files.base or base_of(lock),
        out=out,
    )


def _broker_missed(url: str, error: SealtrainError) -> None:
    """Say that a run goes on without a broker, and why."""
    say(f"broker {url}: {error.code}: {error.message}")


def surround_alone(*, stages: bool = False) -> Surroundings:
    """For a guest whose process serves only its run.

    Args:
        stages: Say on stderr what the guest does until its work begins.
    """
    from sealtrain.guest.guest import Surroundings

    on_stage = say_stages(say) if stages else unsaid
    return Surroundings(on_failure=_broker_missed, on_stage=on_stage, alone=True)


def pairs(words: list[str]) -> dict[str, str]:
    """Values of a repeated option ``OWNER.NAME=VALUE``, by ``OWNER.NAME``.

    Raises:
        UsageError: A word is of another form.
    """
    found: dict[str, str] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not value:
            raise UsageError(
                "not of the form OWNER.NAME=VALUE", got=word, expected="hospital-a.notes=notes.csv"
            )
        found[key] = value
    return found
