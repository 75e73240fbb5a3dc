"""The questions that a workload may ask its keeper, as closed types (spec/workload-channel.md).

What a workload says is a stranger's word: the keeper reads it as canonical JSON of these types and
of no other, and every text among them is a name that the keeper compares with lists of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from sealtrain.base.canonical import parse_canonical
from sealtrain.base.models import ErrorCode, Hex64, StrictModel, load_model
from sealtrain.errors import DataInvalid
from sealtrain.training.checkpoints.shardnames import MAX_SHARDS

MAX_QUESTION_BYTES: Final = 1 << 20
MAX_ROOM_BYTES: Final = 1 << 42
MOST_TALLIED: Final = 1024
"""Datasets of one question."""
_MAX_COUNT: Final = 2**53 - 1

Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
Few = Annotated[int, Field(ge=0, le=1 << 16)]
Bytes = Annotated[int, Field(ge=1, le=MAX_ROOM_BYTES)]
Word = Annotated[str, StringConstraints(max_length=128)]
Text = Annotated[str, StringConstraints(max_length=512)]
Numbers = Annotated[dict[Word, float | None], Field(max_length=1024)]
"""Measurements by name; ``None`` is a number that is not finite."""
COUNTED: Final = frozenset(
    {
        "exception.thread",
        "exception.uncaught",
        "exception.unraisable",
        "file.refused",
        "logged.error",
        "logged.info",
        "logged.warning",
        "network.refused",
        "printed",
        "program.refused",
        "warned",
    }
)
"""Events that a workload counts (spec/run-log.md)."""


def _require_counted(name: str) -> str:
    if name not in COUNTED:
        raise ValueError("not an event that is counted")
    return name


Counts = dict[Annotated[str, AfterValidator(_require_counted)], Count]


class WorkloadQuestion(StrictModel):
    """A message of the workload; ``ask`` names its kind."""


class RankReady(WorkloadQuestion):
    """This rank has loaded its libraries and closed its border, before any code of the recipe."""

    ask: Literal["ready"] = "ready"
    landlock: Few
    seccomp: bool
    unbound: Few
    memory: Literal["private", "folder"]


class TakeLink(WorkloadQuestion):
    """This rank's connection to a rank of several nodes; the answer carries it, once."""

    ask: Literal["link"] = "link"
    rank: Few


class Step(WorkloadQuestion):
    """An optimizer step is done."""

    ask: Literal["step"] = "step"
    step: Count


class Stop(WorkloadQuestion):
    """Whether training ends after this step (``training.checkpoints.lease``)."""

    ask: Literal["stop"] = "stop"
    step: Count
    ahead: Count
    span: Count
    sealing: Annotated[float, Field(ge=0)] | None


class Stopped(WorkloadQuestion):
    """Training ended for the sake of the lease, its checkpoint is sealed."""

    ask: Literal["stopped"] = "stopped"


class OfferMetrics(WorkloadQuestion):
    """Measurements that the keeper offers to the release policy."""

    ask: Literal["metrics"] = "metrics"
    step: Count
    values: Numbers


class RecordParts(StrictModel):
    """How many records of a dataset fall into each part (``training.inputs.learnable``)."""

    whole: Count
    truncated: Count
    filtered: Count
    empty: Count


class TallyRecords(WorkloadQuestion):
    """What the next training datasets leave to learn, in the keeper's order."""

    ask: Literal["tally"] = "tally"
    datasets: Annotated[tuple[RecordParts, ...], Field(min_length=1, max_length=MOST_TALLIED)]


HelperName = Literal["accelerator", "dealer"]


class ConnectHelper(WorkloadQuestion):
    """A connection to a machine that multiplies for this guest; the answer carries it (§7)."""

    ask: Literal["helper"] = "helper"
    name: HelperName


class ProductsBegun(WorkloadQuestion):
    """Layers whose products leave this guest, by names of the keeper's list."""

    ask: Literal["products"] = "products"
    layers: Annotated[
        dict[Word, Annotated[int, Field(ge=1, le=1_000_000)]], Field(min_length=1, max_length=64)
    ]
    products: Annotated[int, Field(ge=1, le=1_000_000)]


class ProductsMade(WorkloadQuestion):
    """Products that were made elsewhere and accepted, since they were begun."""

    ask: Literal["made"] = "made"
    products: Count
    rows: Count
    bytes_out: Count
    bytes_in: Count


class Spent(StrictModel):
    """What private training spent: its noise, and the epsilon of each training dataset."""

    noise_multiplier: Annotated[float, Field(gt=0)]
    epsilons: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(max_length=1 << 13)]


class Sign(WorkloadQuestion):
    """Sign the manifest over the files that were delivered."""

    ask: Literal["sign"] = "sign"
    steps: Count
    samples: Count
    tokens: Count | None
    metrics: Numbers
    counts: Counts
    tokens_sha256: Hex64 | None = None
    spent: Spent | None = None


class Failed(WorkloadQuestion):
    """The recipe's code ended with an error; texts count only where the keeper has them itself."""

    ask: Literal["failed"] = "failed"
    code: ErrorCode
    message: Text | None
    hint: Text | None
    kind: Word
    owner: Word | None = None
    dataset: Word | None = None
    column: Word | None = None
    check: Word | None = None
    got: Text | None = None
    errno: Few | None = None
    script: Annotated[str, StringConstraints(max_length=1024)] | None
    line: Count | None
    program: Annotated[str, StringConstraints(max_length=4096)] | None
    counts: Counts


class Ended(WorkloadQuestion):
    """The recipe's code came to its end."""

    ask: Literal["ended"] = "ended"


class Slots(WorkloadQuestion):
    """The memory that record batches are laid into; the answer carries it."""

    ask: Literal["slots"] = "slots"


class LayBatch(WorkloadQuestion):
    """Lay a record batch, with the recipe's columns, into a slot."""

    ask: Literal["batch"] = "batch"
    dataset: Few
    batch: Count
    slot: Few


class MakeRoom(WorkloadQuestion):
    """Memory of this size, in place of the one before; the answer carries it."""

    ask: Literal["room"] = "room"
    size: Bytes


class CheckpointName(WorkloadQuestion):
    """Names a checkpoint of this run."""

    counter: Annotated[int, Field(ge=1, le=99_999_999)]
    step: Annotated[int, Field(ge=0, le=9_999_999_999)]


class Seal(CheckpointName):
    """Seal the first bytes of the memory as the next checkpoint."""

    ask: Literal["seal"] = "seal"
    previous: Hex64 | Literal[""]
    size: Bytes


class MakeShardRoom(WorkloadQuestion):
    """As ``MakeRoom``, the memory that this rank's shards are sealed from and read into."""

    ask: Literal["shard-room"] = "shard-room"
    size: Bytes


class ShardName(CheckpointName):
    """Names a shard of a checkpoint."""

    previous: Hex64 | Literal[""]
    number: Annotated[int, Field(ge=0, lt=MAX_SHARDS)]
    count: Annotated[int, Field(ge=1, le=MAX_SHARDS)]


class SealShard(ShardName):
    """Seal the first bytes of this rank's shard memory as a shard of the next checkpoint."""

    ask: Literal["shard"] = "shard"
    size: Annotated[int, Field(ge=0, le=MAX_ROOM_BYTES)]


class ReadShard(ShardName):
    """Decrypt a range of a shard into the first bytes of this rank's shard memory."""

    ask: Literal["part"] = "part"
    digest: Hex64
    offset: Count
    size: Bytes


class Open(CheckpointName):
    """Decrypt a checkpoint of this run into new memory; the answer carries it."""

    ask: Literal["open"] = "open"
    digest: Hex64
    previous: Hex64 | Literal[""]


class OpenModel(WorkloadQuestion):
    """Decrypt a file of the sealed base model into new memory; the answer carries it."""

    ask: Literal["model"] = "model"
    name: Annotated[str, StringConstraints(max_length=1024)]


class Names(WorkloadQuestion):
    """Names of all complete checkpoints."""

    ask: Literal["names"] = "names"


class Retire(CheckpointName):
    """A checkpoint is needed no longer."""

    ask: Literal["retire"] = "retire"


class Sweep(WorkloadQuestion):
    """No checkpoint is being written."""

    ask: Literal["sweep"] = "sweep"


class FileDelivered(WorkloadQuestion):
    """The first ``length`` bytes of the memory are the next part of a file of the trained model."""

    ask: Literal["file"] = "file"
    name: Annotated[str, StringConstraints(max_length=255)]
    size: Annotated[int, Field(ge=0, le=MAX_ROOM_BYTES)]
    offset: Count
    length: Annotated[int, Field(ge=0, le=MAX_ROOM_BYTES)]


CONNECTIONS: Final[Mapping[str, Mapping[str, type[WorkloadQuestion]]]] = MappingProxyType(
    {
        "control": {
            "ready": RankReady,
            "link": TakeLink,
            "step": Step,
            "stop": Stop,
            "stopped": Stopped,
            "metrics": OfferMetrics,
            "tally": TallyRecords,
            "helper": ConnectHelper,
            "products": ProductsBegun,
            "made": ProductsMade,
            "sign": Sign,
            "failed": Failed,
            "ended": Ended,
        },
        "rows": {"slots": Slots, "batch": LayBatch},
        "store": {
            "room": MakeRoom,
            "seal": Seal,
            "shard-room": MakeShardRoom,
            "shard": SealShard,
            "part": ReadShard,
            "open": Open,
            "model": OpenModel,
            "names": Names,
            "retire": Retire,
            "sweep": Sweep,
            "file": FileDelivered,
        },
    }
)
"""The questions of each of a rank's connections."""


def parse_question(connection: str, body: bytes) -> WorkloadQuestion:
    """Read a question.

    Args:
        connection: Name of the connection that it came over.
        body: Bytes received.

    Raises:
        DataInvalid: It is not a question of this connection, or not in canonical form.
        LimitExceeded: It is too long.
    """
    document: Any = parse_canonical(body, max_bytes=MAX_QUESTION_BYTES, max_values=1 << 14)
    kind = document.get("ask") if isinstance(document, dict) else None
    found = CONNECTIONS[connection].get(kind) if isinstance(kind, str) else None
    if found is None:
        raise DataInvalid("no question of this connection", check="channel")
    return load_model(found, document, DataInvalid, "question of the workload")
