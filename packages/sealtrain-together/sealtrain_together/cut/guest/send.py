"""An owner's side of a cut run, on the owner's own machine and outside of any TEE.

1. the deployment document holds a lock of kind ``cut`` of the owner's consortium;
2. the base model here is the lock's, and a copy of the very bytes that were hashed is used;
3. the server's guest proves that it measured this very document, under the policy in the lock;
4. only then the owner's sealed datasets are opened, with the owner's own key;
5. the owner notes the run and its newest sealed state in its folder, signs its consent to that
   run, and answers with activations until it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.base.clock import Clock, system_clock
from sealtrain.base.files import atomic_write
from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.base.secret import Random
from sealtrain.consortium.errors import ConsortiumMismatch
from sealtrain.errors import UsageError
from sealtrain.guest.datasets import find_datasets
from sealtrain.manifest import form
from sealtrain.recipe.collaboration import of_kind
from sealtrain.recipe.collaborations.cut import Cut
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.models import BASE, measure_models
from sealtrain.sealing.trainedmodel import RUN_MANIFEST
from sealtrain.signing.target import Target
from sealtrain.training.errors import ChannelBroken, PeerUnreachable
from sealtrain_together.channel.channel import connect
from sealtrain_together.channel.proofs import AcceptGuest
from sealtrain_together.cut.messages import conversation_of
from sealtrain_together.cut.states import Note, owner_share

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.consortium.members import Consortium
    from sealtrain.guest.datasets import FoundDataset
    from sealtrain.keys.identity import Identity
    from sealtrain.recipe.lock import Lock
    from sealtrain.sealing.datakey import DataKey
    from sealtrain_together.cut.sending import Client

_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """An owner's files and keys, and the server's address.

    Attributes:
        deployment: The ``app-compose.json`` that the owner approved.
        server: Host and port.
        me: The owner's identity.
        consortium: The owner's.
        data: Sealed datasets of the owner, or folders that hold them.
        base: Folder that the recipe's paths start from.
        out: Folder to make, for the manifest and a note of the run; an owner that is started again
            names the same one.
        key_of: Opens a dataset with the owner's own stanza.
        patience: Seconds without an answer after which the server counts as gone.
        wait: Seconds to call a server that is not there, from the beginning or after it was.
    """

    deployment: Path
    server: tuple[str, int]
    me: Identity
    consortium: Consortium
    data: tuple[Path, ...]
    base: Path
    out: Path
    key_of: Callable[[Path], DataKey]
    patience: float
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What an owner did.

    Attributes:
        run_id: In which run.
        bytes: Of activations that it sent.
        records: Of each training dataset, by name, what its records leave to learn.
        manifest: Of the run.
    """

    run_id: str
    bytes: int
    records: Mapping[str, Mapping[str, int]]
    manifest: Path

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "run_id": self.run_id,
            "bytes": self.bytes,
            "records": {name: dict(counts) for name, counts in self.records.items()},
            "manifest": str(self.manifest),
        }


def send(
    how: Sending,
    *,
    ready: Callable[[], object],
    on_sent: Callable[[int], None],
    clock: Clock = system_clock,
    random: Random = os.urandom,
) -> Sent:
    """Take part in one run to its end.

    Args:
        how: What the owner has.
        ready: Called when the server has proved itself and records are open.
        on_sent: Called with the size of each message that was sent, bytes.
        clock: Time of consent and of appraisal.
        random: Source of ephemeral keys.

    Raises:
        UsageError: The recipe is for no cut model, or names no data of this owner.
        ModelInvalid: The base model here is another than the lock's.
        EvidenceRefused: The server's guest is not what the owner approved.
        RunMismatch: It runs something else, or another run than the one noted in ``out``.
        CheckpointRefused: It goes on from another sealed state than the one noted in ``out``.
        PeerUnreachable: It is not there, or left before the run had ended.
    """
    locked = LockedRecipe.load(how.deployment)
    lock, target = locked.lock, locked.target
    of_kind(lock.recipe, Cut)
    policy = lock.appraisal
    if policy is None:
        raise UsageError("the lock holds no appraisal policy", check="collaboration")
    _refuse_other(how, lock)
    taken = _model_of(lock, how.base)
    conversation = conversation_of(
        how.me.public.name,
        how.me.signer,
        AcceptGuest(policy=policy, compose_hash=target.compose_hash, clock=clock),
        target,
        random=random,
    )
    note = Note.load(how.out)
    client: Client | None = None
    until = time.monotonic() + how.wait
    while True:
        began, proved = time.monotonic(), False
        sent = 0 if client is None else client.sent
        try:
            with connect(how.server, conversation, timeout=how.patience) as channel:
                proved = True
                if client is None:
                    client = _client(how, lock, taken, target, on_sent, clock, note)
                    ready()
                manifest = client.serve(channel)
            break
        except (PeerUnreachable, ChannelBroken):
            # The server may come back and continue; it keeps the messages that were sent.
            # A server that refuses us at once gets no further time; one that worked with us does.
            worked = client is not None and client.sent > sent
            if worked or (proved and time.monotonic() - began > how.wait):
                until = time.monotonic() + how.wait
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_SECONDS)
    run_id = _own_run(client, manifest)
    how.out.mkdir(parents=True, exist_ok=True)
    path = how.out / RUN_MANIFEST
    atomic_write(path, manifest, overwrite=True)
    records = {
        dataset.manifest.name: dataset.tally.to_dict()
        for dataset in client.datasets
        if dataset.counted
    }
    return Sent(run_id=run_id, bytes=client.sent, records=records, manifest=path)


def _own_run(client: Client, manifest: bytes) -> str:
    """The run of a manifest, if it is the one consented to. ``verify`` is the owner's to run."""
    found = form.read(manifest).predicate.run.run_id
    if found != client.note.run_id:
        raise ChannelBroken("the server handed over the manifest of another run", check="cut")
    return found


def _refuse_other(how: Sending, lock: Lock) -> None:
    if lock.consortium_id != how.consortium.consortium_id:
        raise ConsortiumMismatch(
            "the recipe is of another consortium",
            check="consortium",
            got=lock.consortium_id,
            expected=how.consortium.consortium_id,
        )
    if how.me.public.name not in lock.recipe.owners:
        raise UsageError(
            "the recipe names no data of this owner",
            got=how.me.public.name,
            expected=" or ".join(lock.recipe.owners),
        )


def _model_of(lock: Lock, base_dir: Path) -> PrivateFolder:
    """A copy of the base model and its tokenizer, as the lock has them."""
    taken = PrivateFolder()
    found = measure_models(lock.recipe, base_dir, into=taken)
    if (found.model, found.tokenizer) != (lock.model, lock.tokenizer):
        raise ModelInvalid(
            "the base model here is another than the recipe's",
            check="model",
            hint="--base names the folder that the lock was made in, or a copy of it",
        )
    return taken


def _client(
    how: Sending,
    lock: Lock,
    taken: PrivateFolder,
    target: Target,
    on_sent: Callable[[int], None],
    clock: Clock,
    note: Note,
) -> Client:
    from sealtrain.training.inputs.learnable import counts_records
    from sealtrain_together.cut.front import RecordEncoding, expect_messages
    from sealtrain_together.cut.sending import Client, OwnDataset

    found = find_datasets(how.data, lock.recipe, how.consortium, owner=how.me.public.name)
    reading = RecordEncoding.of(lock.recipe, taken.path / BASE)
    front = reading.front
    vocabulary = int(front.base.get_input_embeddings().weight.shape[0])
    expected = expect_messages(lock.recipe, width=front.width, vocabulary=vocabulary)
    return Client(
        owner=how.me.public,
        consortium_id=how.consortium.consortium_id,
        signer=how.me.signer,
        target=target,
        datasets=[
            OwnDataset.read(dataset, _open_table(how, lock.recipe, dataset), lock.recipe, reading)
            for dataset in found
        ],
        counts_records=counts_records(lock.recipe),
        reading=reading,
        rows=expected.rows_a_message,
        share=partial(
            _share, how, {dataset.manifest.dataset_id: dataset.folder for dataset in found}, target
        ),
        note=note,
        clock=clock,
        on_sent=on_sent,
    )


def _share(how: Sending, folders: Mapping[str, Any], target: Target, run_id: str) -> bytes:
    keys = {dataset_id: how.key_of(folder) for dataset_id, folder in folders.items()}
    return owner_share(keys, owner=how.me.public.name, target=target, run_id=run_id)


def _open_table(how: Sending, recipe: Any, one: FoundDataset) -> pa.Table:
    from sealtrain.sealing.opened_dataset import SealedDataset
    from sealtrain_together.cut.sending import records_of

    if not isinstance(one.folder, Path):
        raise UsageError("an owner's client reads its own folders", got=str(one.folder))
    with SealedDataset.open(one.folder, how.key_of(one.folder), root=one.manifest.root) as opened:
        return records_of(one, opened, recipe)
