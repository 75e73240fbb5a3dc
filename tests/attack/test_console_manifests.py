"""Manifests and output stores on pages: no verdict that ``sealtrain verify`` would not give."""

from __future__ import annotations

import base64
import copy
import http.client
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from collecting import COLLECTING
from hostile import HOSTILE
from manifest_world import RUN_ID

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.limits import MAX_MANIFEST_BYTES
from sealtrain.manifest import form
from sealtrain.manifest.files import examine_file
from sealtrain.manifest.predicate import Predicate
from sealtrain.manifest.verify import Report, examine
from sealtrain_console.web.curves import Curves
from sealtrain_console.web.serving import serving
from sealtrain_console.web.sources import Sources
from sealtrain_console.web.verified_manifests import Examinations

if not COLLECTING:
    from console_world import (
        FORGED_ID,
        LIVE_ID,
        PAGES,
        ConsoleWorld,
        completed_run,
        console_world,
        forged,
        live_run,
    )

    from sealtrain_console.web.app import console_app

pytestmark = pytest.mark.long

CHECKS = f"/runs/{RUN_ID}/checks"
STORE = f"/runs/{RUN_ID}/store"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with console_world(tmp_path_factory.mktemp("console")) as made:
        yield made


@contextmanager
def pages(world: ConsoleWorld, **changed: Any) -> Iterator[str]:
    """A console over some sources, with the trust file of the world unless another is named."""
    given: dict[str, Any] = {"consortium": world.sources.consortium, "trusts": world.sources.trusts}
    sources = Sources(**(given | changed))
    with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
        yield url


def text_of(url: str, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=30)
    connection.request("GET", path, headers={"Host": urlsplit(url).netloc})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return text


def rows_of(text: str) -> dict[str, str]:
    return dict(re.findall(r'data-check="([^"]+)" data-outcome="([^"]+)"', text))


def codes_of(text: str) -> set[str]:
    return set(re.findall(r'data-code="([^"]+)"', text))


def passes(text: str) -> bool:
    """Whether a page says of any manifest that it is verified."""
    return bool(re.search(r'data-verdict="(verified|open)"', text)) or "✓ Verified" in text


# Manifests on this machine


def altered(data: bytes) -> bytes:
    return data.replace(b"A", b"B", 1)


@pytest.mark.claim("C236")
@pytest.mark.parametrize("made", ["honest", "forged", "unsigned", "other outputs"])
def test_a_page_says_what_verify_says(made: str, world: ConsoleWorld, tmp_path: Path) -> None:
    data = {"forged": forged(world.audited)}.get(made, world.audited.manifest())
    folder = completed_run(tmp_path / "run", world.audited, data)
    if made == "unsigned":
        document = json.loads(data)
        document["bundle"]["dsseEnvelope"]["signatures"][0]["sig"] = "A" * 86 + "=="
        (folder / "manifest.json").write_bytes(canonical_json(document))
    if made == "other outputs":
        [weights] = folder.glob("model/model.safetensors.sealed")
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    run_id = FORGED_ID if made == "forged" else RUN_ID
    expected = examine_file(folder / "manifest.json", world.sources.trusts[0])
    with pages(world, runs=(folder,)) as url:
        text = text_of(url, f"/runs/{run_id}/checks")
        table = text_of(url, "/runs/judged")
    assert rows_of(text) == {check.name: check.outcome for check in expected.checks}
    assert passes(text) == passes(table) == (made == "honest")
    assert (expected.refusal is None) == (made == "honest")
    if expected.refusal is not None:
        assert expected.refusal.code in codes_of(text)
        assert expected.refusal.code in codes_of(table)


@pytest.mark.claim("C236")
def test_without_a_trust_file_a_page_says_that_it_could_not_check(world: ConsoleWorld) -> None:
    with pages(world, runs=world.sources.runs, stores=world.sources.stores, trusts=()) as url:
        for path in ("/runs", "/runs/judged", f"/runs/{RUN_ID}", CHECKS, STORE):
            assert not passes(text_of(url, path)), path
        for path in (f"/runs/{RUN_ID}", CHECKS):
            assert 'data-verdict="unchecked"' in text_of(url, path), path
    with pages(world, stores=world.sources.stores, trusts=()) as url:
        assert not passes(text_of(url, STORE))
        assert 'data-verdict="unchecked"' in text_of(url, STORE)


@pytest.mark.claim("C236")
@pytest.mark.parametrize("made", ["gone", "no trust file", "endless"])
def test_a_trust_file_that_cannot_be_read_gives_no_verdict(
    made: str, world: ConsoleWorld, tmp_path: Path
) -> None:
    trust = tmp_path / "trust.yaml"
    shutil.copy(world.sources.trusts[0], trust)
    with pages(world, runs=world.sources.runs, trusts=(trust,)) as url:
        assert passes(text_of(url, CHECKS))
        if made == "gone":
            trust.unlink()
        else:
            trust.write_bytes(b"{}" if made == "no trust file" else b"a" * (2 << 20))
        for path in (CHECKS, "/runs/judged"):
            text = text_of(url, path)
            assert not passes(text)
            assert 'data-verdict="unchecked"' in text
        assert codes_of(text_of(url, CHECKS))


FILES: dict[str, Callable[[bytes], bytes]] = {
    "too long": lambda data: data + b" " * (MAX_MANIFEST_BYTES + 1 - len(data)),
    "almost too long": lambda data: data + b" " * (MAX_MANIFEST_BYTES - len(data)),
    "a future version": lambda data: canonical_json({**json.loads(data), "version": 9}),
    "two versions": lambda data: data[:-1] + b',"version":1,"version":2}',
    "deep": lambda _: b"[" * 200_000,
    "no text": lambda _: b"\xff\xfe\x00",
    "empty": lambda _: b"",
}


@pytest.mark.claim("C236")
@pytest.mark.parametrize("made", FILES)
def test_a_file_that_is_no_manifest_is_named_and_the_others_are_shown(
    made: str, world: ConsoleWorld, tmp_path: Path
) -> None:
    honest = completed_run(tmp_path / "runs" / "honest", world.audited)
    bad = tmp_path / "runs" / "bad"
    bad.mkdir()
    (bad / "manifest.json").write_bytes(FILES[made]((honest / "manifest.json").read_bytes()))
    with pages(world, runs=(tmp_path / "runs",)) as url:
        text = text_of(url, "/runs/judged")
    assert text.count('data-verdict="open"') == 1
    [row] = [word for word in text.split("<tr>") if "bad</td>" in word]
    assert re.search(r"\[[a-z-]+\]", row)
    assert not passes(row)


@pytest.mark.claim("C236")
def test_another_runs_manifest_in_a_runs_folder_is_named(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    folder = live_run(tmp_path / "live", points=3)
    (folder / "manifest.json").write_bytes(world.audited.manifest())
    with pages(world, runs=(folder,)) as url:
        text = text_of(url, "/runs/judged")
    assert "[claim-contradicted]" in text
    assert not passes(text)


@pytest.mark.claim("C236")
def test_two_folders_of_one_run_are_said_on_its_page(world: ConsoleWorld, tmp_path: Path) -> None:
    for name in ("first", "second"):
        completed_run(tmp_path / name, world.audited)
    with pages(world, runs=(tmp_path / "first", tmp_path / "second")) as url:
        assert 'role="alert"' in text_of(url, f"/runs/{RUN_ID}")
    with pages(world, runs=(tmp_path / "first",)) as url:
        assert 'role="alert"' not in text_of(url, f"/runs/{RUN_ID}")


@pytest.mark.claim("C236")
def test_a_manifest_is_verified_once_and_again_when_something_changes(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    folder = completed_run(tmp_path / "run", world.audited)
    calls: list[int] = []

    def counted(*given: Any, **named: Any) -> Report:
        calls.append(1)
        return examine(*given, **named)

    trust = tmp_path / "trust.yaml"
    shutil.copy(world.sources.trusts[0], trust)
    kept = Examinations(counted)
    with pages(world, runs=(folder,), trusts=(trust,), examinations=kept) as url:
        asking = [threading.Thread(target=text_of, args=(url, CHECKS)) for _ in range(8)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(30)
        assert passes(text_of(url, CHECKS))
        assert len(calls) == 1
        trust.write_bytes(trust.read_bytes() + b"\n# read again, and the same\n")
        assert passes(text_of(url, CHECKS))
        assert len(calls) == 1
        weights = folder / "model/model.safetensors.sealed"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        changed = text_of(url, CHECKS)
        assert len(calls) == 2
        assert codes_of(changed) == {"subject-mismatch"}
        document = world.audited.trust_document(recipe_hash="ab" * 32)
        trust.write_text(json.dumps(document))  # YAML too
        assert codes_of(text_of(url, CHECKS)) == {"trust-mismatch"}
        assert len(calls) == 3


@pytest.mark.claim("C236")
@pytest.mark.parametrize("made", ["honest", "forged"])
def test_a_recipe_that_no_trust_file_names_is_unchecked_and_a_forgery_of_it_refused(
    made: str, world: ConsoleWorld, tmp_path: Path
) -> None:
    data = forged(world.audited) if made == "forged" else world.audited.manifest()
    folder = completed_run(tmp_path / "run", world.audited, data)
    trust = tmp_path / "trust.yaml"
    trust.write_text(json.dumps(world.audited.trust_document(recipe_hash="ab" * 32)))
    run_id = FORGED_ID if made == "forged" else RUN_ID
    with pages(world, runs=(folder,), trusts=(trust,)) as url:
        for path in (f"/runs/{run_id}/checks", "/runs/judged"):
            text = text_of(url, path)
            assert not passes(text), path
            assert "trust-mismatch" in codes_of(text), path
            unchecked = 'data-verdict="unchecked"' in text
            assert unchecked == (made == "honest"), path
        assert rows_of(text_of(url, f"/runs/{run_id}/checks"))["trust"] == "failed"


@pytest.mark.claim("C236")
def test_pages_answer_while_a_manifest_is_being_verified(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    folder = completed_run(tmp_path / "run", world.audited)
    begun, over = threading.Event(), threading.Event()

    def slow(*given: Any, **named: Any) -> Report:
        begun.set()
        assert over.wait(30)
        return examine(*given, **named)

    with pages(world, runs=(folder,), examinations=Examinations(slow)) as url:
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(text_of(url, CHECKS)))
        thread.start()
        assert begun.wait(30)
        assert "breast-cancer-diagnosis" in text_of(url, f"/runs/{RUN_ID}")
        assert answers == []
        over.set()
        thread.join(30)
    assert passes(answers[0])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of every text in a document, names of fields aside."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: str) -> Any:
    """The document with another text at a place, copied as far as it changes."""
    if not path:
        return value
    changed = copy.copy(document)
    changed[path[0]] = put(document[path[0]], path[1:], value)
    return changed


@pytest.mark.claim("C211")
def test_hostile_text_in_every_field_of_a_manifest_stays_text(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    """Every field whose form admits it, all at once: nobody signed it, and pages show it."""
    file = json.loads(world.audited.manifest())
    envelope = file["bundle"]["dsseEnvelope"]
    said = json.loads(base64.b64decode(envelope["payload"]))

    def admitted(predicate: Any) -> bool:
        try:
            Predicate.model_validate_json(canonical_json(predicate))
        except ValueError:
            return False
        return True

    places = [
        path
        for path in leaves(said["predicate"])
        if path[0] != "outputs" and admitted(put(said["predicate"], path, HOSTILE))
    ]
    assert len(places) > 8
    for path in places:
        changed = put(said["predicate"], path, HOSTILE)
        said["predicate"] = changed if admitted(changed) else said["predicate"]
    envelope["payload"] = base64.b64encode(canonical_json(said)).decode()
    folder = completed_run(tmp_path / "run", world.audited, canonical_json(file))
    with pages(world, runs=(folder,)) as url:
        shown = [text_of(url, path) for path in (f"/runs/{RUN_ID}", CHECKS, "/runs/judged")]
    for text in shown:
        assert "<img" not in text
        assert "\u202e" not in text
        assert "\u200b" not in text
        assert not passes(text)
    assert "&lt;img" in "".join(shown)


# Output stores


def left(world: ConsoleWorld, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of an honest store, and its index."""
    folder = world.stores.root / tmp_path.name
    shutil.copytree(world.stores.root / "done", folder)
    return folder, json.loads((folder / "index.json").read_bytes())


def url_of(world: ConsoleWorld, folder: Path) -> str:
    return f"{world.stores.url}/{folder.name}"


def write(folder: Path, index: dict[str, Any]) -> None:
    (folder / "index.json").write_bytes(canonical_json(index))


def with_manifest(folder: Path, index: dict[str, Any], data: bytes) -> None:
    (folder / "manifest.json").write_bytes(data)
    index["files"]["manifest.json"] = {"size": len(data), "sha256": [sha256_hex(data)]}
    write(folder, index)


def lie(made: str, world: ConsoleWorld, folder: Path, index: dict[str, Any]) -> None:
    manifest = (folder / "manifest.json").read_bytes()
    weights = "model/model.safetensors.sealed"
    match made:
        case "a swapped manifest":
            (folder / "manifest.json").write_bytes(altered(manifest))
        case "another run's manifest":
            with_manifest(folder, index, forged(world.audited))
        case "another document's":
            index["compose_hash"] = "ab" * 32
            write(folder, index)
        case "a manifest that is too long":
            with_manifest(folder, index, manifest + b" " * MAX_MANIFEST_BYTES)
        case "a future version":
            with_manifest(folder, index, FILES["a future version"](manifest))
        case "an altered manifest":
            document = json.loads(manifest)
            document["bundle"]["dsseEnvelope"]["signatures"][0]["sig"] = "A" * 86 + "=="
            with_manifest(folder, index, canonical_json(document))
        case "an output less":
            del index["files"][weights]
            write(folder, index)
        case "an index of nothing":
            (folder / "index.json").write_bytes(b"{}")
        case "an endless index":
            (folder / "index.json").write_bytes(b"[" * (5 << 20))


STORE_LIES = {
    "a swapped manifest": "output-store-invalid",
    "another run's manifest": "output-store-invalid",
    "another document's": "output-store-invalid",
    "a manifest that is too long": "output-store-invalid",
    "a future version": "manifest-malformed",
    "an altered manifest": "signature-invalid",
    "an output less": "output-store-invalid",
    "an index of nothing": "output-store-invalid",
    "an endless index": "output-store-invalid",
}


@pytest.mark.claim("C237")
@pytest.mark.parametrize("made", STORE_LIES)
def test_a_store_that_lies_is_named(made: str, world: ConsoleWorld, tmp_path: Path) -> None:
    folder, index = left(world, tmp_path)
    lie(made, world, folder, index)
    with pages(world, stores=(url_of(world, folder), world.sources.stores[0])) as url:
        text = text_of(url, STORE)
        table = text_of(url, "/runs/stores")
    bad, honest = text.split(f"<code>{world.sources.stores[0]}")
    assert STORE_LIES[made] in codes_of(bad)
    assert passes(bad) == (made == "an output less")  # the manifest itself is the run's
    assert codes_of(honest) == set()
    assert passes(honest)
    if made != "an altered manifest":  # only a trust file shows that
        assert STORE_LIES[made] in codes_of(table)


@pytest.mark.claim("C237")
@pytest.mark.parametrize("made", ["another size", "other bytes", "a further file"])
def test_a_file_that_is_not_the_runs_is_marked(
    made: str, world: ConsoleWorld, tmp_path: Path
) -> None:
    folder, index = left(world, tmp_path)
    name = "model/model.safetensors.sealed"
    if made == "another size":
        (folder / name).write_bytes(b"short")
    elif made == "other bytes":
        index["files"][name]["sha256"] = ["ab" * 32]
    else:
        index["files"]["model/backdoor.bin.sealed"] = {"size": 4, "sha256": ["ab" * 32]}
        (folder / "model/backdoor.bin.sealed").write_bytes(b"oops")
    write(folder, index)
    with pages(world, stores=(url_of(world, folder),)) as url:
        text = text_of(url, STORE)
    assert text.count('data-problem="true"') == 1
    with pages(world, stores=(world.sources.stores[0],)) as url:
        assert 'data-problem="true"' not in text_of(url, STORE)


@pytest.mark.claim("C237")
def test_another_manifest_of_the_same_run_than_here_is_named(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    here = completed_run(tmp_path / "run", world.audited)
    folder, index = left(world, tmp_path)

    def later(document: dict[str, Any]) -> None:
        document["run"]["history"] = document["run"]["history"][:-1]

    other = world.audited.manifest(later)
    assert form.read(other).predicate.run.run_id == RUN_ID
    with_manifest(folder, index, other)
    with pages(world, runs=(here,), stores=(url_of(world, folder),)) as url:
        assert codes_of(text_of(url, STORE)) == {"output-store-invalid"}


@pytest.mark.claim("C237")
def test_a_store_that_stalls_costs_pages_seconds_and_the_console_one_thread(
    world: ConsoleWorld,
) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        with socket.create_server(("127.0.0.1", 0)) as free:
            gone = free.getsockname()[1]
        stalls = f"http://127.0.0.1:{listener.getsockname()[1]}/run"
        url = stack.enter_context(
            pages(
                world,
                stores=(stalls, f"http://127.0.0.1:{gone}/run", world.sources.stores[0]),
                broker_seconds=1.0,
            )
        )
        for _ in range(3):
            began = time.monotonic()
            text = text_of(url, STORE)
            assert time.monotonic() - began < 6
            assert text.count('data-code="storage-unreachable"') == 2
            assert passes(text)  # the store beside them
            working = [thread for thread in threading.enumerate() if thread.name == "store"]
            assert len(working) <= 1


@pytest.mark.claim("C237")
def test_names_in_a_store_stay_text(world: ConsoleWorld, tmp_path: Path) -> None:
    folder, index = left(world, tmp_path)
    hostile = "model/<img src=x onerror=alert(1)>&'.sealed"
    index["files"][hostile] = {"size": 4, "sha256": ["ab" * 32]}
    write(folder, index)
    with pages(world, stores=(url_of(world, folder),)) as url:
        text = text_of(url, STORE)
    assert "<img" not in text
    assert "&lt;img" in text or "output-store-invalid" in codes_of(text)


@pytest.mark.claim("C237")
def test_a_live_run_shows_its_sealed_states_and_nothing_is_written(world: ConsoleWorld) -> None:
    before = [event for event in world.stores.seen if event[0] != "GET"]
    text = text_of(world.url, f"/runs/{LIVE_ID}/store")
    assert "checkpoint-00000002-0000000200.sealed" in text
    assert codes_of(text) == set()
    assert not passes(text)
    assert [event for event in world.stores.seen if event[0] != "GET"] == before
