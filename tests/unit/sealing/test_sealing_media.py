"""Folders and tar files of images as records: bytes unchanged, labels and columns as written."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from image_world import encoded, picture, png, tar
from sealing_world import CANARY, sealed_folder

from sealtrain.errors import DataInvalid, FormatUnknown, LimitExceeded, UsageError
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.sourcefiles import source_files
from sealtrain.sealing.tabular import media, webdataset
from sealtrain.sealing.tabular.batches import open_records


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def of_folder(folder: Path) -> pa.Table:
    files = [path for _, path in source_files(folder) if isinstance(path, Path)]
    schema, batches = open_records(files, lambda _: None, form="images", folder=folder)
    return pa.Table.from_batches(batches, schema=schema)


def of_tars(*paths: Path) -> pa.Table:
    schema, batches = open_records(paths, lambda _: None, form="webdataset")
    return pa.Table.from_batches(batches, schema=schema)


KINDS = {
    "a.png": png(1),
    "b.JPG": encoded(picture(2), "JPEG"),
    "c.webp": encoded(picture(3), "WEBP", lossless=True),
}


def test_sub_folders_are_labels_and_images_keep_their_bytes(tmp_path: Path) -> None:
    table = of_folder(
        write(tmp_path, {f"cat/{n}": d for n, d in KINDS.items()} | {"dog/d.png": png(4)})
    )
    assert table.schema == pa.schema([("image", pa.binary()), ("label", pa.string())])
    assert table.to_pylist() == [
        *({"image": data, "label": "cat"} for data in KINDS.values()),
        {"image": png(4), "label": "dog"},
    ]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    assert of_folder(write(tmp_path, dict(KINDS))).column_names == ["image"]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_metadata_names_images_and_adds_columns(form: str, tmp_path: Path) -> None:
    rows = [
        {"file_name": "deep/er/b.png", "prompt": "what?", "score": 2},
        {"file_name": "a.png", "prompt": "and, now?", "score": 3},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if form == "csv":
        lines = 'file_name,prompt,score\ndeep/er/b.png,what?,2\na.png,"and, now?",3\n'
    folder = {"a.png": png(1), "deep/er/b.png": png(2), f"metadata.{form}": lines}
    assert of_folder(write(tmp_path, folder)).to_pylist() == [
        {"image": png(2), "prompt": "what?", "score": 2},
        {"image": png(1), "prompt": "and, now?", "score": 3},
    ]


NAMED = '{"file_name": "a.png"}\n'
TWO_IMAGES = '{"file_name": "a.png", "image": 1}\n'


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"cat/a.png": png(), "b.png": png()}, SchemaMismatch),
        ({"cat/deep/a.png": png()}, SchemaMismatch),
        ({"cat/a.png": png(), "cat/notes.txt": "x"}, FormatUnknown),
        ({"cat/.hidden": "x", "cat/a.png": png()}, FormatUnknown),
        ({"cat/DS_Store": "x", "cat/a.png": png()}, FormatUnknown),
        ({"cat/Thumbs.db.png": "x", "cat/a.png": png()}, RecordInvalid),
        ({"cat/._notes.txt": "not AppleDouble", "cat/a.png": png()}, FormatUnknown),
        ({"cat/._a.png": b"\x00\x05\x16", "cat/a.png": png()}, RecordInvalid),
        ({"cat/a.png": encoded(picture(), "JPEG")}, RecordInvalid),
        ({"cat/a.jpg": b""}, RecordInvalid),
        ({"cat/a.webp": b"RIFF    WAVE"}, RecordInvalid),
        ({"a.png": png(), "b.png": png(), "metadata.jsonl": NAMED}, RecordInvalid),
        ({"a.png": png(), "metadata.jsonl": NAMED * 2}, RecordInvalid),
        ({"a.png": png(), "metadata.jsonl": '{"file_name": "../a.png"}\n'}, RecordInvalid),
        ({"a.png": png(), "metadata.jsonl": '{"name": "a.png"}\n'}, SchemaMismatch),
        (
            {"a.png": png(), "metadata.jsonl": TWO_IMAGES},
            SchemaMismatch,
        ),
        ({"a.png": png(), "metadata.jsonl": NAMED, "metadata.csv": "file_name\n"}, SchemaMismatch),
    ],
)
def test_what_a_folder_of_images_may_not_hold(
    files: dict[str, bytes | str], error: type[DataInvalid], tmp_path: Path
) -> None:
    with pytest.raises(error):
        of_folder(write(tmp_path, files))


def test_files_of_one_key_make_one_record(tmp_path: Path) -> None:
    files = [
        ("s/0001.jpg", KINDS["b.JPG"]),
        ("s/0001.cls", b"7\n"),
        ("s/0001.txt", "a näme".encode()),
        ("s/0001.json", json.dumps({"age": 3, "tags": ["x", "\u2028"]}, indent=2).encode()),
        ("s/0002.json", b'{"age": 4, "new": 0.5}'),
        ("s/0002.png", png(2)),
        ("s/0002.left.png", png(3)),
        ("s/0003.CLS", b"-1"),
    ]
    assert of_tars(tar(tmp_path / "a.tar", files)).to_pylist() == [
        {"image": KINDS["b.JPG"], "label": 7, "left": None, "text": "a näme", "age": 3}
        | {"tags": ["x", "\u2028"], "new": None},
        {"image": png(2), "label": None, "left": png(3), "text": None, "age": 4}
        | {"tags": None, "new": 0.5},
        {"image": None, "label": -1, "left": None, "text": None, "age": None}
        | {"tags": None, "new": None},
    ]


def test_records_come_out_alike_whatever_the_size_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[tuple[str, bytes]] = []
    for number in range(40):
        files.append((f"{number:03}.png", png(number)))
        if number % 3:
            files.append((f"{number:03}.json", json.dumps({"n": number}).encode()))
        if number > 20:
            files.append((f"{number:03}.txt", b"late"))
    path = tar(tmp_path / "a.tar", files)
    whole = of_tars(path)
    monkeypatch.setattr(webdataset, "STEP_BYTES", 500)
    assert of_tars(path).to_pylist() == whole.to_pylist()
    assert whole.num_rows == 40


@pytest.mark.claim("C629")
def test_keys_have_dots_where_their_owner_says_so(tmp_path: Path) -> None:
    members = [("a/scan.0.5.png", png(1)), ("a/scan.0.5.cls", b"1"), ("a/scan.0.6.png", png(2))]
    members += [("a/scan.0.6.cls", b"0"), ("a/b.png", png(3)), ("a/b.cls", b"1")]
    path = tar(tmp_path / "a.tar", members)
    schema, batches = open_records([path], lambda _: None, form="webdataset-dots")
    assert pa.Table.from_batches(batches, schema=schema).to_pylist() == [
        {"image": png(number), "label": label} for number, label in ((1, 1), (2, 0), (3, 1))
    ]
    with pytest.raises(DataInvalid):
        of_tars(path)


def test_several_archives_make_one_dataset(tmp_path: Path) -> None:
    one = tar(tmp_path / "1.tar", [("a.png", png(1)), ("a.cls", b"1")])
    two = tar(tmp_path / "2.tar", [("a.png", png(2)), ("a.txt", b"t")])
    assert of_tars(one, two).to_pylist() == [
        {"image": png(1), "label": 1, "text": None},
        {"image": png(2), "label": None, "text": "t"},
    ]


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ([("a.bin", b"x")], RecordInvalid),
        ([("a", b"x")], RecordInvalid),
        ([("a.cls", b"one")], RecordInvalid),
        ([("a.cls", "\u0661".encode())], RecordInvalid),
        ([("a.cls", b"9" * 19)], RecordInvalid),
        ([("a.txt", b"\xff")], RecordInvalid),
        ([("a.json", b"[1]")], RecordInvalid),
        ([("a.json", b'{"a": "x\ny"}')], RecordInvalid),
        ([("a.json", b'{"a": 99999999999999999999}')], RecordInvalid),
        ([("a.json", b'{"a": 1}'), ("b.json", b'{"a": "x"}')], DataInvalid),
        ([("a.json", b'{"text": 1}'), ("a.txt", b"x")], SchemaMismatch),
        ([("a.x.png", png()), ("b.x.txt", b"x")], SchemaMismatch),
        ([("a.png", encoded(picture(), "JPEG"))], RecordInvalid),
    ],
)
def test_what_a_record_of_an_archive_may_not_hold(
    files: list[tuple[str, bytes]], error: type[DataInvalid], tmp_path: Path
) -> None:
    with pytest.raises(error):
        of_tars(tar(tmp_path / "a.tar", files))


def test_large_files_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MAX_MEDIA_BYTES", 100)
    monkeypatch.setattr(webdataset, "MAX_TEXT_BYTES", 100)
    with pytest.raises(LimitExceeded):
        of_folder(write(tmp_path / "f", {"x/a.png": png(1, 64, 64)}))
    for name, data in (("a.png", png(1, 64, 64)), ("a.txt", b"x" * 101)):
        with pytest.raises(LimitExceeded):
            of_tars(tar(tmp_path / "a.tar", [(name, data)]))


def test_only_uncompressed_archives_are_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as target:
        target.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(RecordInvalid, match="member 0"):
        of_tars(tmp_path / "a.tar")
    with pytest.raises(FormatUnknown):
        of_tars(write(tmp_path, {"a.tar.gz": b"x"}) / "a.tar.gz")


def sealed_rows(source: Path, out: Path, form: str) -> list[dict[str, Any]]:
    opened = sealed_folder(source, out, form=form).open()
    return [row for n in range(len(opened.batch_rows)) for row in opened.batch(n).to_pylist()]


def test_sealed_images_come_back_as_they_were(tmp_path: Path) -> None:
    folder = write(tmp_path / "f", {f"{n % 3}/{n:03}.png": png(n, 40, 40) for n in range(60)})
    rows = sealed_rows(folder, tmp_path / "f.sealed", "images")
    assert rows == of_folder(folder).to_pylist()
    archives = tmp_path / "tars"
    archives.mkdir()
    for part in range(2):
        tar(archives / f"{part}.tar", [(f"{n}.png", png(n)) for n in range(part * 9, part * 9 + 9)])
    rows = sealed_rows(archives, tmp_path / "t.sealed", "webdataset")
    assert [row["image"] for row in rows] == [png(n) for n in range(18)]


@pytest.mark.parametrize(
    ("form", "layout"), [("images", "raw"), ("webdataset", "raw"), ("zip", "auto")]
)
def test_formats_and_layouts_that_exclude_each_other(
    form: str, layout: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "f", {"a/a.png": png()})
    with pytest.raises(UsageError):
        sealed_folder(folder, tmp_path / "out", form=form, layout=layout)


def test_one_image_is_no_folder_of_images(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        sealed_folder(write(tmp_path, {"a.png": png()}) / "a.png", tmp_path / "o", form="images")


@pytest.mark.parametrize("form", ["images", "webdataset"])
def test_memory_stays_at_a_few_batches(form: str, tmp_path: Path) -> None:
    large = b"\x89PNG\r\n\x1a\n" + bytes(1 << 20)  # not decoded here, so it need not be whole
    names = [f"{number:03}.png" for number in range(48)]
    if form == "images":
        folder = write(tmp_path / "f", dict.fromkeys(names, large))
        files = sorted(folder.iterdir())
    else:
        folder, files = tmp_path, [tar(tmp_path / "a.tar", [(name, large) for name in names])]
    before = pa.total_allocated_bytes()
    most = rows = 0
    tracemalloc.start()
    _, batches = open_records(files, lambda _: None, form=form, folder=folder)
    for batch in batches:
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
        del batch
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 48
    assert peak + most < 24 << 20


def test_a_refusal_names_the_member_and_never_its_content(tmp_path: Path) -> None:
    files = [("a.txt", b"fine"), ("b.cls", CANARY.encode())]
    with pytest.raises(RecordInvalid, match="member 2") as caught:
        of_tars(tar(tmp_path / "a.tar", files))
    assert CANARY not in repr(vars(caught.value)) + str(caught.value)


def test_a_key_that_comes_back_is_told_by_its_records(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    names = ("0.txt", "1.txt", "2.txt", "1.cls")
    with tarfile.open(path, "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"1"))
    with pytest.raises(RecordInvalid, check=carries(check="archive")) as caught:
        webdataset.infer_schema(path)
    assert "record 4 " in str(caught.value)
    assert "record 2," in str(caught.value)


@pytest.mark.parametrize("name", ["._1.png", "1.npy", "1.cls", "1.json"])
def test_an_owner_is_told_how_to_see_which_member_is_meant(tmp_path: Path, name: str) -> None:
    path = tmp_path / "my scans.tar"
    with tarfile.open(path, "w") as archive:
        for place in ("0.txt", name):
            member = tarfile.TarInfo(place)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(RecordInvalid) as caught:
        webdataset.infer_schema(path)
    command = str(caught.value.hint).partition("its name: ")[2]
    shown = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == name
