"""The server's view of its clients: their consents, and the records that they send.

``RemoteRecords`` is a dataset as training reads it, so order, weights and epochs are those of every
other run; only its rows are activations.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sealtrain.base.byte_budget import ByteBudget
from sealtrain.base.canonical import JsonValue
from sealtrain.base.secret import Random
from sealtrain.consortium.consents import SignedConsent, verify_consent
from sealtrain.consortium.datasets import DatasetManifest, verify_dataset
from sealtrain.consortium.errors import DatasetMismatch
from sealtrain.errors import SealtrainError
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.sealing.errors import CheckpointRefused
from sealtrain.signing.dsse import Envelope
from sealtrain.training.data.sources import Source
from sealtrain.training.errors import ChannelBroken, ChannelRefused, PeerUnreachable
from sealtrain_together.channel.channel import AttestedChannel, accept
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.proofs import AcceptKey, ProveGuest
from sealtrain_together.cut.activations import Expected, Row, batch_of, decode, schema
from sealtrain_together.cut.messages import (
    MAX_CONTROL_BYTES,
    PURPOSE,
    Ask,
    BeginCut,
    NotedState,
    OwnerJoined,
    receive_message,
    send_message,
)
from sealtrain_together.cut.states import Arrived, SealedCutState, require_agreement
from sealtrain_together.parties.joint import require_counts

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.consortium.members import Consortium
    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.signing.target import Target
    from sealtrain_together.parties.party import ReportedCounts

KEPT_BYTES: Final = 4 << 30
_POLL_SECONDS: Final = 0.2


@dataclass(slots=True)
class _Client:
    """One owner's place: its consent, and the channel it is reached by at present."""

    consent: SignedConsent
    share: bytes
    manifests: dict[str, DatasetManifest]
    envelopes: tuple[dict[str, JsonValue], ...]
    joined_at: int
    counts: Mapping[str, ReportedCounts | None] | None
    channel: AttestedChannel | None
    turn: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class Received:
    """What came of one dataset.

    Attributes:
        digests: SHA-256 of each message, by number.
        size: Bytes, those of messages that were asked for again included.
    """

    digests: dict[int, str] = field(default_factory=dict)
    size: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of all messages in order, hex."""
        joined = "".join(self.digests[number] for number in sorted(self.digests))
        return hashlib.sha256(bytes.fromhex(joined)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRun:
    """The run that owners join.

    Attributes:
        run_id: 32 hex digits.
        target: Deployment and recipe that owners must have consented to.
        consortium: Whose owners may join.
        recipe: Whose data owners give.
        expected: What owners' messages must hold.
        sealed: The state that the run goes on from; ``None`` where it begins.
    """

    run_id: str
    target: Target
    consortium: Consortium
    recipe: PhaseRecipe
    expected: Expected
    sealed: SealedCutState | None = None


class Clients:
    """Lets owners join, keeps a channel to each, and asks for records.

    Args:
        run: That owners join.
        proof: Proves this guest.
        patience: Seconds to wait for an owner who left to come back, and between bytes.
        clock: Time, seconds since the epoch.
        random: Source of ephemeral keys.
        kept_bytes: Messages that are kept so that no client sends them again.
    """

    def __init__(
        self,
        run: CutRun,
        proof: ProveGuest,
        *,
        patience: float,
        clock: Callable[[], int],
        random: Random = os.urandom,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._run_id = run.run_id
        self._sealed = run.sealed
        self._disagrees: CheckpointRefused | None = None
        self._target, self._consortium = run.target, run.consortium
        self._recipe, self._wanted = run.recipe, tuple(run.recipe.datasets)
        self._expected = run.expected
        self._patience, self._clock = patience, clock
        self.rows = run.expected.rows_a_message
        """Records in a message."""
        self._owners = {
            name: run.consortium.owner(name).signing_bytes
            for name in {dataset.owner for dataset in self._wanted}
        }
        self._conversation = ChannelTerms(
            purpose=PURPOSE,
            context=None,
            proof=proof,
            accept=AcceptKey(frozenset(self._owners.values())),
            random=random,
        )
        self._clients: dict[str, _Client] = {}
        self._changed = threading.Condition()
        self._kept: dict[tuple[str, int], bytes] = {}
        self._room = ByteBudget(kept_bytes)
        self._received: dict[str, Received] = {}
        self._over = threading.Event()

    @property
    def present(self) -> frozenset[str]:
        """Owners that have joined."""
        return frozenset(self._clients)

    def handle(self, sock: socket.socket) -> None:
        """Let a caller join, and stay until the run is over or the caller is lost.

        Raises:
            Refused: The caller is no owner of these data, consents to something else, or knows
                another sealed state than this server.
            PeerUnreachable: It does not answer.
        """
        with accept(sock, self._conversation, timeout=self._patience) as channel:
            name = self._name_owner(channel)
            self._agree(name, channel)
            self._take(name, channel, receive_message(channel, OwnerJoined))
            client, spoke = self._clients[name], time.monotonic()
            while not self._over.wait(_POLL_SECONDS):
                with self._changed:
                    if client.channel is not channel:
                        return
                # An owner hears now and then that training goes on, or takes the server for gone.
                quiet_for = time.monotonic() - spoke
                if quiet_for > self._patience / 4 and client.turn.acquire(blocking=False):
                    try:
                        send_message(channel, Ask(kind="wait"))
                    finally:
                        client.turn.release()
                    spoke = time.monotonic()

    def wait_for_all(self, within: float) -> dict[str, SignedConsent]:
        """Wait until every owner has joined; the consents by owner.

        Raises:
            PeerUnreachable: A client is missing.
            CheckpointRefused: An owner knows another sealed state than this server goes on from.
        """
        until = time.monotonic() + within
        with self._changed:
            while missing := sorted(set(self._owners) - set(self._clients)):
                if self._disagrees is not None:
                    raise self._disagrees
                if not self._changed.wait(until - time.monotonic()):
                    raise PeerUnreachable(
                        "an owner has not joined in time",
                        check="clients",
                        owner=missing[0],
                        got=f"{len(self._clients)} of {len(self._owners)}",
                        expected="every owner of the recipe's data",
                        hint="the owner runs: sealtrain split client",
                    )
            return {name: self._clients[name].consent for name in sorted(self._clients)}

    def join_time(self, owner: str) -> int:
        """When an owner joined first, seconds since the epoch."""
        return self._clients[owner].joined_at

    def shares(self) -> dict[str, bytes]:
        """Each owner's share of the key of the run's states. After ``wait_for_all``."""
        return {name: client.share for name, client in self._clients.items()}

    def tell(self, sealed: SealedCutState) -> None:
        """Have every owner note a sealed state; returns once all have.

        Raises:
            PeerUnreachable: An owner left and did not come back.
            CheckpointRefused: An owner answers with another state.
        """
        with self._changed:
            self._sealed = sealed
        ask = Ask(kind="sealed", sealed=sealed)
        for name, client in self._clients.items():
            where = f"sealed state {sealed.counter}"
            with client.turn:
                answer = self._ask(name, client, ask, MAX_CONTROL_BYTES, where)
            if NotedState.from_bytes(answer).sealed != sealed:
                raise CheckpointRefused(
                    "an owner noted another sealed state", check="sealed state", owner=name
                )

    def snapshot(self) -> Arrived:
        """What came so far, to be sealed with a state."""
        return Arrived.model_validate({
            "joined": {name: client.joined_at for name, client in self._clients.items()},
            "datasets": {
                dataset_id: {
                    "digests": {str(row): digest for row, digest in dict(came.digests).items()},
                    "size": came.size,
                }
                for dataset_id, came in dict(self._received).items()
            },
        })  # fmt: skip

    def go_on(self, arrived: Arrived, consents: Mapping[str, SignedConsent]) -> None:
        """Go on from a sealed state: what came before counts, and must come again the same.

        Args:
            arrived: As it was sealed.
            consents: By owner, as the run log has them.

        Raises:
            DatasetMismatch: An owner came back with other data.
        """
        for name, client in self._clients.items():
            if consents[name].document.datasets != client.consent.document.datasets:
                raise DatasetMismatch(
                    "an owner came back with other data", check="consent", owner=name
                )
            client.joined_at = arrived.joined[name]
        for dataset_id, came in arrived.datasets.items():
            digests = {int(number): digest for number, digest in came.digests.items()}
            self._received[dataset_id] = Received(digests, came.size)

    def envelopes(self, owner: str) -> tuple[dict[str, JsonValue], ...]:
        """Manifests of an owner's datasets, as signed."""
        return self._clients[owner].envelopes

    def counts(self, owner: str) -> Mapping[str, ReportedCounts | None] | None:
        """What an owner said of the records of its training data."""
        return self._clients[owner].counts

    def sources(self) -> list[Source]:
        """The datasets as training takes them, in the recipe's order. After ``wait_for_all``."""
        found = []
        for wanted in self._wanted:
            client = self._clients[wanted.owner]
            manifest = client.manifests[wanted.name]
            rows = next(
                given.rows
                for given in client.consent.document.datasets
                if given.dataset_id == manifest.dataset_id
            )
            records = RemoteRecords(self, wanted.owner, manifest, rows)
            source = Source(
                role=wanted.role,
                owner=wanted.owner,
                name=wanted.name,
                weight=wanted.weight,
                dataset=records,
            )
            found.append(source)
        return found

    def find_received(self, dataset_id: str) -> Received:
        """What came of a dataset so far."""
        return self._received.setdefault(dataset_id, Received())

    def message(self, owner: str, dataset_id: str, number: int, rows: int) -> list[Row]:
        """Records of one message, asked for where they are not kept.

        Raises:
            DataInvalid: It is not what the recipe says.
            DatasetMismatch: It is another than the owner sent under this number before.
            PeerUnreachable: The owner left and did not come back.
        """
        client = self._clients[owner]
        with client.turn:
            kept = self._kept.get((dataset_id, number))
            if kept is None:
                kept = self._ask(
                    owner,
                    client,
                    Ask(kind="records", dataset_id=dataset_id, number=number),
                    self._expected.max_bytes(rows),
                    f"{dataset_id}, message {number}",
                )
                self._note(owner, dataset_id, number, kept)
        return decode(kept, self._expected, rows=rows)

    def end(self, manifest: bytes) -> None:
        """Tell every owner that is still there, and hand it the manifest."""
        for client in self._clients.values():
            channel = client.channel
            if channel is None:
                continue
            try:
                with client.turn:
                    send_message(channel, Ask(kind="end"))
                    channel.send(manifest)
            except SealtrainError:
                continue  # an owner who left misses nothing that others do not have
        self.close()

    def close(self) -> None:
        """Let go of every channel."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()

    def _name_owner(self, channel: AttestedChannel) -> str:
        """The owner at the other end: whose key it proved to hold, and who it says it is."""
        name = channel.context.get("owner")
        if (
            channel.context.get("recipe_hash") != self._target.recipe_hash
            or not isinstance(name, str)
            or self._owners.get(name) != channel.peer.public_key
        ):
            raise ChannelRefused(
                "a client claims another name than its key's, or joins for another recipe",
                check="channel context",
                hint="an owner of this recipe's data calls under its own name",
            )
        return name

    def _agree(self, name: str, channel: AttestedChannel) -> None:
        """Tell which run this is, and compare sealed states before a consent or a share comes."""
        with self._changed:
            sealed = self._sealed
        begin = BeginCut(run_id=self._run_id, sealed=sealed, **self._target.to_dict())
        send_message(channel, begin)
        known = receive_message(channel, NotedState).sealed
        try:
            require_agreement(sealed, known, name)
        except CheckpointRefused as error:
            with self._changed:
                self._disagrees = error
                self._changed.notify_all()
            raise

    def _take(self, name: str, channel: AttestedChannel, joined: OwnerJoined) -> None:
        consent = verify_consent(
            Envelope.from_dict(joined.consent),
            self._consortium,
            run_id=self._run_id,
            target=self._target,
        )
        manifests = {
            manifest.name: manifest
            for manifest in (
                verify_dataset(Envelope.from_dict(envelope), self._consortium.owner(name))
                for envelope in joined.datasets
            )
        }
        wanted = {dataset.name for dataset in self._wanted if dataset.owner == name}
        given = {
            (dataset.dataset_id, dataset.name, dataset.root)
            for dataset in consent.document.datasets
        }
        signed = {
            (manifest.dataset_id, manifest.name, manifest.root) for manifest in manifests.values()
        }
        if consent.owner.name != name or set(manifests) != wanted or given != signed:
            raise DatasetMismatch(
                "an owner consents to other data than the recipe names",
                check="consent",
                owner=name,
                got=", ".join(sorted(dataset.name for dataset in consent.document.datasets)),
                expected=", ".join(sorted(wanted)),
            )
        require_counts(joined.counts, name, manifests.values(), self._recipe)
        for dataset in consent.document.datasets:
            said = (joined.counts or {}).get(dataset.dataset_id)
            if said is not None and said.whole + said.truncated != dataset.rows:
                raise ClaimContradicted(
                    "an owner counts other records than it consents to send",
                    check="counts",
                    owner=name,
                    dataset=dataset.name,
                    got=said.whole + said.truncated,
                    expected=dataset.rows,
                )
        with self._changed:
            before = self._clients.get(name)
            if before is None:
                self._clients[name] = _Client(
                    consent,
                    bytes.fromhex(joined.share),
                    manifests,
                    joined.datasets,
                    self._clock(),
                    joined.counts,
                    channel,
                )
            elif before.consent.document.datasets != consent.document.datasets:
                raise DatasetMismatch(
                    "an owner came back with other data", check="consent", owner=name
                )
            else:
                before.channel = channel
            self._changed.notify_all()

    def _ask(self, owner: str, client: _Client, ask: Ask, max_bytes: int, where: str) -> bytes:
        until = time.monotonic() + self._patience
        while True:
            channel = self._reach(owner, client, until, where)
            try:
                send_message(channel, ask)
                answer = channel.receive(max_bytes=max_bytes)
            except (ChannelBroken, PeerUnreachable) as error:
                answer, where = None, f"{where.partition(':')[0]}: {error.code}"
            if answer is not None:
                return answer
            with self._changed:
                if client.channel is channel:
                    client.channel = None

    def _reach(self, owner: str, client: _Client, until: float, where: str) -> AttestedChannel:
        with self._changed:
            while client.channel is None:
                if self._over.is_set() or not self._changed.wait(until - time.monotonic()):
                    raise PeerUnreachable(
                        "an owner left before its records had come",
                        check="clients",
                        owner=owner,
                        got=f"silence at {where}",
                        expected=f"a client within {self._patience:g} s",
                        hint="the owner runs its client again: it goes on where it was",
                    )
            return client.channel

    def _note(self, owner: str, dataset_id: str, number: int, message: bytes) -> None:
        received = self.find_received(dataset_id)
        digest = hashlib.sha256(message).hexdigest()
        if received.digests.setdefault(number, digest) != digest:
            raise DatasetMismatch(
                "an owner sent other activations for the same records",
                check="activations",
                owner=owner,
                got=digest,
                expected=received.digests[number],
                hint="the front is frozen: nothing but the data or the model can have changed",
            )
        received.size += len(message)
        if self._room.take(len(message)):  # owners' messages come in several threads
            self._kept[dataset_id, number] = message


class RemoteRecords:
    """Activations of one dataset in record batches (``training.data.sources.BatchedRecords``)."""

    local = False

    def __init__(self, clients: Clients, owner: str, manifest: DatasetManifest, rows: int) -> None:
        self.dataset_id = manifest.dataset_id
        self.root = manifest.root
        full, rest = divmod(rows, clients.rows)
        self.batch_rows = (*[clients.rows] * full, *([rest] if rest else []))
        self._clients, self._owner = clients, owner

    @property
    def schema(self) -> pa.Schema:
        """Numbers of each record as bytes."""
        return schema()

    def batch(self, number: int) -> pa.RecordBatch:
        """One message of its owner."""
        return batch_of(
            self._clients.message(self._owner, self.dataset_id, number, self.batch_rows[number])
        )
