"""Step 4, training: how long keys may be used, which state continues, and what leaves the guest."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from typing import Any, Final

from sealtrain.client.grant import Grant
from sealtrain.errors import SealtrainError, Unreachable
from sealtrain.guest.inventory import FoundCheckpoint, checkpoints_in
from sealtrain.keys.derive import run_key
from sealtrain.manifest import form
from sealtrain.sealing.checkpointstore import CheckpointStore
from sealtrain.training.checkpoints.checkpoint import newest
from sealtrain_console.walk.prepared_run import OWNERS, READ_FROM
from sealtrain_console.walk.stage import LEASE_S, ServedBroker, Stage
from sealtrain_console.walk.switch import Attempt, Switch

_INSIDE_S: Final = 60


def _lease(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    grant = desk.obtain()
    if off:
        stage.clock.advance(LEASE_S + 1)
    return _try_renewed(
        desk,
        grant,
        stake=f"A guest that vanished an hour ago would have gone on with {stage.run.records} "
        "records, and no owner could have stopped it.",
    )


def _try_revoked(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    grant = desk.obtain()
    if off:
        desk.revoke(OWNERS[2])
    return _try_renewed(
        desk,
        grant,
        stake=f"{OWNERS[2]} would have revoked, and training on {stage.run.records} records would "
        "have gone on.",
    )


def _try_renewed(desk: ServedBroker, grant: Grant, *, stake: str) -> Attempt:
    return Attempt(
        act=lambda: f"The lease goes on for {desk.renew(grant).lease_seconds} seconds.",
        stake=stake,
    )


def _rollback(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    grant = desk.obtain()
    first, second = _anchors(stage)
    before, after = (second, first) if off else (first, second)
    grant = desk.renew(grant, before)

    def act() -> str:
        anchored = desk.renew(grant, after).latest_checkpoint
        return f"The broker remembers checkpoint {None if anchored is None else anchored.counter}."

    return Attempt(
        act=act,
        stake="The operator could have trained the same steps again and again, and chosen the "
        "outcome it liked.",
    )


def _checkpoint(stage: Stage, off: bool) -> Attempt:
    """The operator holds the run's folder and swaps its checkpoints."""
    folder = stage.folder / "checkpoints"
    shutil.copytree(stage.run.run / "checkpoints", folder)
    new, old = _checkpoints(stage)
    if off:
        shutil.copyfile(folder / old.name, folder / new.name)
    run_id = form.read(stage.run.manifest).predicate.run.run_id
    key = run_key(
        {stage.run.dataset(owner).dataset_id: stage.run.data_key(owner) for owner in READ_FROM},
        app_id=stage.run.locked.app_id,
        compose_hash=stage.run.locked.compose_hash,
        run_id=run_id,
    )
    store = CheckpointStore(folder, key.derive("checkpoints"), label=run_id)
    _, anchored = _anchors(stage)

    def act() -> str:
        found = newest(store, anchored)
        assert found is not None  # noqa: S101  # there is an anchor
        with store.read(found.name, found.binding(run_id), root=found.digest) as file:
            size = file.seek(0, 2)
            return f"Checkpoint {found.counter} of step {found.step} opens: {size} bytes."

    return Attempt(
        act=act,
        stake=f"The run would have gone on from step {old.step} as if it were step {new.step}: "
        "the manifest would have told of steps that the model never took.",
    )


def _network(stage: Stage, off: bool) -> Attempt:
    listener = stage.parts.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
    port = listener.getsockname()[1]
    return _inside(
        stage,
        "network" if off else "nothing",
        str(port),
        stake="A library, or the engineer's script, would have sent records to "
        f"127.0.0.1:{port} while it trained.",
    )


def _disk(stage: Stage, off: bool) -> Attempt:
    target = stage.folder / "outside" / "records.jsonl"
    target.parent.mkdir()
    return _inside(
        stage,
        "disk" if off else "nothing",
        str(target),
        stake="A record in the clear would have lain on the operator's disk.",
    )


def _program(stage: Stage, off: bool) -> Attempt:
    return _inside(
        stage,
        "program" if off else "nothing",
        sys.executable,
        stake="A program of the operator's choice would have run beside the records.",
    )


def _inside(stage: Stage, job: str, argument: str, *, stake: str) -> Attempt:
    own = stage.folder / "run"
    own.mkdir()
    words = [
        sys.executable,
        "-P",
        "-m",
        "sealtrain_console.walk.attempts_inside",
        job,
        str(own),
        argument,
    ]

    def act() -> str:
        done = subprocess.run(  # noqa: S603  # our own program with our own words
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_INSIDE_S
        )
        answer: dict[str, Any] = json.loads(done.stdout or b"{}")
        if "error" in answer:
            raise SealtrainError.from_dict(answer["error"])
        if "passed" not in answer:
            raise Unreachable("the sandboxed process did not answer", got=done.returncode)
        return str(answer["passed"])

    return Attempt(act=act, stake=stake)


def _checkpoints(stage: Stage) -> tuple[FoundCheckpoint, FoundCheckpoint]:
    """The two checkpoints of the run, the newer first."""
    new, old = checkpoints_in(stage.run.run)
    return new, old


def _anchors(stage: Stage) -> tuple[tuple[int, str], tuple[int, str]]:
    """Counter and digest of the run's checkpoints, the older first."""
    new, old = _checkpoints(stage)
    return (old.counter or 0, old.digest or ""), (new.counter or 0, new.digest or "")


SWITCHES: Final = (
    Switch(
        name="train-lease",
        step="train",
        protection="Keys may be used for one hour, and then no longer.",
        off="The guest is silent for more than an hour, and then asks to go on.",
        claim="C20",
        make=_lease,
    ),
    Switch(
        name="train-revocation",
        step="train",
        protection="To go on, a guest renews its lease, and owners can end that.",
        off="An owner revokes while the guest trains.",
        claim="C11",
        make=_try_revoked,
    ),
    Switch(
        name="train-rollback",
        step="train",
        protection="The broker remembers the newest checkpoint.",
        off="The guest is set back, and names an older checkpoint.",
        claim="C20",
        make=_rollback,
    ),
    Switch(
        name="train-checkpoint",
        step="train",
        protection="A sealed checkpoint is bound to its run, its step and its place.",
        off="The operator puts an older checkpoint in the place of the newest.",
        claim="C22",
        make=_checkpoint,
    ),
    Switch(
        name="train-network",
        step="train",
        protection="The run reaches the broker and nothing else.",
        off="Code in the run connects to a server of the operator's.",
        claim="C36",
        make=_network,
    ),
    Switch(
        name="train-disk",
        step="train",
        protection="The run writes in its own folder and nowhere else.",
        off="Code in the run writes a record to another folder.",
        claim="C106",
        make=_disk,
    ),
    Switch(
        name="train-program",
        step="train",
        protection="The run starts no other program.",
        off="Code in the run starts a second interpreter.",
        claim="C105",
        make=_program,
    ),
)
