"""The kernel of an enclave and its modules, from Debian's packages: what ``image eif`` asks for.

    python tools/enclave/kernel.py OUT [--cache FOLDER]

Debian's kernels have Landlock and the driver of the Nitro Secure Module. Their ``virtio_mmio`` does
not read ``virtio_mmio.device=…``, the only way in which an enclave announces its devices, so that
one module is built again with it, from Debian's own source of the same version: a compiler and
some seconds. ``deploy/enclave/pins.json`` names the packages and the module that comes out by their
digests, so a kernel is the same on every day; another compiler's module is refused. Needs gcc-12 of
Debian 12 on x86-64, make and dpkg-deb.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import StringConstraints

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "images"))

from fetching import debian_file  # noqa: E402

from sealtrain.base.files import read_regular  # noqa: E402
from sealtrain.base.models import Hex64, StrictModel, load_json  # noqa: E402
from sealtrain.errors import DataInvalid  # noqa: E402
from sealtrain.image.disk.inputs import DiskPin  # noqa: E402
from sealtrain.image.pins import DebianPin  # noqa: E402

PINS: Final = ROOT / "deploy" / "enclave" / "pins.json"
WANTED = ("virtio_mmio", "vmw_vsock_virtio_transport", "nsm")
REBUILT = "virtio_mmio"
OPTION = "-DCONFIG_VIRTIO_MMIO_CMDLINE_DEVICES"
COMPILER = "x86_64-linux-gnu-gcc-12"
_MAX_PINS_BYTES: Final = 1 << 16


class KernelPackages(StrictModel):
    """Packages of one version of Linux: image, headers, what builds modules, and source."""

    image: DiskPin
    headers: DiskPin
    common: DiskPin
    kbuild: DiskPin
    source: DiskPin


class KernelPins(StrictModel):
    """``deploy/enclave/pins.json``.

    Attributes:
        version: Of this form.
        debian_date: Time at which Debian's archive of snapshots has the packages.
        release: Of the kernel, without its flavour.
        packages: What it is made of.
        rebuilt: SHA-256 of the module that is built again.
    """

    version: Literal[1]
    debian_date: Annotated[str, StringConstraints(pattern=r"^[0-9]{8}T[0-9]{6}Z$")]
    release: Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9.+~-]{0,63}$")]
    packages: KernelPackages
    rebuilt: Hex64


def main() -> int:
    """Write kernel and modules, and print their digests in the order of loading."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write; it must not exist")
    parser.add_argument("--cache", type=Path, default=ROOT / ".images", help="folder for packages")
    given = parser.parse_args()
    if (problem := missing()) is not None:
        parser.error(problem)
    given.cache.mkdir(parents=True, exist_ok=True)
    for name, data in make(load_pins(), given.cache).items():
        given.out.mkdir(exist_ok=True)
        (given.out / name).write_bytes(data)
        print(f"{hashlib.sha256(data).hexdigest()}  {name}")
    return 0


def missing() -> str | None:
    """What this machine lacks; ``None`` where it has all of it."""
    for program in (COMPILER, "make", "strip", "tar", "dpkg-deb"):
        if shutil.which(program) is None:
            return f"this needs {program}: apt-get install gcc-12 make"
    return None


def load_pins(path: Path = PINS) -> KernelPins:
    """The pins of this source.

    Raises:
        DataInvalid: The file is of another form.
    """
    data = read_regular(path, _MAX_PINS_BYTES)
    return load_json(KernelPins, data, DataInvalid, path.name, max_bytes=_MAX_PINS_BYTES)


def make(pins: KernelPins, cache: Path) -> dict[str, bytes]:
    """File name → bytes: ``vmlinuz`` and each module, after those that it needs.

    Args:
        pins: What the kernel is made of.
        cache: Folder that keeps packages.

    Raises:
        SystemExit: A package is not to be had, or the module comes out with other bytes.
    """
    with tempfile.TemporaryDirectory(prefix="enclave-kernel-") as place:
        files = Path(place)
        for _, pin in pins.packages:
            package = debian_file(
                DebianPin(**pin.model_dump(), files_sha256="00" * 32), pins.debian_date, cache
            )
            run("dpkg-deb", "-x", package, files)
        found = {"vmlinuz": next(files.glob("boot/vmlinuz-*")).read_bytes()}
        for name, data in in_order(files / "lib/modules", WANTED):
            made = data
            if name == REBUILT:
                made = rebuilt(files, pins.release)
                require_rebuilt(made, pins.rebuilt)
            found[f"{name}.ko"] = made
        return found


def require_rebuilt(module: bytes, expected: str) -> None:
    """Return if the module that was built has the pinned digest.

    Raises:
        SystemExit: It has another one: its compiler is not the one that the pins were made with.
    """
    got = hashlib.sha256(module).hexdigest()
    if got != expected:
        raise SystemExit(
            f"{REBUILT}.ko has SHA-256 {got}, the pins say {expected}: "
            f"build it with {COMPILER} and binutils of Debian 12"
        )


def in_order(folder: Path, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Modules by name, each after those that it says it needs."""
    there = {path.name.split(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}
    seen: set[str] = set()

    def visit(name: str) -> Iterator[tuple[str, bytes]]:
        path = there.get(name)
        if name in seen or path is None:  # built in
            return
        seen.add(name)
        data = path.read_bytes()
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        needs = re.search(rb"\0depends=([^\0]+)", data)
        for other in needs[1].decode().split(",") if needs else []:
            yield from visit(other.replace("-", "_"))
        yield name, data

    for name in names:
        yield from visit(name)


def rebuilt(files: Path, release: str) -> bytes:
    """The module that reads devices from the command line, from unpacked headers and source."""
    headers = files / f"usr/src/linux-headers-{release}-amd64"
    makefile = headers / "Makefile"
    makefile.write_text(f"include {files}/usr/src/linux-headers-{release}-common/Makefile\n")
    (headers / "vmlinux").unlink(missing_ok=True)  # it would ask for pahole, to describe types
    work = files / "work"
    work.mkdir()
    (packed,) = (files / "usr/src").glob("linux-source-*.tar.xz")
    source = f"{packed.name.removesuffix('.tar.xz')}/drivers/virtio/{REBUILT}.c"
    run("tar", "-xJf", packed, "-C", work, "--strip-components=3", source)
    flags = f"{OPTION} -g0 -ffile-prefix-map={work}/="
    (work / "Makefile").write_text(f"obj-m := {REBUILT}.o\nccflags-y := {flags}\n")
    run("make", "-s", "-C", headers, f"M={work}", "LDFLAGS_MODULE=--build-id=none", "modules")
    module = work / f"{REBUILT}.ko"
    run("strip", "-d", module)
    return module.read_bytes()


def run(*words: str | Path) -> None:
    """Run a program of this machine, in no language; what it says goes to stderr."""
    plain = {**os.environ, "LC_ALL": "C"}
    subprocess.run([*words], check=True, stdout=sys.stderr, env=plain)  # noqa: S603  # our own words


if __name__ == "__main__":
    sys.exit(main())
