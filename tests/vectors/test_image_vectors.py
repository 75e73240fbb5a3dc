"""Layers of images, against vectors of an independent generator."""

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
from sealtrain.image.layer import LayerEntry, is_program, read_layer, write_layer
from sealtrain.image.pins import files_digest

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "image" / "image.json").read_text("utf-8")
)

LAYERS = {case["name"]: case for case in VECTORS["cases"] if case["outcome"] == "ok"}
REFUSED = {case["name"]: case for case in VECTORS["cases"] if case["outcome"] != "ok"}


def entry_of(told: dict[str, str]) -> tuple[LayerEntry, bytes]:
    content = base64.b64decode(told.get("content", ""))
    is_file = told["kind"] == "file"
    return LayerEntry(
        name=told["name"],
        kind=told["kind"],  # type: ignore[arg-type]
        mode=int(told["mode"], 8),
        size=len(content),
        target=told.get("target", ""),
        sha256=hashlib.sha256(content).hexdigest() if is_file else "",
        program=is_file and is_program(content),
    ), content


@pytest.mark.parametrize("name", LAYERS)
def test_entries_give_the_one_tar_and_come_out_of_it(name: str) -> None:
    told = LAYERS[name]
    entries = [entry_of(entry) for entry in told["entries"]]
    content = {entry.name: data for entry, data in entries}
    tar = io.BytesIO()
    diff_id = write_layer(
        reversed([entry for entry, _ in entries]), lambda one: io.BytesIO(content[one.name]), tar
    )
    data = tar.getvalue()
    assert (diff_id, len(data)) == (told["tar_sha256"], told["tar_bytes"])
    assert hashlib.sha256(data).hexdigest() == diff_id
    files = {entry.name: io.BytesIO() for entry, _ in entries if entry.kind == "file"}
    read = list(read_layer(io.BytesIO(data), diff_id, lambda entry: files.get(entry.name)))
    assert read == [entry for entry, _ in entries]
    assert {name: file.getvalue() for name, file in files.items()} == {
        name: content[name] for name in files
    }


@pytest.mark.parametrize("name", REFUSED)
def test_another_tar_is_refused(name: str) -> None:
    data = base64.b64decode(REFUSED[name]["tar"])
    diff_id = hashlib.sha256(data).hexdigest()
    with pytest.raises(ImageRefused) as caught:
        list(read_layer(io.BytesIO(data), diff_id, lambda _: None))
    assert caught.value.code == REFUSED[name]["outcome"]


def test_the_files_of_a_debian_package_have_their_digest() -> None:
    entries = {entry.name: entry for entry, _ in map(entry_of, VECTORS["files"]["entries"])}
    assert files_digest(entries) == VECTORS["files"]["files_sha256"]


def test_the_generator_still_writes_these_vectors(repository: Path, tmp_path: Path) -> None:
    generator = repository / "tools" / "vectorgen" / "image.py"
    subprocess.run([sys.executable, generator, tmp_path], check=True)
    made = (tmp_path / "image.json").read_bytes()
    assert made == (repository / "vectors/image/image.json").read_bytes()
