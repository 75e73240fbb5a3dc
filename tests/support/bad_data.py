"""Recipes, base models and owners' files that no training can use, and what first judges them.

``JUDGED`` are texts that teach nothing and bases that cannot read them; ``FILES`` are owners' files
that cannot be read as records, or whose records would not be trained as their owner wrote them.
``tests/cli/bad_data.txt`` has a row for each: exit code, error code, what it is about, and the
words that the user reads.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from language_world import TEMPLATE, write_base
from training_world import LLAMA, TRAINER, releasing

Rows = list[dict[str, Any]]
PAIRED: Rows = [{"prompt": f"{at}?", "completion": " yes"} for at in range(6)]
TALKS: Rows = [
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
] * 4
UNANSWERED: Rows = [{"messages": [{"role": "user", "content": "x"}]}] * 4
LONG = {"prompt": "?" * 60, "completion": " yes"}
RAISES = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"
DATED = (
    f"{{% if strftime_now is defined %}}{{{{ strftime_now('%d %b %Y') }}}}{{% endif %}}{TEMPLATE}"
)


def desk(folder: Path, rows: Rows, **changed: Any) -> Path:
    """A recipe, its base model and records."""
    write_base(folder / "base", LLAMA)
    (folder / "base" / "chat_template.jinja").unlink(missing_ok=True)
    chosen = TRAINER | {"max_length": 48} | changed.pop("trainer", {})
    trainer = {name: value for name, value in chosen.items() if value is not None}
    settings = folder / "base" / "tokenizer_config.json"
    values = json.loads(settings.read_bytes()) | changed.pop("tokenizer", {})
    settings.write_text(json.dumps(values))
    recipe = {
        "version": 1,
        "name": "tiny",
        "phase": "sft",
        "model": {"path": "base"},
        "datasets": [{"owner": "hospital-a", "name": "records", "role": "train"}],
        "columns": {"prompt": "prompt", "completion": "completion"},
        "peft": None,
        "privacy": {"dp": "none"},
        "release_policy": releasing("loss"),
        "hardware": {
            "platforms": ["simulator"],
            "tier": "processor",
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    } | changed
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"trainer": trainer}))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines)
    return folder


def _with_settings(folder: Path, name: str, value: object) -> Path:
    """The same with a file of settings in its base model."""
    (folder / "base" / name).write_text(json.dumps(value))
    return folder


def _with_nan(folder: Path) -> Path:
    """The same with a NaN as the last number of the base model's weights."""
    path = folder / "base" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + bytes.fromhex("0000c07f"))
    return folder


TALKING = {"columns": {"messages": "messages"}, "tokenizer": {"chat_template": TEMPLATE}}
JUDGED: Final[dict[str, Callable[[Path], Path]]] = {
    "no end token": lambda folder: desk(folder, PAIRED, tokenizer={"eos_token": None}),
    "tokens beyond the embedding": lambda folder: desk(
        folder, PAIRED, tokenizer={"additional_special_tokens": ["<new>"]}
    ),
    "settings of generation that are no object": lambda folder: _with_settings(
        desk(folder, PAIRED), "generation_config.json", [{"temperature": 1}]
    ),
    "a base model with a NaN": lambda folder: _with_nan(desk(folder, PAIRED)),
    "a metric without test records": lambda folder: desk(
        folder, PAIRED, release_policy=releasing("loss", "accuracy")
    ),
    "a metric of another phase": lambda folder: desk(
        folder, PAIRED, release_policy=releasing("loss", "auroc")
    ),
    "conversations without a template": lambda folder: desk(
        folder, TALKS, **TALKING | {"tokenizer": {"chat_template": None}}
    ),
    "a template that raises": lambda folder: desk(
        folder, TALKS, **TALKING | {"tokenizer": {"chat_template": RAISES}}
    ),
    "a template that writes the date": lambda folder: desk(
        folder, TALKS, **TALKING | {"tokenizer": {"chat_template": DATED}}
    ),
    "a template without marks": lambda folder: desk(
        folder,
        TALKS,
        **TALKING | {"tokenizer": {"chat_template": "{{ messages }}"}},
        trainer={"assistant_only_loss": True},
    ),
    "a length below every prompt": lambda folder: desk(folder, [LONG] * 5),
    "no answer to learn": lambda folder: desk(
        folder, UNANSWERED, **TALKING, trainer={"assistant_only_loss": True}
    ),
    "texts of one token": lambda folder: desk(folder, [{"text": ""}] * 3, columns={"text": "text"}),
}
"""By kind: what makes a recipe, its base model and ``rows.jsonl``."""


@dataclass(frozen=True)
class BadFile:
    """An owner's file.

    Attributes:
        name: Of the file; how it ends says its form.
        content: Or what makes it.
        recipe: What the recipe says in place of pairs of prompt and completion.
        seal_as: What the owner says of the file.
    """

    name: str
    content: str | bytes | Callable[[], bytes]
    recipe: dict[str, Any] | None = None
    seal_as: str | None = None

    def make(self, folder: Path) -> Path:
        """The file, beside a recipe and its base model."""
        changed = {} if self.recipe is None else dict(self.recipe)
        path = desk(folder, PAIRED, **changed) / self.name
        content = self.content() if callable(self.content) else self.content
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def _lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _said(*turns: object) -> dict[str, Any]:
    return {"messages": list(turns)}


def _two_columns_of_one_name() -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    words = pa.array(["a", "b"])
    kept = io.BytesIO()
    table = pa.Table.from_arrays([words] * 3, names=["prompt", "completion", "prompt"])
    parquet.write_table(table, kept)
    return kept.getvalue()


def _parquet(columns: Callable[[], dict[str, Any]]) -> Callable[[], bytes]:
    """A Parquet file; its columns are made when a test runs."""

    def made() -> bytes:
        import pyarrow as pa
        from pyarrow import parquet

        kept = io.BytesIO()
        parquet.write_table(pa.table(columns()), kept)
        return kept.getvalue()

    return made


def _map_in_a_call() -> dict[str, Any]:
    import pyarrow as pa

    words = pa.string()
    function = pa.struct([("name", words), ("arguments", pa.map_(words, words))])
    calls = pa.list_(pa.struct([("function", function)]))
    turn = pa.struct([("role", words), ("content", words), ("tool_calls", calls)])
    called = [{"function": {"name": "beds", "arguments": [("ward", "1")]}}]
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": called}]
    return {"messages": pa.array([said], pa.list_(turn))}


def _no_rows() -> dict[str, Any]:
    import pyarrow as pa

    return {name: pa.array([], pa.string()) for name in ("prompt", "completion")}


def _deep() -> dict[str, Any]:
    import pyarrow as pa

    kind = pa.int64()
    for _ in range(61):
        kind = pa.struct([("x", kind)])
    return {"prompt": ["a"], "completion": ["b"], "x": pa.nulls(1, kind)}


def _not_a_number() -> dict[str, Any]:
    import pyarrow as pa

    halves = pa.array([1.0, float("nan")], pa.float32()).cast(pa.float16())
    return {"age": halves, "class": ["a", "b"]}


def _an_image_elsewhere() -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kept = io.BytesIO()
    image = pa.array([{"bytes": None, "path": "a.png"}], kind)
    parquet.write_table(pa.table({"image": image, "class": ["a"]}), kept)
    return kept.getvalue()


def _number(number: float) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    kept = io.BytesIO()
    parquet.write_table(pa.table({"age": [1, 2], "crp": [1.5, number], "class": ["a", "b"]}), kept)
    return kept.getvalue()


def _dotted_keys() -> bytes:
    import tarfile

    from image_world import png

    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w") as target:
        for name, data in (("scan.1.png", png()), ("scan.1.txt", b"a")):
            header = tarfile.TarInfo(name)
            header.size = len(data)
            target.addfile(header, io.BytesIO(data))
    return kept.getvalue()


def _dose(mg: float) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "dose", "arguments": {"mg": mg}}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


_ASK: Final = {"role": "user", "content": "a"}
_ANSWER: Final = {"role": "assistant", "content": "b"}
_PARTS: Final = [{"type": "text", "text": "a"}]
_GOOD: Final = _said(_ASK, _ANSWER)
_PAIR: Final = PAIRED[0]
_TALKING: Final[dict[str, Any]] = {**TALKING}
_CALL: Final = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "beds", "arguments": {"ward": 1}}}],
}
_SHOUTED: Final = (
    "{% for turn in messages %}{% if turn.role != 'system' %}{{ turn.content }}{% endif %}"
    "{% endfor %}"
)
_UNHEARD: Final[dict[str, Any]] = {**TALKING, "tokenizer": {"chat_template": _SHOUTED}}
_NUMBERS: Final[dict[str, Any]] = {
    "phase": "classify",
    "model": {"config": {"model_type": "sealtrain-tabular"}, "init_seed": 1},
    "columns": {"features": ["age"], "label": "class"},
    "labels": ["a", "b"],
}
_PICTURES: Final[dict[str, Any]] = {
    "phase": "classify",
    "model": {"config": {"model_type": "vit"}, "init_seed": 1},
    "columns": {"image": "image", "label": "class"},
    "labels": ["a", "b"],
    "preparation": {"size": 32},
}
_TOKENS: Final[dict[str, Any]] = {
    "phase": "cpt",
    "columns": {"tokens": "tokens"},
    "trainer": {"max_length": None, "block_size": 16},
}
_TABLE: Final[dict[str, Any]] = {
    "phase": "classify",
    "model": {"config": {"model_type": "sealtrain-tabular"}, "init_seed": 1},
    "columns": {"features": ["age", "crp"], "label": "class"},
    "labels": ["a", "b"],
}
_IMAGES: Final[dict[str, Any]] = {
    "phase": "classify",
    "model": {"config": {"model_type": "vit"}, "init_seed": 1},
    "columns": {"image": "image", "label": "class"},
    "labels": ["a", "b"],
    "preparation": {"size": 32},
}
_PREFER: Final[dict[str, Any]] = {
    "phase": "dpo",
    "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
    "tokenizer": {"chat_template": TEMPLATE},
}
FILES: Final[dict[str, BadFile]] = {
    "an integer that a float would round": BadFile(
        "rows.jsonl", _lines(_PAIR | {"x": 0.5}, _PAIR | {"x": (1 << 53) + 1})
    ),
    "the same in a list": BadFile(
        "rows.jsonl", _lines(_PAIR | {"x": [0.5]}, _PAIR | {"x": [(1 << 53) + 1]})
    ),
    "the same in a CSV": BadFile(
        "rows.csv", "prompt,completion,x\na,b,0.5\na,b,9007199254740993\n"
    ),
    "an integer of 20 digits": BadFile("rows.jsonl", _lines(_PAIR | {"x": 10**19})),
    "a key twice": BadFile(
        "rows.jsonl", _lines(_PAIR) + '{"prompt": "a", "prompt": "b", "completion": "c"}\n'
    ),
    "a list of several types": BadFile("rows.jsonl", _lines(_PAIR | {"ner": [[0, 4, "Protein"]]})),
    "a field that changes its type": BadFile("rows.jsonl", _lines(_PAIR, _PAIR | {"prompt": 1})),
    "a record that is cut": BadFile("rows.jsonl", _lines(_PAIR) + '{"prompt": "a'),
    "a record that is no object": BadFile("rows.jsonl", _lines(_PAIR) + '"a"\n'),
    "two columns of one name": BadFile("rows.parquet", _two_columns_of_one_name),
    "a CSV column without a name": BadFile("rows.csv", ",prompt,completion\n0,a,b\n"),
    "a CSV in another encoding": BadFile(
        "rows.csv", "prompt,completion\na,Gr\xfc\xdfe\n".encode("latin-1")
    ),
    "a CSV in UTF-16 without its mark": BadFile(
        "rows.csv", "prompt,completion\na,b\n".encode("utf-16-le")
    ),
    "a CSV in UTF-16 that is cut": BadFile(
        "rows.csv", "\ufeffprompt,completion\na,b\n".encode("utf-16-le")[:-1]
    ),
    "a CSV row with another number of cells": BadFile(
        "rows.csv", "prompt,completion\na,b\na,b,c\n"
    ),
    "a CSV below a title": BadFile("rows.csv", "Export 2025\n\nprompt,completion\na,b\n"),
    "a CSV whose rows alone end with a separator": BadFile(
        "rows.csv", "prompt,completion\na,b,\nc,d,\n"
    ),
    "a CSV with two columns without names at its end": BadFile(
        "rows.csv", "prompt,completion,,\na,b,,\n"
    ),
    "a CSV below a note on its separator": BadFile(
        "rows.csv", "\ufeffsep=;\r\nprompt;completion\r\na;b\r\n"
    ),
    "a workbook called CSV": BadFile("rows.csv", b"PK\x03\x04" + bytes(range(256))),
    "a CSV that ends within quotes": BadFile(
        "rows.csv", 'prompt,completion\na,b\nc,"d\ne,f\ng,h\n'
    ),
    "a column that the recipe reads is missing": BadFile("rows.jsonl", _lines({"prompt": "a"})),
    "no record": BadFile("rows.jsonl", ""),
    "an empty conversation": BadFile("rows.jsonl", _lines(_GOOD, _said()), _TALKING),
    "a message with neither text nor a call": BadFile(
        "rows.jsonl", _lines(_GOOD, _said({"role": "user", "content": None})), _TALKING
    ),
    "a message without a role": BadFile(
        "rows.jsonl", _lines(_GOOD, _said({"role": None, "content": "a"})), _TALKING
    ),
    "a message whose calls are none": BadFile(
        "rows.jsonl",
        _lines(_GOOD, _said({"role": "user", "content": None, "tool_calls": []})),
        _TALKING,
    ),
    "a tool call without a name": BadFile(
        "rows.jsonl",
        _lines(
            _said(_ASK, _CALL | {"content": "b", "tool_calls": [{"function": {"arguments": "{}"}}]})
        ),
        _TALKING,
    ),
    "a call in the older form": BadFile(
        "rows.jsonl",
        _lines(_said(_ASK, _ANSWER | {"function_call": {"name": "beds", "arguments": "{}"}})),
        _TALKING,
    ),
    "a message that is null": BadFile(
        "rows.jsonl", json.dumps({"messages": [None, _ASK, _ANSWER]}) + "\n", _TALKING
    ),
    "a message that is not to be learned": BadFile(
        "rows.jsonl", _lines(_said(_ASK, _ANSWER | {"weight": 0}, _ASK, _ANSWER)), _TALKING
    ),
    "content in parts": BadFile(
        "rows.jsonl",
        _lines(
            _said({"role": "user", "content": _PARTS}, {"role": "assistant", "content": _PARTS})
        ),
        _TALKING,
    ),
    "content in parts beside text": BadFile(
        "rows.jsonl", _lines(_said({"role": "user", "content": _PARTS}, _ANSWER)), _TALKING
    ),
    "tools that are no JSON": BadFile(
        "rows.jsonl",
        _lines(_GOOD | {"tools": "beds("}),
        _TALKING | {"columns": {"messages": "messages", "tools": "tools"}},
    ),
    "a map in a tool call": BadFile("rows.parquet", _parquet(_map_in_a_call), _TALKING),
    "a template that leaves out a role": BadFile(
        "rows.jsonl", _lines(_GOOD, _said({"role": "system", "content": "c"}, _ASK)), _UNHEARD
    ),
    "a template that leaves out tool calls": BadFile(
        "rows.jsonl", _lines(_said(_ASK, _CALL)), _TALKING
    ),
    "a template that leaves out tools": BadFile(
        "rows.jsonl",
        _lines(_GOOD | {"tools": [{"type": "function", "function": {"name": "beds"}}]}),
        _TALKING | {"columns": {"messages": "messages", "tools": "tools"}},
    ),
    "a template that leaves out reasoning": BadFile(
        "rows.jsonl", _lines(_said(_ASK, _ANSWER | {"reasoning_content": "c"})), _TALKING
    ),
    "tools in the older form": BadFile(
        "rows.jsonl", _lines(_GOOD | {"functions": [{"name": "beds"}]}), _TALKING
    ),
    "a whole number beside decimals in a call": BadFile(
        "rows.jsonl", _lines(*(_said(_ASK, _dose(mg), _ANSWER) for mg in (0.5, 1))), _TALKING
    ),
    "a template that is no Jinja": BadFile(
        "rows.jsonl", _lines(_GOOD), {**TALKING, "tokenizer": {"chat_template": "{% for %}"}}
    ),
    "trained answers of one class for KTO": BadFile(
        "rows.jsonl",
        _lines(
            *[{"prompt": "a", "completion": "b", "label": True}] * 3,
            *[{"prompt": "a" * 99, "completion": "b", "label": False}] * 3,
        ),
        {
            "phase": "dpo",
            "columns": {"prompt": "prompt", "completion": "completion", "label": "label"},
            "trainer": {"loss_type": "kto", "per_device_train_batch_size": 2},
        },
    ),
    "an image of another format": BadFile(
        "rows.parquet",
        _parquet(lambda: {"image": [b"\x89PNG\r\n\x1a\n", b"GIF89a"], "class": ["a", "b"]}),
        _PICTURES,
    ),
    "an image without a byte": BadFile(
        "rows.parquet", _parquet(lambda: {"image": [b""], "class": ["a"]}), _PICTURES
    ),
    "JSON lines in another encoding": BadFile(
        "rows.jsonl", _lines(_PAIR).encode() + '{"prompt": "Gr\xfc\xdfe"}\n'.encode("latin-1")
    ),
    "JSON lines in UTF-16": BadFile("rows.jsonl", _lines(_PAIR).encode("utf-16")),
    "a record over several lines": BadFile("rows.jsonl", json.dumps(_PAIR, indent=1)),
    "several records in a line": BadFile("rows.jsonl", json.dumps(_PAIR) * 2),
    "a record that is nested very deep": BadFile(
        "rows.jsonl", '{"prompt": "a", "completion": "b", "x": ' + "[" * 5000 + "]" * 5000 + "}"
    ),
    "a number beyond 64 bits": BadFile(
        "rows.jsonl", '{"prompt": "a", "completion": "b", "x": 1e999}'
    ),
    "a Parquet column that is nested very deep": BadFile("rows.parquet", _parquet(_deep)),
    "no record in a Parquet file": BadFile("rows.parquet", _parquet(_no_rows)),
    "a feature that is NaN": BadFile(
        "rows.jsonl", _lines({"age": 1.5, "class": "a"}, {"age": math.nan, "class": "b"}), _NUMBERS
    ),
    "a feature that is NaN in 16 bits": BadFile("rows.parquet", _parquet(_not_a_number), _NUMBERS),
    "a feature beyond 32 bits": BadFile("rows.csv", "age,class\n1.5,a\n1e39,b\n", _NUMBERS),
    "a feature that is infinite": BadFile("rows.csv", "age,class\n1.5,a\n-inf,b\n", _NUMBERS),
    "a token below zero": BadFile("rows.jsonl", _lines({"tokens": [1, -100]}), _TOKENS),
    "a token that is null": BadFile("rows.jsonl", _lines({"tokens": [1, None]}), _TOKENS),
    "a token beyond the model": BadFile("rows.jsonl", _lines({"tokens": [1, 99_999]}), _TOKENS),
    "an empty answer": BadFile(
        "rows.jsonl",
        _lines({"prompt": "a", "chosen": "", "rejected": "b"}),
        _PREFER,
    ),
    "answers that are the same": BadFile(
        "rows.jsonl",
        _lines(*[{"prompt": "a", "chosen": "b", "rejected": "b"}] * 4),
        _PREFER,
    ),
    "texts to score that are the same": BadFile(
        "rows.jsonl",
        _lines(*[{"prompt": "a", "chosen": "b", "rejected": "b"}] * 4),
        _PREFER | {"phase": "reward"},
    ),
    "a text beside conversations": BadFile(
        "rows.jsonl",
        _lines({"prompt": "a", "chosen": [_ANSWER], "rejected": [_ASK]}),
        _PREFER,
    ),
    "an empty conversation as a prompt": BadFile(
        "rows.jsonl",
        _lines(
            *(
                {"prompt": prompt, "chosen": [_ANSWER], "rejected": [_ASK]}
                for prompt in ([_ASK], [])
            )
        ),
        _PREFER,
    ),
    "labels of one class for KTO": BadFile(
        "rows.jsonl",
        _lines(*[{"prompt": "a", "completion": "b", "label": True}] * 4),
        {
            "phase": "dpo",
            "columns": {"prompt": "prompt", "completion": "completion", "label": "label"},
            "trainer": {"loss_type": "kto", "per_device_train_batch_size": 2},
        },
    ),
    # Tables as people have them.
    "a CSV whose rows end with a separator": BadFile("rows.csv", "prompt,completion,\na,b,\n"),
    "a CSV column in the middle without a name": BadFile("rows.csv", "prompt,,completion\na,x,b\n"),
    "a CSV column named twice": BadFile("rows.csv", "prompt,completion,prompt\na,b,c\n"),
    "a word in a column of numbers": BadFile(
        "rows.csv", "age;crp;class\n41;1.5;a\n7;high;b\n", _TABLE
    ),
    "an undeclared decimal comma": BadFile(
        "rows.csv", "age;crp;class\n41;1.5;a\n7;1,5;b\n", _TABLE
    ),
    "a decimal point beside declared commas": BadFile(
        "rows.csv", "age;crp;class\n41;1,5;a\n7;1.5;b\n", _TABLE, "--decimals comma"
    ),
    "a date with two digits of its year": BadFile(
        "rows.csv", "age,crp,class\n41,1.5,a\n7,31.12.24,b\n", _TABLE
    ),
    "a date with a zone": BadFile(
        "rows.csv", "age,crp,class\n41,1.5,a\n7,2024-01-05T10:00:00Z,b\n", _TABLE
    ),
    "a date with a month's name": BadFile(
        "rows.csv", "age,crp,class\n41,1.5,a\n7,05-Jan-2024,b\n", _TABLE
    ),
    "a time of day": BadFile("rows.csv", "age,crp,class\n41,1.5,a\n7,10:30,b\n", _TABLE),
    "a word for yes": BadFile("rows.csv", "age,crp,class\n41,1.5,a\n7,ja,b\n", _TABLE),
    "a limit in place of a number": BadFile(
        "rows.csv", "age,crp,class\n41,1.5,a\n7,< 5,b\n", _TABLE
    ),
    "a number with another minus": BadFile(
        "rows.csv", "age,crp,class\n41,1.5,a\n7,\u22122.5,b\n", _TABLE
    ),
    "a packed file called CSV": BadFile("rows.csv", b"\x1f\x8b\x08\x00" + bytes(range(200))),
    "JSON called CSV": BadFile("rows.csv", '{"prompt": "a", "completion": "b"}\n'),
    "empty lines above the names": BadFile("rows.csv", "\n\nprompt,completion\na,b\n"),
    "a name with a comma beside semicolons": BadFile(
        "rows.csv", "prompt;completion;crp, mg/l\na;b;3\n"
    ),
    "a comma before a brace": BadFile("rows.jsonl", '{"prompt": "a", "completion": "b",}\n'),
    "single quotes in JSON": BadFile("rows.jsonl", "{'prompt': 'a', 'completion': 'b'}\n"),
    "a tab within JSON": BadFile("rows.jsonl", '{"prompt": "a\tb", "completion": "c"}\n'),
    "an array called JSON lines": BadFile("rows.jsonl", '[{"prompt": "a", "completion": "b"}]\n'),
    "a percentage": BadFile("rows.csv", "age,crp,class\n41,1.5,a\n7,12 %,b\n", _TABLE),
    "separators of thousands": BadFile(
        "rows.csv", 'age,crp,class\n41,1.5,a\n7,"1,234.50",b\n', _TABLE
    ),
    "separators of thousands beside decimal commas": BadFile(
        "rows.csv", "age;crp;class\n41;1,5;a\n7;1.234,50;b\n", _TABLE, "--decimals comma"
    ),
    "a number with its unit": BadFile("rows.csv", "age,crp,class\n41,1.5,a\n7,12 mg/L,b\n", _TABLE),
    "a line of totals": BadFile("rows.csv", "age,crp,class\n41,1.5,a\nTotal,1.5,a\n", _TABLE),
    "dates of two patterns": BadFile(
        "rows.csv",
        "age,crp,class\n2025-11-03,1.5,a\n04.11.2025,1.5,b\n",
        _TABLE,
        "--dates age=YYYY-MM-DD",
    ),
    "an undeclared date": BadFile(
        "rows.csv", "age,crp,class\n41,1.5,a\n05/08/2025,1.5,b\n", _TABLE
    ),
    "a day that no month has": BadFile(
        "rows.csv",
        "age,crp,class\n01/02/2025,1.5,a\n30/02/2025,1.5,b\n",
        _TABLE,
        "--dates age=DD/MM/YYYY",
    ),
    "dates of a column that is not there": BadFile(
        "rows.csv", "age,crp,class\n41,1.5,a\n", _TABLE, "--dates born=DD/MM/YYYY"
    ),
    "decimals of JSON lines": BadFile(
        "rows.jsonl", _lines({"age": "41,5", "crp": 1.5, "class": "a"}), _TABLE, "--decimals comma"
    ),
    "a gap in a column of numbers": BadFile(
        "rows.csv", "age,crp,class\n41,1.5,a\n7,n/a,b\n", _TABLE
    ),
    "a record without a label": BadFile("rows.csv", "age,crp,class\n41,1.5,a\n7,1,\n", _TABLE),
    "a number that is no listed label": BadFile(
        "rows.jsonl", _lines({"age": 1, "crp": 1.5, "class": 3}), _TABLE
    ),
    "an infinite number": BadFile("rows.parquet", lambda: _number(float("inf")), _TABLE),
    "a number that is none": BadFile("rows.parquet", lambda: _number(float("nan")), _TABLE),
    "keys with dots in a WebDataset": BadFile(
        "rows.tar", _dotted_keys, _IMAGES, "--format webdataset"
    ),
    "an image that is a path alone": BadFile("rows.parquet", _an_image_elsewhere, _IMAGES),
}
"""By kind."""


def judged(name: str, folder: Path) -> Path:
    """The owner's file of a case of ``JUDGED`` or ``FILES``, beside the recipe."""
    if name in FILES:
        return FILES[name].make(folder)
    return JUDGED[name](folder) / "rows.jsonl"
