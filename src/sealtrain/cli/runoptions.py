"""Options of every command that runs inside a guest, and the settings they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.platforms import PLATFORMS
from sealtrain.cli.output import say

if TYPE_CHECKING:
    from sealtrain.errors import SealtrainError
    from sealtrain.guest.settings import RunSettings

__all__ = [
    "ANYWHERE",
    "AcceleratorAddress",
    "Base",
    "BrokerFiles",
    "Collateral",
    "Data",
    "DealerAddress",
    "GpuCollateral",
    "GuestAddress",
    "Listen",
    "LockFile",
    "PlatformName",
    "Threads",
    "broker_missed",
    "run_settings",
]

LockFile = Annotated[Path, typer.Argument(help="recipe.lock.json")]
PlatformName = Annotated[str, typer.Option(help=f"{PLATFORMS}: what proves the guest.")]
GuestAddress = Annotated[
    str,
    typer.Option(help="Socket of the guest API; elsewhere PLATFORM:DEVICE?compose=FILE."),
]
Collateral = Annotated[
    str | None, typer.Option(help="Collateral of TDX, dstack's too: file:… or https://…")
]
GpuCollateral = Annotated[
    str | None, typer.Option(help="Collateral of the accelerators' reports: file:…")
]
BrokerFiles = Annotated[
    list[Path],
    typer.Option("--broker", help="Broker file (made by: sealtrain broker pin); repeat for each."),
]
Data = Annotated[
    list[str],
    typer.Option(help="Sealed dataset, a folder of them, or a URL of one (https, s3); repeat."),
]
Base = Annotated[
    Path | None, typer.Option(help="Folder the recipe's paths start from [the lock's].")
]
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 for any.")]
ANYWHERE = "127.0.0.1:0"
Threads = Annotated[int, typer.Option(min=1, max=1024, help="Threads, on the CPU.")]
AcceleratorAddress = Annotated[
    str | None,
    typer.Option(
        "--accelerator",
        metavar="HOST:PORT",
        help="Who multiplies under pads, where the recipe has that (sealtrain split accelerator).",
    ),
]
DealerAddress = Annotated[
    str | None,
    typer.Option(
        "--dealer",
        metavar="HOST:PORT",
        help="Who makes the pads, where the recipe has a dealer (sealtrain split dealer).",
    ),
]


def run_settings(
    lock: Path,
    *,
    platform: str,
    guest: str,
    collateral: str | None,
    gpu_collateral: str | None,
    brokers: list[Path],
    data: list[str],
    base: Path | None,
    out: Path,
    accelerator: str | None = None,
    dealer: str | None = None,
) -> RunSettings:
    """Settings of a run from the words of a command.

    Raises:
        UsageError: No such platform.
    """
    from sealtrain.attest.guest import platform_of
    from sealtrain.guest.settings import RunSettings, place_of

    return RunSettings(
        lock=lock,
        platform=platform_of(platform),
        guest=guest,
        collateral=collateral,
        gpu_collateral=gpu_collateral,
        brokers=tuple(brokers),
        data=tuple(place_of(one) for one in data),
        base=base or lock.parent,
        out=out,
        accelerator=accelerator,
        dealer=dealer,
    )


def broker_missed(url: str, error: SealtrainError) -> None:
    """Say that a run goes on without a broker, and why."""
    say(f"broker {url}: {error.code}: {error.message}")
