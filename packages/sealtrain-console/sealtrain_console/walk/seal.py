"""Step 1, an owner seals its records at home: what the ciphertext and its keys are bound to."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from sealtrain.sealing.file import open_file, read_header
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.sealer import NewDataset, seal_dataset
from sealtrain.sealing.stanza import BrokerBinding, RecipeBinding, wrap_for_recipe
from sealtrain_console.walk.prepared_run import DATASET, READ_FROM
from sealtrain_console.walk.stage import Stage
from sealtrain_console.walk.switch import Attempt, Switch

_OWNER, _OTHER = READ_FROM
_SHARD: Final = "shard-00000.sealed"


def _bytes(stage: Stage, off: bool) -> Attempt:
    folder = _copy(stage)
    if off:
        shard = folder / _SHARD
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    return Attempt(
        act=lambda: _read_all(stage, folder),
        stake=f"The guest would have trained on records of {_OWNER} that its disk's operator bent, "
        "one bit at a time, and the manifest would have called them the owner's.",
    )


def _root(stage: Stage, off: bool) -> Attempt:
    """The forger is the owner itself: it knows the data key, and seals other records under it."""
    folder = _copy(stage)
    if off:
        source = stage.folder / "other.jsonl"
        source.write_text('{"prompt": "made up afterwards", "completion": " benign"}\n' * 24)
        forged = stage.folder / "forged.sealed"
        dataset = stage.run.dataset(_OWNER)
        drawn = [stage.run.data_key(_OWNER).reveal(), bytes.fromhex(dataset.dataset_id)]
        again = NewDataset(
            name=DATASET,
            owner_id=dataset.owner_id,
            owner_name=_OWNER,
            binding=_binding(stage),
            stanzas=lambda _key, _dataset_id: (),
            sign=lambda _description: b"",
        )
        seal_dataset(
            source,
            forged,
            again,
            random=lambda size: drawn.pop(0) if drawn else os.urandom(size),
        )
        folder = forged
    return Attempt(
        act=lambda: _read_all(stage, folder),
        stake=f"The guest would have trained on 24 records that {_OWNER} sealed after the others "
        "had approved, under the same key and the same name.",
    )


def _name(stage: Stage, off: bool) -> Attempt:
    shard = stage.run.sealed_folder(_OWNER) / _SHARD
    key = stage.run.data_key(_OWNER)
    context = read_header(shard).context
    claimed = stage.run.dataset(_OTHER if off else _OWNER)

    def act() -> str:
        expected = replace(
            context,
            dataset_id=claimed.dataset_id,
            owner_id=claimed.owner_id,
            name=claimed.name,
        )
        with open_file(shard, key, context=expected):
            return f"The file opens as {claimed.name} of {claimed.owner}."

    return Attempt(
        act=act,
        stake=f"Records of {_OWNER} would have counted as {_OTHER}'s: its approval, its withdrawal "
        "and its privacy budget would have covered data of another owner.",
    )


def _recipe(stage: Stage, off: bool) -> Attempt:
    desk = stage.desk()
    dataset = stage.run.dataset(_OWNER)
    attested = desk.attest(stage.run.other if off else stage.run.locked)
    stanza = wrap_for_recipe(
        stage.run.data_key(_OWNER),
        dataset_id=dataset.dataset_id,
        binding=BrokerBinding.of(_binding(stage), attested.broker_id),
        public=HpkePublicKey(attested.key_of(_OWNER)),
    )

    def act() -> str:
        grant = desk.obtain(datasets=[desk.ask_for(_OWNER, stanza), desk.ask_for(_OTHER)])
        return f"The broker unwraps the key for this recipe, and releases {len(grant.keys)} keys."

    return Attempt(
        act=act,
        stake=f"{dataset.records} records of {_OWNER}, sealed for recipe "
        f"{stage.run.other.recipe_hash[:12]}…, would have opened for recipe "
        f"{stage.run.locked.recipe_hash[:12]}….",
    )


def _copy(stage: Stage) -> Path:
    folder = stage.folder / f"{_OWNER}.sealed"
    shutil.copytree(stage.run.sealed_folder(_OWNER), folder)
    return folder


def _read_all(stage: Stage, folder: Path) -> str:
    """Read every record as the guest does: by the data key, under the root that was signed."""
    signed = stage.run.dataset(_OWNER)
    with SealedDataset.open(folder, stage.run.data_key(_OWNER), root=signed.root) as dataset:
        rows = sum(dataset.batch(number).num_rows for number in range(dataset.num_batches))
    return f"{rows} records of {_OWNER} open, under the root that the owner signed."


def _binding(stage: Stage) -> RecipeBinding:
    locked = stage.run.locked
    return RecipeBinding(
        app_id=locked.app_id,
        compose_hash=locked.compose_hash,
        owner_id=stage.run.owners[_OWNER].public.owner_id,
    )


SWITCHES: Final = (
    Switch(
        name="seal-bytes",
        step="seal",
        protection="Every byte of the ciphertext is authenticated.",
        off="The operator flips one bit of the sealed records on its disk.",
        claim="C1",
        make=_bytes,
    ),
    Switch(
        name="seal-root",
        step="seal",
        protection="The owner signed one root, which stands for exactly these records.",
        off="The owner seals other records under the same key, and swaps the folder.",
        claim="C3",
        make=_root,
    ),
    Switch(
        name="seal-name",
        step="seal",
        protection="A sealed file opens only as what it was sealed as: this owner's, this dataset.",
        off="The operator passes a file of one hospital off as the other's.",
        claim="C2",
        make=_name,
    ),
    Switch(
        name="seal-recipe",
        step="seal",
        protection="The data key is wrapped for one recipe.",
        off="The key was wrapped for another recipe; its label now names this one.",
        claim="C6",
        make=_recipe,
    ),
)
