"""Boot enclave image files of this source in QEMU, with their parent: half an hour.

    make enclave-boot
    python tools/enclave/boot.py [--cache FOLDER]

Fetches what the test needs into the cache, once: Debian's kernel with its modules (``kernel.py``),
QEMU 11 from Debian 13's backports with all libraries that it loads (nothing is installed), and the
images ``broker`` and ``guest-cpu`` of this source, built each time; and QEMU's source, of which
one file reads enclave images. Then it plays the nightly tests of enclaves. Needs Debian 12 on
x86-64, a network and 10 GB of memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "debian"))

from archive import apt, lists_of, missing_for_debian  # noqa: E402
from kernel import PINS, load_pins, make, missing  # noqa: E402

QEMU_SUITE = "trixie-backports"
SOURCE_SUITE = "trixie"
TESTS = (
    "tests/integration/test_enclave_oracle.py",
    "tests/integration/test_enclave_boots.py",
    "tests/integration/test_enclave_trains.py",
)
IMAGES = ("broker", "guest-cpu")


def main() -> int:
    """Prepare, and play the test; its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=ROOT / ".venv-vm" / "enclave")
    cache: Path = parser.parse_args().cache.resolve()
    if (problem := missing() or missing_for_debian()) is not None:
        parser.error(problem)
    cache.mkdir(parents=True, exist_ok=True)
    packages = cache / "packages"
    packages.mkdir(exist_ok=True)
    kernel(cache / "kernel", packages)
    qemu(cache / QEMU_SUITE)
    oracle(cache / "qemu-source")
    for image in IMAGES:
        out: tuple[str | Path, ...] = ("--out", cache / "images", "--cache", packages)
        run(ROOT / "tools/images/build.py", image, *out)
    environment = {**os.environ, "SEALTRAIN_ENCLAVE": str(cache)}
    flags = ["-q", "-n", "0", "-s", "-m", "nightly"]
    return subprocess.call([sys.executable, "-m", "pytest", *flags, *TESTS], env=environment)  # noqa: S603


def kernel(folder: Path, packages: Path) -> None:
    """Kernel and modules, from packages that the cache keeps; made again for other pins."""
    made_of, pins = folder / PINS.name, PINS.read_bytes()
    if not made_of.is_file() or made_of.read_bytes() != pins:
        folder.mkdir(exist_ok=True)
        for name, data in make(load_pins(), packages).items():
            (folder / name).write_bytes(data)
        made_of.write_bytes(pins)


def qemu(folder: Path) -> None:
    """QEMU and its libraries, in ``files`` below a folder that is named as its suite."""
    if (folder / "complete").is_file():
        return
    if not (folder / "lists").is_dir():
        lists_of(QEMU_SUITE, folder)
    status = folder / "status"
    status.write_text("")  # as on a machine where nothing is installed: every library comes along
    apt(
        folder,
        *("install", "--download-only", "-y", "-qq", "--no-install-recommends"),
        *("-o", f"Dir::State::status={status}", "qemu-system-x86"),
    )
    for package in sorted((folder / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, folder / "files"], check=True)  # noqa: S603, S607
        package.unlink()
    (folder / "complete").touch()


def oracle(folder: Path) -> None:
    """QEMU's reader of enclave images, out of Debian's source package."""
    if any(folder.glob("**/hw/core/eif.c")):
        return
    here = folder / SOURCE_SUITE
    if not (here / "lists").is_dir():
        lists_of(SOURCE_SUITE, here, kind="deb-src")
    apt(here, "source", "--download-only", "-qq", "qemu")
    (packed,) = here.glob("qemu_*.orig.tar.*")
    wanted = ("--wildcards", "--no-anchored", "hw/core/eif.c")
    subprocess.run(["tar", "-xf", packed, "-C", folder, *wanted], check=True)  # noqa: S603, S607
    packed.unlink()


def run(*words: str | Path) -> None:
    """Run a program of this source."""
    subprocess.run([sys.executable, *words], check=True)  # noqa: S603  # our own words


if __name__ == "__main__":
    sys.exit(main())
