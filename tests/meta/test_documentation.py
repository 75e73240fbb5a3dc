"""Documentation cannot lie: links resolve, commands exist, claims have tests."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import typer
import yaml

import sealtrain
from sealtrain.attest.policy import policy_from_dict
from sealtrain.cli.project import KEYS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*/**/*.md")]
    if not any(part.startswith(".") for part in path.relative_to(REPOSITORY).parts)
    and "demo-out" not in path.parts
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = {"console", "sh", "bash", "shell"}


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@cache
def text_of(page: Path) -> str:
    return page.read_text("utf-8")


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings as forges make them."""
    text = FENCE.sub("", text_of(page))
    headings = re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[`*\[\]]|\([^)]*\)", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def faults_by_page(
    faults_of: Callable[[Path], Any], pages: Iterable[Path] = PAGES
) -> dict[str, Any]:
    """What is wrong with each page; a page without a fault is left out."""
    return {name_of(page): faults for page in pages if (faults := faults_of(page))}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        if not aim.exists() or (anchor and aim.suffix == ".md" and anchor not in anchors(aim)):
            broken.append(target)
    return broken


def test_every_link_between_pages_resolves() -> None:
    assert faults_by_page(broken_links) == {}


def test_every_decision_is_in_the_index_and_numbers_have_no_gaps() -> None:
    folder = REPOSITORY / "docs/decisions"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    index = (folder / "README.md").read_text()
    for name in pages:
        title = (folder / name).read_text().partition("\n")[0].removeprefix(f"# {name[:4]} · ")
        assert f"| [{name[:4]}]({name}) | {title} |" in index


def lacking_in_head(page: Path) -> list[str]:
    lines = text_of(page).splitlines()
    head = "\n".join(lines[:12])
    version = re.search(r"/v\d+$|\bversion:? \d+", head, re.MULTILINE | re.IGNORECASE)
    return ["title"] * (not lines[0].startswith("# ")) + ["version"] * (version is None)


def test_every_spec_page_has_a_title_and_a_version() -> None:
    pages = sorted((REPOSITORY / "spec").glob("*.md"))
    assert pages
    assert faults_by_page(lacking_in_head, pages) == {}


# --- Claims -------------------------------------------------------------------------------------


def marked_claims() -> set[str]:
    tests = (REPOSITORY / "tests").rglob("*.py")
    return {
        number
        for path in tests
        for call in re.findall(r"mark\.claim\(([^)]*)\)", path.read_text())
        for number in re.findall(r"C\d+", call)
    }


def test_every_claim_has_a_test_that_tries_to_refute_it_and_no_test_invents_one() -> None:
    page = (REPOSITORY / "spec/claims.md").read_text("utf-8")
    listed = re.findall(r"^(?:\| *|#+ *|[-*] *)?\**(C\d+)\b", page, re.MULTILINE)
    claims = set(listed)
    assert claims
    assert len(listed) == len(claims), "a number stands for two claims"
    assert claims - marked_claims() == set()
    assert marked_claims() - claims == set()


# --- Commands -----------------------------------------------------------------------------------


def shell_commands(page: Path) -> Iterator[list[str]]:
    """Calls of ``sealtrain`` in a page's shell blocks, as argument lists."""
    for language, body in FENCE.findall(text_of(page)):
        if language not in SHELL:
            continue
        lines = body.replace("\\\n", " ").splitlines()
        typed = [line for line in lines if line.startswith("$ ")]  # the others are output
        for line in typed or lines:
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
            shell = next((i for i, word in enumerate(words) if re.match(r"\d?>", word)), None)
            words = words[:shell]
            if words and words[0] == "sealtrain":
                yield words[1:]


def problem_with(words: list[str], *, project: bool = False) -> str | None:
    """Why this call cannot be typed, or ``None``: command path, options and their values.

    With a project file, what it names may be left out.
    """
    from sealtrain.cli import app

    command = typer.main.get_command(app)
    rest = list(words)
    while rest and isinstance(command, click.Group):
        if rest[0].startswith("-"):
            break
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            return f"no command {rest[0]!r}"
        command = found
        rest.pop(0)
    known = {
        option: parameter
        for parameter in command.params
        for option in [*parameter.opts, *parameter.secondary_opts]
    }
    given: set[str] = set()
    positional = 0
    while rest:
        word = rest.pop(0)
        option, equals, _ = word.partition("=")
        if not word.startswith("-"):
            positional += 1
        elif option in {"-h", "--help"}:
            return None
        elif option not in known:
            return f"no option {option!r}"
        else:
            given.add(known[option].name)
            if not getattr(known[option], "is_flag", False) and not equals:
                if not rest:
                    return f"{option} needs a value"
                rest.pop(0)
    arguments = [
        parameter for parameter in command.params if parameter.param_type_name == "argument"
    ]
    if positional > len(arguments) and not any(argument.nargs == -1 for argument in arguments):
        return "too many arguments"
    named = {key.parameter for key in KEYS.values()} if project else set()
    if positional < sum(argument.required for argument in arguments if argument.name not in named):
        return "an argument is missing"
    missing = [
        parameter.opts[0]
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.required
        if parameter.name not in given
        if parameter.opts[0] not in named
    ]
    return f"lacks {', '.join(missing)}" if missing else None


def wrong_commands(page: Path) -> dict[str, str]:
    calls = list(shell_commands(page))
    begun = next((at for at, words in enumerate(calls) if words[0] == "init"), len(calls))
    return {
        " ".join(words): problem
        for at, words in enumerate(calls)
        if (problem := problem_with(words, project=at > begun))
    }


def test_every_command_in_a_page_can_be_typed() -> None:
    assert faults_by_page(wrong_commands) == {}


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    named = set(
        re.findall(r"\bmake ([a-z]+)\b", "\n".join(body for _, body in FENCE.findall(readme)))
    )
    assert named
    assert named <= targets


# --- Code and documents inside pages --------------------------------------------------------------


def unknown_names(page: Path) -> set[str]:
    return {
        name
        for language, body in FENCE.findall(text_of(page))
        if language == "python"
        for name in re.findall(r"\bsealtrain\.(\w+)", body)
        if not hasattr(sealtrain, name) and find_spec(f"sealtrain.{name}") is None
    }


def test_every_name_of_the_package_in_a_page_exists() -> None:
    assert faults_by_page(unknown_names) == {}


def test_the_policy_in_the_operators_guide_is_a_policy() -> None:
    page = (REPOSITORY / "docs/guides/operator.md").read_text("utf-8")
    examples = [body for language, body in FENCE.findall(page) if language == "yaml"]
    [example] = [body for body in examples if "platform:" in body]
    policy = policy_from_dict(yaml.safe_load(example))
    assert policy.platform == "dstack"
    assert policy.root == "intel"


def test_the_drawing_of_the_packages_is_fresh(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tools/architecture.py", "--check"],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
