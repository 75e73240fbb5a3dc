"""A sealed folder behind any fsspec filesystem: range requests, retries, and a small cache.

A group of the hash tree is read with one request. What was read last is kept, up to a bound for the
whole folder, because the next batch begins in the group where this one ended. Small reads (headers,
trailers) fetch a block, so that a shard opens with three requests.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealtrain.errors import DataInvalid, LimitExceeded
from sealtrain.storage.address import Address
from sealtrain.storage.errors import StorageRefused
from sealtrain.storage.retry import PATIENT, Patience

BLOCK_BYTES = 64 << 10
KEPT_BYTES = 48 << 20
MAX_FILE_BYTES = 1 << 40
_LAST_SECOND = 253_402_300_800  # the year 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a store says of a file: a claim, like everything it says.

    Attributes:
        size: Bytes.
        modified: Seconds since 1970; ``None`` where the store names no time.
    """

    size: int
    modified: int | None


class RemoteFolder:
    """Files of one sealed folder. Thread-safe.

    Attributes:
        address: Where it is.
        hosts: URLs of the servers it speaks to; empty when its filesystem does not say.
        requests: Range requests made so far.
    """

    def __init__(
        self,
        filesystem: Any,
        address: Address,
        *,
        hosts: tuple[str, ...] = (),
        patience: Patience = PATIENT,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """Name the folder; nothing is asked of it yet.

        Args:
            filesystem: An fsspec filesystem; ``cat_file``, ``info``, ``put_file`` and
                ``rm_file`` are used.
            address: Where the folder is.
            hosts: URLs of the servers the filesystem speaks to.
            patience: How often to ask again.
            kept_bytes: Most bytes of answers to keep.
        """
        self.address = address
        self.hosts = hosts
        self.requests = 0
        self._filesystem = filesystem
        self._patience = patience
        self._room = kept_bytes
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._asked: dict[tuple[str, int, int], Future[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Last part of the address."""
        return self.address.name

    def __str__(self) -> str:
        """The URL."""
        return self.address.url

    def open(self, name: str, *, size: int | None = None) -> RemoteFile:
        """Open a file.

        Args:
            name: Of a file in the folder.
            size: Where a signed index says it; else the store is asked.

        Raises:
            DataInvalid: There is no such file.
            LimitExceeded: The store claims more than 1 TiB.
            StorageUnreachable: The store does not answer.
        """
        return RemoteFile(self, name, self.size(name) if size is None else size)

    def size(self, name: str) -> int:
        """Size of a file, as the store claims. Raises as ``open``."""
        return self.stat(name).size

    def stat(self, name: str) -> Told:
        """Size and time of a file, as the store claims. Raises as ``open``."""
        said: Mapping[str, Any] = self._patience.ask(
            lambda: self._filesystem.info(self.address.of(name)), what=name
        )
        found, time = said.get("size"), said.get("mtime")
        if not isinstance(found, int) or found < 0:
            raise DataInvalid(f"the store tells no size of {name}", check="storage")
        if found > MAX_FILE_BYTES:
            raise LimitExceeded(
                f"the store claims an impossible size of {name}",
                check="storage",
                got=found,
                expected=f"at most {MAX_FILE_BYTES}",
            )
        named = isinstance(time, int | float) and math.isfinite(time) and 0 <= time < _LAST_SECOND
        return Told(size=found, modified=int(time) if named and time is not None else None)

    def read(self, name: str, max_bytes: int) -> bytes:
        """A whole small file.

        Raises:
            LimitExceeded: It is longer than ``max_bytes``.
            DataInvalid, StorageUnreachable: As ``open``.
        """
        data = self.fetch(name, 0, max_bytes + 1, around=(0, max_bytes + 1))
        if len(data) > max_bytes:
            raise LimitExceeded(
                f"{name} is too large", got=f"over {max_bytes} bytes", expected=max_bytes
            )
        return data

    def put(self, name: str, path: str) -> None:
        """Send a local file.

        Raises:
            StorageUnreachable: The store does not take it.
            StorageRefused: It never will: there is no such bucket or folder.
            DataInvalid: The local file is gone.
        """
        self.forget(name)

        def send() -> None:
            try:
                self._filesystem.put_file(path, self.address.of(name))
            except FileNotFoundError:
                if not Path(path).exists():
                    raise
                raise StorageRefused(
                    f"the store has no place for {name}",
                    check="storage",
                    got="not found",
                    hint="make the bucket or the folder that the URL names",
                ) from None

        self._patience.ask(send, what=name)

    def delete(self, name: str) -> None:
        """Delete a file if it is there.

        Raises:
            StorageUnreachable: The store does not answer, or does not let files be deleted.
        """
        self.forget(name)
        with contextlib.suppress(DataInvalid):
            self._patience.ask(lambda: self._filesystem.rm_file(self.address.of(name)), what=name)

    def forget(self, name: str) -> None:
        """Ask the store again for what was read of a file."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == name]:
                self._kept_bytes -= len(self._kept.pop(key))

    def close(self) -> None:
        """Forget what was kept and end the connections."""
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0
        close = getattr(self._filesystem, "close", None)
        if close is not None:
            close()

    def fetch(self, name: str, start: int, end: int, *, around: tuple[int, int]) -> bytes:
        """Bytes ``start`` … ``end`` of a file, from memory or by one request.

        Args:
            name: Of a file in the folder.
            start: First byte.
            end: Byte after the last.
            around: What to ask for, and keep, when it is not in memory.

        Raises:
            DataInvalid, StorageUnreachable: As ``open``.
        """
        low, high = around
        with self._lock:
            found = self._find(name, start, end)
            if found is not None:
                return found
            asked = self._asked.get((name, low, high))
            mine = asked is None
            if asked is None:
                asked = self._asked[name, low, high] = Future()
        if mine:
            self._request(asked, name, low, high)
        return asked.result()[start - low : end - low]

    def _request(self, asked: Future[bytes], name: str, low: int, high: int) -> None:
        """Fetch a range once for all threads that asked for it meanwhile."""
        try:
            data: bytes = self._patience.ask(
                lambda: self._filesystem.cat_file(self.address.of(name), start=low, end=high),
                what=name,
            )
        except BaseException as error:
            asked.set_exception(error)
        else:
            data = data[: high - low]
            with self._lock:
                self.requests += 1
                self._keep((name, low), data)
            asked.set_result(data)
        finally:
            with self._lock:
                del self._asked[name, low, high]

    def _find(self, name: str, start: int, end: int) -> bytes | None:
        for key in reversed(self._kept):
            inside = start - key[1]
            if key[0] == name and inside >= 0 and end <= key[1] + len(self._kept[key]):
                self._kept.move_to_end(key)
                return self._kept[key][inside : inside + end - start]
        return None

    def _keep(self, key: tuple[str, int], data: bytes) -> None:
        before = self._kept.pop(key, b"")
        self._kept_bytes -= len(before)
        self._kept[key] = max(before, data, key=len)
        self._kept_bytes += len(self._kept[key])
        while self._kept_bytes > self._room and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest)


class RemoteFile:
    """One file of a remote folder, as ``sealing.places.Ranges``.

    Attributes:
        size: Bytes it must have; what the store has instead is found out by reading.
    """

    def __init__(self, folder: RemoteFolder, name: str, size: int) -> None:
        self._folder = folder
        self._name = name
        self.size = size

    def read_into(self, offset: int, view: memoryview[Any]) -> int:
        """Fill ``view`` from ``offset``; returns how many bytes there were."""
        end = min(offset + len(view), self.size)
        if not 0 <= offset < end:
            return 0
        start, stop = offset, end
        if end - offset < BLOCK_BYTES:  # one block for a header, one for a trailer
            stop = min(offset + BLOCK_BYTES, self.size)
            start = max(0, stop - BLOCK_BYTES) if stop == self.size else offset
        data = self._folder.fetch(self._name, offset, end, around=(start, stop))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Nothing to let go of: the folder keeps what was read."""
