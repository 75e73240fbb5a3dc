"""Vectors of sealed files, made without sealtrain.

Writes ``vectors/sealed-file/{derive,files,seal,padding,roots,stanzas,commitments,schemas}.json``.
All inputs follow from labels, so a second run writes the same bytes, except for the HPKE messages
of ``stanzas.json``, which are kept if the file exists.
Run: ``python tools/vectorgen/sealed_file.py [FOLDER]``.

A file is a base of ``bases`` (base64 of zlib) and one edit ``[offset, bytes removed, base64 put
in]``. Each vector of ``files.json`` fails for one reason. ``released`` is the SHA-256 of the
plaintext that a reader may hand out, chunk by chunk from the start, before the refusal.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from pathlib import Path
from typing import Any

from sealed_format import CHUNK, Made, canonical, core_of, flip, seed, sha, stanza
from sealed_parts import (
    commitment_vectors,
    derive_vectors,
    padding_vectors,
    root_vectors,
    stanza_vectors,
)
from sealed_schemas import schema_vectors

RUN, CONSORTIUM = "e1" * 16, "e2" * 32
OUT = Path(__file__).resolve().parents[2] / "vectors" / "sealed-file"


def edit_of(base: bytes, file: bytes) -> tuple[int, int, bytes]:
    """What turns base into file: offset, bytes removed, bytes put in."""
    start = 0
    while start < min(len(base), len(file)) and base[start] == file[start]:
        start += 1
    end = 0
    while end < min(len(base), len(file)) - start and base[-1 - end] == file[-1 - end]:
        end += 1
    return start, len(base) - start - end, file[start : len(file) - end]


def file_vectors() -> dict[str, Any]:
    """Files that open and files that do not, one reason each."""
    key = seed("data key")
    vectors: list[dict[str, Any]] = []
    bases: dict[str, bytes] = {"nothing": b""}

    def add(
        comment: str,
        file: bytes,
        result: str,
        *,
        content: bytes = b"",
        released: bytes = b"",
        expect: dict[str, Any] | None = None,
        root: bytes | None = None,
        data_key: bytes = key,
    ) -> None:
        edits = {name: edit_of(base, file) for name, base in bases.items()}
        name = min(edits, key=lambda base: len(edits[base][2]))
        start, removed, put = edits[name]
        vectors.append(
            {
                "name": comment,
                "data_key": data_key.hex(),
                "context": expect,
                "root": None if root is None else root.hex(),
                "base": name,
                "edit": [start, removed, base64.b64encode(put).decode()],
                "outcome": result,
                "size": len(content) if result == "ok" else None,
                "released": sha(content if result == "ok" else released),
            }
        )

    small_content, long_content = seed("small", 50), seed("long", 3 * CHUNK + 5)
    stanzas = [stanza("5a"), stanza("6b", "recipe")]
    small = Made(small_content, key=key, core=core_of(), stanzas=stanzas)
    long = Made(long_content, key=key, core=core_of(), salt="long")
    bases |= {"small": small.file(), "long": long.file()}

    for suite in (1, 2):
        for size in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1):
            made = Made(seed("v", size), key=key, core=core_of(suite=suite))
            add(f"suite {suite}, {size} bytes", made.file(), "ok", content=made.content,
                expect=core_of(suite=suite), root=made.root())  # fmt: skip
    for policy in ("bucket", "fixed:20000"):
        made = Made(seed("p", 19_990), key=key, core=core_of(padding=policy))
        add(f"padding {policy}", made.file(), "ok", content=made.content, root=made.root())
    bound = core_of(kind="blob", name="checkpoint/model", binding={"step": 5, "run_id": "ab"})
    made = Made(small_content, key=key, core=bound)
    add("bound to run and step", made.file(), "ok", content=made.content, expect=bound)
    modelled = core_of(
        dataset_id=RUN, owner_id=CONSORTIUM, name="pooling/config.json", shard=1, kind="model",
        schema_digest="", binding={"files": 3},
    )  # fmt: skip
    made = Made(small_content, key=key, core=modelled, stanzas=stanzas)
    add("file of a model", made.file(), "ok", content=small_content, expect=modelled,
        root=made.root())  # fmt: skip
    for comment, member, value in (
        ("renamed", "name", "pooling/other.json"),
        ("of another run", "dataset_id", "e4" * 16),
        ("of another consortium", "owner_id", "e5" * 32),
        ("at another position", "shard", 0),
        ("of a model with fewer files", "binding", {"files": 2}),
        ("of a model of no known size", "binding", {}),
    ):
        add(f"file of a model, {comment}", made.file(), "wrong-context",
            expect=modelled | {member: value}, root=made.root())  # fmt: skip
    again = Made(small_content, key=key, core=modelled, stanzas=stanzas, salt="another recipient")
    add("file of a model, made by another recipient", again.file(), "root-mismatch",
        expect=modelled, root=made.root())  # fmt: skip
    add("two stanzas", small.file(), "ok", content=small_content)
    add("four chunks", long.file(), "ok", content=long_content, root=long.root())

    head, tail = len(small.header), len(small.file())
    core_at, stanza_at = 20, 16 + len(small.core) + 20
    file = small.file()
    add("no bytes", b"", "not-sealed")
    add("another magic", flip(file, 0), "not-sealed")
    add("another version", flip(file, 7), "not-sealed")
    add("ends inside the prefix", file[:12], "file-truncated")
    add("ends inside the core", file[:60], "file-truncated")
    add("core longer than 4096", file[:8] + (4097).to_bytes(4, "big") + file[12:], "limit-exceeded")
    add("stanzas longer than 256 KiB", file[:12] + (262_145).to_bytes(4, "big") + file[16:],
        "limit-exceeded")  # fmt: skip
    add("bit of the core", flip(file, core_at), "header-damaged")
    add("bit of a stanza", flip(file, stanza_at), "header-damaged")
    add("bit of the key check", flip(file, head - 64), "wrong-key")
    add("bit of the header MAC", flip(file, head - 1), "header-damaged")
    add("another data key", file, "wrong-key", data_key=seed("another key"))
    for comment, changed in (
        ("stanza dropped", stanzas[:1]),
        ("stanza added", [*stanzas, stanza("7c", "share")]),
        ("stanzas in another order", stanzas[::-1]),
    ):
        forged = small.make_header(canonical(changed))[:-32] + small.header[-32:]
        add(comment, small.file(header=forged), "header-damaged")
    spaced = json.dumps(stanzas).encode()
    add("stanzas not canonical, MAC right", small.file(header=small.make_header(spaced)),
        "header-damaged")  # fmt: skip
    twice = canonical([stanzas[0], stanzas[0]])
    add("one recipient twice, MAC right", small.file(header=small.make_header(twice)),
        "header-damaged")  # fmt: skip
    many = canonical([stanza(f"{n:02x}") for n in range(65)])
    add("65 stanzas, MAC right", small.file(header=small.make_header(many)), "limit-exceeded")
    for member, value in (
        ("shard", 1),
        ("name", "others"),
        ("dataset_id", "d2" * 16),
        ("suite", 2),
    ):
        add(f"genuine, but {member} differs", file, "wrong-context",
            expect=core_of(**{member: value}))  # fmt: skip
    add("unknown core member, MAC right", Made(small_content, key=key,
        core=core_of() | {"more": 1}).file(), "header-damaged")  # fmt: skip
    add("unknown padding policy, MAC right",
        Made(small_content, key=key, core=core_of(padding="fixed:0"), plain=small_content).file(),
        "header-damaged")  # fmt: skip
    add("unknown suite, MAC right",
        small_suite(key, small_content).file(), "header-damaged")  # fmt: skip

    add("ends after the header", file[:head], "file-truncated")
    add("ends inside the payload header", file[: head + 40], "file-truncated")
    add("last byte missing", file[:-1], "file-truncated")
    add("one byte appended", file + b"\0", "file-truncated")
    add("bit of the end mark", flip(file, tail - 1), "file-truncated")
    add("bit of the payload size", flip(file, tail - 41), "file-truncated")
    add("bit of the trailer MAC", flip(file, tail - 40), "header-damaged")
    add("bit of a group hash, no root", flip(file, tail - 80), "header-damaged")
    add("bit of a group hash, root", flip(file, tail - 80), "root-mismatch", root=small.root())
    add("bit of the salt, no root", flip(file, head), "header-damaged")
    add("bit of the salt, root", flip(file, head), "root-mismatch", root=small.root())
    add("another root", file, "root-mismatch", root=seed("another root"))
    again = Made(small_content, key=key, core=core_of(), salt="sealed again")
    add("sealed again, under the old root", again.file(), "root-mismatch", root=small.root())
    salted = Made(small_content, key=key, core=core_of())
    salted.first = flip(salted.first, 0)
    add("salt changed by the key holder, MACs right", salted.file(), "chunk-damaged")
    committed = Made(small_content, key=key, core=core_of())
    committed.first = flip(committed.first, 40)
    add("commitment changed by the key holder, MACs right", committed.file(), "chunk-damaged")

    chunks = long.chunks
    for place in range(4):
        bad = [*chunks[:place], flip(chunks[place], 3), *chunks[place + 1 :]]
        before = long_content[: place * CHUNK] if place < 3 else b""  # the last one is opened first
        add(
            f"bit of chunk {place}, no root",
            long.file(chunks=bad),
            "chunk-damaged",
            released=before,
        )
        add(f"bit of chunk {place}, root", long.file(chunks=bad), "root-mismatch", root=long.root())
        tag = [*chunks[:place], flip(chunks[place], -1), *chunks[place + 1 :]]
        add(f"bit of tag {place}, no root", long.file(chunks=tag), "chunk-damaged", released=before)
    swapped = [chunks[1], chunks[0], *chunks[2:]]
    add("chunks 0 and 1 swapped", long.file(chunks=swapped), "chunk-damaged")
    doubled = [chunks[0], chunks[0], *chunks[2:]]
    add("chunk 0 in place of 1", long.file(chunks=doubled), "chunk-damaged",
        released=long_content[:CHUNK])  # fmt: skip
    fewer = [chunks[0], *chunks[2:]]
    add("a chunk missing", long.file(chunks=fewer), "file-truncated")
    add("a chunk missing, trailer made to fit",
        long.file(chunks=fewer, trailer=long.trailer(fewer)),
        "chunk-damaged")  # fmt: skip
    full = chunks[:3]
    add("final chunk missing, trailer made to fit",
        long.file(chunks=full, trailer=long.trailer(full)),
        "file-truncated")  # fmt: skip
    sibling = Made(seed("sibling", len(long_content)), key=key, core=core_of(shard=1), salt="long")
    add("chunk of another file of the same key",
        long.file(chunks=[chunks[0], sibling.chunks[1], *chunks[2:]]), "chunk-damaged",
        released=long_content[:CHUNK])  # fmt: skip
    add("payload of another file of the same key",
        long.header + sibling.file()[len(sibling.header) :], "header-damaged")  # fmt: skip
    other = [long.aead.encrypt(long.nonce(0), seed("other", CHUNK), None), *chunks[1:]]
    add("content exchanged by the key holder, tags right, root", long.file(chunks=other),
        "root-mismatch", root=long.root())  # fmt: skip
    fixed = core_of(padding="fixed:100")
    for comment, plain in (
        ("length beyond the content", bytes(92) + (93).to_bytes(8, "big")),
        ("length that needs less padding", bytes(192) + (50).to_bytes(8, "big")),
        ("too short for a length", bytes(7)),
    ):
        add(f"padded, {comment}", Made(b"", key=key, core=fixed, plain=plain).file(),
            "data-invalid")  # fmt: skip
    packed = {
        name: base64.b64encode(zlib.compress(base, 9)).decode() for name, base in bases.items()
    }
    return {"bases": packed, "cases": vectors}


def seal_vectors() -> list[dict[str, Any]]:
    """Inputs of sealing and what must come out, around the edges of chunks and groups."""
    key, vectors = seed("seal"), []
    for suite in (1, 2):
        for size in (0, CHUNK, 64 * CHUNK - 1, 64 * CHUNK, 64 * CHUNK + 1, 200 * CHUNK + 9):
            for policy in ("none", "bucket"):
                core = core_of(suite=suite, padding=policy)
                made = Made(bytes(size), key=key, core=core, stanzas=[stanza("5a")])
                file = made.file()
                vectors.append(
                    {
                        "name": f"suite {suite}, padding {policy}, {size} zero bytes",
                        "data_key": key.hex(), "context": core,
                        "stanzas": [stanza("5a")], "salt": made.first[:24].hex(), "zeros": size,
                        "file_size": len(file), "file_sha256": sha(file), "root": made.root().hex(),
                    }
                )  # fmt: skip
    return vectors


def small_suite(key: bytes, content: bytes) -> Made:
    """A file that names suite 3 and uses SHA-256."""
    return Made(content, key=key, core=core_of(suite=3))


def main(out: Path) -> None:
    """Write every file of the family."""
    out.mkdir(parents=True, exist_ok=True)
    family: dict[str, dict[str, Any]] = {
        "derive": {"cases": derive_vectors()},
        "files": file_vectors(),
        "seal": {"cases": seal_vectors()},
        "padding": {"cases": padding_vectors()},
        "roots": root_vectors(),
        "commitments": {"cases": commitment_vectors()},
        "schemas": {"cases": schema_vectors()},
    }
    if not (out / "stanzas.json").exists():
        family["stanzas"] = {"cases": stanza_vectors()}
    for name, document in family.items():
        text = json.dumps({"version": 1} | document, indent=1, ensure_ascii=False)
        (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
