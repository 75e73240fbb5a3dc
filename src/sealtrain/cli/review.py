"""The page that an owner reads before a signature: what a recipe does, in one screen.

It says all that decides about the owner's data: what is trained, on which columns of which owners,
what leaves, to whom, by which code, on which machines. Every other setting is counted at the end;
``--detail`` shows each. Scripts of the engineer are never left out: their text follows the page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sealtrain.base.clock import to_rfc3339
from sealtrain.base.visible_text import cells, escape_hidden, fold
from sealtrain.cli.output import say, table
from sealtrain.owner.reviewing import (
    approval_lines,
    describe_open,
    describe_tier,
    facts,
    is_empty,
    machines,
    name_outlasted,
    shorten,
    text_of,
    uses,
)
from sealtrain.recipe.diff import diff

if TYPE_CHECKING:
    from sealtrain.consortium.datasets import DatasetManifest
    from sealtrain.consortium.verifications import SignedImageVerification
    from sealtrain.owner.approving import Intent
    from sealtrain.recipe.diff import RecipeChange
    from sealtrain.recipe.lock import Lock
    from sealtrain.signing.needs import Needs

_WIDTH: Final = 100
_NARROWEST: Final = 40
_LABEL: Final = 12
_MARGIN: Final = 2 + _LABEL
"""Where the text beside a label begins; nothing of others begins further left."""


def review(  # noqa: PLR0913  # what is shown, and how
    lock: Lock,
    needs: Needs,
    before: Lock | None = None,
    *,
    known: Mapping[str, str],
    detail: bool = False,
    intent: Intent | None = None,
    days: float | None = None,
    verified: Sequence[SignedImageVerification] = (),
    until: int | None = None,
    now: int = 0,
) -> None:
    """Show an owner what a signature would allow.

    Args:
        lock: Of the recipe.
        needs: Of the recipe.
        before: What the owner approved last: shown is what changed since.
        known: URL of each broker of the lock that the owner has a broker file of, by its id there.
        detail: Show every setting besides.
        intent: The approval, where one is to be signed.
        days: How long it would hold.
        verified: Records of owners who accounted for the image, verified.
        until: Last second at which it would hold, in place of ``days``.
        now: The present, from which ``days`` count.
    """
    registered = () if intent is None else intent.registered
    width = screen_width()

    def tell(line: str) -> None:
        for part in within([line], width):
            say(part)

    say("You are about to approve" + (" these changes:" if before else ":"))
    changes = diff(before, lock)
    if before is None:
        for line in page(lock, registered, verified, width=width):
            tell(line)
        scripts = [change for change in changes if change.text_lines]
        shown = changes if detail else scripts
        hidden = len(changes) - len(shown)
        for line in change_lines(shown):
            tell(f"  {line}")
        if hidden and not detail:
            tell(f"  {hidden} settings in all, each with its value: --detail")
    else:
        use = uses(lock.recipe, registered)
        where = [
            ("runs on", machines(lock, verified)),
            ("you accept", describe_tier(lock)),
            *describe_open(lock),
        ]
        for line in _lay_out([*use, *where], width):
            tell(line)
        for line in change_lines(changes) or ["no difference"]:
            tell(f"  {line}")
    if intent is not None:
        for line in approval_lines(intent):
            tell(line)
    if days is not None:
        count, unit = (days, "day") if days == int(days) else (days * 24, "hour")
        tell(f"  your approval holds for {count:g} {unit}{'' if count == 1 else 's'}")
    if until is not None:
        tell(f"  your approval holds until {to_rfc3339(until)}")
    ends = until if days is None else now + round(days * 86400)
    if intent is not None and ends is not None:
        for line in name_outlasted(intent.registered, ends):
            tell(f"  {line}")
    tell(f"  recipe hash {lock.recipe_hash}")
    tell(f"  needs approval because {needs.to_text()}")
    for broker_id in lock.brokers:
        tell(f"  broker {broker_id}  {known.get(broker_id, 'no broker file was given for it')}")


def page(
    lock: Lock,
    registered: Sequence[DatasetManifest] = (),
    verified: Sequence[SignedImageVerification] = (),
    *,
    width: int = _WIDTH,
) -> list[str]:
    """What a lock does, in one screen.

    Args:
        lock: Of the recipe.
        registered: Datasets of its owners, verified; without them no records are counted.
        verified: Records of owners who accounted for the image, verified.
        width: Of the screen, in cells.
    """
    return _lay_out(facts(lock, registered, verified), width)


def within(lines: Iterable[str], width: int) -> list[str]:
    """Lines that a screen does not break itself: what is longer goes on in the column of texts.

    A line that the terminal broke would go on at its left edge, where the page's labels stand.
    """
    return [part for line in lines for part in _break_line(line, width)]


def _break_line(line: str, width: int) -> list[str]:
    if cells(escape_hidden(line)) <= width:
        return [line]
    first, *rest = fold(line, width - _MARGIN)
    return [first, *(" " * _MARGIN + part for part in rest)]


def screen_width() -> int:
    """Cells of a line of the page: at most 100, and no more than the terminal has."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # no terminal
        return _WIDTH
    return max(_NARROWEST, min(_WIDTH, columns))


def _lay_out(facts: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Labelled facts in two columns."""
    return [
        f"  {'' if number else label:<{_LABEL}}{line}"
        for label, text in facts
        if text
        for number, line in enumerate(fold(text, width - _MARGIN))
    ]


def change_lines(changes: Sequence[RecipeChange]) -> list[str]:
    """Changes as aligned text; below it the lines of scripts that differ, and values that were cut.

    What is empty before and after says nothing and is left out; where nothing was before, there is
    no column for it.
    """
    said = [
        change for change in changes if not (is_empty(change.before) and is_empty(change.after))
    ]
    if not said:
        return []
    if all(change.kind == "added" for change in said):
        added = [(change.severity, change.path, shorten(change.after)) for change in said]
        lines = table(added, header=("weight", "what", "value"))
    else:
        rows = [
            (change.severity, change.path, shorten(change.before), shorten(change.after))
            for change in said
        ]
        lines = table(rows, header=("weight", "what", "before", "after"))
    for change in said:
        below = change.text_lines or _whole(change)
        if below:
            lines += ["", change.path, *below]
    return lines


def _whole(change: RecipeChange) -> list[str]:
    """What the table cut of two values that differ, or of one that is critical."""
    marked = [("-", change.before), ("+", change.after)]
    sides = [(mark, value) for mark, value in marked if not is_empty(value)]
    if change.kind != "changed" and change.severity != "critical":
        return []
    if all(text_of(value) == shorten(value) for _, value in sides):
        return []
    return [f"{mark} {line}" for mark, value in sides for line in text_of(value).split("\n")]
