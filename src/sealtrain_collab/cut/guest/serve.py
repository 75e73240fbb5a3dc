"""The server of a cut run: a guest that leads, and trains on activations that owners send.

1. as ``parties.lead``: admit, and have the brokers prove themselves;
2. build the back of the model, and wait until every owner has joined by a signed consent;
3. train and measure (``cut.learning``); every message that comes is counted and digested;
4. seal the model to its recipients, write the manifest (``parties.joint``), hand it to the owners.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.hostport import written
from sealtrain.guest.guest import secluded
from sealtrain.guest.sandbox.border import saying
from sealtrain.recipe.collaboration import of_kind
from sealtrain.signing.parties import party_run_id
from sealtrain_collab.channel.ports import bind, listening
from sealtrain_collab.channel.proofs import ProveGuest
from sealtrain_collab.cut.recipe import Cut
from sealtrain_collab.parties.joint import close_joint
from sealtrain_collab.parties.lead import LeadRun
from sealtrain_collab.parties.party import PartyReport

if TYPE_CHECKING:
    from sealtrain.client.quorum import OnBrokerFailure
    from sealtrain.consortium.consents import SignedConsent
    from sealtrain.guest.closing import Outcome
    from sealtrain.guest.settings import RunSettings
    from sealtrain_collab.cut.received import Clients

__all__ = ["serve"]


def serve(
    settings: RunSettings,
    listen: tuple[str, int],
    *,
    wait: float,
    patience: float,
    on_failure: OnBrokerFailure,
    ready: Callable[[str], object],
    progress: bool,
    alone: bool = False,
) -> Outcome:
    """Serve a cut run from its beginning to its manifest.

    Args:
        settings: Where everything is; ``data`` is not read.
        listen: Host and port; port 0 for any.
        wait: Seconds in which every owner must have joined.
        patience: Seconds an owner may be silent, or gone, before the run fails.
        on_failure: Called for each broker that did not help while others suffice.
        ready: Called with address that was bound.
        progress: Show a bar on stderr.
        alone: This process is for the run only: it gives up for good what it gives up
            (``sandbox.border``).

    Raises:
        UsageError: The recipe is for no cut model, or the address cannot be bound.
        PeerUnreachable: An owner did not join, or left and did not come back.
        DataInvalid: An owner sent something else than activations of its records.
        SealtrainError: Whatever else fails.
    """
    with ExitStack() as stack:
        run = LeadRun.begin(settings, on_failure=on_failure, alone=alone)
        stack.callback(run.close)
        work = _Work(run, of_kind(run.recipe, Cut), wait=wait, patience=patience)
        listener = stack.enter_context(bind(listen, what="clients"))
        ready(written(*listener.getsockname()[:2]))
        return secluded(
            run,
            lambda terminal: work.done(listener, terminal, progress=progress),
            alone=alone,
        )


class _Work:
    """What is done while owners may be connected."""

    def __init__(self, run: LeadRun, how: Cut, *, wait: float, patience: float) -> None:
        self._run, self._how = run, how
        self._wait, self._patience = wait, patience

    def done(self, listener: socket.socket, terminal: TextIO, *, progress: bool) -> Outcome:
        from sealtrain.training.run import Inputs, Reporting, train
        from sealtrain_collab.cut.learning import Learning
        from sealtrain_collab.cut.received import Clients, CutRun

        run, how = self._run, self._how
        learning = Learning(run.recipe, run.base)
        clients = Clients(
            CutRun(
                run_id=run.run_id,
                target=run.target,
                consortium=run.consortium,
                wanted=run.recipe.datasets,
                expected=learning.expected,
            ),
            ProveGuest.of(run),
            patience=self._patience,
            clock=run.now,
        )
        terms = {"layers": how.layers, "wire": how.wire, "spf_share": how.spf_share}
        run.record("cut.begun", terms)
        with listening(listener, clients.handle, what="clients", say=saying(terminal)):
            try:
                consents = clients.joined(self._wait)
                for party, consent in consents.items():
                    run.record(
                        "cut.joined", {"party": party, "consent": consent.envelope.to_dict()}
                    )
                sources = clients.sources()
                trained = train(
                    run.recipe,
                    run_id=run.run_id,
                    inputs=Inputs(
                        base_dir=run.base,
                        sources=sources,
                    ),
                    reporting=Reporting(
                        on_metrics=run.released_metrics,
                        progress=terminal if progress else None,
                    ),
                    phase=learning.train,
                )
                for source in sources:
                    came = clients.received(source.dataset.dataset_id)
                    counted = {
                        "party": source.owner,
                        "dataset_id": source.dataset.dataset_id,
                        "rows": sum(source.dataset.batch_rows[number] for number in came.digests),
                        "messages": len(came.digests),
                        "bytes": came.size,
                        "digest": came.digest,
                    }
                    run.record("cut.received", counted)
                run.record("cut.finished", {"entries": learning.entries})
                outcome = close_joint(run, trained, self._reports(clients, consents))
                clients.end(outcome.manifest.read_bytes())
            finally:
                clients.close()
        return outcome

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
                    "from": to_rfc3339(clients.joined_at(name)),
                    "until": until,
                }
            )
            for name in consents
        ]
