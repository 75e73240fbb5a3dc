"""Writing a sealed folder elsewhere: resumable, several files at a time, complete only at the end.

1. Every file that ``dataset.json`` signs is whole here: each group hashed under its own root, and
   all of them under the dataset's. Other files of the folder stay.
2. The address holds no other dataset.
3. A file is sent unless the store already has it with this size and this root in its trailer; then
   it is read back as far as its trailer. With ``read_back`` all of it is read back and hashed.
4. ``dataset.json`` goes last: before it is there, readers find no dataset at the address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sealtrain.consortium.datasets import read_claimed
from sealtrain.errors import AlreadyExists, DataInvalid, LimitExceeded
from sealtrain.sealing.commitments import COMMITMENTS_NAME
from sealtrain.sealing.description import (
    INDEX_NAME,
    MANIFEST_NAME,
    ShardInfo,
    dataset_root,
    shard_name,
)
from sealtrain.sealing.errors import NotSealed, RootMismatch, SealRefused
from sealtrain.sealing.file import root_of, verify_ciphertext
from sealtrain.sealing.index import MAX_SHARDS
from sealtrain.storage.folder import RemoteFolder

THREADS = 4
MAX_MANIFEST_BYTES = 1 << 20
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFolder:
    """What was done.

    Attributes:
        files: Files of the dataset.
        sent: Files sent this time.
        size: Bytes of all files.
    """

    files: int
    sent: int
    size: int


def publish(
    folder: Path,
    target: RemoteFolder,
    *,
    read_back: bool = False,
    progress: Progress = lambda _: None,
) -> PublishedFolder:
    """Send a sealed folder, or what is missing of it.

    Args:
        folder: ``X.sealed``, complete.
        target: Where to.
        read_back: Read every byte back and hash it.
        progress: Called with the number of bytes that the store holds now.

    Raises:
        NotSealed: The folder is no sealed dataset.
        RootMismatch, SealRefused: A file is damaged, here or, once sent, there; or the files here
            are others than ``dataset.json`` signs.
        AlreadyExists: Another dataset lies at the address.
        StorageUnreachable: The store does not take it; run again to continue.
    """
    names = list_sealed_files(folder)
    manifest = folder / MANIFEST_NAME
    there = _manifest_at(target)
    if there is not None and there != manifest.read_bytes():
        raise AlreadyExists(
            "another dataset lies at this address",
            check="publish",
            got=str(target),
            hint="publish to an address of its own",
        )
    roots = {name: verify_ciphertext(folder / name) for name in names}
    _require_signed(folder, roots)

    def send(name: str) -> bool:
        path = folder / name
        size = path.stat().st_size
        sending = not _is_there(target, name, size, roots[name])
        if sending:
            target.put(name, str(path))
            if not _is_there(target, name, size, roots[name]):
                raise RootMismatch(
                    f"the store does not give {name} back as it was sent",
                    check="publish",
                    hint="run the command again",
                )
        if read_back:
            verify_ciphertext(target.open(name, size=size), root=roots[name])
        progress(size)
        return sending

    with ThreadPoolExecutor(THREADS, thread_name_prefix="publish") as threads:
        jobs = [threads.submit(send, name) for name in names]
        try:
            sent = [job.result() for job in jobs]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    if there is None:
        target.put(MANIFEST_NAME, str(manifest))
        if _manifest_at(target) != manifest.read_bytes():
            raise RootMismatch(
                "the store does not give the manifest back as it was sent", check="publish"
            )
    return PublishedFolder(
        files=len(names) + 1,
        sent=sum(sent) + (there is None),
        size=sum((folder / name).stat().st_size for name in names),
    )


def list_sealed_files(folder: Path) -> tuple[str, ...]:
    """Names of the files that the signed description of a dataset is about, the index last.

    Raises:
        NotSealed: The folder is no sealed dataset, or a file is missing.
        DataInvalid, SignatureInvalid: ``dataset.json`` is no dataset manifest.
    """
    if not (folder / MANIFEST_NAME).is_file():
        raise NotSealed(f"no sealed dataset at {folder}", hint="name a folder made by: seal")
    count = read_claimed(folder).shards
    if count > MAX_SHARDS:
        raise LimitExceeded("dataset has too many shards", got=count, expected=MAX_SHARDS)
    shards = [shard_name(number) for number in range(count)]
    if not (folder / shards[-1]).is_file():
        shards[-1] = COMMITMENTS_NAME  # the last one, where there are commitments
    names = (*shards, INDEX_NAME)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise NotSealed(
            f"the sealed dataset at {folder} is incomplete: {missing[0]} is missing",
            got=f"{len(names) - len(missing)} files",
            expected=f"{len(names)} files",
            hint="seal it again; sealing continues where it was interrupted",
        )
    return names


def _require_signed(folder: Path, roots: Mapping[str, str]) -> None:
    claimed = read_claimed(folder)
    shards = [
        ShardInfo(name=name, size=(folder / name).stat().st_size, root=root)
        for name, root in roots.items()
        if name != INDEX_NAME
    ]
    root = dataset_root(claimed.dataset_id, roots[INDEX_NAME], shards)
    if root != claimed.root:
        raise RootMismatch(
            "the folder does not hold the files that its dataset.json signs",
            check="publish",
            got=root,
            expected=claimed.root,
            hint="seal the data again",
        )


def _manifest_at(target: RemoteFolder) -> bytes | None:
    """``dataset.json`` at the address; ``None`` where the store reports that it is missing."""
    try:
        return target.read(MANIFEST_NAME, MAX_MANIFEST_BYTES)
    except LimitExceeded as error:
        raise AlreadyExists(
            f"a {MANIFEST_NAME} that is no dataset's lies at this address",
            check="publish",
            got=f"over {MAX_MANIFEST_BYTES} bytes at {target}",
            hint="publish to an address of its own",
        ) from error
    except DataInvalid:
        return None


def _is_there(target: RemoteFolder, name: str, size: int, root: str) -> bool:
    try:
        return target.size(name) == size and root_of(target.open(name, size=size)) == root
    except (DataInvalid, SealRefused):
        return False
