"""The two processes beside a guest's keeper, started before it asks a broker for keys.

The workload trains (``guest.life``); the opener decrypts and reads records for it
(``guest.workload.opening``). What they inherit has seen no broker yet.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.guest.sandbox.files import keep_out_of_reach
from sealtrain.guest.sandbox.rehearsal import shows_insecurely
from sealtrain.guest.sandbox.users import workload_user
from sealtrain.guest.workload.fork import WorkloadProcess
from sealtrain.guest.workload.opener import Opener
from sealtrain.guest.workload_life import Workload
from sealtrain.recipe.backends import UNDIVIDED, Division
from sealtrain.recipe.kinds import workload_distributions
from sealtrain.recipe.missing import missing_values

if TYPE_CHECKING:
    from sealtrain.guest.guest import AttestedGuest
    from sealtrain.guest.key_holder import DataGuest


def start_beside(
    guest: AttestedGuest,
    undoing: ExitStack,
    *,
    division: Division = UNDIVIDED,
    first: int = 0,
) -> tuple[WorkloadProcess, Opener]:
    """Start workload and opener of an admitted guest.

    Args:
        guest: It has asked no broker.
        undoing: Ends both.
        division: Among how many the run goes on.
        first: Number of this guest's first rank among those of all its nodes.
    """
    settings, admitted = guest.settings, guest.admitted
    collaboration = guest.lock.recipe.collaboration
    shown = shows_insecurely(settings.platform)
    life = Workload(
        lock=guest.lock,
        lock_bytes=admitted.locked.lock_bytes,
        importable=admitted.importable.narrow_to(workload_distributions(collaboration)),
        base=guest.base,
        copies=admitted.taken.path,
        out=settings.out,
        shown=shown,
        division=division,
        first=first,
    )
    data = [place for place in settings.data if isinstance(place, Path)]
    keep_out_of_reach(life.readable, settings.out, *data)
    user = workload_user()
    if user is not None:
        admitted.taken.show_to_others()
    workload = WorkloadProcess(
        life.live, ranks=life.ranks, kept=admitted.taken.descriptors, shown=shown, user=user
    )
    undoing.callback(workload.close)
    undoing.callback(workload.end)
    opener = Opener(ranks=life.ranks, importable=admitted.importable)
    undoing.callback(opener.close)
    undoing.callback(opener.end)
    return workload, opener


def hand_keys_over(guest: DataGuest, opener: Opener) -> None:
    """Have the opener open what the guest's recipe reads, while the lease lasts.

    Args:
        guest: It has the keys, and found its datasets.
        opener: Of this guest.
    """
    recipe = guest.recipe
    opener.open(
        guest.sealed_datasets,
        guest.grant.data_keys,
        recipe.columns.names,
        missing_values(recipe),
        seconds=guest.lease.seconds_left(),
    )
