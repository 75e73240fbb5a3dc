"""Enclave image files, against vectors of an independent generator."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sealtrain.errors import ImageRefused
from sealtrain.image.machine.enclavebuild import EnclaveParts, build_enclave
from sealtrain.image.machine.enclavefile import measure_enclave

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "image" / "enclave.json").read_text("utf-8")
)
MADE = {case["name"]: case for case in VECTORS["cases"] if case["outcome"] == "ok"}
REFUSED = {case["name"]: case for case in VECTORS["cases"] if case["outcome"] != "ok"}

pytestmark = pytest.mark.claim("C670")


@pytest.mark.parametrize("name", MADE)
def test_an_image_a_kernel_and_modules_give_one_file(name: str, tmp_path: Path) -> None:
    case = MADE[name]
    for path, data in case["layout"].items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data))
    parts = EnclaveParts(
        kernel=base64.b64decode(case["kernel"]),
        modules={module: base64.b64decode(data) for module, data in case["modules"]},
        processors=case["processors"],
        memory_mib=case["memory_mib"],
    )
    into = io.BytesIO()
    built = build_enclave(tmp_path, parts, into)
    data = into.getvalue()
    assert (built.image, built.size) == (case["image"], len(data))
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (case["eif_sha256"], case["eif_bytes"])
    assert measure_enclave(data) == {number: case[f"pcr{number}"] for number in (0, 1, 2)}


@pytest.mark.negative(105)
@pytest.mark.parametrize("name", REFUSED)
def test_another_file_is_refused(name: str) -> None:
    with pytest.raises(ImageRefused) as caught:
        measure_enclave(base64.b64decode(REFUSED[name]["eif"]))
    assert (caught.value.code, caught.value.check) == (REFUSED[name]["outcome"], "EIF")


def test_the_generator_still_writes_these_vectors(repository: Path, tmp_path: Path) -> None:
    generator = repository / "tools" / "vectorgen" / "enclave.py"
    subprocess.run([sys.executable, generator, tmp_path], check=True)
    made = (tmp_path / "enclave.json").read_bytes()
    assert made == (repository / "vectors/image/enclave.json").read_bytes()
