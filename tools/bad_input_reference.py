"""Write ``docs/reference/bad-inputs.md`` from the table of bad inputs that the tests play.

Usage: ``python tools/bad_input_reference.py [--check]``

``tests/cli/bad_inputs.txt`` has a row for each call: command, what was replaced, by what, exit code
and error code. The page counts them. ``tests/cli/bad_data.txt`` has a row for each kind of owner's
file that no training can use, and ``tests/cli/bad_networks.txt`` one for each fault of a network;
the page lists them. With ``--check`` nothing is written; a stale page exits 1.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
TABLE = REPOSITORY / "tests" / "cli" / "bad_inputs.txt"
DATA_TABLE = TABLE.with_name("bad_data.txt")
NETWORK_TABLE = TABLE.with_name("bad_networks.txt")
PAGE = REPOSITORY / "docs" / "reference" / "bad-inputs.md"

_EXITS = ("0", "serves", "1", "2", "3", "4", "5", "124", "varies")
_MEANS = {
    "0": "taken: the text is a good one there, such as a long name",
    "serves": "taken by a command that serves, or that computes long",
    "1": "a run that is not over",
    "2": "the command line, a setting or a key file makes no sense",
    "3": "refused",
    "4": "nothing answers, or the system refuses",
    "5": "data makes no sense",
    "124": "the time that was given is over",
    "varies": "one byte of a good file was changed, and the answer depends on which",
}
_INTRO = """\
# Bad input

Each word of a call that works is replaced by something that does not: a file that is missing,
empty, cut, changed, endless, unreadable, a pipe, a folder, of another kind, or another
consortium's; a place that cannot be written, a full disk; a port that is taken; a server whose
certificate is not one to accept; a URL that is no store's or proxy's; text that is empty, too long,
in other letters, or climbs out of its folder; and the whole call is typed in another working
folder. Here is how the {commands} commands that read or write something answer {calls} such calls.
No call ends with a traceback, in a bug or with a row of the data in its message, and a refused one
leaves no file behind.

Every single call, with its answer, is a row of [bad_inputs.txt](../../tests/cli/bad_inputs.txt); [a
test](../../tests/cli/test_cli_bad_inputs.py) plays them all, against real servers. `make format`
counts anew what this page says. What each code means: [errors](errors.md); exit codes: [exit
codes](exit-codes.md).
"""


_DATA = """\
## By an owner's data

Records that no training can use, or that would not be trained as their owner wrote them, and bases
that cannot read them. `recipe check` refuses each before anything is sealed; a row of
[bad_data.txt](../../tests/cli/bad_data.txt) each, which [a
test](../../tests/cli/test_cli_bad_data.py) plays.

| data or base | command | exit | code | what the user reads |
|---|---|---:|---|---|"""

_NETWORKS = """\
## By a fault of the network

Certificates that do not count, proxies that lead nowhere, and settings that make no sense. Only a
connection that was not made is tried again. [Networks](../guides/networks.md) says what to set. A
row of [bad_networks.txt](../../tests/cli/bad_networks.txt) each, which [a
test](../../tests/cli/test_cli_bad_networks.py) plays with real servers and proxies.

| fault | command | exit | code | what the user reads |
|---|---|---:|---|---|"""


class Row(NamedTuple):
    """A call of the table."""

    command: str
    given: str
    bad: str
    status: str
    code: str


def rows(table: str) -> list[Row]:
    """The calls of a table."""
    return [Row(*line.split(" | ")) for line in table.splitlines()]


def render(table: str, data: str, networks: str) -> str:
    """The page for a table of calls, one of owners' data and one of faults of a network."""
    calls = rows(table)
    statuses = Counter(row.status for row in calls)
    by_exit = [
        f"| {status} | {_MEANS[status]} | {statuses[status]} | {_codes(calls, status)} |"
        for status in _EXITS
    ]
    return "\n".join(
        [
            _INTRO.format(calls=f"{len(calls):,}", commands=len({row.command for row in calls})),
            "## By exit code\n",
            "| exit | means | calls | codes |\n|---:|---|---:|---|",
            *by_exit,
            "\n## By command\n",
            *_count_rows(calls, "command", lambda row: row.command, code=True),
            "\n## By input\n",
            *_count_rows(calls, "in place of the good one", lambda row: row.bad, code=False),
            "",
            _DATA,
            *map(_of_data, data.splitlines()),
            "",
            _NETWORKS,
            *map(_of_network, networks.splitlines()),
            "",
        ]
    )


def _count_rows(
    calls: Sequence[Row], head: str, key: Callable[[Row], str], *, code: bool
) -> Iterable[str]:
    exits = " | ".join(f"exit {status}" for status in _EXITS)
    yield f"| {head} | calls | {exits} |"
    yield "|---|---:|" + "---:|" * len(_EXITS)
    for name in sorted({key(row) for row in calls}):
        statuses = Counter(row.status for row in calls if key(row) == name)
        cells = " | ".join(str(statuses[status] or "") for status in _EXITS)
        yield f"| {f'`{name}`' if code else name} | {statuses.total()} | {cells} |"


def _of_data(line: str) -> str:
    name, command, status, code, about, words = line.split(" | ")
    said = f"{about}: {words}".replace("<", "&lt;")
    return f"| {name} | `{command}` | {status} | [{code}](errors.md#{code}) | {said} |"


def _of_network(line: str) -> str:
    name, command, status, code, _check, words = line.split(" | ")
    return f"| {name} | `{command}` | {status} | [{code}](errors.md#{code}) | {words} |"


def _codes(calls: Iterable[Row], status: str) -> str:
    codes = Counter(
        row.code for row in calls if row.status == status and row.code not in ("-", "varies")
    )
    return ", ".join(
        f"[{code}](errors.md#{code}) {count}"
        for code, count in sorted(codes.items(), key=lambda one: (-one[1], one[0]))
    )


def main() -> None:
    """Write the page, or with ``--check`` compare it."""
    tables = (table.read_text("utf-8") for table in (TABLE, DATA_TABLE, NETWORK_TABLE))
    fresh = render(*tables)
    if PAGE.exists() and PAGE.read_text("utf-8") == fresh:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"{PAGE.name} is stale: run python tools/bad_input_reference.py")
    PAGE.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
