"""Enclave image files as QEMU's own reader reads them: its code, compiled around by a test.

``make enclave-boot`` fetches the source from Debian; without it the test is skipped.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from boot_files import enclave

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.enclavebuild import KERNEL_WORDS, EnclaveParts, build_enclave
from sealtrain.image.machine.enclavefile import measure_enclave

pytestmark = [pytest.mark.nightly, pytest.mark.needs("compiler"), pytest.mark.claim("C670")]

ROOT = Path(__file__).parents[2]
CACHE = os.environ.get("SEALTRAIN_ENCLAVE")
HEADERS = (
    "qemu/osdep.h", "qemu/bswap.h", "qapi/error.h", "crypto/hash.h", "crypto/x509-utils.h",
    "zlib.h", "cbor.h", "hw/core/eif.h",
)  # fmt: skip
VECTORS = json.loads((ROOT / "vectors/image/enclave.json").read_text("utf-8"))["cases"]


class Oracle:
    """QEMU's reader as a program."""

    def __init__(self, source: Path, folder: Path) -> None:
        for name in HEADERS:
            (folder / "stubs" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "stubs" / name).touch()
        self._program, self._folder = folder / "oracle", folder
        subprocess.run(
            [
                *("gcc", "-w", "-O1", "-D_GNU_SOURCE", f"-I{folder / 'stubs'}"),
                *(f'-DEIF_C="{source}"', "-o", str(self._program)),
                str(ROOT / "tests/support/eif_oracle.c"),
            ],
            check=True,
        )

    def read(self, data: bytes) -> dict[int, str] | None:
        """PCR 0, 1 and 2 by what QEMU hashes; nothing where it refuses the file."""
        out = self._folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (out / "eif").write_bytes(data)
        done = subprocess.run(
            [self._program, out / "eif", out], capture_output=True, check=False, timeout=60
        )
        assert done.returncode in (0, 1), done.stderr
        if done.returncode:
            return None
        found = {}
        for number in range(3):
            inner = hashlib.sha384((out / str(number)).read_bytes()).digest()
            found[number] = hashlib.sha384(bytes(48) + inner).hexdigest()
        return found


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    found = [] if CACHE is None else sorted(Path(CACHE).glob("qemu-source/**/hw/core/eif.c"))
    if not found or shutil.which("gcc") is None:
        pytest.skip("QEMU's source or gcc is missing: make enclave-boot fetches the source")
    return Oracle(found[0], tmp_path_factory.mktemp("oracle"))


def ours(data: bytes) -> dict[int, str] | None:
    try:
        return measure_enclave(data)
    except ImageRefused:
        return None


@pytest.mark.parametrize("case", [case for case in VECTORS if case["outcome"] == "ok"])
def test_qemu_measures_what_was_written_alike(
    case: dict[str, object], oracle: Oracle, tmp_path: Path
) -> None:
    layout, modules = case["layout"], case["modules"]
    assert isinstance(layout, dict)
    assert isinstance(modules, list)
    for path, data in layout.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(base64.b64decode(data))
    into = io.BytesIO()
    kernel = base64.b64decode(str(case["kernel"]))
    named = {name: base64.b64decode(data) for name, data in modules}
    build_enclave(tmp_path, EnclaveParts(kernel=kernel, modules=named), into)
    found = oracle.read(into.getvalue())
    assert found is not None
    assert found == measure_enclave(into.getvalue())
    assert len(KERNEL_WORDS) < 2048


@pytest.mark.parametrize("case", [case for case in VECTORS if case["outcome"] != "ok"])
def test_what_is_refused_could_be_read_in_two_ways(case: dict[str, str], oracle: Oracle) -> None:
    """QEMU takes some of them; none of them is taken here."""
    data = base64.b64decode(case["eif"])
    oracle.read(data)
    assert ours(data) is None


def test_what_both_take_both_measure_alike(oracle: Oracle) -> None:
    """Files with changed bytes, their checksum mended."""
    chance = random.Random(39)  # noqa: S311  # the same bytes each night
    taken = 0
    for _ in range(400):
        made = bytearray(enclave(b"init" * chance.randrange(9), b"root" * chance.randrange(9)))
        for _ in range(chance.randrange(3)):
            made[chance.randrange(len(made))] = chance.randrange(256)
        if chance.random() < 0.8:
            made[544:548] = zlib.crc32(made[548:], zlib.crc32(made[:544])).to_bytes(4, "big")
        found = ours(bytes(made))
        if found is not None and (theirs := oracle.read(bytes(made))) is not None:
            taken += 1
            assert found == theirs
    assert taken > 50
