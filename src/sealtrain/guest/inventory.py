"""The checkpoints in a run's folder, as far as they can be known without keys.

The header of a blob claims counter, step and predecessor; opening the blob in the guest proves
them. Its digest follows from its ciphertext. The anchored checkpoint is read, unverified, from the
broker's receipt that the run leaves beside its checkpoints; the checkpoints that it follows from
were anchored too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import from_base64
from sealtrain.base.files import read_bounded
from sealtrain.errors import DataInvalid
from sealtrain.guest.settings import load_run
from sealtrain.sealing.errors import SealRefused
from sealtrain.sealing.file import read_header, root_of, verify_ciphertext
from sealtrain.sealing.header import SUFFIX
from sealtrain.training.checkpoints.shardnames import shard_named

ANCHOR_FILE = "anchor.json"
"""The broker's newest receipt of a run, in the run's folder."""
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """One sealed checkpoint.

    Attributes:
        name: Name of its file.
        counter: 1 for the first of the run; ``None`` when the header does not say.
        step: Optimizer steps done.
        size: Bytes of the file.
        written_at: RFC 3339 time of the file.
        digest: File root, which the broker anchors.
        previous: Digest of the checkpoint before it, empty for the first.
        complete: It ends as a sealed file does; with ``whole`` every byte was hashed.
        follows: The checkpoint before it has the digest ``previous``; ``None`` when that
            checkpoint is missing.
        anchored: The broker anchored it: it is in the newest receipt, or the checkpoint there
            follows from it; ``None`` when the folder does not show this.
    """

    name: str
    counter: int | None = None
    step: int | None = None
    size: int
    written_at: str
    digest: str | None = None
    previous: str | None = None
    complete: bool = False
    follows: bool | None = None
    anchored: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def checkpoints_in(out: Path, *, whole: bool = False) -> list[FoundCheckpoint]:
    """Every checkpoint of the run in ``out``, newest first.

    Args:
        out: The run's folder.
        whole: Hash every byte, which detects a checkpoint that is damaged inside.

    Raises:
        UsageError: The folder holds no run.
    """
    _, run_id = load_run(out)
    folder = out / "checkpoints"
    found = [
        _with_shards(_look_at(path, run_id, whole=whole), folder, whole=whole)
        for path in sorted(folder.glob("*.sealed"))
    ]
    digests = {checkpoint.counter: checkpoint.digest for checkpoint in found if checkpoint.complete}
    known = _list_known(found, _anchor(out / ANCHOR_FILE, run_id))
    judged = [
        replace(
            checkpoint,
            follows=_follows(checkpoint, digests),
            anchored=_is_anchored(checkpoint, known),
        )
        for checkpoint in found
    ]
    return sorted(judged, key=lambda checkpoint: (-(checkpoint.counter or 0), checkpoint.name))


def _look_at(path: Path, run_id: str, *, whole: bool) -> FoundCheckpoint:
    there = path.lstat()  # finds a broken link too
    found = FoundCheckpoint(
        name=path.name, size=there.st_size, written_at=to_rfc3339(int(there.st_mtime))
    )
    try:
        binding = read_header(path).context.binding
        digest = verify_ciphertext(path) if whole else root_of(path)
    except (SealRefused, DataInvalid):
        return found
    counter, step = binding.get("counter"), binding.get("step")
    if binding.get("run_id") != run_id or not (isinstance(counter, int) and isinstance(step, int)):
        return found
    return replace(
        found,
        counter=counter,
        step=step,
        digest=digest,
        previous=str(binding.get("previous", "")),
        complete=True,
    )


def _with_shards(checkpoint: FoundCheckpoint, folder: Path, *, whole: bool) -> FoundCheckpoint:
    """Its shards count to its size, and it is complete with all of them."""
    sizes: dict[int, dict[int, int]] = {}
    for path in folder.glob(f"rank-*/shard-*{SUFFIX}"):
        ref = shard_named(path.relative_to(folder).as_posix().removesuffix(SUFFIX))
        if ref is None or (ref.counter, ref.step) != (checkpoint.counter, checkpoint.step):
            continue
        held = sizes.setdefault(ref.count, {})
        try:
            if whole:
                verify_ciphertext(path)
            else:
                root_of(path)
        except (SealRefused, DataInvalid):
            continue
        held[ref.number] = path.lstat().st_size
    if not sizes:
        return checkpoint
    # An attempt with another number of ranks may have left some of its own.
    complete = [held for count, held in sizes.items() if len(held) == count]
    if not complete:
        return replace(checkpoint, complete=False)
    return replace(checkpoint, size=checkpoint.size + sum(complete[0].values()))


def _follows(checkpoint: FoundCheckpoint, digests: dict[int | None, str | None]) -> bool | None:
    if checkpoint.counter is None:
        return None
    if checkpoint.counter == 1:
        return checkpoint.previous == ""
    before = digests.get(checkpoint.counter - 1)
    return None if before is None else checkpoint.previous == before


def _list_known(found: list[FoundCheckpoint], anchor: tuple[int, str] | None) -> dict[int, str]:
    """Counter → digest of the anchored checkpoint and of those before it, as far back as it goes.

    A checkpoint above the anchor has an empty digest: the broker does not know it.
    """
    if anchor is None:
        return {}
    known = {
        checkpoint.counter: ""
        for checkpoint in found
        if checkpoint.counter and checkpoint.counter > anchor[0]
    }
    counter, digest = anchor
    while digest:
        known[counter] = digest
        here = [
            checkpoint
            for checkpoint in found
            if checkpoint.digest == digest and checkpoint.counter == counter
        ]
        counter, digest = counter - 1, (here[0].previous or "") if here else ""
    return known


def _is_anchored(checkpoint: FoundCheckpoint, known: dict[int, str]) -> bool | None:
    if checkpoint.counter is None or checkpoint.counter not in known:
        return None
    return known[checkpoint.counter] == checkpoint.digest


def _anchor(path: Path, run_id: str) -> tuple[int, str] | None:
    if not path.is_file():
        return None
    document: Any = parse_json(read_bounded(path, _MAX_BYTES))
    try:
        receipt = parse_json(from_base64(document["receipt"]["payload"]))
        anchor = receipt["checkpoint"]
        of_this_run = receipt["run_id"] == run_id
        return (int(anchor["counter"]), str(anchor["digest"])) if of_this_run else None
    except (LookupError, TypeError, ValueError):
        raise DataInvalid(f"{path} is not a receipt of this version") from None
