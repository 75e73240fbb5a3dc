"""Options of every command that runs inside a guest, and the settings they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sealtrain.runner.settings import RunSettings

__all__ = [
    "Base",
    "BrokerFile",
    "Collateral",
    "Data",
    "GpuCollateral",
    "GuestAddress",
    "PlatformName",
    "run_settings",
]

PlatformName = Annotated[
    str, typer.Option(help="dstack, tdx, nitro, snp or simulator: what proves the guest.")
]
GuestAddress = Annotated[
    str,
    typer.Option(
        help="Socket of the guest API; elsewhere nitro:, snp: or tdx:DEVICE?compose=FILE."
    ),
]
Collateral = Annotated[
    str | None, typer.Option(help="Collateral of TDX, dstack's too: file:… or https://…")
]
GpuCollateral = Annotated[
    str | None, typer.Option(help="Collateral of the accelerators' reports: file:…")
]
BrokerFile = Annotated[Path, typer.Option(help="Broker file (made by: sealtrain broker pin).")]
Data = Annotated[
    list[str],
    typer.Option(help="Sealed dataset, a folder of them, or a URL of one (https, s3); repeat."),
]
Base = Annotated[
    Path | None, typer.Option(help="Folder the recipe's paths start from [the lock's].")
]


def run_settings(
    lock: Path,
    *,
    platform: str,
    guest: str,
    collateral: str | None,
    gpu_collateral: str | None,
    broker: Path,
    data: list[str],
    base: Path | None,
    out: Path,
) -> RunSettings:
    """Settings of a run from the words of a command.

    Raises:
        UsageError: No such platform.
    """
    from sealtrain.attest.guest import platform_of
    from sealtrain.runner.settings import RunSettings, place_of

    return RunSettings(
        lock=lock,
        platform=platform_of(platform),
        guest=guest,
        collateral=collateral,
        gpu_collateral=gpu_collateral,
        broker=broker,
        data=tuple(place_of(one) for one in data),
        base=base or lock.parent,
        out=out,
    )
