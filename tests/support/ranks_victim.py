"""A run of several ranks: python ranks_victim.py FOLDER RECIPE-CHANGES [JOB].

``guest.run`` without evidence and broker: hushed, confined, ranks forked, locked down. Prints one
JSON line: digests of the files, history, checkpoints, or the code of the error. JOB ``stops`` at
the first checkpoint at or after step 3 (``stops6``: step 6), ``lapses`` after step 3 for its lease;
the jobs of ``ATTACKS`` are what the other rank does in place of training. Change ``on`` is the
number of ranks that trains, where it is not the recipe's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from sealtrain.errors import EgressRefused
from sealtrain.sealing.errors import RecordInvalid

FOLDER = Path(sys.argv[1])
CHANGES = json.loads(sys.argv[2])
JOB = sys.argv[3] if len(sys.argv) > 3 else ""
CANARY = "rank-canary-91c3"


ATTACKS = ("dies", "reaches")


def misbehaves() -> None:
    """In place of a rank's training, something that must not be possible there."""
    if JOB == "reaches":
        port, plain = int(os.environ["LISTENER"]), FOLDER / "plain.txt"
        with contextlib.suppress(EgressRefused):
            socket.create_connection(("127.0.0.1", port), timeout=5)
            raise AssertionError
        with contextlib.suppress(PermissionError):
            plain.write_text(CANARY)
            raise AssertionError
        # Straight to the C library, where no audit hook hears it.
        native = ctypes.CDLL(None, use_errno=True)
        caller = native.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
        address = bytes([socket.AF_INET, 0]) + port.to_bytes(2, "big") + bytes([127, 0, 0, 1])
        assert native.connect(caller, address + bytes(8), 16) == -1
        assert ctypes.get_errno() == errno.EACCES
        assert native.open(str(plain).encode(), os.O_CREAT | os.O_WRONLY, 0o600) == -1
        assert ctypes.get_errno() == errno.EACCES
        # Every way was shut. What it says of itself stays inside, too.
        print(CANARY, file=sys.stderr, flush=True)
        os.write(2, CANARY.encode())
        raise RecordInvalid(CANARY)
    if JOB == "dies":
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    from language_world import cpt
    from training_world import (
        RUN_ID,
        Interrupted,
        StopsAfter,
        checkpoint_store,
        reopen_records,
        seal_records,
        sft,
        sources_of,
        write_records,
    )

    from sealtrain.base.digests import sha256_hex
    from sealtrain.errors import LeaseStale, SealtrainError
    from sealtrain.guest.leasekeeper import Follower
    from sealtrain.guest.sandbox.border import Ways, enclose
    from sealtrain.guest.sandbox.output import OutputTally
    from sealtrain.recipe.backends import Division, divide_among, needs_group, numbers_of
    from sealtrain.training.checkpoints.checkpoint import newest
    from sealtrain.training.distributed.machinery import connect_backend
    from sealtrain.training.distributed.ranks import gather_ranks
    from sealtrain.training.run import Checkpoints, Inputs, Reporting, train

    number = CHANGES.pop("on", None)
    approved = {"sft": sft, "cpt": cpt}[CHANGES.pop("phase", "sft")](**CHANGES)
    recipe = divide_among(approved, Division(ranks=number))
    backend, numbers = recipe.backend, numbers_of(approved.backend)
    sealed = FOLDER.parent / "sealed"
    if not sealed.exists():
        sealed.mkdir()
        (FOLDER.parent / "owner").mkdir()
        seal_records(write_records(FOLDER.parent / "owner"), sealed)
    sources = sources_of(recipe, reopen_records(sealed))
    store = checkpoint_store(FOLDER)
    history: list[Any] = []
    steps: list[int] = []
    tally = OutputTally()
    ways = Ways(urls=["http://127.0.0.1:1"], folders=[FOLDER])
    said: dict[str, Any] = {}

    class Lapses(StopsAfter):
        def end_training(self) -> NoReturn:
            raise LeaseStale("the lease has ended")

    inputs = Inputs(base_dir=Path(), sources=sources)

    def other(resume: Any) -> None:
        misbehaves()
        lease_keeper = Follower() if JOB == "lapses" else None
        checkpoints = Checkpoints(
            store=store, resume=resume, lease_keeper=lease_keeper, approved_ranks=numbers
        )
        train(recipe, run_id=RUN_ID, inputs=inputs, checkpoints=checkpoints)

    told = mmap.mmap(-1, mmap.PAGESIZE)

    def secured() -> None:
        told.write(" ".join(listening()).encode())
        # In a run the keeper writes what ranks seal; here each rank does.
        room.lock(Ways() if JOB in ATTACKS else Ways(folders=[FOLDER]))

    with (
        enclose(tally, alone=True) as room,
        room.confine(ways),
        gather_ranks(
            backend.ranks,
            group=needs_group(backend),
            prepare=lambda: connect_backend(backend.name),
            secure=secured,
            work=other,
        ) as ranks,
    ):
        said["landlock"] = room.lock(ways).landlock
        said["listening"] = [*listening(), *told[:].rstrip(b"\0").decode().split()]

        def checkpointed(ref: Any) -> None:
            steps.append(ref.step)
            if JOB.startswith("stops") and ref.step >= int(JOB[5:] or 3):
                raise Interrupted

        try:
            resume = newest(store, None)
            with ranks.lead(resume):
                if JOB in ATTACKS:
                    waits_for_the_others()
                trained = train(
                    recipe,
                    run_id=RUN_ID,
                    inputs=inputs,
                    checkpoints=Checkpoints(
                        store=store,
                        on_checkpoint=checkpointed,
                        resume=resume,
                        lease_keeper=Lapses(3) if JOB == "lapses" else None,
                        approved_ranks=numbers,
                    ),
                    reporting=Reporting(
                        on_metrics=lambda step, values: history.append((step, values))
                    ),
                )
            files = trained.files
            said["files"] = {name: sha256_hex(data) for name, data in files.items()}
            said |= {"steps": trained.steps, "rows": trained.samples_seen, "tokens": trained.tokens}
            said |= {"metrics": trained.metrics, "tokens_sha256": trained.tokens_sha256}
            said["world_size"] = trained.environment["world_size"]
        except SealtrainError as error:
            said["error"] = error.code
        except Interrupted:
            history = [logged for logged in history if logged[0] <= steps[-1]]
        except Exception as error:
            said["error"] = type(error).__name__
    left = [pid for pid in ranks.processes if Path(f"/proc/{pid}").exists()]
    print(json.dumps(said | {"history": history, "checkpoints": steps, "left": left}))


def waits_for_the_others() -> None:
    """What training does at every step."""
    import torch.distributed

    torch.distributed.barrier()


def listening() -> list[str]:
    """Addresses on which this process listens, as the kernel writes them."""
    mine = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]


if __name__ == "__main__":
    main()
