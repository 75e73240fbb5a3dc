"""The parts that make a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sealtrain.attest.evidence import Collateral, Evidence
from sealtrain.attest.nvidia.collateral import GpuCollateral
from sealtrain.attest.policy import AppraisalPolicy
from sealtrain.attest.report_data import Binding
from sealtrain.base.clock import Clock
from sealtrain.base.secret import Random
from sealtrain.broker.config import AnswerSettings, BrokerLimits
from sealtrain.broker.service.controllers import Controllers
from sealtrain.broker.service.keyring import Keyring
from sealtrain.broker.store.memory import Store
from sealtrain.consortium.members import Consortium
from sealtrain.ledger.ledger import Ledger
from sealtrain.signing.identity import broker_id

if TYPE_CHECKING:
    from sealtrain.consortium.chainword import ChainWord


class ChainCondition(Protocol):
    """What owners' contract on a chain says of a deployment, asked anew for each release."""

    def require_allowed(self, app_id: str, compose_hash: str) -> ChainWord | None:
        """Return if the chain allows the deployment now.

        Args:
            app_id: Measured, 40 hex digits.
            compose_hash: Measured, 64 hex digits.

        Returns:
            The chain's word for a receipt; ``None`` of a chain whose headers are of another form.

        Raises:
            ChainRefused: It does not, or the contract is not the one that was pinned.
            ChainUnreachable: What the chain says cannot be known.
            ProofInvalid: Nodes say what they cannot prove.
        """

    def ready(self) -> None:
        """Return if the chain can be read. Raises as ``require_allowed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """``broker.serve.assemble`` makes these from a ``BrokerConfig``.

    Attributes:
        consortium: The consortium it serves.
        policy: Appraisal policy for guests.
        keyring: Everything secret.
        store: Challenges, decisions, datasets, runs, leases.
        ledger: Append-only log, signed by ``keyring.signer``.
        collect: Makes the broker's own evidence for one conversation.
        collateral: Evidence → current collateral to verify it with, of the broker's own choosing;
            collateral that guests send is ignored.
        gpu_collateral: The same for their accelerators.
        clock: The broker's time.
        random: Source of challenges and lease ids.
        limits: Caps.
        answers: Longest lease, and what dstack's KMS is answered.
        chain: The contract that must allow a deployment besides its owners; ``None`` for none
            (spec/chain.md).
        controllers: Who may submit runs and who may run them (spec/run-control.md).
        surroundings: Checks of what it needs to decide besides its databases and the chain, by
            name; each raises ``Unreachable`` where it fails.
    """

    consortium: Consortium
    policy: AppraisalPolicy
    keyring: Keyring
    store: Store
    ledger: Ledger
    collect: Callable[[Binding], Evidence]
    collateral: Callable[[Evidence], Collateral | None]
    gpu_collateral: Callable[[], GpuCollateral | None]
    clock: Clock
    random: Random
    limits: BrokerLimits
    answers: AnswerSettings
    controllers: Controllers
    chain: ChainCondition | None = None
    surroundings: Mapping[str, Callable[[], object]] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        """The broker's id, then those that it had before its ledger's key was rotated."""
        return tuple(broker_id(key) for key in reversed(self.ledger.keys))
