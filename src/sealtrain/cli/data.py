"""``seal``, ``rewrap``, ``inspect``: an owner's data, at home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sealtrain.base.canonical import parse_json
from sealtrain.base.clock import system_clock, to_rfc3339
from sealtrain.base.files import atomic_write, read_bounded
from sealtrain.cli.brokers import AtEach, BrokerFiles, Threshold, own_state, register_dataset
from sealtrain.cli.log import StateFile
from sealtrain.cli.opening import ManifestOptions, model_source
from sealtrain.cli.output import Json, emit, progress_bytes, say
from sealtrain.cli.rotation import rotated
from sealtrain.client.connection import attested_brokers, own_key
from sealtrain.client.wrapping import check_brokers, wrap_for_brokers
from sealtrain.consortium.datasets import (
    read_dataset_envelope,
    reissue_dataset,
    sign_dataset,
    verify_dataset,
)
from sealtrain.errors import UsageError
from sealtrain.keys.identity import Identity
from sealtrain.sealing.dataset import (
    DatasetDescription,
    NewDataset,
    SealOptions,
    read_stanzas,
    seal_dataset,
)
from sealtrain.sealing.dataset import rewrap as rewrap_dataset
from sealtrain.sealing.file import read_header
from sealtrain.sealing.hpke import HpkePublicKey
from sealtrain.sealing.stanza import RecipeBinding, Stanza, wrap_for_owner
from sealtrain.sealing.tabular.tokens import TokenShards
from sealtrain.signing.dsse import Envelope

if TYPE_CHECKING:
    from sealtrain.sealing.datakey import DataKey

__all__ = ["inspect", "rewrap", "seal"]


def seal(
    source: Annotated[
        Path,
        typer.Argument(help="File or folder with the data, or a run's model folder."),
    ],
    name: Annotated[str, typer.Option(help="Name of the dataset, as the recipe calls it.")],
    identity: Annotated[Path, typer.Option(help="Your private identity file.")],
    deployment: Annotated[Path, typer.Option(help="app-compose.json of the locked recipe.")],
    brokers: BrokerFiles,
    *,
    threshold: Threshold = None,
    out: Annotated[Path | None, typer.Option(help="Folder to make [NAME.sealed].")] = None,
    layout: Annotated[
        str, typer.Option(help="auto, arrow (tables, fast to train on) or raw (bytes as they are).")
    ] = "auto",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="auto (by suffix), images (a folder, sub-folders are labels), webdataset "
            "(tar files) or tokens (.bin shards).",
        ),
    ] = "auto",
    dtype: Annotated[
        str | None, typer.Option(help="uint16 or uint32: token shards without a header.")
    ] = None,
    row_tokens: Annotated[
        int, typer.Option(help="Tokens of a record: a multiple of the recipe's block_size.")
    ] = 4096,
    padding: Annotated[
        str, typer.Option(help="none, bucket or fixed:BYTES: what sizes may tell.")
    ] = "none",
    publish_counts: Annotated[
        bool, typer.Option(help="Write record and token counts into the signed manifest.")
    ] = True,
    commitments: Annotated[
        bool, typer.Option(help="Keep per-record commitments ('was my record in?').")
    ] = False,
    register_: Annotated[
        bool, typer.Option("--register/--no-register", help="Tell the brokers of the dataset.")
    ] = True,
    manifest: ManifestOptions,
    state: StateFile = None,
    as_json: Json = False,
) -> None:
    """Seal data for one locked recipe. Only ciphertext is written.

    One broker gets the data key whole. Several get a share each, and --threshold of them open the
    data together; none alone can.

    A model that training sealed to you is opened in memory, and sealed for a recipe of phase
    evaluate: its folder is the source. It is opened as `sealtrain open` does, by the manifest of
    its run.

    Interrupted, it continues when run again: finished shards are not sealed twice.
    """
    owner = Identity.load(identity)
    target = out or Path(f"{name}.sealed")
    if not target.absolute().parent.is_dir():
        raise UsageError(
            "there is no folder to seal into",
            check="--out",
            got=str(target.parent),
            hint="make it first, or name another --out",
        )
    model = model_source(source, owner, manifest)
    own_state(state, brokers)
    attested = attested_brokers(brokers, deployment)
    check_brokers(attested, threshold)
    me = owner.public
    binding = RecipeBinding(
        app_id=attested[0].app_id, compose_hash=attested[0].compose_hash, owner_id=me.owner_id
    )
    owner_key = HpkePublicKey(me.sealing_bytes)

    def stanzas(data_key: DataKey, dataset_id: str) -> tuple[Stanza, ...]:
        return (
            wrap_for_owner(data_key, dataset_id=dataset_id, owner_id=me.owner_id, public=owner_key),
            *wrap_for_brokers(
                data_key,
                dataset_id=dataset_id,
                owner=me,
                brokers=attested,
                threshold=threshold,
            ),
        )

    def sign(description: DatasetDescription) -> bytes:
        envelope = sign_dataset(
            description,
            owner.signer,
            sealed_at=to_rfc3339(system_clock()),
            publish_counts=publish_counts,
        )
        return envelope.to_bytes()

    with progress_bytes(f"sealing {name}", _size_of(source), shown=not as_json) as advance:
        description = seal_dataset(
            source if model is None else model.files,
            target,
            NewDataset(
                name=name,
                owner_id=me.owner_id,
                owner_name=me.name,
                binding=binding,
                stanzas=stanzas,
                sign=sign,
                unwrap=owner.unwrap,
            ),
            SealOptions(
                layout=layout,
                form=form,
                token_shards=TokenShards(dtype=dtype, row_tokens=row_tokens),
                padding=padding,
                commitments=commitments,
            ),
            progress=advance,
        )
    registered: AtEach[None] = AtEach()
    if register_:
        envelope = read_bounded(target / "dataset.json", _MAX_DATASET)
        registered = register_dataset(envelope, brokers, deployment, identity, state)
    simulated = any(broker.simulated for broker in attested)
    emit(
        as_json,
        {
            "dataset_id": description.dataset_id,
            "name": name,
            "registered": list(registered.done),
            "failed": list(registered.failed),
            "owner": me.name,
            "root": description.root,
            "records": description.records,
            "shards": len(description.shards),
            "simulated": simulated,
            "folder": str(target),
        },
        [
            f"sealed   {target}",
            f"dataset  {description.dataset_id}",
            f"root     {description.root}",
            f"records  {description.records}",
        ],
    )
    if model is not None:
        model.tell()
    if simulated:
        say("SIMULATED — NOT ATTESTED: the brokers' evidence comes from a simulator")
    registered.finish()


def rewrap(
    sealed: Annotated[Path, typer.Argument(help="Your sealed dataset folder.")],
    identity: Annotated[Path, typer.Option(help="Your private identity file.")],
    drop: Annotated[
        list[str] | None, typer.Option(help="Drop stanzas of this kind: recipe or share; repeat.")
    ] = None,
    deployment: Annotated[
        Path | None, typer.Option(help="app-compose.json of another recipe to add.")
    ] = None,
    brokers: Annotated[
        list[Path] | None, typer.Option("--broker", help="Broker file of its broker; repeat.")
    ] = None,
    threshold: Threshold = None,
    former: Annotated[
        Path | None, typer.Option(help="Your identity file before your keys were rotated.")
    ] = None,
    state: StateFile = None,
    as_json: Json = False,
) -> None:
    """Change which recipients may unwrap the data key; the sealed records stay as they are.

    With --deployment the dataset is signed and registered for that recipe from now on. With
    --former it is yours under your present keys instead of the former ones.
    A recipient that already got the key keeps it: to revoke it, seal again under a new key.
    """
    if set(drop or ()) - {"recipe", "share"}:
        raise UsageError(
            "only brokers' stanzas can be dropped", got=drop, expected="recipe or share",
            hint="your own stanza stays: without it the data could never be opened again",
        )  # fmt: skip
    if (deployment is None) != (not brokers):
        raise UsageError("--deployment and --broker belong together")
    own_state(state, brokers or ())
    me = Identity.load(identity)
    if former is not None:
        rotated(sealed, Identity.load(former), me)
    envelope = read_dataset_envelope(sealed)
    verify_dataset(envelope, me.public)  # only the owner's own data is rewrapped
    key = own_key(sealed, me)
    dataset_id, stanzas = read_stanzas(sealed)
    dropped = [stanza for stanza in stanzas if stanza.kind in (drop or ())]
    added: tuple[Stanza, ...] = ()
    registered: AtEach[None] = AtEach()
    if deployment is None or not brokers:
        rewrap_dataset(sealed, data_key=key, drop=dropped)
    else:
        attested = attested_brokers(brokers, deployment)
        added = wrap_for_brokers(
            key,
            dataset_id=dataset_id,
            owner=me.public,
            brokers=attested,
            threshold=threshold,
        )
        rewrap_dataset(sealed, data_key=key, add=added, drop=dropped)
        manifest = reissue_dataset(
            envelope,
            me.signer,
            app_id=attested[0].app_id,
            compose_hash=attested[0].compose_hash,
            sealed_at=to_rfc3339(system_clock()),
        )
        atomic_write(sealed / "dataset.json", manifest.to_bytes(), overwrite=True)
        registered = register_dataset(manifest.to_bytes(), brokers, deployment, identity, state)
    say("note: keys already released stay released; seal again under a new key to revoke them")
    emit(
        as_json,
        {
            "dataset_id": dataset_id,
            "added": len(added),
            "dropped": len(dropped),
            "registered": list(registered.done),
            "failed": list(registered.failed),
        },
        [f"dataset  {dataset_id}", f"stanzas  +{len(added)} -{len(dropped)}"],
    )
    registered.finish()


def inspect(
    sealed: Annotated[Path, typer.Argument(help="Sealed dataset folder or sealed file.")],
    as_json: Json = False,
) -> None:
    """Show what a sealed dataset or file tells without any key. Nothing here is verified."""
    if sealed.is_dir():
        dataset_id, stanzas = read_stanzas(sealed)
        envelope = Envelope.from_bytes(read_bounded(sealed / "dataset.json", _MAX_DATASET))
        claimed = parse_json(envelope.payload)
    else:
        header = read_header(sealed)
        dataset_id, stanzas, claimed = header.dataset_id, header.stanzas, None
    emit(
        as_json,
        {
            "dataset_id": dataset_id,
            "stanzas": [{"kind": s.kind, "recipient": s.recipient} for s in stanzas],
            "claimed": claimed,
        },
        [f"id       {dataset_id}", *(f"stanza   {s.kind}  {s.recipient}" for s in stanzas)],
    )


_MAX_DATASET = 4 << 20


def _size_of(source: Path) -> int:
    if source.is_dir():
        return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    return source.stat().st_size if source.exists() else 0
