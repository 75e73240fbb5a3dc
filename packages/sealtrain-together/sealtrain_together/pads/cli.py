"""Products under one-time pads: ``split accelerator``, ``split try``; a dealer by its ticket."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.files import make_folder
from sealtrain.base.hostport import host_and_port, write_host_and_port
from sealtrain.cli.output import Json, emit, say, table
from sealtrain.cli.runoptions import (
    ANYWHERE,
    Listen,
    Threads,
    pairs,
    surround_alone,
)

if TYPE_CHECKING:
    from sealtrain.client.ticket import RunTicket
    from sealtrain.guest.settings import RunSettings

Device = Annotated[str, typer.Option(help="Where it multiplies: cpu, cuda, cuda:1.")]
Exact = Annotated[
    str, typer.Option(help="How it multiplies: float64, int8-limb, or fastest of them.")
]


def accelerator(
    listen: Listen = ANYWHERE,
    device: Device = "cpu",
    exact: Exact = "fastest",
    threads: Threads = 1,
    alter: Annotated[
        int | None,
        typer.Option(
            min=1, help="Lie once: alter this product, to see what a guest does (for rehearsals)."
        ),
    ] = None,
) -> None:
    """Multiply public matrices for guests, which hide and check what they ask for.

    It holds no secret and is trusted with nothing. Ends with Ctrl-C.
    """
    import torch

    from sealtrain_together.channel.ports import listening
    from sealtrain_together.pads.faults import LyingMultiplier
    from sealtrain_together.pads.multiplying import Device, Limits
    from sealtrain_together.pads.serving import Multiplier

    torch.set_num_threads(threads)
    machine, limits = Device(device, exact), Limits()
    work = Multiplier(machine, limits) if alter is None else LyingMultiplier(alter, machine, limits)
    with listening(
        host_and_port(listen), work.serve, what="accelerator", connections=limits.connections
    ) as place:
        if alter is not None:
            say(f"fault: product {alter} will be wrong")
        say(f"multiplying by {machine.backend} on {device}")
        say(f"accelerator ready at {write_host_and_port(*place)}")
        threading.Event().wait()


def deal_by_ticket(settings: RunSettings, ticket: RunTicket, as_json: bool) -> None:
    """Make pads for guests of the same deployment, in a guest of its own.

    It proves itself to them and they to it. Run it apart from the accelerator: an operator of both
    could read everything. Ends with Ctrl-C.
    """
    from sealtrain_together.pads.guest.dealing import deal

    gpu = settings.recipe_lock.recipe.hardware.gpu
    with make_folder(settings.out):  # stays empty: the sandbox opens it
        deal(
            settings,
            host_and_port(ticket.listen or ANYWHERE),
            surround_alone(),
            device="cpu" if gpu is None else "cuda",
            threads=ticket.threads or 1,
            ready=lambda place: say(f"dealer ready at {place}"),
        )


def try_out(
    recipe: Annotated[Path, typer.Argument(help="The recipe (YAML).")],
    data: Annotated[
        list[str],
        typer.Option("--records", help="OWNER.NAME=PATH: records in the clear, for each dataset."),
    ],
    as_json: Json = False,
) -> None:
    """Train at home twice, on records you may show: the int8 model, and as it is under pads.

    Shows which layers would leave the guest, what that costs a token, and that losses stay.
    """
    from sealtrain.recipe.schema import load_recipe
    from sealtrain_together.pads.guest.trial import try_pads

    named = {key: Path(value) for key, value in pairs(data).items()}
    done = try_pads(load_recipe(recipe), recipe.parent, named, say)
    apart = max(done.differences(), default=None)
    rows = [
        (str(plain_step["step"]), f"{plain_step['loss']:.6f}", f"{two['loss']:.6f}")
        for plain_step, two in zip(done.int8, done.under_pads, strict=True)
        if plain_step.get("loss") is not None and two.get("loss") is not None
    ]
    emit(
        as_json,
        {
            "int8": done.int8,
            "under_pads": done.under_pads,
            "largest_difference": apart,
            "outside": [list(stack) for stack in done.outside],
            "inside": list(done.inside),
            "row_bytes": done.row_bytes,
        },
        [
            *table(rows, header=("step", "int8", "under pads")),
            "" if apart is None else f"apart        at most {apart:.6f}",
            f"outside      {sum(map(len, done.outside))} layers in {len(done.outside)} products",
            *(f"  {', '.join(stack)}" for stack in done.outside),
            f"inside       {len(done.inside)} linear layers",
            *(f"  {name}" for name in done.inside),
            f"traffic      {done.row_bytes} bytes a token, forward and backward",
        ],
    )
