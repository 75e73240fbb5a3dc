"""A machine in QEMU with OVMF and a software TPM, whose attestation key a test root certified.

Everything is Debian's, fetched and checked by apt into a cache; nothing is installed. QEMU is of
bookworm's backports: 7.2 of bookworm itself corrupts registers of newer kernels without hardware
support.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from archive import lists_of, unpack
from cryptography.hazmat.primitives.asymmetric import ec

from sealtrain.attest.tpm.collect import CERTIFICATE_INDEX, TEMPLATE_INDEX
from sealtrain.attest.tpm.device import MAX_RESPONSE_BYTES, OWNER, Tpm
from sealtrain.image.disk.cpio import FILE, Entry, write_archive

PACKAGES = {
    "bookworm": (
        "libjson-glib-1.0-0", "libtpms0", "ovmf", "swtpm", "swtpm-libs",
    ),
    "bookworm-backports": (
        "ipxe-qemu", "libaio1", "libcapstone4", "libdaxctl1", "libfdt1", "libfuse3-3",
        "libibverbs1", "libndctl6", "libnl-3-200", "libnl-route-3-200", "libnuma1",
        "libpixman-1-0", "libpmem1", "librdmacm1", "libslirp0", "liburing2", "libvdeplug2",
        "qemu-system-common", "qemu-system-data", "qemu-system-x86", "seabios",
    ),
}  # fmt: skip
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/swtpm")
TEMPLATE = struct.pack(
    ">HHIH HHHHHHH", 0x0023, 0x000B, 0x00050072, 0, 0x0010, 0x0018, 0x000B, 0x0003, 0x0010, 0, 0
)
"""``TPMT_PUBLIC``: a restricted signing key on P-256, ECDSA with SHA-256."""
_DEFINE, _WRITE = 0x12A, 0x137
_RETRY = 0x922
_READABLE = 0x00040004 | 0x00020002
"""``TPMA_NV``: read and written by the owner and by the index's own, empty password."""
_PASSWORD = struct.pack(">IHBH", 0x40000009, 0, 1, 0)
NETWORK = b"10.0.2.15/24 10.0.2.2\n"
SCRATCH_BYTES = 2 << 30
HOST = "10.0.2.2"
"""This machine's loopback, as the guest reaches it."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs of Debian's, in folders of a cache.

    Attributes:
        folders: By suite.
    """

    folders: dict[str, Path]

    @classmethod
    def fetch(cls, cache: Path) -> Tools:
        """From a cache, which is filled where it is empty."""
        folders = {}
        for suite, packages in PACKAGES.items():
            folder = cache / suite
            if not (folder / "machine-complete").is_file():
                shutil.rmtree(folder, ignore_errors=True)
                lists_of(suite, folder)
                unpack(folder, packages)
                (folder / "machine-complete").touch()
            folders[suite] = folder / "files"
        return cls(folders)

    def file(self, name: str) -> Path:
        """A file of any of the packages."""
        return next(folder / name for folder in self.folders.values() if (folder / name).exists())

    @property
    def roms(self) -> list[Path]:
        """Folders in which QEMU looks for its own files."""
        names = ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu")
        places = (folder / name for folder in self.folders.values() for name in names)
        return [place for place in places if place.is_dir()]

    @property
    def environment(self) -> dict[str, str]:
        """In which the programs find their libraries."""
        places = [folder / name for folder in self.folders.values() for name in _LIBRARIES]
        return dict(os.environ, LD_LIBRARY_PATH=":".join(map(str, places)))


def provision(
    tools: Tools, state: Path, certify: Callable[[ec.EllipticCurvePublicKey], tuple[bytes, ...]]
) -> None:
    """Make a TPM, and put template and certificates of its attestation key where Google has them.

    Args:
        tools: Where swtpm is.
        state: A new folder for what the TPM keeps.
        certify: The key → its certificates up to a root, DER.
    """
    state.mkdir()
    server = state / "commands"
    words = ["--server", f"type=unixio,path={server}", "--flags", "startup-clear,not-need-init"]
    with _swtpm(tools, state, words), _connect(server) as connection:

        def transmit(command: bytes) -> bytes:
            connection.sendall(command)
            return connection.recv(MAX_RESPONSE_BYTES)

        with Tpm(transmit).primary(TEMPLATE) as (_, public):
            certificates = certify(_point(public))
        for index, content in (
            (TEMPLATE_INDEX, TEMPLATE),
            (CERTIFICATE_INDEX, b"".join(certificates)),
        ):
            _store(transmit, index, content)


def _point(public: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a ``TPMT_PUBLIC`` on P-256: it ends in two sized numbers."""
    x, y = public[-66:-34], public[-32:]
    numbers = ec.EllipticCurvePublicNumbers(
        int.from_bytes(x, "big"), int.from_bytes(y, "big"), ec.SECP256R1()
    )
    return numbers.public_key()


def _store(transmit: Callable[[bytes], bytes], index: int, content: bytes) -> None:
    public = struct.pack(">IHIHH", index, 0x000B, _READABLE, 0, len(content))
    body = struct.pack(">HH", 0, len(public)) + public
    _send_authorised(transmit, _DEFINE, struct.pack(">I", OWNER), body)
    for at in range(0, len(content), 512):
        part = content[at : at + 512]
        handles = struct.pack(">II", index, index)
        body = struct.pack(">H", len(part)) + part + struct.pack(">H", at)
        _send_authorised(transmit, _WRITE, handles, body)


def _send_authorised(
    transmit: Callable[[bytes], bytes], code: int, handles: bytes, body: bytes
) -> None:
    rest = handles + struct.pack(">I", len(_PASSWORD)) + _PASSWORD + body
    command = struct.pack(">HII", 0x8002, 10 + len(rest), code) + rest
    for _ in range(10):
        (result,) = struct.unpack_from(">I", transmit(command), 6)
        if result == 0:
            return
        if result != _RETRY:
            break
    raise SystemExit(f"the software TPM refused command {code:#x}: {result:#x}")


@contextmanager
def _connect(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        for _ in range(100):
            if path.exists():
                break
            time.sleep(0.1)
        connection.connect(str(path))
        yield connection


@contextmanager
def _swtpm(tools: Tools, state: Path, words: list[str]) -> Iterator[None]:
    command = [str(tools.file("usr/bin/swtpm")), "socket", "--tpm2", "--tpmstate", f"dir={state}"]
    with subprocess.Popen([*command, *words], env=tools.environment) as process:  # noqa: S603
        try:
            yield
        finally:
            process.terminate()


def config_drive(path: Path, files: dict[str, bytes]) -> None:
    """Write what the operator hands in, and zeros behind it."""
    archive = write_archive({name: Entry(FILE, data) for name, data in files.items()})
    path.write_bytes(archive.ljust(-(-len(archive) // 4096) * 4096 + 4096, b"\0"))


def boot_machine(
    tools: Tools,
    folder: Path,
    disk: Path,
    *,
    seconds: int,
    memory: int = 1024,
    until: str | None = None,
) -> list[str]:
    """Boot a disk with the TPM of ``folder/tpm`` and the config drive ``folder/config``.

    What the guest writes to its scratch disk is left in ``folder/scratch``.

    Args:
        tools: Where QEMU is.
        folder: Of this machine.
        disk: Is not written to.
        seconds: It is stopped after that time.
        memory: In MiB.
        until: Stop when a line of the console has this; ``None`` waits for the machine to end.

    Returns:
        Lines of its console.
    """
    control = folder / "tpm" / "control"
    words = ["--ctrl", f"type=unixio,path={control}", "--flags", "startup-clear"]
    variables, scratch = folder / "variables.fd", folder / "scratch"
    with scratch.open("wb") as file:
        file.truncate(SCRATCH_BYTES)
    shutil.copy(tools.file("usr/share/OVMF/OVMF_VARS_4M.fd"), variables)
    firmware = tools.file("usr/share/OVMF/OVMF_CODE_4M.fd")
    qemu = str(tools.file("usr/bin/qemu-system-x86_64"))
    command = [
        qemu, "-M", "q35,smm=off", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
        "-m", str(memory), "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
        *(word for place in tools.roms for word in ("-L", str(place))),
        "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={firmware}",
        "-drive", f"if=pflash,format=raw,unit=1,file={variables}",
        "-drive", f"if=none,id=disk,format=raw,file={disk},snapshot=on",
        "-device", "virtio-blk-pci,drive=disk,bootindex=0",
        "-drive", f"if=none,id=config,format=raw,readonly=on,file={folder / 'config'}",
        "-device", "virtio-blk-pci,drive=config,serial=sealtrain-config",
        "-drive", f"if=none,id=scratch,format=raw,file={scratch}",
        "-device", "virtio-blk-pci,drive=scratch,serial=sealtrain-scratch",
        "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=",
        "-chardev", f"socket,id=tpm,path={control}", "-tpmdev", "emulator,id=tpm0,chardev=tpm",
        "-device", "tpm-crb,tpmdev=tpm0",
    ]  # fmt: skip
    lines = []
    with _swtpm(tools, folder / "tpm", words):
        for _ in range(100):
            if control.exists():
                break
            time.sleep(0.1)
        with subprocess.Popen(  # noqa: S603  # our own words
            command, env=tools.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            text=True, errors="replace",
        ) as machine:  # fmt: skip
            assert machine.stdout is not None
            limit = threading.Timer(seconds, machine.kill)
            limit.start()
            try:
                for line in machine.stdout:
                    lines.append(line.rstrip())
                    print(f"   | {lines[-1][-160:]}", flush=True)
                    if until is not None and until in line:
                        break
            finally:
                limit.cancel()
                machine.kill()
    return lines


def registers_of(lines: list[str]) -> dict[int, str]:
    """What the second program said of the TPM's registers: number → value, hex."""
    said = (line.split() for line in lines if "SEALTRAIN-REGISTER" in line)
    return {int(words[-2]): words[-1] for words in said if words[-2].isdigit()}
