"""One name has one meaning in every command, old names work and say the new one, help is whole."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from cli_tree import ROOT, all_commands
from click.testing import CliRunner

import sealtrain
from sealtrain.cli.commands import COMMANDS, SECTIONS
from sealtrain.cli.durations import Duration

pytestmark = pytest.mark.long

MEANINGS = {
    "--from": "where something was kept, or lay, before",
    "--valid-for": "how long it holds",
    "--folder": "of a run, of a guest, or of a runner with its guests'",
    "--limit": "at most so many",
    "--socket": "unix socket to listen at",
    "--verified": "record of an owner who verified an image",
    "--all": "everything of its kind",
    "--simulator": "folder of the simulated root of trust",
    "--store": "URL of an output store",
    "--series": "a series of datasets, by its name",
    "--within": "a time, as a duration",
    "--every": "how often something is done again",
    "--accelerator": "where the accelerator is",
    "--amend-members": "threshold for changes of owners",
    "--amend-thresholds": "threshold for changes of thresholds",
    "--app-id": "id of an app on its platform",
    "--approve": "threshold for approvals",
    "--base": "folder that the recipe's paths start from",
    "--base-model": "folder of the base model",
    "--boot-auth": "with what dstack's KMS asks",
    "--broker": "broker file",
    "--broker-deployment": "document that a broker's guest measures",
    "--ca-file": "PEM file of certificate authorities",
    "--certificate": "PEM file of a TLS server's chain",
    "--certificate-key": "PEM file of a TLS server's private key",
    "--chain": "chain file",
    "--collateral": "collateral of TDX quotes",
    "--consortium": "consortium file",
    "--data": "sealed datasets",
    "--dates": "how dates of a table are written",
    "--decimals": "how decimals of a table are written",
    "--database": "database of a broker, in PostgreSQL or a file",
    "--deployment": "document that a guest measures",
    "--device": "device that computes",
    "--disk": "disk image of a guest",
    "--end": "end what the command otherwise allows",
    "--export-model": "threshold for letting out a model",
    "--format": "form of what is read or written",
    "--former-root-secret": "root secret before a rotation",
    "--gpu-collateral": "collateral of accelerators",
    "--guest": "where the guest's evidence comes from",
    "--holder": "where an owner's holder is",
    "--identity": "private identity file",
    "--image": "OCI layout of a container image",
    "--kernel": "kernel file of a guest",
    "--lease-seconds": "how long released keys may be used",
    "--listen": "where to listen",
    "--manifest": "manifest file of a run",
    "--memory": "file with the last tree head",
    "--metrics-port": "port of the metrics page",
    "--name": "name of what is made",
    "--node": "number of a node",
    "--ranks": "number of ranks",
    "--nonce": "nonce of evidence",
    "--once": "look once, and end",
    "--out": "what the command writes",
    "--own-data-consent": "whether data needs its owner's approval",
    "--party": "owner whose data a guest holds",
    "--patience": "how long a peer may be silent",
    "--platform": "what proves a guest",
    "--policy": "appraisal policy",
    "--port": "port to listen on",
    "--proxy": "address of a broker's reverse proxy",
    "--public-url": "URL of a broker for others",
    "--quorum": "owners that cosigned a tree head",
    "--raise-logging": "threshold for letting out logs",
    "--records": "records of a recipe's datasets, by OWNER.NAME",
    "--revoke": "threshold for revocations",
    "--root-secret": "where a broker's root secret is",
    "--run": "id of a run",
    "--seal-as": "options of seal, by OWNER.NAME",
    "--state": "folder of a broker's state",
    "--states": "folder of sealed states",
    "--threshold": "how many of several suffice",
    "--ticket": "run ticket",
    "--timeout": "how long a write may take, or its holder be silent",
    "--token-file": "file with a token",
    "--trust": "trust file",
    "--wait": "how long to wait for others",
    "--writes": "where holders' chunks go",
}
"""What an option means that is explained in other words by several commands."""


@cache
def by_path() -> dict[str, click.Command]:
    """Every command and group by what is typed."""
    return {" ".join(path): command for path, command in all_commands()}


OTHERS = {
    "--decompress": "xz",
    "--dereference": "tar",
    "--editable": "pip",
    "--key-type": "pkcs11-tool",
    "--hash-offset": "veritysetup",
    "--keygen": "pkcs11-tool",
    "--local-dir": "huggingface-cli",
    "--sensitive": "pkcs11-tool",
}
"""Options of other programs that sentences of this one name."""
SOURCE = Path(sealtrain.__file__).parents[1]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
CALL = re.compile(r"sealtrain ((?:[a-z][a-z-]* ?)+)([^;`]*)")


def options_of(command: click.Command) -> set[str]:
    return {
        "--help",
        *(name for param in command.params for name in (*param.opts, *param.secondary_opts)),
    }


def sentences() -> Iterator[tuple[str, str]]:
    """Place and text of every string with a space in it; what is filled in is ``X``."""
    for path in sorted(SOURCE.glob("sealtrain*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.JoinedStr | ast.Constant):
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            said = [part.value if isinstance(part, ast.Constant) else "X" for part in parts]
            if isinstance(said[0], str):
                text = "".join(map(str, said))
                if " " in text:
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", text


def test_hints_and_docstrings_name_options_that_there_are() -> None:
    known = OTHERS.keys() | {name for value in by_path().values() for name in options_of(value)}
    wrong = []
    for place, text in sentences():
        wrong += [f"{place} {name}" for name in OPTION.findall(text) if name not in known]
        for words, rest in CALL.findall(text):
            path = words.split()
            while path and " ".join(path) not in by_path():
                path.pop()
            if path:
                there = options_of(by_path()[" ".join(path)])
                named = [name for name in OPTION.findall(rest) if name not in OTHERS]
                wrong += [f"{place} {' '.join(path)} {name}" for name in named if name not in there]
    assert wrong == []


def test_an_option_of_several_commands_has_one_meaning() -> None:
    helps: dict[str, set[str]] = defaultdict(set)
    for command in by_path().values():
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("-"):
                    helps[option].add(getattr(parameter, "help", ""))
    several = {option for option, texts in helps.items() if len(texts) > 1}
    assert several - MEANINGS.keys() == set()


def test_an_option_is_of_one_type_in_every_command() -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    same = {"IntParamType": "number", "IntRange": "number", "TyperPath": "place", "Path": "place"}
    for command in by_path().values():
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("-"):
                    kind = type(parameter.type).__name__
                    kinds[option].add(same.get(kind, kind))
    # A place that may also be a URL, a preset or a socket is text.
    or_more = {"--data", "--policy", "--ticket"}
    # Of verify it is a flag, as auditors know it; elsewhere it names a chain's file.
    flags = {"--chain"}
    wrong = {option: found for option, found in kinds.items() if len(found) > 1}
    assert wrong.keys() == or_more | flags
    assert all(wrong[option] == {"place", "StringParamType"} for option in or_more)


def test_every_command_stands_in_one_section() -> None:
    names = [name for names in SECTIONS.values() for name in names]
    assert sorted(names) == sorted(COMMANDS)
    assert list(SECTIONS)[-1] == "Training together, and on a chain"


def is_cut(path: str) -> bool:
    shown = CliRunner().invoke(ROOT, [*path.split(), "--help"]).stdout
    return "..." in shown.replace("[ARGS]...", "") or any(
        len(line) > 80 for line in shown.splitlines()
    )


def test_lists_of_commands_are_not_cut() -> None:
    groups = [path for path, command in by_path().items() if isinstance(command, click.Group)]
    assert groups
    assert [path for path in groups if is_cut(path)] == []


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        ("s", "90", 90),
        ("s", "90s", 90),
        ("s", "15m", 900),
        ("s", "2h", 7200),
        ("s", "3d", 259_200),
        ("s", "1.5m", 90),
        ("d", "30", 30),
        ("d", "48h", 2),
    ],
)
def test_a_duration_has_a_unit_and_a_bare_number_the_options_own(
    unit: str, text: str, value: int
) -> None:
    kind = Duration(unit, least=1)  # type: ignore[arg-type]
    assert kind.convert(text, None, None) == value


def test_an_approval_may_hold_for_hours() -> None:
    [days] = [param for param in by_path()["approve"].params if "--valid-for" in param.opts]
    assert days.type.convert("2h", None, None) == pytest.approx(2 / 24)
    assert days.type.convert("30", None, None) == 30
    with pytest.raises(click.BadParameter):
        days.type.convert("20m", None, None)


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("s", ""), ("s", "-1"), ("s", "1w"), ("s", "1e3"), ("s", "0"), ("s", "9d"), ("d", "90s"),
        ("s", "٣"),
    ],
)  # fmt: skip
def test_what_is_no_duration_or_out_of_bounds_is_a_usage_error(unit: str, text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration(unit, least=1, most=1000).convert(text, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "0", "0d", "-1", "-2h", "+2h", "2.5", "2 h", "2h30m", "1e9d", "P1D", "PT2H", "1w",
        "2H", "2hours", ".5d", "5.d", "1,5d", "nan", "inf", "0x10", "1_000d", "29m", "3650.5d",
        "99999d", "999999999999d", "9999999999999", "\u0662h", "2h\u00a0x", "9" * 5000,
    ],
)  # fmt: skip
def test_an_odd_time_for_which_something_holds_is_refused_everywhere(text: str) -> None:
    options = [
        param
        for command in by_path().values()
        for param in command.params
        if "--valid-for" in param.opts
    ]
    assert len(options) > 3
    for option in options:
        if text == "2.5" and not option.type.whole:
            assert option.type.convert(text, None, None) == 2.5
            continue
        with pytest.raises(click.BadParameter):
            option.type.convert(text, None, None)


def test_the_bounds_of_a_duration_are_taken_and_what_is_past_them_is_not() -> None:
    half_an_hour = Duration("d", least=1 / 48, most=3650, whole=False)
    assert half_an_hour.convert("30m", None, None) == 1 / 48
    assert half_an_hour.convert("3650d", None, None) == 3650
    without_end = Duration("s", least=1)
    assert without_end.convert("3650d", None, None) == 3650 * 86400
    with pytest.raises(click.BadParameter):
        without_end.convert("3651d", None, None)


def test_every_duration_is_one_of_these() -> None:
    """An option whose name or help speaks of seconds or days takes units."""
    plain = [
        f"{name} {parameter.opts[0]}"
        for name, command in by_path().items()
        for parameter in command.params
        if ("seconds" in parameter.opts[0] or "days" in parameter.opts[0].split("-"))
        and not isinstance(parameter.type, Duration)
    ]
    assert plain == []
