"""An EROFS file system, uncompressed, written in one way only (spec/guest-image.md §4).

Linux's *Documentation/filesystems/erofs.rst* and ``fs/erofs/erofs_fs.h`` have the form. Every inode
is compact and flat: superblock, inodes in the order of their names, then the blocks of folders,
links and files in the same order. mkfs.erofs would do, but its bytes depend on its version.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from sealtrain.errors import ImageRefused
from sealtrain.image.layer import LayerEntry

BLOCK: Final = 4096
_SUPERBLOCK_AT: Final = 1024
_SUPERBLOCK: Final = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQB23x")
_INODE: Final = struct.Struct("<HHHHIIIIHHI")
_DIRECTORY_ENTRY: Final = struct.Struct("<QHBB")
_MAGIC: Final = 0xE0F5E1E2
_FIRST_INODE: Final = (_SUPERBLOCK_AT + _SUPERBLOCK.size) // _INODE.size
"""The root's number: inodes are numbered by their place from the file system's beginning."""
_NO_BLOCK: Final = 0xFFFFFFFF
_KINDS: Final = {"file": (stat.S_IFREG, 1), "folder": (stat.S_IFDIR, 2), "link": (stat.S_IFLNK, 7)}
_MAX_FILE_BYTES: Final = (1 << 32) - 1
_COPY: Final = 1 << 20


@dataclass(slots=True, kw_only=True)
class _PlacedInode:
    """A file, folder or link, and where its inode and blocks are."""

    entry: LayerEntry
    number: int = 0
    size: int = 0
    content: bytes | None = None
    names: dict[bytes, _PlacedInode] = field(default_factory=dict)
    above: _PlacedInode | None = None


def write_file_system(
    entries: Iterable[LayerEntry], open_file: Callable[[LayerEntry], BinaryIO], out: BinaryIO
) -> None:
    """Write a file system of folders, files and links; all belong to user 0.

    Args:
        entries: Each once, with the folders above it.
        open_file: Opens a file's content, of the size that its entry says.
        out: An empty file.

    Raises:
        ImageRefused: An entry without its folder, or twice; a file of 4 GiB or of another size.
    """
    nodes = _tree(entries)
    meta_blocks = _blocks_of(_SUPERBLOCK_AT + _SUPERBLOCK.size + _INODE.size * len(nodes))
    inodes, at = [], meta_blocks
    for node in nodes:
        _fill(node)
        blocks = _blocks_of(node.size)
        inodes.append(_inode(node, at if blocks else _NO_BLOCK))
        at += blocks
    head = bytes(_SUPERBLOCK_AT) + _superblock(len(nodes), at) + b"".join(inodes)
    out.write(head.ljust(meta_blocks * BLOCK, b"\0"))
    for node in nodes:
        if node.content is not None:
            out.write(node.content)
        else:
            _copy(node, open_file, out)
        out.write(bytes(-node.size % BLOCK))


def _tree(entries: Iterable[LayerEntry]) -> list[_PlacedInode]:
    root = _PlacedInode(entry=LayerEntry(name="", kind="folder", mode=0o755))
    found = {"": root}
    for entry in sorted(entries, key=lambda entry: entry.name.encode()):
        folder, _, name = entry.name.rpartition("/")
        above = found.get(folder)
        if above is None or above.entry.kind != "folder" or entry.name in found or not name:
            raise _refusal("an entry comes twice or without its folder", entry)
        node = _PlacedInode(entry=entry, above=above)
        found[entry.name] = above.names[name.encode()] = node
    nodes = list(found.values())
    for number, node in enumerate(nodes, _FIRST_INODE):
        node.number = number
    return nodes


def _fill(node: _PlacedInode) -> None:
    if node.entry.kind == "link":
        node.content = node.entry.target.encode()
    elif node.entry.kind == "folder":
        node.content = b"".join(_directory(node))
    node.size = node.entry.size if node.content is None else len(node.content)
    if node.size > _MAX_FILE_BYTES:
        raise _refusal("a file has 4 GiB or more", node.entry)


def _directory(node: _PlacedInode) -> Iterator[bytes]:
    """Blocks of a folder: each has its entries in front and their names behind them, sorted."""
    above = node if node.above is None else node.above
    named = sorted({b".": node, b"..": above, **node.names}.items())
    block: list[tuple[bytes, _PlacedInode]] = []
    used = 0
    for name, child in named:
        more = _DIRECTORY_ENTRY.size + len(name)
        if used + more > BLOCK:
            yield _directory_block(block)
            block, used = [], 0
        block.append((name, child))
        used += more
    yield _directory_block(block)


def _directory_block(named: list[tuple[bytes, _PlacedInode]]) -> bytes:
    at, heads = _DIRECTORY_ENTRY.size * len(named), []
    for name, child in named:
        heads.append(_DIRECTORY_ENTRY.pack(child.number, at, _KINDS[child.entry.kind][1], 0))
        at += len(name)
    return b"".join([*heads, *(name for name, _ in named)]).ljust(BLOCK, b"\0")


def _inode(node: _PlacedInode, block: int) -> bytes:
    folders = sum(child.entry.kind == "folder" for child in node.names.values())
    links = 2 + folders if node.entry.kind == "folder" else 1
    mode = _KINDS[node.entry.kind][0] | node.entry.mode
    return _INODE.pack(0, 0, mode, links, node.size, 0, block, node.number, 0, 0, 0)


def _superblock(inodes: int, blocks: int) -> bytes:
    bits = BLOCK.bit_length() - 1
    identifier = b"\x5e\xa1\x7a\x1d".ljust(16, b"\0")
    return _SUPERBLOCK.pack(
        _MAGIC, 0, 0, bits, 0, _FIRST_INODE, inodes, 0, 0, blocks, 0, 0, identifier,
        b"sealtrain", 0, 0, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip


def _copy(node: _PlacedInode, open_file: Callable[[LayerEntry], BinaryIO], out: BinaryIO) -> None:
    left = node.size
    with open_file(node.entry) as source:
        while left and (part := source.read(min(left, _COPY))):
            out.write(part)
            left -= len(part)
        if left or source.read(1):
            raise _refusal("a file has another size than its entry says", node.entry)


def _blocks_of(size: int) -> int:
    return -(-size // BLOCK)


def _refusal(problem: str, entry: LayerEntry) -> ImageRefused:
    return ImageRefused(f"no file system of these files: {problem}", check="EROFS", got=entry.name)
