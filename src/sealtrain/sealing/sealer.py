"""Sealing a dataset: records or files in, one folder of sealed shards out, all or nothing.

The folder is filled under a hidden name and renamed when complete; whatever interrupts it, nothing
appears under the final name and nothing but ciphertext was ever written. Memory stays at a few
batches whatever the size of the source.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sealtrain.base.canonical import canonical_json
from sealtrain.base.files import atomic_folder, atomic_write
from sealtrain.base.secret import Random
from sealtrain.errors import DataInvalid, LimitExceeded, UsageError
from sealtrain.sealing.batch_counts import BatchCounter, new_file
from sealtrain.sealing.chunked import SALT_BYTES
from sealtrain.sealing.commitments import COMMITMENTS_NAME, Committer
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import (
    INDEX_NAME,
    MANIFEST_NAME,
    DatasetDescription,
    ShardInfo,
    dataset_root,
    shard_name,
)
from sealtrain.sealing.file import seal_file
from sealtrain.sealing.hashtree import Suite
from sealtrain.sealing.index import (
    MAX_BATCH_BYTES,
    Batch,
    BatchTable,
    Index,
    IndexedShard,
    require_room,
    schema_digest_of,
)
from sealtrain.sealing.opened_dataset import SealedDataset
from sealtrain.sealing.sealjournal import SealJournal, Unwrap, resumable_folder
from sealtrain.sealing.shardsink import THREADS, ShardSink
from sealtrain.sealing.sourcefiles import SourceFile, layout_of, source_files, state_of
from sealtrain.sealing.stanza import RecipeBinding, Stanza
from sealtrain.sealing.tabular import tokens
from sealtrain.sealing.tabular.batches import evenly, open_records
from sealtrain.sealing.tabular.conversion import AS_IT_STANDS, Conversion
from sealtrain.sealing.writer import SealedFileInfo, SealedWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.sealing.tabular.tokens import TokenShards

    Opened = tuple[pa.Schema, Iterator[pa.RecordBatch]]

Progress = Callable[[int], None]
"""Called with the source bytes sealed since the last call; they add up to the source's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDataset:
    """Whose dataset is made, for which recipe, and who can open it.

    Attributes:
        name: Name of the dataset.
        owner_id: 64 hex digits.
        owner_name: The owner's name.
        binding: The recipe it is sealed for.
        stanzas: Wraps the fresh data key, given the key and the dataset id.
        sign: Signs the description; its bytes become ``dataset.json``.
        unwrap: Opens the data key again from its stanzas. With it, sealing that was interrupted
            continues: shards that are complete are not sealed again. What it left lies in a hidden
            folder beside the new one.
    """

    name: str
    owner_id: str
    owner_name: str
    binding: RecipeBinding
    stanzas: Callable[[DataKey, str], Sequence[Stanza]]
    sign: Callable[[DatasetDescription], bytes]
    unwrap: Unwrap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealOptions:
    """How records or files are read and laid out.

    Attributes:
        layout: ``arrow`` (record batches), ``raw`` (files as they are) or ``auto`` by file name.
        form: ``images`` (a folder of them), ``tokens`` (shards of them), ``webdataset`` (tar
            files, or a folder of them), or ``auto`` by file name.
        token_shards: How token shards are written; they are counted too.
        shard_bytes: Content after which a new Arrow shard begins, ≥ 1 MiB.
        padding: ``none``, ``bucket`` or ``fixed:<bytes>``.
        suite: Hash of the file roots.
        commitments: Also seal a keyed commitment for each record.
        count_tokens: Tokens of a batch, where they shall be counted.
        conversion: What the cells of a CSV mean.
        columns: ``all``, or ``read`` for those alone that the recipe reads.
        on_unread: Called with the columns that are sealed and that the recipe does not read.
        check: Holds records against what they are for, as they are read; it returns them, and
            what it raises ends the sealing.
    """

    layout: str = "auto"
    form: str = "auto"
    token_shards: TokenShards | None = None
    shard_bytes: int = 64 << 20
    padding: str = "none"
    suite: Suite = Suite.BLAKE3
    commitments: bool = False
    count_tokens: Callable[[pa.RecordBatch], int] | None = None
    conversion: Conversion = AS_IT_STANDS
    columns: str = "all"
    on_unread: Callable[[list[str]], None] = lambda _: None
    check: Callable[[Opened], Opened] | None = None


def seal_dataset(
    source: Path | Sequence[Path] | Mapping[str, SourceFile],
    out: Path,
    new: NewDataset,
    options: SealOptions | None = None,
    *,
    progress: Progress | None = None,
    random: Random = os.urandom,
) -> DatasetDescription:
    """Seal records or files into a new folder.

    Args:
        source: A file, a folder (raw unless ``options.form`` says otherwise), several files of one
            format, or files by name that are opened in memory and sealed raw.
        out: Folder to make, by convention ``X.sealed``.
        new: Whose dataset it is.
        options: How it is laid out; the defaults when ``None``.
        progress: Called with the number of source bytes read.
        random: Source of the data key, the dataset id and the salts.

    Raises:
        AlreadyExists: ``out`` exists, or an interrupted sealing of something else lies there.
        UsageError: Layout, shard size or padding make no sense.
        FormatUnknown, SchemaMismatch, RecordInvalid: The records cannot be read; positions only.
        DataInvalid: There is nothing to seal, or a file cannot be read, or what was sealed does
            not open.
        LimitExceeded: It is more than the index of one dataset can list.
    """
    options = options or SealOptions()
    files = source_files(source)
    if options.form == "tokens" and options.count_tokens is None:
        options = replace(options, count_tokens=tokens.count_tokens)
    layout = layout_of(options.layout, options.form, source, files)
    if options.shard_bytes < 1 << 20:
        raise UsageError("shards are too small", got=options.shard_bytes, expected="at least 1 MiB")
    if layout == "raw" and (options.commitments or options.count_tokens):
        raise UsageError(
            "raw files have no records to commit to or count", hint="use the arrow layout"
        )

    def fresh() -> tuple[DataKey, str]:
        return DataKey.generate(random), random(16).hex()

    resumable = new.unwrap is not None
    with resumable_folder(out) if resumable else atomic_folder(out, mode=0o755) as folder:
        journal = None
        if new.unwrap is not None:
            settings = _settings(new, options, layout, files)
            journal = SealJournal(folder, settings, new.unwrap, fresh, new.stanzas)
        data_key, dataset_id = (
            (journal.data_key, journal.dataset_id) if journal is not None else fresh()
        )
        work = _Sealing(
            folder=folder,
            data_key=data_key,
            random=random,
            journal=journal,
            shard_bytes=options.shard_bytes,
            progress=_Meter(progress, sum(path.stat().st_size for _, path in files)),
            index=Index(
                dataset_id=dataset_id,
                name=new.name,
                owner_id=new.owner_id,
                owner_name=new.owner_name,
                layout=layout,
                padding=options.padding,
                suite=options.suite,
                schema=None,
                schema_digest=schema_digest_of(None),
                records=None,
                tokens=None,
                shards=(),
            ),
        )
        if layout == "raw":
            work.seal_raw(files)
        else:
            opened = open_records(
                [path for _, path in files if isinstance(path, Path)],
                work.progress.add,
                form=options.form,
                folder=source if isinstance(source, Path) else None,
                shards=options.token_shards,
                conversion=options.conversion,
            )
            if options.check is not None:
                opened = options.check(opened)
            work.seal_records(opened, options.commitments, options.count_tokens)
        description = work.finish(new.binding, new.stanzas)
        _require_opens(folder, data_key, description)
        work.progress.complete()
        work.clear(MANIFEST_NAME)
        atomic_write(folder / MANIFEST_NAME, new.sign(description))
    return description


def _require_opens(folder: Path, data_key: DataKey, description: DatasetDescription) -> None:
    """Open what was sealed as a guest will: index, schema, row counts, the first record batch."""
    with SealedDataset.open(folder, data_key, root=description.root) as dataset:
        if dataset.num_batches:
            dataset.batch(0)


def _settings(
    new: NewDataset, options: SealOptions, layout: str, files: Sequence[tuple[str, SourceFile]]
) -> dict[str, Any]:
    """What must be the same for an interrupted sealing to continue."""
    return {
        "name": new.name,
        "owner_id": new.owner_id,
        "binding": new.binding.to_dict(),
        "layout": layout,
        "form": repr((options.form, options.token_shards)),
        "shard_bytes": options.shard_bytes,
        "padding": options.padding,
        "suite": int(options.suite),
        "commitments": options.commitments,
        "reading": options.conversion.to_dict() | {"columns": options.columns},
        "files": [[label, *state_of(path)] for label, path in files],
    }


class _Meter:
    def __init__(self, report: Progress | None, total: int) -> None:
        self._report, self._total, self._done = report, total, 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            # Readers of columnar files estimate; the sum never passes the total.
            count = min(count, self._total - self._done)
            self._done += count
            if self._report and count:
                self._report(count)

    def complete(self) -> None:
        self.add(self._total)


@dataclass(slots=True, kw_only=True)
class _Sealing:
    """One dataset being sealed."""

    folder: Path
    data_key: DataKey
    random: Random
    shard_bytes: int
    progress: _Meter
    index: Index
    journal: SealJournal | None
    shards: list[IndexedShard] = field(default_factory=list)
    listed_bytes: int = 0

    def clear(self, name: str) -> None:
        """Make room for a file that an interrupted attempt may have begun."""
        if self.journal is not None:
            self.journal.clear(name)

    def seal_raw(self, files: Sequence[tuple[str, SourceFile]]) -> None:
        require_room(len(files), 0)
        # Drawn in order, whichever thread comes first.
        salts = [self.random(SALT_BYTES) for _ in files]
        with ThreadPoolExecutor(THREADS, thread_name_prefix="sealing") as threads:
            jobs = [
                threads.submit(self._seal_file, number, path, salts[number])
                for number, (_, path) in enumerate(files)
            ]
            try:
                for (name, _), job in zip(files, jobs, strict=True):
                    self._list(IndexedShard(info=job.result(), kind="raw", file=name))
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _seal_file(self, number: int, path: SourceFile, salt: bytes) -> ShardInfo:
        name = shard_name(number)
        entry = self.journal.entry(number) if self.journal is not None else None
        if entry is not None:
            self.progress.add(path.stat().st_size)
            return ShardInfo(name=name, size=entry["size"], root=entry["root"])
        self.clear(name)
        with path.open("rb") as source, new_file(self.folder / name) as target:
            made = seal_file(
                source,
                target,
                data_key=self.data_key,
                context=self.index.context("raw", number),
                random=lambda _: salt,
                progress=self.progress.add,
            )
        info = ShardInfo(name=name, size=made.size, root=made.root)
        if self.journal is not None:
            self.journal.add(number, info.to_dict())
        return info

    def seal_records(
        self,
        opened: tuple[pa.Schema, Iterator[pa.RecordBatch]],
        commitments: bool,
        count_tokens: Callable[[pa.RecordBatch], int] | None,
    ) -> None:
        schema, records = opened
        self.index = replace(
            self.index,
            schema=schema.serialize().to_pybytes(),
            schema_digest=schema_digest_of(schema),
        )
        self.clear(COMMITMENTS_NAME)
        counted = BatchCounter(
            evenly(records, schema),
            Committer(self.data_key, self.index.dataset_id) if commitments else None,
            count_tokens,
            self.folder / COMMITMENTS_NAME,
            lambda file: self._writer(file, "commitments", 0),
        )
        with counted:
            batches = iter(counted)
            ahead = next(batches, None)
            if ahead is None:
                raise DataInvalid("the source holds no record", hint="check the path")
            while ahead is not None:
                ahead = self._seal_shard(schema, ahead, batches)
        self.index = replace(
            self.index, records=counted.records, tokens=counted.tokens if count_tokens else None
        )
        if counted.sealed is not None:
            self._add(COMMITMENTS_NAME, counted.sealed, kind="commitments", file=COMMITMENTS_NAME)

    def _seal_shard(
        self, schema: pa.Schema, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]
    ) -> pa.RecordBatch | None:
        """Seal one shard of record batches, or check one that an interrupted attempt completed.

        Args:
            schema: Of all batches.
            first: Batch with which the shard begins.
            batches: Those after it.

        Returns:
            First batch of the next shard, ``None`` at the end.
        """
        import pyarrow as pa

        number = len(self.shards)
        name = shard_name(number)
        entry = self.journal.entry(number) if self.journal is not None else None
        hasher = self.journal.hasher() if self.journal is not None else None
        with ExitStack() as stack:
            # The shard is there: its source is read again all the same, only to be compared.
            writer = None
            if entry is None:
                self.clear(name)
                target = stack.enter_context(new_file(self.folder / name))
                writer = self._writer(target, "arrow", number, threads=THREADS)
                stack.callback(writer.close)
            sink = stack.enter_context(closing(ShardSink(writer, hasher)))
            file = pa.PythonFile(sink, "w")  # held: when collected it would close the sink
            with pa.ipc.new_file(file, schema) as arrow:
                placed, following = self._fill(sink, arrow, first, batches)
            made = sink.finish()
        digest = hasher.hexdigest() if hasher is not None else ""
        if made is not None:
            info = ShardInfo(name=name, size=made.size, root=made.root)
            if self.journal is not None:
                self.journal.add(number, info.to_dict() | {"digest": digest})
        elif entry is not None:
            if entry["digest"] != digest:
                raise DataInvalid(
                    "the source is not what it was when sealing began",
                    check="journal",
                    hint="what was sealed of it is deleted; run the command again",
                )
            info = ShardInfo(name=name, size=entry["size"], root=entry["root"])
        self._list(IndexedShard(info=info, kind="arrow", file=name, batches=placed))
        return following

    def _fill(
        self,
        sink: ShardSink,
        arrow: pa.RecordBatchFileWriter,
        first: pa.RecordBatch,
        batches: Iterator[pa.RecordBatch],
    ) -> tuple[BatchTable, pa.RecordBatch | None]:
        """Write batches to ``arrow``, which writes to ``sink``, until the shard is full.

        Returns:
            Where each batch lies, and the batch that follows them.
        """
        import pyarrow as pa

        placed: list[Batch] = []
        following: pa.RecordBatch | None = first
        while following is not None and sink.tell() < self.shard_bytes:
            arrow.write_batch(following)
            # The first write also writes the schema, so count back from the end.
            length = pa.ipc.get_record_batch_size(following)
            offset = sink.tell() - length
            if length > MAX_BATCH_BYTES:
                raise LimitExceeded("one record is larger than 4 GiB", check="record")
            placed.append(Batch(offset=offset, length=length, rows=following.num_rows))
            following = next(batches, None)
        return BatchTable.of(placed), following

    def finish(
        self, binding: RecipeBinding, stanzas: Callable[[DataKey, str], Sequence[Stanza]]
    ) -> DatasetDescription:
        self.index = replace(self.index, shards=tuple(self.shards))
        listed = self.index.to_bytes()
        require_room(len(self.shards), len(listed))
        self.clear(INDEX_NAME)
        wrapped = stanzas(self.data_key, self.index.dataset_id)
        with new_file(self.folder / INDEX_NAME) as target:
            writer = SealedWriter(
                target,
                data_key=self.data_key,
                context=self.index.context("index", 0),
                stanzas=wrapped,
                random=self.random,
            )
            with writer:
                writer.write(listed)
        infos = tuple(shard.info for shard in self.shards)
        return DatasetDescription(
            dataset_id=self.index.dataset_id,
            name=self.index.name,
            owner_id=self.index.owner_id,
            owner_name=self.index.owner_name,
            root=dataset_root(self.index.dataset_id, writer.finish().root, infos),
            shards=infos,
            records=self.index.records,
            tokens=self.index.tokens,
            schema_digest=self.index.schema_digest,
            binding=binding,
        )

    def _writer(
        self, target: BinaryIO, kind: str, number: int, *, threads: int = 1
    ) -> SealedWriter:
        return SealedWriter(
            target,
            data_key=self.data_key,
            context=self.index.context(kind, number),
            random=self.random,
            threads=threads,
        )

    def _add(self, name: str, info: SealedFileInfo, **rest: Any) -> None:
        shard = ShardInfo(name=name, size=info.size, root=info.root)
        self._list(IndexedShard(info=shard, **rest))

    def _list(self, shard: IndexedShard) -> None:
        """Add a sealed shard to those that the index will list."""
        self.shards.append(shard)
        self.listed_bytes += len(canonical_json(shard.to_dict()))
        require_room(len(self.shards), self.listed_bytes)
