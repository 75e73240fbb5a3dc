"""``seal``, ``register``, ``rewrap``, ``inspect``: an owner's data, at home."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sealtrain.base.models import load_model
from sealtrain.cli.approvals import ApprovalOptions, ask_and_approve, show_tallies
from sealtrain.cli.brokers import BrokerFiles, Threshold, exit_for, failures
from sealtrain.cli.learnable_records import judge_data
from sealtrain.cli.ledgermemory import StateFile
from sealtrain.cli.opening import ManifestOptions, say_doubts
from sealtrain.cli.output import Json, emit, progress_bytes, quote_path, say
from sealtrain.cli.shownrecords import say_left_out
from sealtrain.consortium.members import Consortium
from sealtrain.consortium.series_block import SeriesBlock, SuccessorBounds
from sealtrain.errors import SealtrainError, UsageError
from sealtrain.keys.identity import Identity
from sealtrain.owner.handover import hand_over
from sealtrain.owner.opening import model_of_run
from sealtrain.owner.owner_files import OwnerFiles
from sealtrain.owner.sealing import Publication
from sealtrain.owner.sealing import register as register_for
from sealtrain.owner.sealing import rewrap as rewrap_for
from sealtrain.owner.sealing import seal as seal_for
from sealtrain.owner.series_place import Beginning, place_in_series
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.measure import check_models
from sealtrain.recipe.records import dataset_of
from sealtrain.sealing.sealer import SealOptions
from sealtrain.sealing.tabular.conversion import Conversion, read_dates
from sealtrain.sealing.tabular.tokens import TokenShards
from sealtrain.signing.datause import DataUse, load_data_use

if TYPE_CHECKING:
    from sealtrain.consortium.approvals import ApprovalTally
    from sealtrain.owner.owner_files import AtEach
    from sealtrain.recipe.lockfile import Lock

DataUseFile = Annotated[
    Path | None,
    typer.Option(
        help="YAML file: purposes, legal basis, categories, PHI status and retention, to be "
        "signed with the dataset."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingOwner:
    """The owner who seals, and the recipe and the brokers that the data is for."""

    identity: Annotated[Path, typer.Option(help="Your private identity file.")]
    deployment: Annotated[Path, typer.Option(help="app-compose.json of the locked recipe.")]
    brokers: BrokerFiles
    threshold: Threshold = None
    approve: Annotated[
        bool,
        typer.Option(
            "--and-approve", help="Then show what the recipe does, and ask, as approve does."
        ),
    ] = False
    consortium: Annotated[Path, typer.Option(help="The consortium file, for --and-approve.")] = (
        Path("consortium.json")
    )

    def approving(self, *, registering: bool) -> Consortium | None:
        """The consortium that an approval counts in; ``None`` where none is asked for.

        Raises:
            UsageError: The data would not be registered, so no approval could pin it.
        """
        if not self.approve:
            return None
        if not registering:
            raise UsageError(
                "--and-approve and --no-register do not go together",
                check="--and-approve",
                hint="an approval pins what is registered: leave --no-register out",
            )
        return Consortium.load(self.consortium)

    def at(self, state: Path | None) -> OwnerFiles:
        """As the library takes it, with the memory of the broker's ledger."""
        return OwnerFiles(
            identity=self.identity,
            brokers=tuple(self.brokers),
            threshold=self.threshold,
            state=state,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """How records are read and laid out, and what the brokers are told of them."""

    layout: Annotated[
        str, typer.Option(help="auto, arrow (tables, fast to train on) or raw (bytes as they are).")
    ] = "auto"
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="auto (by suffix), images (a folder, sub-folders are labels), webdataset "
            "(tar files), webdataset-dots (such with dots in their keys), tokens (.bin shards) "
            "or file (any file or folder as it is).",
        ),
    ] = "auto"
    dtype: Annotated[
        str | None, typer.Option(help="uint16 or uint32: token shards without a header.")
    ] = None
    row_tokens: Annotated[
        int, typer.Option(help="Tokens of a record: a multiple of the recipe's block_size.")
    ] = 4096
    padding: Annotated[
        str, typer.Option(help="none, bucket or fixed:BYTES: what sizes may tell.")
    ] = "none"
    kept: Annotated[
        str,
        typer.Option(
            "--columns", help="all, or read: seal those columns alone that the recipe reads."
        ),
    ] = "all"
    decimals: Annotated[
        str,
        typer.Option(help="Of a CSV: point (1234.5) or comma (1234,5), in columns of numbers."),
    ] = "point"
    dates: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a CSV: COLUMN=PATTERN, such as Admission=DD/MM/YYYY; days since 1970-01-01 "
            "where the recipe reads numbers, else YYYY-MM-DD; repeat."
        ),
    ] = None
    publish_counts: Annotated[
        bool, typer.Option(help="Write record and token counts into the signed manifest.")
    ] = True
    commitments: Annotated[
        bool, typer.Option(help="Keep a commitment of each record, for `sealtrain contains`.")
    ] = False
    register_: Annotated[
        bool, typer.Option("--register/--no-register", help="Tell the brokers of the dataset.")
    ] = True
    data_use: DataUseFile = None
    base: Annotated[
        Path | None,
        typer.Option(
            help="Folder that the recipe's paths start from: judge the records with its base "
            "model, as recipe check does, before they are sealed."
        ),
    ] = None

    def options(self) -> SealOptions:
        """How the records are read, sealed and padded."""
        return SealOptions(
            layout=self.layout,
            form=self.form,
            token_shards=TokenShards(dtype=self.dtype, row_tokens=self.row_tokens),
            padding=self.padding,
            commitments=self.commitments,
            columns=self.kept,
            conversion=Conversion(decimals=self.decimals, dates=read_dates(self.dates or ())),
        )

    def judge(self, lock: Lock, owner: str, name: str, source: Path) -> None:
        """Judge records by the locked recipe and its base model, where that is here.

        Raises:
            EnvironmentChanged: The base model here is another than the lock pins.
            SealtrainError: As ``judge_data``.
        """
        if self.base is None or dataset_of(lock.recipe, owner, name).role == "model":
            return
        check_models(lock, self.base)
        found = judge_data(lock.recipe, self.base, owner, name, source, self.options())
        if found.lessons.words is not None:
            say(f"records  {found.lessons.words}")

    @property
    def publication(self) -> Publication:
        """What others learn of the dataset."""
        return Publication(
            counts=self.publish_counts, register=self.register_, data_use=_read_use(self.data_use)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesOptions:
    """The dataset's place in a series of its owner."""

    series: Annotated[
        str | None,
        typer.Option(help="Name of a series, in place of --name: this data begins or follows it."),
    ] = None
    after: Annotated[
        Path | None,
        typer.Option(help="Sealed member that it follows [the newest that your brokers have]."),
    ] = None
    mode: Annotated[
        str | None,
        typer.Option(
            "--series-mode",
            help="Of a series that begins: append (runs read every member) or replace (the "
            "newest) [append].",
        ),
    ] = None
    least: Annotated[
        int | None,
        typer.Option("--min-growth", help="Of a series that begins: least growth in records."),
    ] = None
    most: Annotated[
        int | None,
        typer.Option("--max-growth", help="Of a series that begins: most growth in records."),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns-may",
            help="Of a series that begins: same (no change) or nullable-columns (new ones that "
            "may be null).",
        ),
    ] = None

    def name_of(self, name: str | None) -> str:
        """Name of the dataset.

        Raises:
            UsageError: Neither or both are named, or a series is described that is not named.
        """
        if (name is None) == (self.series is None):
            raise UsageError(
                "a dataset has a name, or a series in its place",
                check="--name",
                got="neither" if name is None else "both",
                hint="write --name NAME, or --series NAME",
            )
        told = (self.after, self.mode, self.least, self.most, self.columns)
        if self.series is None and any(option is not None for option in told):
            raise UsageError(
                "the place in a series is described, and no series is named",
                check="--series",
                hint="write --series NAME in place of --name",
            )
        return name or self.series or ""

    def place(self, me: OwnerFiles, deployment: LockedRecipe) -> SeriesBlock | None:
        """Its place; ``None`` for a dataset in no series.

        Raises:
            UsageError: The series begins in another form than there is, or has begun.
        """
        if self.series is None:
            return None
        bounds = {"min_growth": self.least, "max_growth": self.most, "schema": self.columns}
        said = {name: value for name, value in bounds.items() if value is not None}
        if self.mode not in (None, "append", "replace"):
            raise UsageError(
                "a series appends or replaces",
                check="--series-mode",
                got=self.mode,
                expected="append or replace",
            )
        beginning = Beginning(
            mode=self.mode,  # type: ignore[arg-type]  # one of the two
            bounds=load_model(SuccessorBounds, dict(said), UsageError, "bounds") if said else None,
        )
        return place_in_series(me, self.series, deployment, after=self.after, beginning=beginning)


def seal(  # noqa: PLR0913  # a group of options each
    source: Annotated[
        Path,
        typer.Argument(help="File or folder with the data, or a run's model folder."),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the dataset, as the recipe calls it.")
    ] = None,
    owner: SealingOwner,
    place: SeriesOptions,
    out: Annotated[Path | None, typer.Option(help="Folder to make [NAME.sealed].")] = None,
    sealing: LayoutOptions,
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

    The data is held against the recipe first: name, owner, columns, types and missing values.
    Columns that the recipe does not read are named; --columns read leaves them out. A
    file that cannot be read as records is refused, unless --format file seals it as it is. With
    --base the recipe's own base model judges lengths and conversations too, as the guest will.

    Interrupted, it continues when run again: finished shards are not sealed twice.

    With --series the data begins a series of yours, or follows its newest member. A standing
    approval that names the series admits members that come later: `sealtrain approve --series`.

    With --and-approve it goes on as `sealtrain approve`. An owner who does not type APPROVE then
    has sealed and registered the data, and signed nothing.
    """
    me = owner.at(state)
    name = place.name_of(name)
    publication = sealing.publication
    consortium = owner.approving(registering=sealing.register_)
    deployment = LockedRecipe.load(owner.deployment)
    publication = replace(publication, series=place.place(me, deployment))
    model = model_of_run(source, me.keys, manifest.of_run())
    if model is None:
        say_left_out(source)
        sealing.judge(deployment.lock, me.keys.name, name, source)
    with progress_bytes(f"sealing {name}", _size_of(source), shown=not as_json) as advance:
        sealed = seal_for(
            me,
            source if model is None else model.files,
            out or Path(f"{name}.sealed"),
            name=name,
            deployment=deployment,
            options=replace(sealing.options(), on_unread=_say_unread),
            publication=publication,
            progress=advance,
        )
    failures(sealed.registered)
    if sealed.registered.failed:
        say(f"register it there later: sealtrain register {quote_path(sealed.folder)}")
    description = sealed.description
    told: dict[str, Any] = {}
    approved: AtEach[ApprovalTally] | None = None
    lines = [
        f"sealed   {sealed.folder}",
        f"dataset  {description.dataset_id}",
        f"root     {description.root}",
        f"records  {'-' if description.records is None else description.records}",
    ]
    if consortium is not None:
        if not as_json:
            emit(as_json, {}, lines)
        try:
            approved, signed = ask_and_approve(
                me, deployment, consortium, ApprovalOptions(), quiet=as_json
            )
        except SealtrainError:
            say(f"{sealed.folder} is sealed, and not approved; that is: sealtrain approve")
            raise
        tally, lines = show_tallies(approved)
        told = {"approval": tally | signed}
    emit(
        as_json,
        {
            "dataset_id": description.dataset_id,
            "name": name,
            **({} if publication.series is None else {"series": publication.series.to_dict()}),
            "registered": list(sealed.registered.done),
            "failed": list(sealed.registered.failed),
            "owner": me.keys.name,
            "root": description.root,
            "records": description.records,
            "shards": len(description.shards),
            "simulated": sealed.simulated,
            "folder": str(sealed.folder),
            **told,
        },
        lines,
    )
    if model is not None:
        say_doubts(model)
    if sealed.simulated:
        say("SIMULATED — NOT ATTESTED: the brokers' evidence comes from a simulator")
    exit_for(sealed.registered)
    if approved is not None:
        exit_for(approved)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteringOwner:
    """The owner who registers, for which recipe and where."""

    identity: Annotated[Path, typer.Option(help="Your private identity file.")]
    deployment: Annotated[Path, typer.Option(help="app-compose.json it was sealed for.")]
    brokers: BrokerFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedRecipe:
    """A further recipe that the dataset is wrapped for."""

    deployment: Annotated[
        Path | None, typer.Option(help="app-compose.json of another recipe to add.")
    ] = None
    brokers: Annotated[
        list[Path] | None, typer.Option("--broker", help="Broker file of its broker; repeat.")
    ] = None
    threshold: Threshold = None
    data_use: DataUseFile = None


def rewrap(
    sealed: Annotated[Path, typer.Argument(help="Your sealed dataset folder.")],
    identity: Annotated[Path, typer.Option(help="Your private identity file.")],
    *,
    drop: Annotated[
        list[str] | None, typer.Option(help="Drop stanzas of this kind: recipe or share; repeat.")
    ] = None,
    added_recipe: AddedRecipe,
    former: Annotated[
        Path | None, typer.Option(help="Your identity file before your keys were rotated.")
    ] = None,
    state: StateFile = None,
    as_json: Json = False,
) -> None:
    """Change which recipients may unwrap the data key; the sealed records stay as they are.

    With --deployment the dataset is signed and registered for that recipe from now on; with
    --data-use too, it states anew how the data may be used, such as a later end of its retention.
    With --former it is yours under your present keys instead of the former ones.
    A recipient that already got the key keeps it: to revoke it, seal again under a new key.
    """
    if (added_recipe.deployment is None) != (not added_recipe.brokers):
        raise UsageError("--deployment and --broker belong together")
    owner = OwnerFiles(
        identity=identity,
        brokers=tuple(added_recipe.brokers or ()),
        threshold=added_recipe.threshold,
        state=state,
    )
    document = added_recipe.deployment
    to = None if document is None else LockedRecipe.load(document)
    if former is not None:
        hand_over(sealed, Identity.load(former), owner.keys)
    done = rewrap_for(
        owner,
        sealed,
        drop=drop or (),
        deployment=to,
        data_use=_read_use(added_recipe.data_use),
    )
    failures(done.registered)
    say("note: keys already released stay released; seal again under a new key to revoke them")
    emit(
        as_json,
        {
            "dataset_id": done.dataset_id,
            "added": done.added,
            "dropped": done.dropped,
            "registered": list(done.registered.done),
            "failed": list(done.registered.failed),
        },
        [f"dataset  {done.dataset_id}", f"stanzas  +{done.added} -{done.dropped}"],
    )
    exit_for(done.registered)


def register(
    sealed: Annotated[Path, typer.Argument(help="Your sealed dataset folder.")],
    owner: RegisteringOwner,
    state: StateFile = None,
    as_json: Json = False,
) -> None:
    """Tell brokers of a dataset that is sealed already, as `sealtrain seal` does in the end.

    For a dataset that was sealed with --no-register, that a broker refused or missed, or that a
    broker lost. Again does no harm.
    """
    me = OwnerFiles(identity=owner.identity, brokers=tuple(owner.brokers), state=state)
    registered = failures(register_for(me, sealed, LockedRecipe.load(owner.deployment)))
    emit(
        as_json,
        {
            "folder": str(sealed),
            "registered": list(registered.done),
            "failed": list(registered.failed),
        },
        [f"registered at {url}" for url in registered.done],
    )
    exit_for(registered)


def _say_unread(columns: list[str]) -> None:
    """Data minimisation: what a run cannot need is not sealed for it."""
    named = ", ".join(columns[:20]) + (
        f" and {len(columns) - 20} more" if len(columns) > 20 else ""
    )
    say(f"not read by the recipe, and sealed: {named}")
    say("  hint: --columns read leaves them out")


def _read_use(path: Path | None) -> DataUse | None:
    """The statement in a file, where one is named."""
    return None if path is None else load_data_use(path)


def _size_of(source: Path) -> int:
    if source.is_dir():
        return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    return source.stat().st_size if source.exists() else 0
