"""The first record of data as the model learns it, for ``recipe check`` and ``rehearse``.

Only records that the caller gave as a file of this machine are shown, and of one of them a bounded
part. No guest calls this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealtrain.base.extras import require_extras
from sealtrain.cli.output import say
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.sealing.sourcefiles import list_left_out

if TYPE_CHECKING:
    from sealtrain.recipe.recipe import PhaseRecipe

_MOST_CHARACTERS: Final = 4000
"""Characters of a sequence that are shown."""
_MOST_SPANS: Final = 200


def show_record(
    recipe: PhaseRecipe, base: Path, key: str, records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Render the first records of data, and show one of them.

    Args:
        recipe: That the data are for.
        base: Folder that its paths start from.
        key: ``owner.name`` of the data.
        records: The first ones, as ``client.fitting.read_data`` keeps them; not empty.

    Returns:
        JSON-ready: ``data``, ``record`` (1), ``sequences``, each with ``name``, ``tokens``,
        ``learned``, ``cut``, ``spans`` of ``{use, text}`` and ``characters_left_out``; or ``data``
        and ``not_shown``, the reason.

    Raises:
        ExtraMissing: The training libraries are not installed.
        ModelInvalid: The tokenizer cannot be loaded, or lacks what the records need.
        RecordInvalid: The tokenizer or its chat template refuses one of the records.
    """
    require_extras("showing a record as tokens", "train")
    from sealtrain.training.data.rendered_record import explain_unrendered, render_record
    from sealtrain.training.models.base import desk_tokenizer

    why = explain_unrendered(recipe)
    if why is None and getattr(recipe.model.tokenizer, "kind", None) == "sealed":
        why = "the tokenizer is sealed"
    if why is not None:
        return {"data": key, "not_shown": why}
    tokenizer = desk_tokenizer(recipe, base)
    rendered = []
    for number, record in enumerate(records, start=1):
        try:
            rendered.append(render_record(recipe, tokenizer, record))
        except RecordInvalid as error:
            raise RecordInvalid(
                f"record {number}: {error.message}",
                check=error.check,
                dataset=key,
                got=f"record {number}",
                hint=error.hint,
            ) from None
    return {
        "data": key,
        "record": 1,
        "sequences": [_sequence(sequence, tokenizer) for sequence in rendered[0]],
    }


def show_lines(shown: Mapping[str, Any]) -> Iterator[str]:
    """What ``show_record`` found, as lines of text: each line of a record after its use."""
    if "not_shown" in shown:
        yield f"not shown    a record of {shown['data']}: {shown['not_shown']}"
        return
    for sequence in shown["sequences"]:
        cut = f", {sequence['cut']} cut off" if sequence["cut"] else ""
        yield (
            f"record 1     {shown['data']}, {sequence['name']}: {sequence['tokens']} tokens, "
            f"{sequence['learned']} learned{cut}"
        )
        for span in sequence["spans"]:
            for line in span["text"].split("\n"):
                yield f"  {span['use']:<9}| {line}"
        if sequence["characters_left_out"]:
            yield f"  and {sequence['characters_left_out']} characters that are not shown"


def _sequence(sequence: Any, tokenizer: Any) -> dict[str, Any]:
    room, left_out = _MOST_CHARACTERS, 0
    spans: list[dict[str, str]] = []
    for use, text in sequence.spans(tokenizer):
        part = text[:room] if len(spans) < _MOST_SPANS else ""
        room -= len(part)
        left_out += len(text) - len(part)
        if part:
            spans.append({"use": use, "text": part})
    return {
        "name": sequence.name,
        "tokens": len(sequence.ids),
        "learned": sequence.learned,
        "cut": sequence.cut,
        "spans": spans,
        "characters_left_out": left_out,
    }


def say_left_out(source: object) -> None:
    """Count the files of a folder that operating systems wrote about it, and are not sealed."""
    names = list_left_out(source)
    if names:
        kinds = ", ".join(sorted({Path(name).name for name in names})[:4])
        files = "1 file" if len(names) == 1 else f"{len(names)} files"
        say(f"left out: {files} that an operating system wrote about the folder ({kinds})")
