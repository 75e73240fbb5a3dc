"""A guest's disk out of the files that go into it (spec/guest-image.md), and what a disk holds."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Final
from uuid import UUID

from sealtrain.errors import ImageRefused
from sealtrain.image.disk.cpio import FILE, FOLDER, PROGRAM, Entry, link, write_archive
from sealtrain.image.disk.erofs import write_file_system
from sealtrain.image.disk.fat import write_system_partition
from sealtrain.image.disk.partitions import ROOT_KIND, SYSTEM_KIND, write_disk
from sealtrain.image.disk.unified_writer import write_unified
from sealtrain.image.disk.verity import HashTree, hash_tree
from sealtrain.image.layer import LayerEntry

SYSTEM_NAME: Final = "sealtrain-boot"
ROOT_NAME: Final = "sealtrain-root"
WORDS: Final = "console=ttyS0 quiet oops=panic panic=-1"
OS_RELEASE: Final = b"ID=sealtrain\nVERSION_ID=1\n"
PACKAGES: Final = "usr/local/lib/python3.11/dist-packages"
_FOLDERS: Final = ("dev", "proc", "root", "run", "sys")
_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)")
_LIBRARY: Final = "usr/lib/python3.11/"
_MACHINE: Final = "x86_64-linux-gnu"

FIRST_PROGRAM: Final = (
    "__init__.py", "error_homes.py", "errors.py",
    "attest/__init__.py", "attest/errors.py", "attest/tpm/__init__.py",
    "attest/tpm/byte_cursor.py", "attest/tpm/device.py",
    "guest/__init__.py", "guest/boot/__init__.py", "guest/boot/address_lease.py",
    "guest/boot/decisions.py", "guest/boot/empty_files.py", "guest/boot/first.py",
    "guest/boot/handed_in.py", "guest/boot/kernel.py", "guest/boot/locks.py",
    "guest/kernel_calls.py", "image/__init__.py", "image/cpio_member.py",
    "image/disk/__init__.py", "image/disk/cpio.py",
)  # fmt: skip
"""Files of the package sealtrain that are in the initrd."""
STANDARD: Final = (
    "__future__", "_collections_abc", "_sitebuiltins", "_weakrefset", "abc", "ast", "bisect",
    "codecs", "collections", "contextlib", "copy", "copyreg", "ctypes", "dataclasses", "dis",
    "encodings", "enum", "fnmatch", "functools", "genericpath", "hashlib", "heapq", "importlib",
    "inspect", "io", "ipaddress", "keyword", "linecache", "ntpath", "opcode", "operator", "os",
    "pathlib", "posixpath", "re", "reprlib", "selectors", "signal", "site", "socket", "stat",
    "string", "struct", "sysconfig", "textwrap", "token", "tokenize", "traceback", "types",
    "typing", "urllib", "warnings", "weakref", "runpy", "pkgutil", "zipimport",
)  # fmt: skip
"""Modules and packages of Python's library that are in the initrd."""
LIBRARIES: Final = ("libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1", "libffi.so.8")
MODULES: Final = (
    "virtio_pci", "virtio_blk", "virtio_net", "nvme", "dm_verity", "erofs", "tpm_crb", "tpm_tis",
    "tsm_report", "tdx_guest", "sev_guest", "aesni_intel", "xts", "dm_crypt", "ext4",
    "vmw_vsock_virtio_transport", "hv_sock", "gve", "ena", "hv_storvsc", "sd_mod", "hv_netvsc",
)  # fmt: skip
"""Modules of the kernel, as far as it has them; those that they depend on come before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestFiles:
    """What a disk is made of.

    Attributes:
        entries: Of the OCI image.
        open_file: Opens the content of one of its files.
        kernel: vmlinuz.
        release: The kernel's release, as ``uname`` says it.
        modules: Name of each module that the kernel has → its bytes, unpacked.
        stub: systemd-stub.
        source: Folder of the package ``sealtrain``.
        further: Names of modules that are loaded after ``MODULES``.
    """

    entries: Mapping[str, LayerEntry]
    open_file: Callable[[LayerEntry], BinaryIO]
    kernel: bytes
    release: str
    modules: Callable[[str], bytes | None]
    stub: bytes
    source: Path
    further: tuple[str, ...] = ()


def write_guest_disk(files: GuestFiles, out: BinaryIO) -> bytes:
    """Write a disk.

    Args:
        files: What it is made of.
        out: An empty file that can be moved in.

    Returns:
        The UKI that is on it.

    Raises:
        ImageRefused: The files make no disk.
    """
    with TemporaryFile() as root:
        tree = write_root(files, root)
        uki = unified_image(files, tree)
        boot = io.BytesIO(write_system_partition(uki))
        parts: list[tuple[str, UUID, BinaryIO]] = [
            (SYSTEM_NAME, SYSTEM_KIND, boot),
            (ROOT_NAME, ROOT_KIND, root),
        ]
        write_disk(parts, out)
    return uki


def write_root(files: GuestFiles, out: BinaryIO) -> HashTree:
    """Write the root's file system and its tree."""
    write_file_system(files.entries.values(), files.open_file, out)
    out.seek(0)
    tree = hash_tree(out)
    out.write(tree.appended)
    return tree


def unified_image(files: GuestFiles, tree: HashTree) -> bytes:
    """The UKI that starts this root and no other."""
    line = f"{WORDS} sealtrain.root={tree.root.hex()} sealtrain.blocks={tree.blocks}"
    sections = [
        (".osrel", OS_RELEASE),
        (".cmdline", line.encode()),
        (".uname", files.release.encode()),
        (".initrd", write_archive(initrd_entries(files))),
        (".linux", files.kernel),
    ]
    return write_unified(files.stub, sections)


def initrd_entries(files: GuestFiles) -> dict[str, Entry]:
    """Every file of the initrd."""
    found = {name: Entry(FOLDER) for name in _FOLDERS}
    for name, entry in files.entries.items():
        if _is_started(name):
            found[name] = _copy_entry(files, entry)
    for name in FIRST_PROGRAM:
        found[f"{PACKAGES}/sealtrain/{name}"] = Entry(FILE, (files.source / name).read_bytes())
    order = list(_in_order(files.modules, (*MODULES, *files.further)))
    found["modules/order"] = Entry(FILE, "".join(f"{name}\n" for name, _ in order).encode())
    for name, data in order:
        found[f"modules/{name}.ko"] = Entry(FILE, data)
    text = (
        "#!/usr/bin/python3.11 -I\nimport sys\nsys.path.append('/" + PACKAGES + "')\n"
        "from sealtrain.guest.boot.first import main\nmain()\n"
    )
    found["init"] = Entry(PROGRAM, text.encode())
    return found


def _is_started(name: str) -> bool:
    """Whether a file of the image is in the initrd, too: Python and what it loads."""
    if name in ("usr/bin/python3.11", "lib64/ld-linux-x86-64.so.2"):
        return True
    for folder in (f"lib/{_MACHINE}/", f"usr/lib/{_MACHINE}/"):
        if name.startswith(folder):
            rest = name.removeprefix(folder)
            return rest == "ld-linux-x86-64.so.2" or any(
                rest.startswith(library) for library in LIBRARIES
            )
    if name.startswith(f"{_LIBRARY}lib-dynload/"):
        return name.rpartition("/")[2].startswith(("_ctypes.", "_socket."))
    if name.startswith(_LIBRARY):
        first = name.removeprefix(_LIBRARY).split("/")[0]
        return first.removesuffix(".py") in STANDARD or first.startswith("_sysconfigdata")
    return False


def _copy_entry(files: GuestFiles, entry: LayerEntry) -> Entry:
    if entry.kind == "link":
        return link(entry.target)
    if entry.kind == "folder":
        return Entry(FOLDER)
    with files.open_file(entry) as file:
        return Entry(PROGRAM if entry.mode == 0o755 else FILE, file.read())


def _in_order(
    modules: Callable[[str], bytes | None], names: Iterable[str]
) -> Iterable[tuple[str, bytes]]:
    """Modules, each after those that it depends on, as each says itself."""
    seen: dict[str, bytes] = {}

    def visit(name: str, depth: int = 0) -> None:
        data = modules(name)
        if name in seen or data is None:  # without a file it is built in, or not there
            return
        if depth > 16:
            raise ImageRefused("a kernel's module depends on itself", check="modules", got=name)
        depends = _DEPENDS.search(data)
        for other in depends[1].decode("ascii").split(",") if depends and depends[1] else ():
            visit(other.replace("-", "_"), depth + 1)
        seen[name] = data

    for name in names:
        visit(name)
    return seen.items()
