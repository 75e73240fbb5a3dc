"""The kernel of an enclave and its modules, from Debian's packages: what ``image eif`` asks for.

    python tools/enclave/kernel.py OUT

Debian's kernels have Landlock and the driver of the Nitro Secure Module. Their ``virtio_mmio`` does
not read ``virtio_mmio.device=…``, the only way in which an enclave announces its devices, so that
one module is built again with it, from Debian's own source of the same version: a compiler and
some seconds, and the same bytes in every folder. Needs Debian 12 on x86-64 (apt, gcc-12, make).
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "debian"))

from archive import apt, lists_of, missing_for_debian, unpack

SUITE = "bookworm-backports"
SERIES = "6.12"
WANTED = ("virtio_mmio", "vmw_vsock_virtio_transport", "nsm")
REBUILT = "virtio_mmio"
OPTION = "-DCONFIG_VIRTIO_MMIO_CMDLINE_DEVICES"
COMPILER = "x86_64-linux-gnu-gcc-12"


def main() -> int:
    """Write kernel and modules, and print their digests in the order of loading."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write; it must not exist")
    out: Path = parser.parse_args().out
    if (problem := missing()) is not None:
        parser.error(problem)
    for name, data in make().items():
        out.mkdir(exist_ok=True)
        (out / name).write_bytes(data)
        print(f"{hashlib.sha256(data).hexdigest()}  {name}")
    return 0


def missing() -> str | None:
    """What this machine lacks; ``None`` where it has all of it."""
    for program in (COMPILER, "make", "strip", "tar"):
        if shutil.which(program) is None:
            return f"this needs {program}: apt-get install gcc-12 make"
    return missing_for_debian()


def make(suite: str = SUITE) -> dict[str, bytes]:
    """File name → bytes: ``vmlinuz`` and each module, after those that it needs."""
    with tempfile.TemporaryDirectory(prefix="enclave-kernel-") as place:
        folder = Path(place) / suite
        lists_of(suite, folder)
        release = newest(folder)
        files = unpack(
            folder,
            [
                f"linux-image-{release}-amd64",
                f"linux-headers-{release}-amd64",
                f"linux-headers-{release}-common",
                f"linux-kbuild-{release}",
                f"linux-source-{SERIES}",
            ],
        )
        found = {"vmlinuz": next(files.glob("boot/vmlinuz-*")).read_bytes()}
        for name, data in in_order(files / "lib/modules", WANTED):
            found[f"{name}.ko"] = rebuilt(files, release) if name == REBUILT else data
        return found


def newest(folder: Path) -> str:
    """Release of the suite's newest kernel of the series, as its packages name it."""
    shown = apt(folder, "--no-all-versions", "show", "linux-image-amd64", program="apt-cache")
    found = re.search(rf"linux-image-({re.escape(SERIES)}\.[\w.+~]+)-amd64", shown)
    if found is None:
        raise SystemExit(f"this suite's kernel is not of the series {SERIES}")
    return found[1]


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
    source = f"linux-source-{SERIES}/drivers/virtio/{REBUILT}.c"
    packed = files / f"usr/src/linux-source-{SERIES}.tar.xz"
    run("tar", "-xJf", packed, "-C", work, "--strip-components=3", source)
    flags = f"{OPTION} -g0 -ffile-prefix-map={work}/="
    (work / "Makefile").write_text(f"obj-m := {REBUILT}.o\nccflags-y := {flags}\n")
    run("make", "-s", "-C", headers, f"M={work}", "LDFLAGS_MODULE=--build-id=none", "modules")
    module = work / f"{REBUILT}.ko"
    run("strip", "-d", module)
    return module.read_bytes()


def run(*words: str | Path) -> None:
    """Run a program of this machine; what it says goes to stderr."""
    subprocess.run([*words], check=True, stdout=sys.stderr)  # noqa: S603  # our own words


if __name__ == "__main__":
    sys.exit(main())
