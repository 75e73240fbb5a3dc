"""Our own vectors of sealed files, made by ``tools/vectorgen/sealed_file.py`` without sealtrain."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sealtrain.base.canonical import canonical_json
from sealtrain.base.secret import Secret
from sealtrain.errors import SealtrainError
from sealtrain.sealing.arrowtypes import canonical_schema
from sealtrain.sealing.chunked import CHUNK_BYTES
from sealtrain.sealing.commitments import record_commitment
from sealtrain.sealing.datakey import DataKey
from sealtrain.sealing.description import ShardInfo, dataset_root
from sealtrain.sealing.errors import SchemaMismatch
from sealtrain.sealing.file import FileContext, Suite, open_file, seal_file
from sealtrain.sealing.hashtree import suite_hash, tree_top
from sealtrain.sealing.hpke import HpkePrivateKey
from sealtrain.sealing.index import schema_digest_of
from sealtrain.sealing.padding import padded_size
from sealtrain.sealing.stanza import (
    BrokerBinding,
    Stanza,
    unwrap_for_owner,
    unwrap_for_recipe,
    unwrap_share,
)

FAMILY = Path(__file__).resolve().parents[2] / "vectors" / "sealed-file"


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FAMILY / f"{name}.json").read_text())
    assert document["version"] == 1
    return document


def named(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def context_of(core: dict[str, Any]) -> FileContext:
    return FileContext(**(core | {"suite": Suite(core["suite"])}))


FILES = load("files")


@pytest.mark.parametrize("vector", FILES["cases"], ids=named)
def test_file(vector: dict[str, Any]) -> None:
    base = zlib.decompress(base64.b64decode(FILES["bases"][vector["base"]]))
    start, removed, put = vector["edit"]
    data = base[:start] + base64.b64decode(put) + base[start + removed :]
    key = DataKey(bytes.fromhex(vector["data_key"]))
    context = vector["context"] and context_of(vector["context"])
    released, result = b"", "ok"
    try:
        with open_file(io.BytesIO(data), key, context=context, root=vector["root"]) as file:
            assert vector["size"] in (None, file.size)
            for offset in range(0, file.size, CHUNK_BYTES):
                buffer = bytearray(min(CHUNK_BYTES, file.size - offset))
                file.pread_into(offset, buffer)
                released += buffer
    except SealtrainError as error:
        result = error.code
    assert result == vector["outcome"]
    assert hashlib.sha256(released).hexdigest() == vector["released"]


def test_every_refusal_of_the_spec_has_a_vector() -> None:
    assert {vector["outcome"] for vector in FILES["cases"]} == {
        "ok",
        "not-sealed",
        "file-truncated",
        "limit-exceeded",
        "wrong-key",
        "header-damaged",
        "wrong-context",
        "root-mismatch",
        "chunk-damaged",
        "data-invalid",
    }


@pytest.mark.parametrize("vector", load("seal")["cases"], ids=named)
def test_seal(vector: dict[str, Any]) -> None:
    target = io.BytesIO()
    info = seal_file(
        io.BytesIO(bytes(vector["zeros"])),
        target,
        data_key=DataKey(bytes.fromhex(vector["data_key"])),
        context=context_of(vector["context"]),
        stanzas=[Stanza.from_dict(stanza) for stanza in vector["stanzas"]],
        random=lambda _: bytes.fromhex(vector["salt"]),
    )
    assert info.root == vector["root"]
    assert info.size == vector["file_size"] == len(target.getvalue())
    assert hashlib.sha256(target.getvalue()).hexdigest() == vector["file_sha256"]


@pytest.mark.parametrize("vector", load("derive")["cases"], ids=lambda v: v["purpose"])
def test_derive(vector: dict[str, Any]) -> None:
    key = DataKey(bytes.fromhex(vector["key"]))
    assert key.derive(vector["purpose"], *vector["parts"]).reveal().hex() == vector["derived"]


def test_padding() -> None:
    for vector in load("padding")["cases"]:
        assert padded_size(vector["policy"], vector["content"]) == vector["plain"], vector


def test_tree_heads() -> None:
    for vector in load("roots")["cases"]["tops"]:
        leaves = [bytes.fromhex(leaf) for leaf in vector["leaves"]]
        assert tree_top(suite_hash(Suite(vector["suite"])), leaves).hex() == vector["top"]


def test_dataset_roots() -> None:
    for vector in load("roots")["cases"]["datasets"]:
        shards = [ShardInfo(**shard) for shard in vector["shards"]]
        assert dataset_root(vector["dataset_id"], vector["index_root"], shards) == vector["root"]


@pytest.mark.parametrize("vector", load("commitments")["cases"], ids=named)
def test_commitment(vector: dict[str, Any]) -> None:
    key = DataKey(bytes.fromhex(vector["data_key"]))
    made = record_commitment(key, vector["dataset_id"], vector["record"])
    assert made.hex() == vector["commitment"]


@pytest.mark.parametrize("vector", load("schemas")["cases"], ids=named)
def test_schema_digest(vector: dict[str, Any]) -> None:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(vector["message"])))
    if vector["digest"] is None:
        with pytest.raises(SchemaMismatch):
            schema_digest_of(schema)
        return
    assert canonical_json(canonical_schema(schema)).decode() == vector["form"]
    assert schema_digest_of(schema) == vector["digest"]


@pytest.mark.parametrize("vector", load("stanzas")["cases"], ids=named)
def test_stanza(vector: dict[str, Any]) -> None:
    private = HpkePrivateKey(Secret(bytes.fromhex(vector["seed"])))
    stanza, dataset_id = Stanza.from_dict(vector["stanza"]), vector["dataset_id"]
    content: Secret | None
    try:
        if stanza.kind == "share":
            content = unwrap_share(
                stanza,
                dataset_id=dataset_id,
                binding=BrokerBinding(**vector["binding"]),
                private=private,
            )
        elif vector["binding"]:
            content = unwrap_for_recipe(
                stanza,
                dataset_id=dataset_id,
                binding=BrokerBinding(**vector["binding"]),
                private=private,
            )
        else:
            content = unwrap_for_owner(
                stanza, dataset_id=dataset_id, owner_id=vector["owner_id"], private=private
            )
        result = "ok"
    except SealtrainError as error:
        content, result = None, error.code
    assert result == vector["outcome"]
    assert (content and content.reveal().hex()) == vector["content"]


def test_the_generator_makes_these_bytes_and_imports_nothing_of_ours(
    repository: Path, tmp_path: Path
) -> None:
    folder = repository / "tools" / "vectorgen"
    for source in folder.glob("sealed_*.py"):
        assert "import sealtrain" not in source.read_text()
        assert "from sealtrain" not in source.read_text()
    subprocess.run([sys.executable, str(folder / "sealed_file.py"), str(tmp_path)], check=True)
    for name in ("derive", "files", "seal", "padding", "roots", "commitments", "schemas"):
        assert (tmp_path / f"{name}.json").read_bytes() == (FAMILY / f"{name}.json").read_bytes()
    assert len(json.loads((tmp_path / "stanzas.json").read_text())["cases"]) == len(
        load("stanzas")["cases"]
    )
