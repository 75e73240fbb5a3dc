"""What several commands start with: attested brokers, and a ledger that is watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sealtrain.base.clock import system_clock
from sealtrain.base.digests import sha256_hex
from sealtrain.client.broker_api import BrokerClient
from sealtrain.client.broker_proof import AttestedBroker, Deployed, attest_pinned_broker, fetch_keys
from sealtrain.client.pin import load_pin
from sealtrain.client.watch import observe, verify_recorded
from sealtrain.keys.identity import Identity
from sealtrain.ledger.witness import LedgerMemory, memory
from sealtrain.sealing.rewrap import read_stanzas

if TYPE_CHECKING:
    from sealtrain.consortium.members import Consortium
    from sealtrain.consortium.succession import SuccessionFile
    from sealtrain.recipe.lock import Lock, LockedRecipe
    from sealtrain.sealing.datakey import DataKey
    from sealtrain.signing.tree_head import TreeHead


def attest_brokers(broker_files: Sequence[Path], deployment: LockedRecipe) -> list[AttestedBroker]:
    """Verify the evidence of every broker, before the owner encrypts anything to it.

    Raises:
        BrokerNotApproved: The deployment's lock does not name one of the brokers, so no guest would
            obey that broker.
    """
    lock, target = deployment.lock, deployment.target
    attested = []
    for path in broker_files:
        pin = load_pin(path)
        with BrokerClient.at(pin) as client:
            broker = fetch_keys(
                client,
                pin,
                client.consortium(lock.consortium_id),
                Deployed(
                    app_id=target.app_id,
                    compose_hash=target.compose_hash,
                    brokers=lock.brokers,
                ),
                now=system_clock(),
            )
        attested.append(broker)
    return attested


def brokers_of_lock(broker_files: Sequence[Path], lock: Lock) -> dict[str, str]:
    """URLs of the brokers that these broker files name, by their ids in a lock.

    A broker is asked only where its file names another id than the lock: its key may have been
    rotated since the file or the lock was written.

    Raises:
        BrokerNotApproved: The lock does not name the broker of a file.
        BrokerMismatch: Another broker answers than a file names.
        EvidenceRefused: A broker's evidence does not verify.
        BrokerUnreachable: A broker that must be asked does not answer.
    """
    known = {}
    for path in broker_files:
        pin = load_pin(path)
        named = pin.broker_id
        if named not in lock.brokers:
            with BrokerClient.at(pin) as client:
                found = attest_pinned_broker(
                    client, pin, lock.consortium_id, brokers=lock.brokers, now=system_clock()
                )
            named = found.named_as
        known[named] = pin.url
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedBroker:
    """A broker whose ledger extends the ledger that the owner saw last."""

    client: BrokerClient
    kept: LedgerMemory
    consortium: Consortium
    before: TreeHead | None
    """The tree head that was remembered before."""

    def confirm_recorded(self, index: int, submitted: bytes) -> None:
        """Verify that the ledger holds a submission, and remember that ledger."""
        key = self.kept.public_key
        if key is None:
            raise AssertionError("a watched ledger has a key")
        observe(self.client, self.kept, self.consortium, attest=lambda: key, now=system_clock())
        verify_recorded(self.client, self.kept, index, submitted)


@contextmanager
def watch_ledger(
    broker_file: Path,
    consortium: Consortium,
    identity: Path,
    state: Path | None,
    *,
    between: Sequence[SuccessionFile] = (),
) -> Iterator[WatchedBroker]:
    """Verify that a broker's ledger extends the ledger seen last, and remember the new one.

    Args:
        consortium: As the owner holds it.
        identity: The owner's identity file, which signs requests; the memory lies beside it.
        state: The memory, where it is elsewhere.
        between: Successions of consortia that this owner missed, oldest first.

    Raises:
        LedgerInconsistent: The ledger is shorter than it was, rewritten or forked.
    """
    pin = load_pin(broker_file)
    if state is None:
        # One memory for each broker: each has its own ledger.
        broker = sha256_hex(pin.url.rstrip("/").encode())[:16]
        state = identity.with_name(f"{identity.name}.ledger-{broker}.json")
    signer = Identity.load(identity).signer
    with (
        BrokerClient.at(pin, signer=signer) as client,
        memory(state) as kept,
    ):
        before = kept.head
        now = system_clock()

        def attest() -> bytes:
            found = attest_pinned_broker(client, pin, consortium.consortium_id, now=now)
            return found.signing_key

        observe(
            client,
            kept,
            consortium,
            attest=attest,
            now=now,
            between=between,
        )
        yield WatchedBroker(client=client, kept=kept, consortium=consortium, before=before)


def own_key(folder: Path, me: Identity) -> DataKey:
    """Unwrap a dataset's data key with the owner's own stanza."""
    return me.unwrap(*read_stanzas(folder))
