"""Sealing a dataset: records or files in, one folder of sealed shards out, all or nothing.

The folder is filled under a hidden name and renamed when complete; whatever interrupts it, nothing
appears under the final name and nothing but ciphertext was ever written. Memory stays at a few
batches whatever the size of the source.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sealtrain.base.files import atomic_folder, atomic_write
from sealtrain.errors import DataInvalid, LimitExceeded, UsageError
from sealtrain.sealing.commitments import COMMITMENTS_NAME, Committer
from sealtrain.sealing.datakey import DataKey, Randomness
from sealtrain.sealing.description import (
    INDEX_NAME,
    MANIFEST_NAME,
    DatasetDescription,
    ShardInfo,
    dataset_root,
)
from sealtrain.sealing.file import seal_file
from sealtrain.sealing.hashtree import Suite
from sealtrain.sealing.index import (
    MAX_BATCH_BYTES,
    Batch,
    Index,
    IndexedShard,
    schema_digest_of,
)
from sealtrain.sealing.stanza import RecipeBinding, Stanza
from sealtrain.sealing.tabular import tokens
from sealtrain.sealing.tabular.batches import FORMS, evenly, is_tabular, open_records
from sealtrain.sealing.writer import SealedFileInfo, SealedWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from sealtrain.sealing.tabular.tokens import TokenShards

__all__ = ["Progress", "seal_dataset"]

Progress = Callable[[int], None]
"""Called with the source bytes sealed since the last call; they add up to the source's size."""

LAYOUTS = ("auto", "arrow", "raw")


def seal_dataset(
    source: Path | Sequence[Path],
    out: Path,
    *,
    name: str,
    owner_id: str,
    owner_name: str,
    binding: RecipeBinding,
    stanzas: Callable[[DataKey, str], Sequence[Stanza]],
    sign: Callable[[DatasetDescription], bytes],
    layout: str = "auto",
    form: str = "auto",
    token_shards: TokenShards | None = None,
    shard_bytes: int = 64 << 20,
    padding: str = "none",
    suite: Suite = Suite.BLAKE3,
    commitments: bool = False,
    count_tokens: Callable[[pa.RecordBatch], int] | None = None,
    progress: Progress | None = None,
    random: Randomness = os.urandom,
) -> DatasetDescription:
    """Seal records or files into a new folder.

    Args:
        source: A file, a folder (raw unless ``form`` says otherwise), or several files of one
            format.
        out: Folder to make, by convention ``X.sealed``.
        name: Name of the dataset.
        owner_id: 64 hex digits.
        owner_name: The owner's name.
        binding: The recipe it is sealed for.
        stanzas: Wraps the fresh data key, given the key and the dataset id.
        sign: Signs the description; its bytes become ``dataset.json``.
        layout: ``arrow`` (record batches), ``raw`` (files as they are) or ``auto`` by file name.
        form: ``images`` (a folder of them), ``tokens`` (shards of them), ``webdataset`` (tar
            files, or a folder of them), or ``auto`` by file name.
        token_shards: How token shards are written; they are counted too.
        shard_bytes: Content after which a new Arrow shard begins, ≥ 1 MiB.
        padding: ``none``, ``bucket`` or ``fixed:<bytes>``.
        suite: Hash of the file roots.
        commitments: Also seal a keyed commitment for each record.
        count_tokens: Tokens of a batch, where they shall be counted.
        progress: Told about source bytes.
        random: Source of the data key, the dataset id and the salts.

    Raises:
        AlreadyExists: ``out`` exists.
        UsageError: Layout, shard size or padding make no sense.
        FormatUnknown, SchemaMismatch, RecordInvalid: The records cannot be read; positions only.
        DataInvalid: There is nothing to seal, or a file cannot be read.
    """
    files = _source_files(source)
    if form == "tokens" and count_tokens is None:
        count_tokens = tokens.count_tokens
    chosen = _layout(layout, form, source, files)
    if shard_bytes < 1 << 20:
        raise UsageError("shards are too small", got=shard_bytes, expected="at least 1 MiB")
    if chosen == "raw" and (commitments or count_tokens):
        raise UsageError(
            "raw files have no records to commit to or count", hint="use the arrow layout"
        )
    with atomic_folder(out) as folder:
        work = _Sealing(
            folder=folder,
            data_key=DataKey.generate(random),
            random=random,
            shard_bytes=shard_bytes,
            progress=_Meter(progress, sum(path.stat().st_size for _, path in files)),
            index=Index(
                dataset_id=random(16).hex(),
                name=name,
                owner_id=owner_id,
                owner_name=owner_name,
                layout=chosen,
                padding=padding,
                suite=suite,
                schema=None,
                schema_digest=schema_digest_of(None),
                records=None,
                tokens=None,
                shards=(),
            ),
        )
        if chosen == "raw":
            work.seal_raw(files)
        else:
            opened = open_records(
                [path for _, path in files],
                work.progress.add,
                form=form,
                folder=source if isinstance(source, Path) else None,
                shards=token_shards,
            )
            work.seal_records(opened, commitments, count_tokens)
        description = work.finish(binding, stanzas)
        work.progress.complete()
        atomic_write(folder / MANIFEST_NAME, sign(description))
    return description


class _Meter:
    def __init__(self, report: Progress | None, total: int) -> None:
        self._report, self._total, self._done = report, total, 0

    def add(self, count: int) -> None:
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
    random: Randomness
    shard_bytes: int
    progress: _Meter
    index: Index
    shards: list[IndexedShard] = field(default_factory=list)

    def seal_raw(self, files: Sequence[tuple[str, Path]]) -> None:
        for number, (name, path) in enumerate(files):
            shard = f"shard-{number:05d}.sealed"
            with path.open("rb") as source, _new_file(self.folder / shard) as target:
                info = seal_file(
                    source,
                    target,
                    data_key=self.data_key,
                    context=self.index.context("raw", number),
                    random=self.random,
                    progress=self.progress.add,
                )
            self._add(shard, info, kind="raw", file=name)

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
        counted = _Counted(
            evenly(records, schema),
            Committer(self.data_key, self.index.dataset_id) if commitments else None,
            count_tokens,
            self.folder,
            self,
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
        self, schema: pa.Schema, ahead: pa.RecordBatch, batches: Iterator[pa.RecordBatch]
    ) -> pa.RecordBatch | None:
        """Write batches until the shard is full; returns the first batch of the next one."""
        import pyarrow as pa

        number = len(self.shards)
        name = f"shard-{number:05d}.sealed"
        placed: list[Batch] = []
        following: pa.RecordBatch | None = ahead
        with _new_file(self.folder / name) as target, self._writer(target, "arrow", number) as out:
            sink = pa.PythonFile(out, "w")  # held: when collected it would close the writer
            with pa.ipc.new_file(sink, schema) as arrow:
                while following is not None and out.tell() < self.shard_bytes:
                    arrow.write_batch(following)
                    # The first write also writes the schema, so count back from the end.
                    length = pa.ipc.get_record_batch_size(following)
                    offset = out.tell() - length
                    if length > MAX_BATCH_BYTES:
                        raise LimitExceeded("one record is larger than 4 GiB", check="record")
                    placed.append(Batch(offset=offset, length=length, rows=following.num_rows))
                    following = next(batches, None)
            info = out.finish()
        self._add(name, info, kind="arrow", file=name, batches=tuple(placed))
        return following

    def writer_for_commitments(self, target: BinaryIO) -> SealedWriter:
        return self._writer(target, "commitments", 0)

    def finish(
        self, binding: RecipeBinding, stanzas: Callable[[DataKey, str], Sequence[Stanza]]
    ) -> DatasetDescription:
        self.index = replace(self.index, shards=tuple(self.shards))
        wrapped = stanzas(self.data_key, self.index.dataset_id)
        with _new_file(self.folder / INDEX_NAME) as target:
            writer = SealedWriter(
                target,
                data_key=self.data_key,
                context=self.index.context("index", 0),
                stanzas=wrapped,
                random=self.random,
            )
            with writer:
                writer.write(self.index.to_bytes())
        listed = tuple(shard.info for shard in self.shards)
        return DatasetDescription(
            dataset_id=self.index.dataset_id,
            name=self.index.name,
            owner_id=self.index.owner_id,
            owner_name=self.index.owner_name,
            root=dataset_root(self.index.dataset_id, writer.finish().root, listed),
            shards=listed,
            records=self.index.records,
            tokens=self.index.tokens,
            schema_digest=self.index.schema_digest,
            binding=binding,
        )

    def _writer(self, target: BinaryIO, kind: str, number: int) -> SealedWriter:
        return SealedWriter(
            target,
            data_key=self.data_key,
            context=self.index.context(kind, number),
            random=self.random,
        )

    def _add(self, name: str, info: SealedFileInfo, **rest: Any) -> None:
        shard = ShardInfo(name=name, size=info.size, root=info.root)
        self.shards.append(IndexedShard(info=shard, **rest))


class _Counted:
    """Passes batches on while counting records and tokens and sealing commitments beside them."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        committer: Committer | None,
        count_tokens: Callable[[pa.RecordBatch], int] | None,
        folder: Path,
        work: _Sealing,
    ) -> None:
        self._batches, self._committer, self._count = batches, committer, count_tokens
        self.records = self.tokens = 0
        self.sealed: SealedFileInfo | None = None
        self._file: BinaryIO | None = None
        self._writer: SealedWriter | None = None
        if committer:
            self._file = (folder / COMMITMENTS_NAME).open("xb")
            self._writer = work.writer_for_commitments(self._file)

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._file and self._writer:
            if kind is None:
                self.sealed = self._writer.finish()
                self._file.flush()
                os.fsync(self._file.fileno())
            self._writer.close()
            self._file.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.records += batch.num_rows
            if self._count:
                self.tokens += self._count(batch)
            if self._committer and self._writer:
                self._writer.write(self._committer.of_batch(batch))
            yield batch


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _layout(
    layout: str, form: str, source: Path | Sequence[Path], files: Sequence[tuple[str, Path]]
) -> str:
    if layout not in LAYOUTS:
        raise UsageError("unknown layout", got=layout, expected=", ".join(LAYOUTS))
    if form not in FORMS:
        raise UsageError("unknown format", got=form, expected=", ".join(FORMS))
    if form != "auto":
        if layout == "raw":
            raise UsageError("raw files have no format", hint="leave out one of the two")
        if form == "images" and not (isinstance(source, Path) and source.is_dir()):
            raise UsageError("images are sealed from a folder", hint="name the folder they lie in")
        return "arrow"
    if layout != "auto":
        return layout
    if isinstance(source, Path) and source.is_dir():
        return "raw"
    return "arrow" if all(is_tabular(path) for _, path in files) else "raw"


def _source_files(source: Path | Sequence[Path]) -> list[tuple[str, Path]]:
    """Names inside the dataset and paths of everything to seal, in order."""
    if isinstance(source, Path) and source.is_dir():
        found = sorted(path for path in source.rglob("*") if not path.is_dir())
        named = [(path.relative_to(source).as_posix(), path) for path in found]
    else:
        paths = [source] if isinstance(source, Path) else list(source)
        named = [(path.name, path) for path in paths]
    for name, path in named:
        if path.is_symlink() and not (isinstance(source, Path) and source == path):
            raise DataInvalid(f"{name} is a symbolic link", hint="seal the file it points to")
        if not path.is_file():
            raise DataInvalid(f"no such file: {path}", hint="check the path")
    if not named:
        raise DataInvalid("there is no file to seal", hint="check the path")
    if len({name for name, _ in named}) != len(named):
        raise DataInvalid("two files have the same name", hint="seal their common folder")
    return named
