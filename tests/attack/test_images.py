"""An operator who makes an image of their own: every byte in it has to be accounted for."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from carrying import carries
from container_world import ImageWorld, build, edited, file, make_image_world, rewritten, written

from sealtrain.errors import DataInvalid, ImageRefused
from sealtrain.image.account import account_for, verify_image
from sealtrain.image.layout import read_image
from sealtrain.image.packages import keeps

pytestmark = pytest.mark.claim("C126")

SITE = "usr/local/lib/python3.11/dist-packages"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ImageWorld:
    return make_image_world(tmp_path_factory.mktemp("image"))


@pytest.fixture
def world(made: ImageWorld, tmp_path: Path) -> ImageWorld:
    layout = tmp_path / "toy"
    shutil.copytree(made.layout, layout)
    return ImageWorld(made.source, layout, made.cache)


def verified(world: ImageWorld) -> None:
    verify_image(read_image(world.layout, keeps), world.source)


def test_the_image_of_the_source_is_accounted_for(world: ImageWorld) -> None:
    verified(world)


def test_a_registrys_compressed_image_is_accounted_for(world: ImageWorld) -> None:
    rewritten(world.layout, packed=True)
    verified(world)


def test_a_tar_of_the_layout_is_accounted_for(world: ImageWorld, tmp_path: Path) -> None:
    packed = tmp_path / "image.tar"
    with tarfile.open(packed, "w") as tar:
        tar.add(world.layout, arcname=".")
    verify_image(read_image(packed, keeps), world.source)


def only(number: int, edit: Callable[[bytes], bytes]) -> Callable[[list[bytes]], list[bytes]]:
    return lambda tars: [edit(tar) if at == number else tar for at, tar in enumerate(tars)]


def replaced(name: str, data: bytes) -> Callable[[bytes], bytes]:
    return lambda tar: edited(tar, lambda head, old: [(head, data if head.name == name else old)])


def added(head: tarfile.TarInfo, data: bytes = b"") -> Callable[[bytes], bytes]:
    def add(tar: bytes) -> bytes:
        found = [(head, data)]
        edited(tar, lambda one, old: found.append((one, old)) or [])
        return written(found)

    return add


def in_record(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    """A layer whose wheel has another ``RECORD``, made of its lines."""

    def edit(head: tarfile.TarInfo, old: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        of_wheel = head.name == f"{SITE}/toypackage-1.0.dist-info/RECORD"
        return [(head, b"".join(change(old.splitlines(keepends=True))) if of_wheel else old)]

    return lambda tar: edited(tar, edit)


def with_mode(name: str, mode: int) -> Callable[[bytes], bytes]:
    def edit(head: tarfile.TarInfo, old: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if head.name == name:
            assert head.mode != mode
            head.mode = mode
        return [(head, old)]

    return lambda tar: edited(tar, edit)


UNACCOUNTED_ROWS = (
    b"toypackage/__pycache__/__init__.cpython-311.pyc,sha256=AAAA,9\n",
    b"../../../../etc/cron.d/x,sha256=text-of-any-length,1\n",
    b"/etc/cron.d/x,sha256=AAAA,1\n",
    b"toypackage/unhashed.so,,\n",
    b"toypackage-1.0.dist-info/INSTALLER,sha256=AAAA,1\n",
    b"toypackage-1.0.dist-info/direct_url.json,sha256=AAAA,1\n",
    b"a row of one field\n",
    b"a,b,c,d\n",
    b"\n",
)


@pytest.mark.parametrize("row", UNACCOUNTED_ROWS)
@pytest.mark.parametrize("last", [False, True])
def test_a_row_of_nothing_in_the_image_is_refused(
    world: ImageWorld, row: bytes, last: bool
) -> None:
    change = in_record(lambda rows: [*rows, row] if last else [row, *rows])
    rewritten(world.layout, layers=only(1, change))
    with pytest.raises(ImageRefused, check=carries(check="files")):
        verified(world)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda rows: rows[::-1], id="order"),
        pytest.param(lambda rows: [rows[0], *rows], id="a row twice"),
        pytest.param(lambda rows: [row.rstrip(b"\n") + b"\r\n" for row in rows], id="line ends"),
        pytest.param(lambda rows: [row.replace(b",10\n", b",11\n") for row in rows], id="size"),
        pytest.param(lambda rows: [row.replace(b",10\n", b",\n") for row in rows], id="no size"),
        pytest.param(lambda rows: [b'"' + rows[0].replace(b",", b'",', 1), *rows[1:]], id="quotes"),
        pytest.param(lambda rows: rows[:-1], id="without its own row"),
        pytest.param(lambda rows: [b"./" + rows[0], *rows[1:]], id="another spelling"),
        pytest.param(lambda rows: [*rows[:-1], rows[-1].rstrip(b"\n")], id="no last line end"),
    ],
)
def test_a_record_has_one_form(
    world: ImageWorld, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    rewritten(world.layout, layers=only(1, in_record(change)))
    with pytest.raises(ImageRefused, check=carries(check="files")):
        verified(world)


@pytest.mark.parametrize(
    ("number", "name", "mode"),
    [
        (1, f"{SITE}/toypackage/__init__.py", 0o755),
        (1, f"{SITE}/toypackage/tool", 0o644),
        (1, f"{SITE}/toypackage/native.so", 0o644),
        (1, f"{SITE}/toypackage-1.0.dist-info/METADATA", 0o755),
        (1, f"{SITE}/toypackage-1.0.dist-info/RECORD", 0o755),
        (0, "var/lib/dpkg/status.d/python3.11-minimal.list", 0o755),
        (2, f"{SITE}/sealtrain/__init__.py", 0o755),
        (2, "usr/local/bin/sealtrain", 0o644),
        (2, "etc/passwd", 0o755),
    ],
)
def test_no_file_says_itself_whether_it_may_be_run(
    world: ImageWorld, number: int, name: str, mode: int
) -> None:
    rewritten(world.layout, layers=only(number, with_mode(name, mode)))
    with pytest.raises(ImageRefused, check=carries(check="files")):
        verified(world)


@pytest.mark.parametrize("name", ["usr/bin/python3.11", "var/lib/dpkg/status.d/python3.11-minimal"])
def test_the_pins_have_the_modes_of_debians_files(world: ImageWorld, name: str) -> None:
    mode = 0o644 if name.startswith("usr/bin") else 0o755
    rewritten(world.layout, layers=only(0, with_mode(name, mode)))
    with pytest.raises(ImageRefused, check=carries(check="debian")):
        verified(world)


def special(name: str, kind: bytes, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    head = tarfile.TarInfo(name)
    head.type, head.linkname, head.mode = kind, target, mode
    return head


@pytest.mark.parametrize(
    ("number", "change", "check"),
    [
        pytest.param(
            2, replaced(f"{SITE}/sealtrain/__init__.py", b"x = 1\n"), "files", id="own-code"
        ),
        pytest.param(
            2, replaced("usr/local/bin/sealtrain", b"#!/bin/sh\n"), "files", id="launcher"
        ),
        pytest.param(
            1, replaced(f"{SITE}/toypackage/__init__.py", b"VALUE = 2\n"), "wheels", id="wheel"
        ),
        pytest.param(0, replaced("usr/bin/python3.11", b"another"), "debian", id="interpreter"),
        pytest.param(
            0,
            replaced("var/lib/dpkg/status.d/python3.11-minimal.list", b"usr/bin/python3\n"),
            "debian",
            id="shorter-list",
        ),
        pytest.param(2, replaced("etc/passwd", b"root::0:0::/:/bin/sh\n"), "files", id="passwd"),
        pytest.param(2, added(*file(f"{SITE}/sealtrain/zz.py", b"")), "files", id="module-of-ours"),
        pytest.param(2, added(*file(f"{SITE}/zz.pth", b"import os")), "files", id="path-file"),
        pytest.param(
            2, added(*file(f"{SITE}/sealtrain/__pycache__/x.pyc", b"")), "layer", id="no-folder"
        ),
        pytest.param(2, added(*file("usr/local/bin/sh", b"", 0o755)), "files", id="shell"),
        pytest.param(2, added(*file("usr/bin/.wh.python3.11", b"")), "layer", id="whiteout"),
        pytest.param(2, added(*file("usr/bin/python3.11", b"")), "layer", id="written-over"),
        pytest.param(2, added(*file("tmp/../etc/shadow", b"")), "layer", id="way-out"),
        pytest.param(2, added(*file("/etc/shadow", b"")), "layer", id="absolute"),
        pytest.param(2, added(*file("usr/bin/su", b"", 0o4755)), "layer", id="setuid"),
        pytest.param(2, added(special("tmp/null", tarfile.CHRTYPE)), "layer", id="device"),
        pytest.param(2, added(special("tmp/pipe", tarfile.FIFOTYPE)), "layer", id="pipe"),
        pytest.param(
            2,
            added(special("tmp/hard", tarfile.LNKTYPE, "usr/bin/python3.11")),
            "layer",
            id="hard-link",
        ),
        pytest.param(
            2, added(special("tmp/link", tarfile.SYMTYPE, "/etc", 0o777)), "files", id="link"
        ),
        pytest.param(2, added(special("srv", tarfile.DIRTYPE, mode=0o755)), "files", id="folder"),
        pytest.param(
            2,
            added(special("usr/local/lib/open", tarfile.DIRTYPE, mode=0o1777)),
            "files",
            id="open-folder",
        ),
    ],
)
def test_one_change_in_a_layer_is_refused(
    number: int, change: Callable[[bytes], bytes], check: str, world: ImageWorld
) -> None:
    rewritten(world.layout, layers=only(number, change))
    with pytest.raises(ImageRefused, check=carries(check=check)):
        verified(world)


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lambda tar: tar + bytes(10240), id="zeros-behind"),
        pytest.param(lambda tar: tar + written([file("hidden", b"x")]), id="tar-behind"),
        pytest.param(
            lambda tar: (
                edited(tar, lambda head, data: [(head, data)], form=tarfile.PAX_FORMAT)
                + bytes(10240)
            ),
            id="another-end",
        ),
        pytest.param(lambda tar: edited(tar, lambda head, data: [(_aged(head), data)]), id="times"),
        pytest.param(
            lambda tar: edited(tar, lambda head, data: [(_owned(head), data)]), id="owners"
        ),
        pytest.param(lambda tar: edited(tar, lambda head, data: [(head, data)] * 2), id="twice"),
        pytest.param(lambda _: b"no tar", id="no-tar"),
        pytest.param(lambda tar: claiming(b"L", 8 << 30) + tar, id="long-name-of-8-GiB"),
        pytest.param(lambda tar: claiming(b"x", 8 << 30) + tar, id="attributes-of-8-GiB"),
        pytest.param(lambda tar: claiming(b"0", -1) + tar, id="less-than-nothing"),
        pytest.param(lambda tar: claiming(b"0", 8 << 30) + tar, id="file-that-is-not-there"),
        pytest.param(lambda tar: claiming(b"S", 512) + tar, id="sparse"),
        pytest.param(lambda tar: tar[:700], id="cut"),
        pytest.param(
            lambda tar: edited(
                tar,
                lambda head, data: [(_with_attribute(head), data)],
                form=tarfile.PAX_FORMAT,
            ),
            id="extended-attributes",
        ),
    ],
)
def test_a_layer_in_another_form_is_refused(
    forged: Callable[[bytes], bytes], world: ImageWorld
) -> None:
    rewritten(world.layout, layers=only(2, forged))
    with pytest.raises(ImageRefused):
        verified(world)


def claiming(kind: bytes, size: int) -> bytes:
    """A header alone, of any kind and size."""
    head = tarfile.TarInfo("a")
    head.type, head.size = kind, size
    return head.tobuf(tarfile.GNU_FORMAT)


def _aged(head: tarfile.TarInfo) -> tarfile.TarInfo:
    head.mtime = 1
    return head


def _owned(head: tarfile.TarInfo) -> tarfile.TarInfo:
    head.uid = 65532
    return head


def _with_attribute(head: tarfile.TarInfo) -> tarfile.TarInfo:
    head.pax_headers = {"SCHILY.xattr.security.capability": "all of them"}
    return head


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("Entrypoint", ["python3.11", "-c", "import os"]),
        ("Env", ["PATH=/tmp", "LD_PRELOAD=/tmp/x.so"]),
        ("User", "0:0"),
        ("WorkingDir", "/tmp"),  # noqa: S108  # a field of an image
        ("Cmd", ["x"]),
        ("OnBuild", ["RUN x"]),
        ("Healthcheck", {"Test": ["CMD", "x"]}),
        ("Volumes", {"/etc": {}}),
    ],
)
def test_an_image_that_starts_otherwise_is_refused(
    field: str, value: object, world: ImageWorld
) -> None:
    rewritten(world.layout, config=lambda runs: runs["config"].update({field: value}))
    with pytest.raises(ImageRefused, check=carries(check="config")):
        verified(world)


@pytest.mark.parametrize(
    ("manifest", "config"),
    [
        pytest.param(lambda told: told["annotations"].clear(), lambda _: None, id="nameless"),
        pytest.param(lambda told: told.update(extra=1), lambda _: None, id="field-of-manifest"),
        pytest.param(lambda told: told["layers"].pop(), lambda _: None, id="fewer-layers"),
        pytest.param(lambda told: told["layers"].reverse(), lambda _: None, id="swapped-layers"),
        pytest.param(
            lambda told: told["layers"][0].update(mediaType="application/zip"),
            lambda _: None,
            id="kind-of-layer",
        ),
        pytest.param(lambda _: None, lambda runs: runs.update(os="windows"), id="system"),
        pytest.param(lambda _: None, lambda runs: runs.update(history=[]), id="field-of-config"),
        pytest.param(
            lambda _: None, lambda runs: runs["rootfs"]["diff_ids"].reverse(), id="other-diff-ids"
        ),
    ],
)
def test_a_manifest_or_config_of_another_form_is_refused(
    manifest: Callable[[dict[str, object]], None],
    config: Callable[[dict[str, object]], None],
    world: ImageWorld,
) -> None:
    rewritten(world.layout, manifest=manifest, config=config)
    with pytest.raises(ImageRefused):
        verified(world)


def test_an_image_cannot_choose_a_recipe_that_the_owner_does_not_have(world: ImageWorld) -> None:
    for name in ("other", "../toy", "/etc", ""):
        rewritten(
            world.layout,
            manifest=lambda told, name=name: told["annotations"].update(
                {"org.opencontainers.image.title": name}
            ),
        )
        with pytest.raises(DataInvalid):
            verified(world)


def test_a_blob_with_one_other_byte_is_refused_wherever_it_is(world: ImageWorld) -> None:
    for blob in sorted((world.layout / "blobs/sha256").iterdir()):
        whole = blob.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            blob.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(ImageRefused):
                verified(world)
        blob.write_bytes(whole + b"x")
        with pytest.raises(ImageRefused):
            verified(world)
        blob.write_bytes(whole)
    verified(world)


def test_a_layout_that_lacks_a_file_is_refused(world: ImageWorld, tmp_path: Path) -> None:
    for blob in sorted((world.layout / "blobs/sha256").iterdir()):
        away = blob.rename(tmp_path / "away")
        with pytest.raises(ImageRefused, check=carries(check="blob")):
            verified(world)
        away.rename(blob)
    (world.layout / "index.json").unlink()
    with pytest.raises(DataInvalid):
        verified(world)


def test_two_images_in_one_layout_are_refused(world: ImageWorld) -> None:
    path = world.layout / "index.json"
    index = json.loads(path.read_bytes())
    index["manifests"] *= 2
    path.write_text(json.dumps(index))
    with pytest.raises(ImageRefused, check=carries(check="layout")):
        verified(world)


def test_a_source_with_one_other_byte_refuses_the_image(made: ImageWorld, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(made.source, source)
    (source / "src/sealtrain/__init__.py").write_text('"""other."""\n')
    account = account_for(read_image(made.layout, keeps), source)
    assert [finding.check for finding in account.findings] == ["files", "files"]  # and its RECORD
    with pytest.raises(ImageRefused):
        verify_image(read_image(made.layout, keeps), source)


def test_pins_of_another_interpreter_are_refused(made: ImageWorld, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(made.source, source)
    pins = source / "deploy/images/toy/pins.json"
    pins.write_bytes(pins.read_bytes().replace(b'"python": "3.11.2"', b'"python": "3.11.9"'))
    with pytest.raises(DataInvalid):
        account_for(read_image(made.layout, keeps), source)


def test_what_is_no_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no tar")
    hollow = io.BytesIO()
    tarfile.open(fileobj=hollow, mode="w").close()
    (tmp_path / "hollow.tar").write_bytes(hollow.getvalue())
    for name in ("empty", "text", "hollow.tar", "absent"):
        with pytest.raises(DataInvalid):
            read_image(tmp_path / name, keeps)


def packed_layout(layout: Path, form: int, **said: str) -> bytes:
    """A tar of a layout; ``said`` is in a PAX header before each file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for path in sorted(path for path in layout.rglob("*") if path.is_file()):
            head = tar.gettarinfo(path, path.relative_to(layout).as_posix())
            head.pax_headers = said
            with path.open("rb") as content:
                tar.addfile(head, content)
    return buffer.getvalue()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_of_the_layout_by_other_programs_is_read(
    world: ImageWorld, tmp_path: Path, form: int
) -> None:
    packed = tmp_path / "image.tar"
    packed.write_bytes(packed_layout(world.layout, form, comment="by bsdtar", mtime="1.5"))
    verify_image(read_image(packed, keeps), world.source)


@pytest.mark.parametrize("kind", [b"x", b"g", b"X", b"L", b"K"])
def test_a_header_before_the_layout_asks_for_no_memory(
    world: ImageWorld, tmp_path: Path, kind: bytes
) -> None:
    """The tar holds, as a hole of the file system, all that its header says."""
    packed = tmp_path / "image.tar"
    size = 1 << 30
    with packed.open("wb") as file:
        file.write(claiming(kind, size))
        file.seek(size, os.SEEK_CUR)
        file.write(packed_layout(world.layout, tarfile.GNU_FORMAT))
    tracemalloc.start()
    try:
        with pytest.raises(DataInvalid):
            read_image(packed, keeps)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"5"])
@pytest.mark.parametrize("size", [0, 512])
def test_headers_without_end_are_refused(tmp_path: Path, kind: bytes, size: int) -> None:
    block = claiming(kind, size) + b"12 a=bcdefg\n".ljust(size, b"\0")[:size]
    packed = tmp_path / "image.tar"
    packed.write_bytes(20_000 * block)
    with pytest.raises(DataInvalid):
        read_image(packed, keeps)


@pytest.mark.parametrize(
    "header",
    [
        b"9999 size=1\n",
        b"0 size=1\n",
        b"size=1\n",
        b"10 size=x\n",
        b"11 size=-1\n",
        b"25 size=1000000000000000\n",
        b"9" * 400,
        b"\xff" * 40,
    ],
)
def test_a_header_that_contradicts_itself_ends_in_the_image_or_a_refusal(
    world: ImageWorld, tmp_path: Path, header: bytes
) -> None:
    packed = tmp_path / "image.tar"
    layout = packed_layout(world.layout, tarfile.GNU_FORMAT)
    packed.write_bytes(claiming(b"x", len(header)) + header.ljust(512, b"\0") + layout)
    with suppress(DataInvalid, ImageRefused):
        verify_image(read_image(packed, keeps), world.source)


def test_the_same_source_gives_the_same_digest_at_another_place_and_time(
    made: ImageWorld, tmp_path: Path
) -> None:
    source = tmp_path / "elsewhere"
    shutil.copytree(made.source, source, copy_function=shutil.copyfile)  # with times of its own
    again = ImageWorld(source, tmp_path / "images/toy", made.cache)
    assert build(again) == read_image(made.layout, keeps).digest
    first = made.layout.parent
    for name in ("toy.cdx.json", "toy.provenance.json"):
        assert (again.layout.parent / name).read_bytes() == (first / name).read_bytes()


def test_the_command_line_says_what_differs_and_exits_3(world: ImageWorld) -> None:
    program = [sys.executable, "-m", "sealtrain", "image"]
    words = [world.layout, "--source", world.source]
    good = subprocess.run([*program, "verify", *words], capture_output=True, text=True)
    assert good.returncode == 0, good.stderr
    told = json.loads(
        subprocess.run(
            [*program, "show", world.layout, "--json"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert told["digest"] in good.stdout
    assert told["wheels"] == {"toypackage": "1.0"}
    rewritten(world.layout, layers=only(1, replaced(f"{SITE}/toypackage/__init__.py", b"x")))
    bad = subprocess.run([*program, "verify", *words], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (3, "")
    assert "toypackage/__init__.py" in bad.stderr
