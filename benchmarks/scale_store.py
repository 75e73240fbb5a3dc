"""A store of sealed shards that lie nowhere: their bytes are made when they are asked for.

Shard *n* holds 64 record batches of 640 rows, an Arrow file as ``sealtrain seal`` lays it out. Its
texts are the same in every shard, its ids are not; its salt is a hash of its number. So its sealed
bytes are a function of its number and of the data key, and any range of them can be made again by
the code that seals. Each shard is sealed whole once, by ``SealedWriter``, to know its root, header
and trailer; the chunks are thrown away. Then an HTTP server answers range requests: header and
trailer from memory, chunks encrypted anew.
"""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import random
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pyarrow as pa

from sealtrain.sealing.chunked import (
    CHUNK_BYTES,
    HEADER_BYTES,
    SALT_BYTES,
    SEALED_CHUNK_BYTES,
    TAG_BYTES,
    ChunkCipher,
    size_sealed,
)
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import INDEX_NAME, ShardInfo, dataset_root, shard_name
from sealtrain.sealing.file import Suite
from sealtrain.sealing.header import FileKeys
from sealtrain.sealing.index import Batch, BatchTable, Index, IndexedShard, schema_digest_of
from sealtrain.sealing.writer import PAYLOAD_CONTEXT, SealedWriter

KEY = DataKey(hashlib.sha256(b"benchmark of scale").digest())
ROWS_A_BATCH, BATCHES_A_SHARD = 640, 64
ROWS_A_SHARD = ROWS_A_BATCH * BATCHES_A_SHARD
SCHEMA = pa.schema([("text", pa.string()), ("id", pa.int64())])
SERVERS = 2
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Content:
    """The plaintext of every shard: one Arrow file, and where its ids lie.

    Attributes:
        size: Bytes of a shard's content.
        batches: Where its record batches lie.
    """

    def __init__(self) -> None:
        source = random.Random(1)  # noqa: S311 - filler, not a secret
        words = [f"w{number:04d}" for number in range(5000)]
        sink, placed = io.BytesIO(), []
        with pa.ipc.new_file(sink, SCHEMA) as writer:
            for number in range(BATCHES_A_SHARD):
                texts = [
                    " ".join(source.choices(words, k=source.randint(120, 410)))
                    for _ in range(ROWS_A_BATCH)
                ]
                batch = pa.record_batch([pa.array(texts), pa.array(ids_of(0, number))], SCHEMA)
                writer.write_batch(batch)
                length = pa.ipc.get_record_batch_size(batch)
                placed.append(Batch(offset=sink.tell() - length, length=length, rows=len(texts)))
        self._file = sink.getvalue()
        self.size = len(self._file)
        self.batches = BatchTable.of(placed)
        self._ids = [
            self._file.index(ids_of(0, number).tobytes(), place.offset)
            for number, place in enumerate(placed)
        ]

    def fill(self, shard: int, start: int, room: memoryview) -> None:
        """Bytes of a shard's content from ``start`` on."""
        stop = start + len(room)
        room[:] = self._file[start:stop]
        for number, place in enumerate(self._ids):
            low, high = max(start, place), min(stop, place + 8 * ROWS_A_BATCH)
            if low < high:
                ids = memoryview(ids_of(shard, number).tobytes())
                room[low - start : high - start] = ids[low - place : high - place]


def ids_of(shard: int, batch: int) -> Any:
    """Ids of a batch's rows, int64 (rows,): their numbers in the dataset."""
    first = (shard * BATCHES_A_SHARD + batch) * ROWS_A_BATCH
    return np.arange(first, first + ROWS_A_BATCH, dtype="<i8")


@dataclass(frozen=True, slots=True)
class Ends:
    """What is kept of a sealed shard.

    Attributes:
        before: Header of the file, and of the payload.
        after: Trailer.
        root: File root.
        seconds: That sealing took.
    """

    before: bytes
    after: bytes
    root: str
    seconds: float


class _Discarded:
    """Takes a sealed file and keeps its header and its last piece."""

    def __init__(self) -> None:
        self.before, self.last, self._writes = b"", b"", 0

    def write(self, data: Any) -> int:
        """As of any file."""
        if self._writes < 2:  # the header of the file, then that of the payload
            self.before += bytes(data)
        if len(data) < CHUNK_BYTES * 4:
            self.last = bytes(data)
        self._writes += 1
        return len(data)


@lru_cache(1)
def _content() -> Content:
    """The one of this process: it takes seconds to make."""
    return Content()


def empty_index() -> Index:
    """The index of a dataset without shards."""
    return Index(
        dataset_id=hashlib.sha256(b"dataset").hexdigest()[:32],
        name="scale",
        owner_id="00" * 32,
        owner_name="owner",
        layout="arrow",
        padding="none",
        suite=Suite.BLAKE3,
        schema=SCHEMA.serialize().to_pybytes(),
        schema_digest=schema_digest_of(SCHEMA),
        records=0,
        tokens=None,
        shards=(),
    )


def salt_of(shard: int) -> bytes:
    """Salt of a shard's payload."""
    return hashlib.sha256(f"salt {shard}".encode()).digest()[:SALT_BYTES]


def _seal(shards: range) -> list[Ends]:
    """Seal whole shards and keep their ends. In a process of its own."""
    content = _content()
    index = empty_index()
    plain = memoryview(bytearray(content.size))
    found = []
    for shard in shards:
        content.fill(shard, 0, plain)
        kept: Any = _Discarded()
        began = time.perf_counter()
        writer = SealedWriter(
            kept,
            data_key=KEY,
            context=index.context("arrow", shard),
            random=lambda _size, shard=shard: salt_of(shard),
        )
        with writer:
            writer.write(plain)
        seconds = time.perf_counter() - began
        found.append(Ends(kept.before, kept.last, writer.finish().root, seconds))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSet:
    """One dataset over the first shards of the store.

    Attributes:
        name: Folder of the store.
        root: Dataset root.
        index: Sealed index.
        plain_index: Bytes of the index before it was sealed.
        shards: Number of shards.
        size: Bytes of all shards, sealed.
    """

    name: str
    root: str
    index: bytes
    plain_index: int
    shards: int
    size: int


def sealed_sets(gigabytes: list[int]) -> tuple[list[SealedSet], list[Ends], float]:
    """Datasets of these sizes over the same shards, and the seconds that sealing all took."""
    content = _content()
    size = _size(content)
    counts = [-(-amount * 10**9 // size) for amount in gigabytes]
    began = time.perf_counter()
    some = [range(first, min(first + 16, max(counts))) for first in range(0, max(counts), 16)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(SERVERS, os.cpu_count() or 1), spawn) as pool:
        ends = [value for found in pool.map(_seal, some) for value in found]
    seconds = time.perf_counter() - began
    sets = [
        _indexed(content, f"{amount}.sealed", ends[:count], size)
        for amount, count in zip(gigabytes, counts, strict=True)
    ]
    return sets, ends, seconds


def _size(content: Content) -> int:
    """Bytes of one sealed shard."""
    ends = _seal(range(1))[0]
    return len(ends.before) - HEADER_BYTES + size_sealed(content.size) + len(ends.after)


def _indexed(content: Content, name: str, ends: list[Ends], size: int) -> SealedSet:
    index = empty_index()
    shards = tuple(
        IndexedShard(
            info=ShardInfo(
                name=shard_name(number),
                size=len(end.before) - HEADER_BYTES + size_sealed(content.size) + len(end.after),
                root=end.root,
            ),
            kind="arrow",
            file=shard_name(number),
            batches=content.batches,
        )
        for number, end in enumerate(ends)
    )
    index = replace(index, shards=shards, records=len(ends) * ROWS_A_SHARD)
    target, plain = io.BytesIO(), index.to_bytes()
    writer = SealedWriter(target, data_key=KEY, context=index.context("index", 0))
    with writer:
        writer.write(plain)
    root = dataset_root(index.dataset_id, writer.finish().root, [shard.info for shard in shards])
    return SealedSet(
        name=name,
        root=root,
        index=target.getvalue(),
        plain_index=len(plain),
        shards=len(shards),
        size=sum(shard.info.size for shard in shards),
    )


class Generated:
    """The store as a server on this machine: two processes that answer on one port.

    Attributes:
        url: Its address.
    """

    def __init__(self, sets: list[SealedSet], ends: list[Ends]) -> None:
        self._indexes = {f"/{dataset.name}/{INDEX_NAME}": dataset.index for dataset in sets}
        self._ends = ends
        self._content = _content()
        self._payload = size_sealed(self._content.size)
        self._context = empty_index()
        self._cipher = lru_cache(512)(self._made_cipher)
        fork = multiprocessing.get_context("fork")
        self._asked, self._sent = fork.Value("q", 0), fork.Value("q", 0)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._processes = [fork.Process(target=self._serve, daemon=True) for _ in range(SERVERS)]
        for process in self._processes:
            process.start()

    def counted(self) -> tuple[int, int]:
        """Requests answered, and bytes of the answers, so far."""
        return self._asked.value, self._sent.value

    def close(self) -> None:
        """End both processes."""
        for process in self._processes:
            process.terminate()
            process.join(20)
        self._socket.close()

    def _made_cipher(self, shard: int) -> ChunkCipher:
        core = self._context.context("arrow", shard).to_core()
        payload = FileKeys(KEY, core).payload
        return ChunkCipher(payload.reveal(), salt_of(shard), PAYLOAD_CONTEXT + core)

    def bytes_of(self, path: str, start: int, stop: int) -> tuple[bytes, int] | None:
        """A range of a file, and the size of the file; ``None`` where there is no such file."""
        if path in self._indexes:
            return self._indexes[path][start:stop], len(self._indexes[path])
        number = re.fullmatch(r"/[0-9]+\.sealed/shard-(\d{5})\.sealed", path)
        if number is None or int(number[1]) >= len(self._ends):
            return None
        return self._range(int(number[1]), start, stop)

    def _range(self, shard: int, start: int, stop: int) -> tuple[bytes, int]:
        ends = self._ends[shard]
        first = len(ends.before)  # where the chunks begin
        last = first - HEADER_BYTES + self._payload  # where the trailer begins
        size = last + len(ends.after)
        stop = min(stop, size)
        parts = [ends.before[start:stop]]
        low, high = max(start, first), min(stop, last)
        if low < high:
            parts.append(self._chunks(shard, low - first, high - first))
        if stop > last:
            parts.append(ends.after[max(start - last, 0) : stop - last])
        return b"".join(parts), size

    def _chunks(self, shard: int, start: int, stop: int) -> bytes:
        """Ciphertext from ``start`` on, counted from the first chunk: encrypted now."""
        number, after = start // SEALED_CHUNK_BYTES, -(-stop // SEALED_CHUNK_BYTES)
        end = min(after * CHUNK_BYTES, self._content.size)
        plain = memoryview(bytearray(end - number * CHUNK_BYTES))
        self._content.fill(shard, number * CHUNK_BYTES, plain)
        whole, rest = divmod(len(plain), CHUNK_BYTES)
        out = memoryview(
            bytearray(whole * SEALED_CHUNK_BYTES + (after - number - whole) * (rest + TAG_BYTES))
        )
        cipher = self._cipher(shard)
        cut = whole * SEALED_CHUNK_BYTES
        cipher.seal_run(number, plain[: whole * CHUNK_BYTES], out[:cut])
        if number + whole < after:
            cipher.seal(number + whole, plain[whole * CHUNK_BYTES :], out[cut:])
        base = number * SEALED_CHUNK_BYTES
        return bytes(out[start - base : stop - base])

    def _serve(self) -> None:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def do_GET(self) -> None:
                asked = _RANGE.fullmatch(self.headers.get("range", ""))
                found = asked and store.bytes_of(self.path, int(asked[1]), int(asked[2]) + 1)
                if not asked or not found:
                    self.send_error(404)
                    return
                data, size = found
                self.send_response(206)
                start = int(asked[1])
                self.send_header("content-range", f"bytes {start}-{start + len(data) - 1}/{size}")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                with store._asked.get_lock():
                    store._asked.value += 1
                    store._sent.value += len(data)

            def log_message(self, *_: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = self._socket
        server.daemon_threads = True
        server.serve_forever()


@contextmanager
def serving(sets: list[SealedSet], ends: list[Ends]) -> Iterator[Generated]:
    """The store, until the block ends."""
    store = Generated(sets, ends)
    try:
        yield store
    finally:
        store.close()
