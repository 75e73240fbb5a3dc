"""The server of a cut run: a guest that leads, and trains on activations that owners send.

1. as ``parties.lead``: admit, and have the brokers prove themselves;
2. build the back of the model, and wait until every owner has joined by a signed consent;
3. train and measure (``cut.learning``); every message that comes is counted and digested, and
   every checkpoint is sealed under a key of all owners, who note it (``cut.states``);
4. seal the model to its recipients, write the manifest (``parties.joint``), hand it to the owners.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.hostport import write_host_and_port
from sealtrain.consortium.consents import SignedConsent, verify_consent
from sealtrain.errors import AlreadyExists
from sealtrain.guest.guest import Surroundings, run_secluded
from sealtrain.guest.sandbox.border import saying
from sealtrain.guest.settings import load_run, save_run
from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.cut import Cut
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.signing.dsse import Envelope
from sealtrain.signing.parties import party_run_id
from sealtrain_together.channel.ports import bind, listening
from sealtrain_together.channel.proofs import ProveGuest
from sealtrain_together.cut.states import STATE_PURPOSE, SealedCutState, ServerStates
from sealtrain_together.parties.joint import close_joint
from sealtrain_together.parties.lead import LeadRun
from sealtrain_together.parties.party import PartyReport

if TYPE_CHECKING:
    from sealtrain.guest.run_end import Outcome
    from sealtrain.guest.settings import RunSettings
    from sealtrain.training.checkpoints.checkpoint import CheckpointRef
    from sealtrain.training.data.sources import Source
    from sealtrain_together.cut.learning import Learning
    from sealtrain_together.cut.server import Clients


def serve(
    settings: RunSettings,
    listen: tuple[str, int],
    around: Surroundings,
    *,
    wait: float,
    patience: float,
    ready: Callable[[str], object],
    progress: bool,
) -> Outcome:
    """Serve a cut run from its beginning to its manifest.

    Args:
        settings: Where everything is; ``data`` is not read.
        listen: Host and port; port 0 for any.
        around: What else the guest is given.
        wait: Seconds in which every owner must have joined.
        patience: Seconds an owner may be silent, or gone, before the run fails.
        ready: Called with address that was bound.
        progress: Show a bar on stderr.

    Raises:
        UsageError: The recipe is for no cut model, or the address cannot be bound.
        PeerUnreachable: An owner did not join, or left and did not come back.
        DataInvalid: An owner sent something else than activations of its records.
        SealtrainError: Whatever else fails.
    """
    with bind(listen, what="clients") as listener:  # an address in use leaves no folder
        settings = replace(settings, listen=write_host_and_port(*listen))
        run = LeadRun.begin(settings, around)
        return _serve_clients(
            run, listener, wait=wait, patience=patience, ready=ready, progress=progress
        )


def resume_server(
    settings: RunSettings,
    listen: tuple[str, int],
    around: Surroundings,
    *,
    wait: float,
    patience: float,
    ready: Callable[[str], object],
    progress: bool,
) -> Outcome:
    """Go on with a run whose server ended, from its newest sealed state (spec §5).

    Arguments as ``serve``; owners are told if it listens at another address than before.

    Raises:
        UsageError: The folder holds no run, or the address cannot be bound.
        AlreadyExists: The run ended with a manifest.
        CheckpointRefused: An owner knows another sealed state, or it does not open.
        DatasetMismatch: An owner came back with other data.
        SealtrainError: As ``serve``.
    """
    out = settings.out
    _, run_id = load_run(out)
    if (out / RUN_MANIFEST).exists():
        raise AlreadyExists("the run is complete", got=str(out / RUN_MANIFEST))
    with bind(listen, what="clients") as listener:
        settings = replace(settings, listen=write_host_and_port(*listen))
        run = LeadRun.again(settings, run_id, around)
        return _serve_clients(
            run, listener, wait=wait, patience=patience, ready=ready, progress=progress
        )


def _serve_clients(
    run: LeadRun,
    listener: socket.socket,
    *,
    wait: float,
    patience: float,
    ready: Callable[[str], object],
    progress: bool,
) -> Outcome:
    with ExitStack() as stack:
        stack.callback(run.close)
        save_run(run.settings, run.run_id)
        work = _ServeWork(run, of_kind(run.recipe, Cut), wait=wait, patience=patience)
        ready(write_host_and_port(*listener.getsockname()[:2]))
        return run_secluded(
            run,
            lambda terminal: work.perform(listener, terminal, progress=progress),
        )


class _ServeWork:
    """What is done while owners may be connected."""

    def __init__(self, run: LeadRun, how: Cut, *, wait: float, patience: float) -> None:
        self._run, self._how = run, how
        self._wait, self._patience = wait, patience

    def perform(self, listener: socket.socket, terminal: TextIO, *, progress: bool) -> Outcome:
        from sealtrain.training.run import Checkpoints, Inputs, Reporting, train
        from sealtrain_together.cut.learning import Learning
        from sealtrain_together.cut.server import Clients, CutRun

        run = self._run
        self._states = ServerStates(run.settings.out, run.run_id)
        learning = Learning(run.recipe, run.base)
        clients = Clients(
            CutRun(
                run_id=run.run_id,
                target=run.target,
                consortium=run.consortium,
                recipe=run.recipe,
                expected=learning.expected,
                sealed=self._states.newest,
            ),
            ProveGuest.of(run),
            patience=self._patience,
            clock=run.now,
        )
        if self._states.newest is None and not run.journal.log.entries:
            run.begin_log()  # again: nothing was sealed
        with listening(listener, clients.handle, what="clients", say=saying(terminal)):
            try:
                consents, checkpoint = self._all_there(clients)
                sources = clients.sources()
                trained = train(
                    run.recipe,
                    run_id=run.run_id,
                    inputs=Inputs(
                        base_dir=run.base,
                        sources=sources,
                    ),
                    checkpoints=Checkpoints(
                        store=self._states.store,
                        on_checkpoint=lambda ref: self._note_state(ref, clients),
                        resume=checkpoint,
                    ),
                    reporting=Reporting(
                        on_metrics=run.keep_metrics,
                        progress=terminal if progress else None,
                    ),
                    phase=learning.train,
                )
                self._note_received(clients, sources, learning)
                outcome = close_joint(run, trained, self._reports(clients, consents))
                clients.end(outcome.manifest.read_bytes())
            finally:
                clients.close()
        return outcome

    def _all_there(
        self, clients: Clients
    ) -> tuple[Mapping[str, SignedConsent], CheckpointRef | None]:
        """Wait for all owners; the consents in the log, and where training goes on."""
        run, how = self._run, self._how
        consents = clients.wait_for_all(self._wait)
        continued = self._states.open(run.joint_key(STATE_PURPOSE, clients.shares()))
        if continued is None:
            terms = {"layers": how.layers, "wire": how.wire, "spf_share": how.spf_share}
            run.record("cut.begun", terms)
            for party, consent in consents.items():
                run.record("cut.joined", {"party": party, "consent": consent.envelope.to_dict()})
            return consents, None
        ref = continued.checkpoint
        run.take_up(continued.journal.to_dict())
        consents = self._consents_in_log()
        clients.go_on(continued.arrived, consents)
        run.record_resume(ref.counter, ref.step, ref.digest)
        return consents, ref

    def _consents_in_log(self) -> dict[str, SignedConsent]:
        run = self._run
        return {
            entry["fields"]["party"]: verify_consent(
                Envelope.from_dict(entry["fields"]["consent"]),
                run.consortium,
                run_id=run.run_id,
                target=run.target,
            )
            for entry in run.journal.log.entries
            if entry["event"] == "cut.joined"
        }

    def _note_state(self, ref: CheckpointRef, clients: Clients) -> None:
        """Make a checkpoint one that a server goes on from, and have the owners note it."""
        self._run.anchor_checkpoint(ref, self._states.seal(ref, clients.snapshot()))
        clients.tell(SealedCutState.of(ref))

    def _note_received(
        self, clients: Clients, sources: Sequence[Source], learning: Learning
    ) -> None:
        for source in sources:
            came = clients.find_received(source.dataset.dataset_id)
            counted = {
                "party": source.owner,
                "dataset_id": source.dataset.dataset_id,
                "rows": sum(source.dataset.batch_rows[number] for number in came.digests),
                "messages": len(came.digests),
                "bytes": came.size,
                "digest": came.digest,
            }
            self._run.record("cut.received", counted)
        self._run.record("cut.finished", {"entries": learning.entries})

    def _reports(
        self, clients: Clients, consents: Mapping[str, SignedConsent]
    ) -> list[PartyReport]:
        """What a party with a guest would report: owners without one are seen from here."""
        until = to_rfc3339(self._run.now())
        return [
            PartyReport.model_validate(
                {
                    "name": name,
                    "role": "client",
                    "run_id": party_run_id(self._run.run_id, name),
                    "datasets": clients.envelopes(name),
                    "releases": (),
                    "from": to_rfc3339(clients.join_time(name)),
                    "until": until,
                    "closings": (),
                    "counts": clients.counts(name),
                }
            )
            for name in consents
        ]
