"""Run the tests of a run's border on kernels that this machine does not run, in a virtual machine.

    make vm-test                         all kernels; about a quarter of an hour each without KVM
    python tools/vm/run.py trixie        one of them
    python tools/vm/run.py trixie --tests tests/attack/test_border_kernel.py

Kernels are Debian's own packages, fetched and checked by apt. A machine boots one in QEMU with this
machine's files, read-only, and memory to write to; inside, this environment's Python runs the
tests for real. Nothing is emulated but the processor. What the kernel's Landlock can do is expected
by its version, so a kernel that lost it fails instead of skipping.

Needs Debian or a relative (apt, dpkg-deb and Debian's archive keyring) on x86-64, QEMU, and some
2 GB in --cache. As root, a missing QEMU is installed.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "debian"))

from archive import apt, lists_of, missing_for_debian, unpack  # noqa: E402

HOST_FILES = "local,path=/,readonly=on"
QEMU = "qemu-system-x86_64"
MODULES = ("virtio_pci", "9pnet_virtio", "9p")
TESTS = (
    "tests/attack/test_border_calls.py",
    "tests/attack/test_border_kernel.py",
    "tests/attack/test_border_programs.py",
    "tests/attack/test_border_places.py",
    "tests/attack/test_runner_secrets.py",
    "tests/attack/test_runner_egress.py",
)
KERNEL_PACKAGE = re.compile(r"\blinux-(?:image|binary|modules)-\d[\w.+~-]+")
ENDED = re.compile(r"VM-TEST-EXIT (\d+)")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel to boot.

    Attributes:
        suite: Debian's suite that its package is in.
        landlock: Version of Landlock that it has at least; 0 for none.
        words: Further words of its command line.
    """

    suite: str
    landlock: int
    words: str = ""


KERNELS = {
    "bookworm": Kernel(suite="bookworm", landlock=2),
    "trixie": Kernel(suite="trixie", landlock=6),
    "newest": Kernel(suite="trixie-backports", landlock=11),
    "without": Kernel(suite="trixie", landlock=0, words="lsm=yama"),
}

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
for module in $(cat /modules/order); do insmod /modules/$module.ko || echo "no $module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host
mount -t proc proc /host/proc
mount -t sysfs sysfs /host/sys
mount -t devtmpfs devtmpfs /host/dev
mkdir -p /host/dev/shm /host/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /host/dev/shm
mount -t tmpfs -o mode=755 tmpfs /host/run
mkdir -p /host/run/home /host/run/tmp
ifconfig lo 127.0.0.1 up
echo 0 > /proc/sys/kernel/printk
chroot /host /usr/bin/env -i {variables} /bin/sh -c 'cd {root} && {command}'
echo "VM-TEST-EXIT $?"
sync
poweroff -f
"""


def main() -> int:
    """Boot each kernel that was asked for; 0 if all tests passed on all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="*", default=list(KERNELS), metavar="kernel")
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--cache", type=Path, default=ROOT / ".venv-vm")
    parser.add_argument("--kvm", action="store_true", help="use the processor's virtualisation")
    parser.add_argument("--minutes", type=int, default=60, help="at most, for each kernel")
    asked = parser.parse_args()
    if unknown := set(asked.kernels) - set(KERNELS):
        parser.error(f"no kernel {', '.join(unknown)}; there are {', '.join(KERNELS)}")
    problem = missing()
    if problem is not None:
        parser.error(problem)
    failed = []
    for name in asked.kernels:
        kernel = KERNELS[name]
        print(
            f"== {name}: Linux of {kernel.suite}, Landlock {kernel.landlock or 'off'}", flush=True
        )
        image, modules = unpack_kernel(kernel.suite, asked.cache.resolve())
        disk = asked.cache.resolve() / f"{name}.cpio"
        disk.write_bytes(initial_files(asked.cache.resolve(), modules, kernel, asked.tests))
        code = boot(image, disk, kernel, kvm=asked.kvm, seconds=60 * asked.minutes)
        if code != 0:
            failed.append(name)
            print(f"== {name}: failed with {code}", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all passed", flush=True)
    return 1 if failed else 0


def missing() -> str | None:
    """What this machine lacks, after installing QEMU where that is possible."""
    problem = missing_for_debian()
    if problem is not None:
        return problem
    if shutil.which(QEMU) is None and os.geteuid() == 0:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "qemu-system-x86"]
        subprocess.run(install, check=True)  # noqa: S603  # our own words
    return None if shutil.which(QEMU) else f"{QEMU} is missing: apt-get install qemu-system-x86"


def unpack_kernel(suite: str, cache: Path) -> tuple[Path, Path]:
    """The kernel's image and the folder of its modules, from Debian's packages of a suite."""
    folder = cache / suite
    if not (folder / "complete").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        lists_of(suite, folder)
        unpack(folder, [*kernel_packages(folder, suite), "busybox-static"])
        (folder / "complete").touch()
    files = folder / "files"
    image = next(path for path in files.rglob("vmlinuz*") if path.is_file())
    modules = next(
        path.parent for path in files.rglob("kernel") if path.parent.parent.name == "modules"
    )
    return image, modules


def kernel_packages(folder: Path, suite: str) -> list[str]:
    """Packages that hold a suite's kernel: what its newest image package leads to."""
    found: set[str] = set()
    waiting = ["linux-image-amd64"]
    while waiting:
        shown = apt(folder, "--no-all-versions", "show", waiting.pop(), program="apt-cache")
        depends = re.search(r"^Depends: (.*)$", shown, re.MULTILINE)
        for each_found in re.findall(
            r"\blinux-(?:image|binary|modules)-\d[\w.+~-]+", depends[1] if depends else ""
        ):
            if each_found not in found:
                found.add(each_found)
                waiting.append(each_found)
    return sorted(found)


def initial_files(cache: Path, modules: Path, kernel: Kernel, tests: list[str]) -> bytes:
    """The first file system: busybox, the modules that reach this machine's files, and init."""
    busybox = next((cache / kernel.suite / "files").rglob("bin/busybox"))
    order = list(in_order(modules, MODULES))
    variables = {
        "HOME": "/run/home",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SEALTRAIN_EXPECTED_LANDLOCK": str(kernel.landlock),
        "TMPDIR": "/run/tmp",
    }
    flags = "-q --color=no -rs -p no:cacheprovider -o timeout=1200"
    command = f"{sys.executable} -m pytest {flags} {' '.join(tests)}"
    init = INIT.format(
        variables=" ".join(f"{name}={value}" for name, value in variables.items()),
        root=ROOT,
        command=command,
    )
    files = {
        "init": init.encode(),
        "bin/busybox": busybox.read_bytes(),
        "modules/order": "\n".join(path.name.split(".")[0] for path in order).encode(),
        **{f"modules/{path.name.split('.')[0]}.ko": plain(path) for path in order},
    }
    folders = ["bin", "dev", "modules", "proc", "host", "sys"]
    entries = [entry(name, b"", 0o40755, number) for number, name in enumerate(folders, 1)]
    entries += [
        entry(name, data, 0o100755, number)
        for number, (name, data) in enumerate(files.items(), 100)
    ]
    return b"".join([*entries, entry("TRAILER!!!", b"", 0, 0)])


def in_order(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Files of modules, each after those that it depends on, as each says itself."""
    there = {path.name.split(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}
    seen: set[str] = set()

    def visit(name: str) -> Iterator[Path]:
        path = there.get(name.replace("-", "_"))
        if name in seen or path is None:  # built in
            return
        seen.add(name)
        depends = re.search(rb"\0depends=([^\0]*)", plain(path))
        for other in depends[1].decode().split(",") if depends else []:
            yield from visit(other)
        yield path

    for name in names:
        yield from visit(name)


def plain(path: Path) -> bytes:
    """A module's bytes; Debian compresses them."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def entry(name: str, data: bytes, mode: int, number: int) -> bytes:
    """One file of an archive in cpio's newc format."""
    named = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(named), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + named
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def boot(image: Path, disk: Path, kernel: Kernel, *, kvm: bool, seconds: int) -> int:
    """Boot, print what is said, and return the exit status of the tests."""
    command = [
        QEMU, "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot",
        "-m", "4096", "-smp", "2", "-nic", "none",
        "-accel", "kvm" if kvm else "tcg,thread=multi", "-cpu", "host" if kvm else "max",
        "-kernel", str(image), "-initrd", str(disk),
        "-append", f"console=ttyS0 quiet panic=-1 {kernel.words}".strip(),
        "-virtfs", f"{HOST_FILES},mount_tag=host,security_model=none,multidevs=remap",
    ]  # fmt: skip
    with subprocess.Popen(  # noqa: S603  # our own words
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as machine:
        assert machine.stdout is not None
        code = 124
        limit = threading.Timer(seconds, machine.kill)
        limit.start()
        try:
            for line in machine.stdout:
                print(line, end="", flush=True)
                if (ended := ENDED.search(line)) is not None:
                    code = int(ended[1])
        finally:
            limit.cancel()
            machine.kill()
    return code


if __name__ == "__main__":
    sys.exit(main())
