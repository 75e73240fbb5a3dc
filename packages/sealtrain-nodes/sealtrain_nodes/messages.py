"""What nodes and their lead say to each other on a channel (spec/nodes.md §3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from sealtrain.base.canonical import canonical_json, parse_canonical
from sealtrain.base.models import ErrorCode, Hex32, Hex64, StrictModel, Timestamp, load_model
from sealtrain.consortium.receipts import ReleaseReceipt
from sealtrain.errors import DataInvalid, NodeLost, SealtrainError
from sealtrain.ledger.proofs import LedgerProof
from sealtrain.manifest.predicate import Release
from sealtrain.recipe.collaborations.nodes import MAX_NODES
from sealtrain.release.messages import ErrorFields, load_message
from sealtrain.signing import dsse
from sealtrain.signing.errors import StatementInvalid
from sealtrain.training.checkpoints.shardnames import MAX_SHARDS
from sealtrain.training.errors import ChannelBroken
from sealtrain_nodes.errors import NodeRefused
from sealtrain_together.channel.channel import AttestedChannel

PURPOSE: Final = "node-join"
MAX_RANKS: Final = 64
MAX_MESSAGE_BYTES: Final = 4 << 20

_Port = Annotated[int, Field(ge=1, le=65535)]
_Count = Annotated[int, Field(ge=1, le=(1 << 53) - 1)]
_Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$")]
"""32 bytes in the one spelling of base64."""
_Host = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.:%_-]{1,255}$")]


class Greeting(StrictModel):
    """Context of a node's channel."""

    version: Literal[1]
    node: Annotated[int, Field(ge=1, lt=MAX_NODES)]


class Welcome(StrictModel):
    """The lead's run, and its meeting.

    Attributes:
        run_id: Of the whole run.
        session: Of this meeting.
        nodes: Number of nodes, the lead included.
        ranks: Of each node.
    """

    run_id: Hex32
    session: Hex32
    nodes: Annotated[int, Field(ge=2, le=MAX_NODES)]
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)]


class NodeReady(StrictModel):
    """A node that holds its keys.

    Attributes:
        ports: That its ranks listen at, in order.
        public_key: Of its connections to other ranks, base64.
        releases: Its receipts, with their ledger proofs.
        begun: When it was released its keys; ``from`` in JSON.
    """

    ports: Annotated[tuple[_Port, ...], Field(min_length=1, max_length=MAX_RANKS)]
    public_key: _Key
    releases: Annotated[tuple[Release, ...], Field(min_length=1, max_length=64)]
    begun: Timestamp = Field(alias="from")


class ListeningRank(StrictModel):
    """Where a rank listens, and the key that proves it.

    Attributes:
        host: ``None`` for the host that a node dialled: the lead's.
        port: Of the rank.
        public_key: Of its node, base64.
    """

    host: _Host | None
    port: _Port
    public_key: _Key


class SentShard(StrictModel):
    """A sealed shard of the checkpoint."""

    number: Annotated[int, Field(ge=0, lt=MAX_SHARDS)]
    count: Annotated[int, Field(ge=1, le=MAX_SHARDS)]
    size: _Count


class SentCheckpoint(StrictModel):
    """A sealed checkpoint that node 0 sends next, and then its shards (``sharing``)."""

    counter: _Count
    step: Annotated[int, Field(ge=0, le=(1 << 53) - 1)]
    digest: Hex64
    previous: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
    size: _Count
    shards: Annotated[tuple[SentShard, ...], Field(max_length=MAX_SHARDS)]


class BeginNodes(StrictModel):
    """The word to begin, from a checkpoint where there is one."""

    checkpoint: SentCheckpoint | None


class _Nothing(StrictModel):
    """No fields."""


class _Renewed(StrictModel):
    releases: Annotated[tuple[Release, ...], Field(min_length=1, max_length=64)]


class _Stopping(StrictModel):
    code: ErrorCode


class FromLead(StrictModel):
    """One message of the lead: exactly one field."""

    refused: ErrorFields | None = None
    welcome: Welcome | None = None
    members: (
        Annotated[tuple[ListeningRank, ...], Field(max_length=MAX_NODES * MAX_RANKS)] | None
    ) = None
    begin: BeginNodes | None = None


class FromNode(StrictModel):
    """One message of a node: exactly one field."""

    ready: NodeReady | None = None
    renewed: _Renewed | None = Field(default=None, alias="releases")
    stopping: _Stopping | None = None
    done: _Nothing | None = None


def send(channel: AttestedChannel, name: str, value: Any) -> None:
    """Send one message.

    Args:
        channel: To the other side.
        name: Of the message.
        value: Its fields, as JSON.

    Raises:
        NodeLost: The other side does not take it.
    """
    with raise_if_cut():
        channel.send(canonical_json({name: value}))


def receive(channel: AttestedChannel, kind: type[FromLead] | type[FromNode]) -> Any:
    """The next message; ``None`` where the other side said that nothing follows.

    Raises:
        ChannelBroken: The message is of another kind.
        NodeLost: The other side is gone.
    """
    with raise_if_cut():
        message = channel.receive(max_bytes=MAX_MESSAGE_BYTES)
    if message is None:
        return None
    with raise_if_cut():
        found = load_message(kind, message, max_bytes=MAX_MESSAGE_BYTES, error=ChannelBroken)
    if len(found.model_fields_set) != 1:
        raise ChannelBroken("the peer sent several messages as one", check="message")
    return found


@contextmanager
def raise_if_cut() -> Iterator[None]:
    """Raise what the end of a channel within the block means, as ``explain_loss`` says."""
    try:
        yield
    except SealtrainError as error:
        raise explain_loss(error) from error


def refuse_other_receipts(releases: Iterable[Release], *, own: str) -> None:
    """Return if all are receipts of one node. Their signatures are a verifier's to judge.

    Args:
        releases: As the node sent them.
        own: Run id under which it asked for its keys.

    Raises:
        NodeRefused: One is another's, or no receipt with a proof of a ledger.
    """
    for release in releases:
        asked_as = _receipt_of(release).run_id
        if asked_as != own:
            raise NodeRefused(
                "a node shows receipts of another run, session or node",
                check="releases",
                got=asked_as,
                expected=own,
            )


def refuse_other_data(releases: Iterable[Release], datasets: Collection[tuple[str, str]]) -> None:
    """Return if a node was released exactly the data that the lead trains on.

    A node with another sealing of the same records would train on them until the manifest is
    verified, which refuses its receipts.

    Args:
        releases: As the node sent them.
        datasets: Id and root of each dataset of the lead.

    Raises:
        NodeRefused: It was released other data, or less.
    """
    receipts = map(_receipt_of, releases)
    held = {
        (dataset.dataset_id, dataset.root) for receipt in receipts for dataset in receipt.datasets
    }
    if held != set(datasets):
        raise NodeRefused(
            "a node holds other data than the lead",
            check="datasets",
            got=_ids(held - set(datasets)) or "fewer datasets",
            expected=_ids(set(datasets) - held) or "no other dataset",
            hint="give every node the same sealed folders: --data",
        )


def _ids(datasets: Iterable[tuple[str, str]]) -> str:
    return ", ".join(sorted(dataset_id for dataset_id, _root in datasets))[:200]


def _receipt_of(release: Release) -> ReleaseReceipt:
    try:
        envelope = dsse.Envelope.from_dict(release.receipt)
        document = parse_canonical(envelope.payload)
        receipt = load_model(ReleaseReceipt, document, StatementInvalid, "release receipt")
        LedgerProof.from_dict(release.proof)
    except SealtrainError as error:
        raise NodeRefused(
            "a node shows something else than a receipt",
            check="releases",
            got=error.code,
            expected="a receipt with the proof of its ledger",
        ) from error
    return receipt


def explain_loss(error: SealtrainError) -> SealtrainError:
    """What the end of a channel means: a node is gone, unless it said what no node says."""
    if type(error) is ChannelBroken:
        return error
    if isinstance(error, DataInvalid):
        return ChannelBroken(
            "a node of the run says what no node says", check="message", got=error.code
        )
    return NodeLost(
        "a node of the run does not answer any more",
        check="node",
        got=error.code,
        hint="the run goes on when all nodes have joined again: sealtrain resume",
    )
