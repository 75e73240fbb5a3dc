"""Process 1 of a guest of our own, in the initrd (spec/guest-image.md §7).

It measures the deployment document before anything else of what comes from outside is used. Each
step that fails is named on the console, and the machine is switched off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from sealtrain.attest.tpm.device import open_tpm
from sealtrain.errors import ImageRefused
from sealtrain.guest import kernel_calls
from sealtrain.guest.boot import kernel
from sealtrain.guest.boot.address_lease import exchange_on, lease_address
from sealtrain.guest.boot.decisions import (
    BLOCK,
    COMMAND_USER,
    CONFIG_LIMITS,
    CONFIG_SERIAL,
    DOCUMENT,
    HOST_MODULES,
    ROOT_PARTITION,
    SCRATCH_KEY_BYTES,
    choose_device,
    choose_scratch,
    crypt_table,
    parse_parameters,
    partition_name,
)
from sealtrain.guest.boot.empty_files import write_empty_files
from sealtrain.guest.boot.handed_in import (
    HOST,
    HOST_PORT,
    METADATA,
    SERVICES,
    ask_service,
    read_archive,
    receive_archive,
)
from sealtrain.guest.boot.locks import lock_kernel
from sealtrain.image.disk.cpio import read_files

DOCUMENT_PCR: Final = 14
RTMR3: Final = Path("/sys/devices/virtual/misc/tdx_guest/measurements/rtmr3:sha384")
HANDED_OVER: Final = Path("/run/sealtrain")
"""Where the files of the config drive lie once the root is there."""
PYTHON: Final = "/usr/bin/python3.11"
SECOND: Final = "sealtrain.guest.boot.second"
_BLOCKS: Final = Path("/sys/class/block")
_ROOT: Final = "/root"
_CARDS: Final = Path("/sys/class/net")
_VENDOR: Final = Path("/sys/class/dmi/id/sys_vendor")
_PATIENCE_S: Final = 30
_CONFIG_PATIENCE_S: Final = 10
"""A disk is there when its driver is: this is for slow machines."""
_HOST_PATIENCE_S: Final = 5
SCRATCH: Final = "/run-data"


def main() -> None:
    """Take the steps, or switch the machine off."""
    step = "mounts"
    try:
        mount_kernel_files()
        step = "modules"
        load_modules(Path("/modules"))
        step = "what the operator hands in"
        handed = read_handed_in()
        step = "line to the host"
        close_host_line(Path("/proc/modules"))
        step = "measurement"
        measure_document(handed[DOCUMENT])
        step = "root"
        mount_root()
        step = "scratch disk"
        mount_scratch()
        step = "locks"
        lock_kernel(Path("/"))
        step = "hand over"
        hand_over(handed)
    except BaseException as error:
        say(f"SEALTRAIN-STOPPED {step}: {type(error).__name__}: {error}")
    time.sleep(1)  # the console is slow
    kernel.switch_off()


def say(text: str) -> None:
    """A line on the console."""
    os.write(1, f"{text}\n".encode(errors="replace"))


def mount_kernel_files() -> None:
    """The kernel's own file systems, and memory for ``run``."""
    safe = kernel.NO_SUID | kernel.NO_PROGRAMS
    for kind, place, flags in (
        ("proc", "/proc", safe | kernel.NO_DEVICES),
        ("sysfs", "/sys", safe | kernel.NO_DEVICES),
        ("devtmpfs", "/dev", safe),
        ("tmpfs", "/run", safe | kernel.NO_DEVICES),
        ("securityfs", "/sys/kernel/security", safe | kernel.NO_DEVICES),
    ):
        kernel_calls.mount(kind, place, kind, flags, "mode=755" if kind == "tmpfs" else "")


def load_modules(folder: Path) -> None:
    """Load the modules in the order that the image says."""
    for name in (folder / "order").read_text().split():
        kernel_calls.load_module(
            folder / f"{name}.ko", unless=(kernel_calls.EXISTS, kernel_calls.NO_DEVICE)
        )


def read_handed_in() -> dict[str, bytes]:
    """The operator's files: of a config drive; else of the host by vsock; else of the cloud.

    Raises:
        ImageRefused: None of them hands in anything, or it is something else.
    """
    if _appears(CONFIG_SERIAL):
        handed = read_config_drive()
    else:
        archive = _ask_host()
        handed = read_archive(_ask_cloud() if archive is None else archive)
    if DOCUMENT not in handed:
        raise ImageRefused("the operator hands in no deployment document", check=DOCUMENT)
    return handed


def _appears(serial: str) -> bool:
    end = time.monotonic() + _CONFIG_PATIENCE_S
    while serial not in _serials().values():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _ask_host() -> bytes | None:
    """The archive of the machine's host; ``None`` where it hands in none this way."""
    if not Path("/dev/vsock").exists():
        return None
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as connection:
        connection.settimeout(_HOST_PATIENCE_S)
        try:
            connection.connect((HOST, HOST_PORT))
        except OSError:
            return None
        return receive_archive(connection)


def _ask_cloud() -> bytes:
    """The archive of the cloud's metadata service, over the first network card."""
    service = SERVICES.get(vendor := _text(_VENDOR))
    card = first_card()
    if service is None or card is None:
        raise ImageRefused(
            "the operator hands in nothing",
            check="config drive",
            got=f"none; vendor {vendor[:40]!r}",
            expected=CONFIG_SERIAL,
        )
    kernel.raise_network("lo", None)
    lease_network(card)
    return ask_service(service, lambda: socket.create_connection(METADATA, _HOST_PATIENCE_S))


def close_host_line(
    modules: Path,
    unload: Callable[[str], None] = kernel.unload_module,
    seconds: float = _HOST_PATIENCE_S,
) -> None:
    """Take vsock out of the kernel: a network namespace does not part it from a recipe's code.

    Args:
        modules: The kernel's list of its modules.
        unload: Takes one out, once nothing uses it any more.
        seconds: To try for.

    Raises:
        ImageRefused: It stays.
    """
    end = time.monotonic() + seconds
    while True:
        there = {line.split()[0] for line in modules.read_text().splitlines()}
        left = [name for name in HOST_MODULES if name in there]
        if not left:
            return
        for name in left:
            with contextlib.suppress(OSError):
                unload(name)
        if time.monotonic() > end:
            raise ImageRefused(
                "the line to the host stays open", check="vsock", got=", ".join(left), expected=""
            )
        time.sleep(0.05)


def first_card() -> str | None:
    """The first network card of the machine."""
    cards = sorted(path.name for path in _CARDS.iterdir() if (path / "device").exists())
    return cards[0] if cards else None


def lease_network(card: str) -> None:
    """Have the network lease a card its address.

    Raises:
        ImageRefused: It leases none.
    """
    kernel.raise_network(card, None)
    own = bytes.fromhex((_CARDS / card / "address").read_text().strip().replace(":", ""))
    network = lease_address(exchange_on(card), own, os.urandom(4))
    kernel.raise_network(card, network)


def read_config_drive() -> dict[str, bytes]:
    """The files of the config drive.

    Raises:
        ImageRefused: There is not exactly one, or it holds something else.
    """
    name = _await(_serials, CONFIG_SERIAL, "config drive")
    with Path("/dev", name).open("rb", buffering=0) as disk:
        return read_files(disk, CONFIG_LIMITS)


def measure_document(document: bytes) -> None:
    """Extend every register that a guest cannot reset.

    Raises:
        ImageRefused: The machine has neither a TPM nor RTMR3.
    """
    measured = False
    tpm = Path("/dev/tpm0")
    if tpm.exists():
        with open_tpm(tpm) as opened:
            digests = {bank: hashlib.new(bank, document).digest() for bank in opened.banks()}
            opened.extend(DOCUMENT_PCR, digests)
        measured = True
    if RTMR3.exists():
        with RTMR3.open("wb", buffering=0) as register:
            register.write(hashlib.sha384(document).digest())
        measured = True
    if not measured:
        raise ImageRefused("no register of this machine takes the document", check="measurement")
    say(f"SEALTRAIN-MEASURED {hashlib.sha256(document).hexdigest()}")


def mount_root() -> None:
    """Verify the root by the hash tree that the command line names, and mount it."""
    parameters = parse_parameters(Path("/proc/cmdline").read_text())

    def names() -> dict[str, str]:
        return {path.name: partition_name(_text(path / "uevent")) for path in _BLOCKS.iterdir()}

    name = _await(names, ROOT_PARTITION, "root partition")
    table = parameters.verity_table((_BLOCKS / name / "dev").read_text().strip())
    device = kernel.map_device("sealtrain-root", parameters.sectors, "verity", table)
    _await_file(device)
    flags = kernel.READ_ONLY | kernel.NO_DEVICES | kernel.NO_SUID
    kernel_calls.mount(str(device), _ROOT, "erofs", flags)


def mount_scratch() -> None:
    """Where the operator gave a disk for it, put the run's files on it, encrypted.

    The key is drawn here and told to the kernel: the disk is empty to everyone after this boot.

    Raises:
        ImageRefused: There are two such disks, or it is too small.
    """
    name = choose_scratch(_serials())
    if name is None:
        return
    blocks = int((_BLOCKS / name / "size").read_text()) * 512 // BLOCK
    table = crypt_table((_BLOCKS / name / "dev").read_text().strip(), os.urandom(SCRATCH_KEY_BYTES))
    device = kernel.map_device(
        "sealtrain-scratch", blocks * (BLOCK // 512), "crypt", table, writable=True
    )
    _await_file(device)
    with device.open("r+b", buffering=0) as file:
        write_empty_files(file, blocks, COMMAND_USER)
        os.fsync(file.fileno())
    safe = kernel.NO_SUID | kernel.NO_DEVICES
    kernel_calls.mount(str(device), f"{_ROOT}{SCRATCH}", "ext4", safe)
    say("SEALTRAIN-SCRATCH encrypted")


def hand_over(handed: Mapping[str, bytes]) -> None:
    """Leave the initrd, and become the second program."""
    HANDED_OVER.mkdir(mode=0o700)
    for name, data in handed.items():
        (HANDED_OVER / name).write_bytes(data)
        os.chown(HANDED_OVER / name, COMMAND_USER, COMMAND_USER)
    os.chown(HANDED_OVER, COMMAND_USER, COMMAND_USER)
    for place in ("/proc", "/sys", "/dev", "/run"):
        kernel_calls.mount(place, f"{_ROOT}{place}", None, kernel.MOVE)
    os.chdir(_ROOT)
    kernel_calls.mount(".", "/", None, kernel.MOVE)
    os.chroot(".")
    os.chdir("/")
    environment = {"PATH": "/usr/local/bin:/usr/bin", "LANG": "C.UTF-8"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    os.execve(PYTHON, [PYTHON, "-I", "-m", SECOND], environment)  # noqa: S606  # of the root


def _await(describe: Callable[[], dict[str, str]], wanted: str, what: str) -> str:
    """The one device of a name, which the kernel may find a little later."""
    end = time.monotonic() + _PATIENCE_S
    while wanted not in (found := describe()).values() and time.monotonic() < end:
        time.sleep(0.1)
    return choose_device(found, wanted, what)


def _await_file(device: Path) -> None:
    """Until the kernel has made a device's file; what opens it says where it has not."""
    end = time.monotonic() + _PATIENCE_S
    while not device.exists() and time.monotonic() < end:
        time.sleep(0.1)


def _serials() -> dict[str, str]:
    """The kernel's name of each disk → its serial number."""
    return {path.name: _text(path / "serial") for path in _BLOCKS.iterdir()}


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[:4096].decode("ascii", "replace").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
