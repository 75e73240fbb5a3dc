"""Sealed checkpoints: one blob each, chained, bound to run, counter and step; plain data only.

A blob holds trainable weights, optimizer, scheduler, random states and the loss averages. Its
binding names the digest of the checkpoint before it, so the history of a run is one chain: an older
checkpoint, a checkpoint of another run or branch, and one with a swapped predecessor are refused.
The brokers anchor the newest counter and digest. A checkpoint that a crash or a full disk left
incomplete is never chosen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.sealing.errors import CheckpointRefused, SealRefused
from sealtrain.training.checkpoints.randomness import random_states, restore_random_states
from sealtrain.training.checkpoints.shardnames import are_whole
from sealtrain.training.checkpoints.statefile import bytes_of, lay_out, read_state

if TYPE_CHECKING:
    from sealtrain.training.data.sources import BlobStore

__all__ = [
    "CheckpointRef",
    "load",
    "newest",
    "prune",
    "random_states",
    "restore_random_states",
    "save",
    "write",
]

_NAME = re.compile(r"checkpoint-([0-9]{8})-([0-9]{10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """A checkpoint of a run.

    Attributes:
        counter: 1 for the first of the run, increasing by one.
        step: Optimizer steps done.
        digest: File root of its sealed bytes, 64 hex digits.
        previous: Digest of the checkpoint before it, empty for the first.
    """

    counter: int
    step: int
    digest: str = ""
    previous: str = ""

    @property
    def name(self) -> str:
        """Name of its blob."""
        return f"checkpoint-{self.counter:08d}-{self.step:010d}"

    def binding(self, run_id: str) -> dict[str, str | int]:
        """The values that its blob is bound to."""
        return {
            "run_id": run_id,
            "counter": self.counter,
            "step": self.step,
            "previous": self.previous,
        }


def save(
    store: BlobStore,
    run_id: str,
    counter: int,
    step: int,
    state: dict[str, Any],
    *,
    previous: str = "",
) -> CheckpointRef:
    """Seal ``state`` as checkpoint ``counter``, straight from where its tensors lie.

    Args:
        store: Seals what is written.
        run_id: 32 hex digits, bound.
        counter: Bound.
        step: Bound.
        state: Nested dicts, lists, numbers, strings and tensors.
        previous: Digest of checkpoint ``counter`` - 1, bound.

    Raises:
        CheckpointRefused: The state holds something else.
        StorageFailed: The disk refuses it.
    """
    layout = lay_out(state)
    store.memory(len(layout.header) + layout.size)
    parts = (bytes_of(tensor.detach().to("cpu").contiguous()) for _, tensor in layout.tensors)
    wanted = CheckpointRef(counter=counter, step=step, previous=previous)
    return write(store, run_id, wanted, (layout.header_view, *parts))


def load(
    store: BlobStore, run_id: str, ref: CheckpointRef, *, wanted: Collection[str] | None = None
) -> dict[str, Any]:
    """Open a checkpoint.

    Args:
        store: Holds it.
        run_id: The run it must belong to.
        ref: The checkpoint it must be.
        wanted: First-level keys of the state to read, all when ``None``.

    Raises:
        SealRefused: It was altered, or is of another run, step, counter or predecessor.
        CheckpointRefused: It holds something other than plain data.
    """
    with store.read(ref.name, ref.binding(run_id), root=ref.digest) as file:
        return read_state(file, wanted=wanted)


def write(
    store: BlobStore, run_id: str, ref: CheckpointRef, parts: Iterable[memoryview]
) -> CheckpointRef:
    """Seal the bytes of a laid-out state; returns ``ref`` with its digest.

    Raises:
        StorageFailed: The disk refuses them.
    """
    with store.write(ref.name, ref.binding(run_id)) as file:
        file.writelines(parts)
    return replace(ref, digest=file.finish().root)


def newest(
    store: BlobStore, anchor: tuple[int, str] | None, *, complete: Collection[int] | None = None
) -> CheckpointRef | None:
    """The checkpoint to continue from.

    The brokers never anchored a checkpoint above the anchor: it is skipped when it is incomplete,
    and must lead back to the anchored checkpoint, step by step. ``load`` opens exactly the
    checkpoint with the returned digest.

    Args:
        store: Holds the run's checkpoints.
        anchor: Counter and digest of the newest anchored checkpoint; ``None`` before the first.
        complete: Counters of the checkpoints that have a journal; a crash may have come between
            the two. All counters when ``None``.

    Raises:
        CheckpointRefused: The store holds only older checkpoints, another checkpoint with the
            anchored counter, or a checkpoint with another predecessor.
    """
    known = 0 if anchor is None else anchor[0]
    for ref in _there(store, complete):
        try:
            found = _read_claimed(store, ref, whole=ref.counter > known)
        except (SealRefused, DataInvalid, LimitExceeded):
            if ref.counter > known:
                continue
            break
        if (
            anchor is not None
            and found.counter <= known
            and (found.counter, found.digest) != anchor
        ):
            raise _refuse_rollback(f"counter {found.counter}, digest {found.digest[:16]}…", anchor)
        _require_chain(store, found, anchor)
        return found
    if anchor is not None:
        raise _refuse_rollback("none", anchor)
    return None


def prune(store: BlobStore, keep: int, *, besides: Collection[CheckpointRef] = ()) -> None:
    """Delete all but the ``keep`` newest checkpoints and those named ``besides``.

    Each goes before its shards: what is left of an interrupted deletion is no checkpoint.
    """
    names = sorted(name for name in store.names() if _NAME.fullmatch(name))
    kept = {ref.name for ref in besides}
    for name in names[:-keep]:
        if name not in kept:
            store.retire(name)


def _there(store: BlobStore, complete: Collection[int] | None) -> list[CheckpointRef]:
    """Checkpoints by name, newest first."""
    found = [_NAME.fullmatch(name) for name in store.names()]
    refs = [CheckpointRef(counter=int(match[1]), step=int(match[2])) for match in found if match]
    return sorted(
        (ref for ref in refs if complete is None or ref.counter in complete),
        key=lambda stored: (-stored.counter, -stored.step),
    )


def _read_claimed(store: BlobStore, ref: CheckpointRef, *, whole: bool) -> CheckpointRef:
    digest = store.verify(ref.name) if whole else store.root(ref.name)
    if whole and not are_whole(store, ref.counter, ref.step):
        raise DataInvalid("a shard of the checkpoint is missing or altered", check="shards")
    previous = str(store.binding(ref.name).get("previous", ""))
    return replace(ref, digest=digest, previous=previous)


def _require_chain(store: BlobStore, ref: CheckpointRef, anchor: tuple[int, str] | None) -> None:
    there = {stored.counter: stored for stored in _there(store, None)}
    known = 0 if anchor is None else anchor[0]
    while ref.counter > max(known, 1):
        before = there.get(ref.counter - 1)
        if anchor is not None and ref.counter - 1 == known:
            expected: str | None = anchor[1]
        else:
            expected = None if before is None else store.root(before.name)
        if expected is None and anchor is None:
            return  # the saver did not keep the earlier ones
        if ref.previous != expected:
            raise CheckpointRefused(
                "a checkpoint does not follow the one before it",
                check="checkpoint chain",
                got=f"counter {ref.counter} after {ref.previous[:16] or 'none'}…",
                expected=f"after {expected[:16]}…" if expected else "the one before it",
                hint="restore the run's folder: it holds a checkpoint of another branch",
            )
        if before is None:
            return
        ref = _read_claimed(store, before, whole=False)


def _refuse_rollback(got: str, anchor: tuple[int, str]) -> CheckpointRefused:
    return CheckpointRefused(
        "the newest checkpoint here is not the newest of this run",
        check="checkpoint anchor",
        got=got,
        expected=f"counter {anchor[0]}, digest {anchor[1][:16]}…, or a later one",
        hint="restore the run's folder: resuming an older state would repeat steps",
    )
