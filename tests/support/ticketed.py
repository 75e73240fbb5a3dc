"""A guest that plays the role of a run ticket, as its command line starts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sealtrain.client.pin import load_pin
from sealtrain.client.ticket import RunTicket


def guest_words(
    lock: Path,
    guest: str,
    out: Path,
    *options: str | Path,
    role: str,
    brokers: Sequence[Path] = (),
    **ticket: Any,
) -> list[str | Path]:
    """Write a run ticket beside the guest's folder; the words of ``guest`` that play it.

    Args:
        lock: Of the recipe.
        guest: Socket of the simulated guest API.
        out: The guest's folder.
        options: Further words, for collateral and the folder of models.
        role: Of the ticket.
        brokers: Broker files.
        ticket: Its other fields, as ``RunTicket`` has them.
    """
    told = RunTicket.model_validate(
        {"version": 1, "role": role, "brokers": tuple(map(load_pin, brokers)), **ticket}
    )
    written = out.with_name(f"{out.name}.ticket.json")
    written.write_bytes(told.to_bytes())
    return [
        "guest", lock, "--platform", "simulator", "--guest", guest, *options,
        "--ticket", written, "--out", out,
    ]  # fmt: skip
