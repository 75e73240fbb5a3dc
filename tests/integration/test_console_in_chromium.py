"""The console in a real browser: every page, both widths, light and dark, by keyboard, judged."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from agent_world import agent_of, answering
from collecting import COLLECTING
from keeping import note_command
from world import lock_changed, signed_dataset

from sealtrain_console.web.curves import Curves
from sealtrain_console.web.serving import serving
from sealtrain_console.web.sources import Sources

if not COLLECTING:
    from console_world import (
        LIVE_ID,
        PAGES,
        ConsoleWorld,
        console_world,
        live_run,
        measured,
        visited,
    )

    from sealtrain_console.web.app import console_app

OWNER = "hospital-a"
pytestmark = [pytest.mark.claim("C212"), pytest.mark.timeout(400), pytest.mark.nightly]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleWorld]:
    with console_world(tmp_path_factory.mktemp("console")) as made:
        sealed = signed_dataset(made.site.target, OWNER, sealed_at=made.site.now())
        with made.site.owner(made.client, OWNER) as mine:
            mine.hand_in("dataset", sealed)
        yield made


def faults_of(answer: dict[str, Any]) -> list[str]:
    """What the browser complained of, besides the status of an error page that it was sent to.

    Its advice to offer RS256 for passkeys too is not taken.
    """
    return [
        fault
        for fault in answer["faults"]
        if "404" not in fault and "pubKeyCredParams" not in fault
    ]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_every_page_is_whole_and_accessible(width: int, dark: bool, world: ConsoleWorld) -> None:
    pages = [{"url": url, "width": width, "dark": dark} for url in world.pages()]
    for answer in visited(pages, judged=True):
        where = answer["url"]
        assert answer["settled"], where
        assert answer["breaches"] == [], where
        assert answer["violations"] == [], where
        assert faults_of(answer) == [], where
        assert answer["width"] <= width, where
        own = urlsplit(world.url).netloc
        assert {urlsplit(question).netloc for question in answer["asked"]} == {own}, where


def test_the_judge_of_pages_finds_what_is_wrong(world: ConsoleWorld) -> None:
    spoil = """(() => { const image = document.createElement("img"); image.src = "/x.png";
      document.body.append(image); document.documentElement.lang = "";
      const script = document.createElement("script"); script.textContent = "window.ran = 1";
      document.body.append(script); return window.ran ?? null; })()"""
    visit = {"url": world.url + "/runs", "width": 390, "dark": False, "steps": [{"get": spoil}]}
    [answer] = visited([visit], judged=True)
    assert answer["got"] == [None]  # the page's policy kept the script from running
    assert {"image-alt", "html-has-lang"} <= {breach["id"] for breach in answer["breaches"]}
    assert answer["violations"] != []


@pytest.mark.parametrize("path", ["/consortium", "/consortium/{hash}", "/runs", "/runs/{live}"])
def test_every_control_is_reached_by_keyboard_and_shows_it(path: str, world: ConsoleWorld) -> None:
    url = world.url + path.format(hash=world.compose_hash, live=LIVE_ID)
    [answer] = visited([{"url": url, "width": 1280, "dark": False, "tabs": 60}])
    controls = {"A", "BUTTON", "SELECT", "INPUT", "SUMMARY"}
    reached = [element for element in answer["focus"] if element["tag"] in controls]
    assert reached[0]["text"] == "Skip to the page"
    # Once round: the browser begins again behind the last one.
    again = next(
        (n for n, item in enumerate(reached) if n and item["text"] == "Skip to the page"),
        len(reached),
    )
    assert again == answer["reachable"]
    for item in reached[:again]:
        assert item["seen"], item
        assert not item["outline"].startswith("none"), item


def test_a_change_of_recipe_is_read_on_its_page(world: ConsoleWorld, tmp_path: Path) -> None:
    hostile = "<b onmouseover=alert(1)>more</b> {{7*7}}"

    def change(recipe: dict[str, Any]) -> None:
        recipe["release_policy"]["metrics"] = ["loss"]
        recipe["description"] = hostile
        recipe["name"] = "another-diagnosis"

    other = lock_changed(
        world.site.consortium.consortium_id, world.site.locked.lock.brokers, change
    )
    (tmp_path / "other.json").write_bytes(other.compose_bytes)
    sources = Sources(
        consortium=world.sources.consortium,
        deployments=(world.site.deployment, tmp_path / "other.json"),
    )
    with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
        page = f"{url}/consortium/{other.compose_hash}?before={world.compose_hash}"
        found = visited(
            [{"url": page, "width": width, "dark": False} for width in (1280, 390)],
            judged=True,
        )
    for answer in found:
        assert answer["breaches"] == []
        assert answer["violations"] == []
        assert "recipe.release_policy.metrics" in answer["text"]
        assert "<b onmouseover" in answer["text"]
        assert answer["width"] <= 1280


def test_a_run_of_a_hundred_thousand_points_is_drawn_anew_in_50_ms(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    """Chart and numbers; what the server needs for it is in ``benchmarks/console.py``."""
    folder = live_run(tmp_path / "long", points=100_000, run_id="1f" * 16)
    sources = Sources(consortium=world.sources.consortium, runs=(folder,))
    step = "Number(document.getElementById('live').dataset.step)"
    again = [
        {"get": "delete document.getElementById('live').dataset.whole"},
        {"until": "document.getElementById('live').dataset.whole"},
        {"get": "Number(document.getElementById('live').dataset.whole)"},
    ]
    with serving(console_app(PAGES, {"sources": sources, "curves": Curves()})) as url:
        page = f"{url}/runs/{'1f' * 16}"

        def further() -> None:
            ends = time.monotonic() + 30
            while time.monotonic() < ends and not over.is_set():
                with (folder / "metrics.jsonl").open("a") as file:
                    file.write(
                        json.dumps({"step": 100_000 + grown[0], "values": measured(7)}) + "\n"
                    )
                grown[0] += 1
                over.wait(0.5)

        over, grown = threading.Event(), [1]
        thread = threading.Thread(target=further)
        thread.start()
        try:
            [answer] = visited(
                [
                    {
                        "url": page,
                        "width": 1280,
                        "dark": False,
                        "steps": [
                            {"get": step},
                            {"until": f"{step} > 100004", "patience": 25000},
                            {"get": "document.querySelectorAll('.uplot canvas').length"},
                            *again * 3,
                        ],
                    }
                ]
            )
        finally:
            over.set()
            thread.join()
    first, later, canvases, *each = answer["got"]
    assert first >= 100_000
    assert later
    assert canvases == 1
    assert min(each[2::3]) < 50  # the quickest: other work of the machine is none of the page's


def test_what_is_open_in_a_live_part_stays_open_and_the_part_goes_on_afterwards(
    world: ConsoleWorld,
) -> None:
    mark = "[data-part=files]"
    steps = [
        {
            "get": f"document.querySelector('{mark}').insertAdjacentHTML('beforeend', "
            "'<details open id=mine><summary>mine</summary>x</details>')"
        },
        {"pause": 6500},
        {"get": "!!document.getElementById('mine')"},
        {"get": "document.getElementById('mine').open = false"},
        {"until": "!document.getElementById('mine')", "patience": 9000},
        {"get": f"document.querySelectorAll('{mark}').length"},
    ]
    visit = {"url": f"{world.url}/runs/{LIVE_ID}", "width": 1280, "dark": False, "steps": steps}
    [answer] = visited([visit])
    assert answer["got"] == [None, True, False, True, 1]
    assert answer["violations"] == []


# A decision

PRESS = [
    {"until": "document.getElementById('enroll')"},
    {"press": "#enroll"},
    {"until": "document.getElementById('approve')"},
    {"press": "#approve"},
    {"until": "document.querySelector('#outcome .good, #outcome .bad')", "patience": 60000},
    {"get": "document.getElementById('outcome').innerText"},
    {"get": "document.querySelector('#outcome [data-code]')?.dataset.code ?? null"},
    {"pause": 600},
]


@contextmanager
def programs(world: ConsoleWorld, folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``sealtrain console`` and ``sealtrain console agent`` as people start them."""
    broker, consortium = world.sources.brokers[0], world.sources.consortium
    common = ["--broker", broker, "--consortium", consortium, "--deployment", world.site.deployment]
    socket = folder / "agent"
    run = [sys.executable, "-m", "sealtrain", "console"]
    with ExitStack() as stack:
        console = started(stack, [*run, *common, "--agent", socket, "--port", "0"], "console")
        url = said(console, r"console ready (\S+)")
        identity = world.site.folder / f"{OWNER}.identity.json"
        words = ["agent", *common, "--identity", identity, "--console", url, "--enroll"]
        agent = started(stack, [*run, *words, "--socket", socket], "agent")
        said(agent, r"agent ready")
        yield url, agent


def started(stack: ExitStack, words: list[Any], name: str) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [str(word) for word in words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        program.send_signal(signal.SIGINT)
        try:
            _, last = program.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            program.kill()
            _, last = program.communicate()
        note_command(program.args, program.returncode, last)

    stack.callback(end)
    return program


def said(program: subprocess.Popen[str], pattern: str) -> str:
    """The first group of the line that a program says, or the line."""
    assert program.stderr is not None
    for line in program.stderr:
        if found := re.search(pattern, line):
            return found[found.lastindex or 0]
    raise AssertionError(f"it ended without {pattern}")


def typed(program: subprocess.Popen[str], *words: str) -> threading.Thread:
    """Types each word once the program asks for one."""

    def answer() -> None:
        assert program.stderr is not None
        assert program.stdin is not None
        seen = ""
        for word in words:
            while "to go on" not in seen:
                more = program.stderr.read(1)
                if not more:
                    return
                seen += more
            seen = ""
            program.stdin.write(f"{word}\n")
            program.stdin.flush()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def test_an_owner_approves_with_a_passkey_and_the_word_in_the_terminal(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    before = len(world.client.list_decisions(world.site.target, world.site.consortium))
    with programs(world, tmp_path) as (url, agent):
        typing = typed(agent, "ENROLL", "APPROVE")
        page = f"{url}/consortium/{world.compose_hash}"
        visit = {"url": page, "width": 1280, "dark": False, "steps": PRESS}
        [answer] = visited([visit], judged=True, authenticator=True)
        typing.join(20)
    assert answer["got"][-1] is None  # no code of a refusal
    assert answer["violations"] == []
    assert faults_of(answer) == []
    assert answer["breaches"] == []
    decided = world.client.list_decisions(world.site.target, world.site.consortium)
    assert len(decided) == before + 1
    assert decided[-1].owner.name == OWNER


def test_a_wrong_word_in_the_terminal_signs_nothing_and_the_page_says_so(
    world: ConsoleWorld, tmp_path: Path
) -> None:
    identity = tmp_path / "owner.json"
    identity.write_bytes((world.site.folder / f"{OWNER}.identity.json").read_bytes())
    identity.chmod(0o600)
    before = len(world.client.list_decisions(world.site.target, world.site.consortium))
    with ExitStack() as stack:
        # The agent is told the console's origin, so the console is there first.
        place = tmp_path / "agent.sock"
        sources = Sources(
            consortium=world.sources.consortium,
            brokers=world.sources.brokers,
            deployments=world.sources.deployments,
            agent=place,
        )
        app = console_app(PAGES, {"sources": sources, "curves": Curves()})
        url = stack.enter_context(serving(app))
        owner = agent_of(
            identity,
            world.sources.brokers,
            world.sources.consortium,
            world.sources.deployments,
            origin=url,
            confirm=lambda _made: False,
        )
        owner.socket = place
        stack.enter_context(answering(owner))
        page = f"{url}/consortium/{world.compose_hash}"
        visit = {"url": page, "width": 390, "dark": True, "steps": PRESS}
        [answer] = visited([visit], judged=True, authenticator=True)
    assert answer["got"][-1] == "agent-declined"
    assert answer["breaches"] == []
    assert answer["width"] <= 390
    assert len(world.client.list_decisions(world.site.target, world.site.consortium)) == before
