"""An attacker's text in each field, one after the other, of everything that a page shows."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from collecting import COLLECTING
from hostile import HARMLESS, HOSTILE_TEXTS, LOOK, admitting, places_of_text, put
from http_server import Handler, Server, running
from lock_mutants import locks
from manifest_world import NOW, RUN_ID
from world import identity

from sealtrain.base.canonical import canonical_json
from sealtrain.client.ticket import RunTicket
from sealtrain.consortium.submissions import Submission, sign_control
from sealtrain.errors import SealtrainError
from sealtrain.manifest import form
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine
from sealtrain.recipe.compose import build_compose
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.lockfile import parse_lock
from sealtrain_console.walk.prepared_run import Prepared
from sealtrain_console.walk_run import prepare_run
from sealtrain_console.web.curves import Curves
from sealtrain_console.web.serving import serving

if not COLLECTING:
    from console_world import (
        LIVE_ID,
        PAGES,
        ConsoleWorld,
        completed_run,
        console_world,
        live_run,
        visited,
    )

    from sealtrain_console.web.app import console_app
    from sealtrain_console.web.walk import WALK

PHONE = 390
AT_ONCE = 60
CONSOLES = 20
MOST_STORES = 16
pytestmark = [pytest.mark.claim("C250"), pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with console_world(tmp_path_factory.mktemp("console")) as made:
        yield made


def harmless(urls: Sequence[str], *, steps: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Open pages on a phone; no script of the text ran and nothing but its text is there."""
    answers: list[dict[str, Any]] = []
    for start in range(0, len(urls), AT_ONCE):
        visits = [
            {"url": url, "width": PHONE, "dark": False, "steps": [*steps, {"get": LOOK}]}
            for url in urls[start : start + AT_ONCE]
        ]
        answers += visited(visits)
    for url, answer in zip(urls, answers, strict=True):
        where = (url, answer["text"][:300])
        assert answer["got"][-1] == HARMLESS, where
        assert answer["violations"] == [], where
        own = {urlsplit(url)[:2]}
        assert {urlsplit(question)[:2] for question in answer["asked"]} == own, where
        assert answer["width"] <= PHONE, where
    return answers


def payload_of(manifest: bytes) -> tuple[Any, Any]:
    """The file of a manifest, and the statement in it."""
    file = json.loads(manifest)
    return file, json.loads(base64.b64decode(file["bundle"]["dsseEnvelope"]["payload"]))


def unsigned(file: Any, statement: Any) -> bytes:
    """The file over another statement; nobody signed it."""
    payload = base64.b64encode(canonical_json(statement)).decode()
    return canonical_json(put(file, ("bundle", "dsseEnvelope", "payload"), payload))


def kinds(document: Any) -> list[tuple[Any, ...]]:
    """A place of each kind of field: of a list the first item that has it."""
    first: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for path in places_of_text(document):
        first.setdefault(tuple("*" if isinstance(step, int) else step for step in path), path)
    return list(first.values())


def test_each_field_of_a_manifest_in_a_report(world: ConsoleWorld, tmp_path: Path) -> None:
    file, statement = payload_of(world.audited.manifest())
    trust, urls = world.audited.trust(), []
    made = [(f"{name} {path}", unsigned(file, put(statement, path, text)))
            for path in kinds(statement) for name, text in HOSTILE_TEXTS.items()
            if name != "address"]  # fmt: skip
    made += [(f"file {path}", canonical_json(put(file, path, HOSTILE_TEXTS["markup"])))
             for path in kinds(file)]  # fmt: skip
    assert len(made) > 240
    for number, (_, manifest) in enumerate(made):
        page = tmp_path / f"{number}.html"
        page.write_text(render(examine(manifest, trust, artefacts=None, now=NOW)), "utf-8")
        urls.append(page.as_uri())
    checked = {"until": "document.getElementById('self-check').dataset.verdict"}
    answers = harmless(urls, steps=[checked])
    assert not [
        label for (label, _), answer in zip(made, answers, strict=True) if not answer["got"][0]
    ]
    assert not [
        answer["url"] for answer in answers if "✓ Verified again by this page" in answer["text"]
    ]


def test_each_field_of_a_manifest_in_the_console(world: ConsoleWorld, tmp_path: Path) -> None:
    file, statement = payload_of(world.audited.manifest())

    def admitted(changed: Any) -> bool:
        try:
            form.read(unsigned(file, changed))
        except SealtrainError:
            return False
        return bool(changed["predicate"]["run"]["run_id"] == RUN_ID)

    everywhere, places = admitting(statement, admitted)
    assert len(places) > 8
    refused = [put(statement, path, HOSTILE_TEXTS["markup"]) for path in kinds(statement)]
    folder = tmp_path / "runs"
    completed_run(tmp_path / "run", world.audited, unsigned(file, everywhere))
    for number, changed in enumerate(refused):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "manifest.json").write_bytes(unsigned(file, changed))
    there = {"get": "document.body.textContent.includes('<i>')"}
    with pages(world, runs=(tmp_path / "run",)) as url, pages(world, runs=(folder,)) as other:
        shown, *_ = harmless(
            [f"{url}/runs/{RUN_ID}", f"{url}/runs", f"{other}/runs", f"{other}/runs/{RUN_ID}"],
            steps=[there],
        )
    assert shown["got"][0], shown["text"]


@contextmanager
def pages(world: ConsoleWorld, **changed: Any) -> Iterator[str]:
    """A console over other sources than the world's."""
    sources = replace(world.sources, **changed)
    with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
        yield url


def hostile_locks(folder: Path, consortium_id: str) -> dict[str, LockedRecipe]:
    """A lock of every phase and kind with such texts wherever a lock may have them."""

    def admitted(document: Any) -> bool:
        try:
            build_compose(parse_lock(canonical_json(document)))
        except SealtrainError:
            return False
        return True

    found = {}
    for name, document in locks(folder).items():
        if name.startswith("vector"):
            continue
        changed, places = admitting(document | {"consortium_id": consortium_id}, admitted)
        assert ("recipe", "description") in places
        data = canonical_json(changed)
        lock = parse_lock(data)
        found[name] = LockedRecipe(lock=lock, compose_bytes=build_compose(lock))
    return found


def test_each_field_of_a_recipe_on_its_page_and_beside_another(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    locked = hostile_locks(tmp_path, world.site.consortium.consortium_id)
    assert len(locked) > 30
    files = []
    for number, recipe in enumerate(locked.values()):
        (tmp_path / f"{number}.json").write_bytes(recipe.compose_bytes)
        files.append(tmp_path / f"{number}.json")
    # The console reads so many that a page answers in time.
    shown = [recipe.compose_hash for recipe in locked.values()]
    with pages(world, deployments=(world.site.deployment, *files), brokers=()) as url:
        recipes = [f"{url}/consortium/{text}" for text in shown]
        before = [f"{recipe}?before={world.compose_hash}" for recipe in recipes]
        there = {"get": "document.body.textContent.includes('<i>')"}
        answers = harmless([f"{url}/consortium", *recipes, *before], steps=[there])
    assert [answer["url"] for answer in answers[1:] if not answer["got"][0]] == []


def test_each_field_of_a_deployment_document_that_is_refused(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    document = json.loads(world.site.deployment.read_bytes())
    files = []
    for path in kinds(document):
        for text in HOSTILE_TEXTS.values():
            file = tmp_path / f"{len(files)}.json"
            file.write_text(json.dumps(put(document, path, text)))
            files.append(file)
    lock = json.loads(world.site.locked.lock_bytes)
    for path in kinds(lock):
        changed = json.dumps(put(lock, path, HOSTILE_TEXTS["markup"]))
        text = world.site.locked.compose_bytes.decode()
        file = tmp_path / f"{len(files)}.json"
        file.write_text(text.replace(json.dumps(world.site.locked.lock_bytes.decode())[1:-1],
                                     json.dumps(changed)[1:-1]))  # fmt: skip
        files.append(file)
    with pages(world, deployments=tuple(files), brokers=()) as url:
        harmless([f"{url}/consortium"])


def test_each_field_of_a_run_folder(world: ConsoleWorld, tmp_path: Path) -> None:
    honest = live_run(tmp_path / "honest", points=3)
    run = json.loads((honest / "run.json").read_bytes())
    alert = {"alert": "loss-diverges", "step": 120, "threshold": 2.0, "at": "2026-01-01T00:00:00Z"}
    folders = []
    for name, text in HOSTILE_TEXTS.items():
        for path in [*kinds(run), None]:
            folder = live_run(
                tmp_path / f"{name} {len(folders)}", points=3, run_id=f"{len(folders):032x}"
            )
            if path is not None and path != ("run_id",):
                own = json.loads((folder / "run.json").read_bytes())
                (folder / "run.json").write_text(json.dumps(put(own, path, text)))
            (folder / "metrics.jsonl").write_text(
                json.dumps({"step": 1, "values": {text: 1.0, "loss": 1.0}}) + "\n"
            )
            (folder / "alerts.jsonl").write_text(
                "".join(json.dumps(put(alert, at, text)) + "\n" for at in kinds(alert))
            )
            folders.append(folder)
    with pages(world, runs=tuple(folders), brokers=(), stores=()) as url:
        runs = [f"{url}/runs/{number:032x}" for number in range(len(folders))]
        harmless([f"{url}/runs", *runs])


def test_each_field_of_a_stores_index(world: ConsoleWorld) -> None:
    changed: list[str] = []
    for name in ("done", "live"):
        folder = world.stores.root / name
        document = json.loads((folder / "index.json").read_bytes())
        for path in kinds(document):
            for text in HOSTILE_TEXTS.values():
                copied = world.stores.root / f"hostile-{len(changed)}"
                shutil.copytree(folder, copied)
                (copied / "index.json").write_text(json.dumps(put(document, path, text)))
                changed.append(f"{world.stores.url}/{copied.name}")
    assert len(changed) > 20
    with ExitStack() as stack:
        urls: list[str] = []
        for start in range(0, len(changed), MOST_STORES):
            stores = tuple(changed[start : start + MOST_STORES])
            url = stack.enter_context(pages(world, brokers=(), stores=stores))
            urls += [f"{url}/runs", f"{url}/runs/{RUN_ID}", f"{url}/runs/{LIVE_ID}"]
        harmless(urls)


_TIME = "2026-03-01T12:00:00Z"
ENTRIES = [
    {
        "kind": "release",
        "at": _TIME,
        "body": {
            "run_id": RUN_ID,
            "datasets": [{"dataset_id": "d1" * 16}],
            "elsewhere": [{"dataset_id": "d2" * 16}],
            "lease_id": "1e" * 32,
            "not_after": _TIME,
            "evidence_digest": "ed" * 32,
            "checkpoint": {"counter": "7"},
            "simulated": True,
            "privacy": [{"owner": "hospital-a", "name": "n", "epsilon": "1", "budget": "2"}],
            "compose_hash": "c0" * 32,
        },
    },
    {
        "kind": "run-event",
        "at": _TIME,
        "body": {
            word: word
            for word in (
                *("by", "event", "code", "action"),
                *("check", "checkpoint", "manifest_digest", "owner"),
            )
        },
    },
]
"""What a ledger says of a run, all of which a broker can make up in a search."""


@contextmanager
def lying(broker: str) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """A broker's answers with one text changed.

    Yields its address, the lie (``path`` of the request, ``place`` and ``text``) and the answers.
    """
    lie: dict[str, Any] = {}
    answers: list[Any] = []

    class Lies(Handler):
        def do_GET(self) -> None:
            answer = httpx2.get(broker + self.path, timeout=20)
            body = answer.content
            if answer.status_code == 200 and body[:1] == b"{":
                document = json.loads(body)
                if self.path.startswith("/v1/ledger/search"):
                    entries = [{"index": n, "entry": entry} for n, entry in enumerate(ENTRIES)]
                    body = json.dumps(document := document | {"entries": entries}).encode()
                answers.append((self.path.partition("?")[0], document))
                if lie.get("path") == self.path.partition("?")[0]:
                    # Another page of the same address may have no such field.
                    with suppress(KeyError, IndexError, TypeError):
                        body = json.dumps(put(document, lie["place"], lie["text"])).encode()
            self.answer(answer.status_code, body, content_type="application/json")

    server: ThreadingHTTPServer = Server(("127.0.0.1", 0), Lies)
    with running(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", lie, answers
    server.server_close()


def submitted(world: ConsoleWorld) -> None:
    """A run that the broker waits for a runner of."""
    site = world.site
    pin = site.pin.model_copy(update={"url": world.client.url})
    ticket = RunTicket(version=1, role="train", data=("/sealed",), brokers=(pin,))
    document = Submission.of(
        consortium_id=site.consortium.consortium_id,
        target=site.target,
        name="nightly-7",
        ticket=json.loads(ticket.to_bytes()),
        submitter=identity("hospital-a").signer.key_id,
        signed_at=site.now(),
        not_after=site.now() + 3600,
    )
    with site.owner(world.client, "hospital-a") as mine:
        mine.post_control(Submission, sign_control(document, identity("hospital-a").signer))


def test_each_field_of_a_brokers_answers_and_ledger(world: ConsoleWorld, tmp_path: Path) -> None:
    paths = [f"/consortium/{world.compose_hash}", f"/runs/{RUN_ID}", "/runs"]

    @contextmanager
    def told(number: int) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
        """A console that asks a lying broker: its address, the lie, the honest answers."""
        with lying(world.client.url) as (address, lie, answers):
            file = tmp_path / f"{number}.yaml"
            file.write_text(world.site.pin.model_copy(update={"url": address}).to_yaml())
            with pages(world, brokers=(file,), stores=()) as url:
                yield url, lie, answers

    submitted(world)
    with told(0) as (url, _, answers):
        harmless([url + path for path in paths])
    fields = {
        (path, tuple("*" if isinstance(step, int) else step for step in place)): place
        for path, document in answers
        for place in kinds(document)
    }
    assert len({path for path, _ in fields}) > 3, {path for path, _ in fields}
    lies = [
        {"path": path, "place": place, "text": HOSTILE_TEXTS[name]}
        for (path, _), place in fields.items()
        for name in ("markup", "long")
    ]
    assert len(lies) > 20
    for start in range(0, len(lies), CONSOLES):
        with ExitStack() as stack:
            urls: list[str] = []
            for number, said in enumerate(lies[start : start + CONSOLES], 1):
                url, lie, _ = stack.enter_context(told(number))
                lie.update(said)
                urls += [url + path for path in paths]
            harmless(urls)


def test_a_walk_over_a_hostile_recipe(tmp_path: Path) -> None:
    class Hostile(Prepared):
        @property
        def locked(self) -> LockedRecipe:  # type: ignore[override]
            return other

    run = prepare_run(tmp_path / "walk")
    found = hostile_locks(tmp_path / "locks", run.consortium.consortium_id)
    for name in ("sft-lora", "classify-tabular"):
        other = found[name]
        with serving(console_app([WALK], {"walk": Hostile(run.folder)})) as url:
            [answer] = harmless([f"{url}/walk"])
        assert "Walk" in answer["title"]
