"""A holder as a guest: waits for the orchestrator, gets its keys, gives chunks, and stops.

Keys are asked for only when an orchestrator has proved itself: its channel says which run it is.
From then on the process reaches its brokers and the accelerator's write port, nothing else. It ends
when the orchestrator says that the run is over, when no peer talks to it for too long, or when its
lease ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from sealtrain.base.hostport import write_host_and_port
from sealtrain.base.models import Hex32, OwnerName, StrictModel, load_model
from sealtrain.client.errors import BrokerUnreachable
from sealtrain.errors import DataInvalid, SealtrainError, UsageError
from sealtrain.guest.guest import AttestedGuest, Surroundings, run_secluded
from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.travelling import Travelling, program_of, width_of
from sealtrain.training.errors import ChannelRefused, PeerUnreachable
from sealtrain_together.channel.channel import accept
from sealtrain_together.channel.handshake import ChannelTerms
from sealtrain_together.channel.ports import Caller, bind, first_proven, listening
from sealtrain_together.channel.proofs import AcceptGuest, ProveGuest
from sealtrain_together.parties.party import Participation, PartyRun
from sealtrain_together.travelling.guest.held_rows import HeldRows
from sealtrain_together.travelling.guest.tokens import HeldTokens
from sealtrain_together.travelling.holder import HOLDER_PURPOSE, Holder
from sealtrain_together.travelling.holder_memory import GivenFile, GivenTrips, GivingBounds
from sealtrain_together.travelling.standby import STANDBY_PURPOSE

if TYPE_CHECKING:
    import socket

    from sealtrain.guest.settings import RunSettings
    from sealtrain_together.channel.channel import AttestedChannel

Address = tuple[str, int]
_POLL_S = 0.2
GIVEN = "given.jsonl"
"""In the holder's folder: what it gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """How a holder waits.

    Attributes:
        listen: Host and port; port 0 for any.
        writes: The accelerator's write port, the only one it writes to.
        wait: Seconds without a conversation until it ends.
        timeout: Seconds a write may take.
        resume: It was interrupted in this run.
    """

    listen: Address
    writes: Address
    wait: float
    timeout: float
    resume: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a holder did: chunks and bytes that it gave, in which run."""

    party: str
    run_id: str
    chunks: int
    bytes: int

    def to_dict(self) -> dict[str, str | int]:
        """JSON-ready form."""
        return {
            "party": self.party,
            "run_id": self.run_id,
            "chunks": self.chunks,
            "bytes": self.bytes,
        }


class _Context(StrictModel):
    run_id: Hex32
    holder: OwnerName


def hold(
    settings: RunSettings,
    party: str,
    how: Holding,
    around: Surroundings,
    *,
    ready: Callable[[str], None],
) -> Held:
    """Be a holder until the run is over.

    Args:
        settings: Where everything is; ``data`` may hold others' datasets too.
        party: Name of the owner whose data it gives.
        how: Addresses and patience.
        around: What else the guest is given.
        ready: Called with the address that the holder listens on.

    Raises:
        UsageError: The recipe does not travel, or names no data of this owner.
        PeerUnreachable: No orchestrator came, or it went and none took over.
        SealtrainError: The brokers release no keys, or stop lending them.
    """
    guest = AttestedGuest(settings, around, shared_out=True).admit()
    _owner_of(guest, party)
    with ExitStack() as stack:
        listener = stack.enter_context(bind(how.listen, what="orchestrators"))
        ready(write_host_and_port(*listener.getsockname()[:2]))
        talk = ChannelTerms(
            purpose=HOLDER_PURPOSE,
            context=None,
            proof=ProveGuest.of(guest),
            accept=AcceptGuest.of(guest),
            random=around.random,
        )
        channel, run_id = _first(listener, talk, party, how)
        stack.enter_context(channel)
        part = Participation(party=party, run_id=run_id, resume=how.resume)
        run = PartyRun.begin(settings, part, around)
        stack.callback(run.close)
        work = _HolderWork(run, how, talk)
        stack.callback(work.close)
        return run_secluded(
            run,
            lambda terminal: work.perform(listener, channel, terminal),
            peers=[f"tcp://{write_host_and_port(*how.writes)}"],
        )


def count_forgiven(guest: AttestedGuest) -> int:
    """Most trips that may be lost with an orchestrator (spec §6)."""
    return of_kind(guest.recipe, Travelling).seal_every + 3 + 2 * len(guest.recipe.owners)


def open_given_file(run: PartyRun, *, every: int) -> GivenFile:
    """What a holder gave, in its folder and anchored by its brokers.

    Args:
        run: The holder's.
        every: As ``GivenFile``.
    """

    def anchor(counter: int, trip: int, digest: str, *, wait: bool) -> None:
        from sealtrain.training.checkpoints.checkpoint import CheckpointRef

        lease_keeper = run.lease_keeper
        lease_keeper.anchor_checkpoint(
            CheckpointRef(counter=counter, step=trip, digest=digest), wait=wait
        )
        if lease_keeper.refused is not None:
            raise lease_keeper.refused
        if wait and lease_keeper.anchored < counter:
            raise BrokerUnreachable(
                "the brokers do not know yet that this holder begins",
                check="memory",
                hint="see that they run; it gives nothing before they answered",
            )

    return GivenFile(run.settings.out / GIVEN, run.key, run.run_id, every=every, anchor=anchor)


def _owner_of(guest: AttestedGuest, party: str) -> None:
    of_kind(guest.recipe, Travelling)
    if party not in guest.recipe.owners:
        raise UsageError(
            "the recipe names no data of this owner",
            check="party",
            got=party,
            expected=", ".join(guest.recipe.owners),
        )


def _first(
    listener: socket.socket, talk: ChannelTerms, party: str, how: Holding
) -> tuple[AttestedChannel, str]:
    """The channel to the first orchestrator that proves itself, and its run."""
    refused: list[SealtrainError] = []
    until = time.monotonic() + how.wait

    def prove(sock: Caller) -> tuple[AttestedChannel, str]:
        try:
            left = max(_POLL_S, until - time.monotonic())
            channel = accept(sock, talk, timeout=min(how.timeout, left))
            try:
                run_id = _run_of(channel, party)
            except SealtrainError:
                channel.close()
                raise
        except SealtrainError as error:  # of a stranger; the right peer may still come
            refused.append(error)
            raise
        sock.settimeout(how.wait)
        return channel, run_id

    found = first_proven(
        listener, prove, what="orchestrators", seconds=how.wait, say=lambda _line: None
    )
    if found is not None:
        return found
    if refused:
        raise refused[-1]
    raise PeerUnreachable(
        "no orchestrator came",
        check="orchestrator",
        got=f"none within {how.wait:g} s",
        hint="check that the orchestrator runs and has this address",
    )


def _run_of(channel: AttestedChannel, party: str) -> str:
    context = load_model(_Context, channel.context, DataInvalid, "context of a channel")
    if context.holder != party:
        raise ChannelRefused(
            "the orchestrator wants to talk to another holder",
            check="channel context",
            got=context.holder,
            expected=party,
            hint="it was given this address for the wrong name",
        )
    return context.run_id


class _HolderWork:
    """What is done while the process holds keys."""

    def __init__(self, run: PartyRun, how: Holding, talk: ChannelTerms) -> None:
        travelling = of_kind(run.recipe, Travelling)
        self._run = run
        self._how = how
        self._talk = talk
        width = width_of(program_of(run.recipe))
        source: HeldTokens | HeldRows
        if travelling.program == "trainer":
            source = HeldRows(run.recipe, run.base, run.sources, run.lease_keeper.require)
        else:
            (column,) = run.recipe.columns.names
            source = HeldTokens(run.sources, column, run.lease_keeper.require, width=width)
        limit = travelling.limit_of(run.name)
        self._file = open_given_file(run, every=travelling.seal_every)
        self._holder = Holder(
            source,
            given=GivenTrips(
                run.run_id,
                GivingBounds(
                    max_bytes=source.size if limit is None else limit * width,
                    forgives=count_forgiven(run),
                    timeout=how.timeout,
                    patience=how.wait,
                ),
                remember=self._file.keep,
                before=self._file.read(run.grant.latest_checkpoint if run.resumed else None),
            ),
            key=run.key,
            share=lambda: run.share(STANDBY_PURPOSE),
            report=lambda: run.report(run.now()).to_bytes(),
            writes=how.writes,
        )
        self._talking = 0
        self._heard = time.monotonic()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the file of what was given."""
        self._file.close()

    def perform(self, listener: socket.socket, channel: AttestedChannel, terminal: TextIO) -> Held:
        """Serve orchestrators until one says that the run is over."""
        run = self._run
        with run.lease_keeper, ExitStack() as stack:
            run.count_records(lambda line: _say(terminal, line))
            self._file.begin()
            threading.Thread(target=self._attend, args=(channel,), daemon=True).start()
            stack.enter_context(listening(listener, self._serve, what="orchestrators"))
            while not self._holder.over.wait(_POLL_S):
                run.lease_keeper.require()
                with self._lock:
                    silent = 0.0 if self._talking else time.monotonic() - self._heard
                if silent > self._how.wait:
                    raise PeerUnreachable(
                        "the orchestrator is gone and none took over",
                        check="orchestrator",
                        got=f"none for {silent:.0f} s",
                    )
        given = self._holder.given
        _say(terminal, f"{run.name}: gave {len(given)} chunks, {sum(given)} bytes")
        return Held(party=run.name, run_id=run.run_id, chunks=len(given), bytes=sum(given))

    def _serve(self, sock: socket.socket) -> None:
        channel = accept(sock, self._talk, timeout=self._how.timeout)
        with channel:
            if _run_of(channel, self._run.name) != self._run.run_id:
                raise ChannelRefused("an orchestrator of another run", check="channel context")
            sock.settimeout(self._how.wait)
            self._attend(channel)

    def _attend(self, channel: AttestedChannel) -> None:
        with self._lock:
            self._talking += 1
        try:
            self._holder.attend(channel)
        except SealtrainError:
            # It broke, or was cut off: another channel may come.
            self._run.tally.note("channel.broken")
        finally:
            with self._lock:
                self._talking -= 1
                self._heard = time.monotonic()


def _say(terminal: TextIO, line: str) -> None:
    terminal.write(f"{line}\n")
    terminal.flush()
