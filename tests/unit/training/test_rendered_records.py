"""The text that a model learns is the record that its owner wrote, through the chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from language_world import write_base
from preference_world import preferring
from training_world import (
    LLAMA,
    checkpoint_store,
    releasing,
    run,
    seal_records,
    sft,
    sources_of,
    write_records,
)

from sealtrain.owner.data_fitness import read_data
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.fitness import misfits
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.sealing.sealer import SealOptions

pytestmark = [pytest.mark.long, pytest.mark.claim("C521")]

# What the template gets is written down whole, so that the tokens can be read back.
TEMPLATE = (
    "{{ tools | tojson if tools else '' }}{% for message in messages %}"
    "{{ message | tojson }}\n{% endfor %}"
)
COLUMNS = {"messages": "messages", "tools": "tools"}


def call(name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}


def tools_of(*names: str) -> list[dict[str, Any]]:
    properties = {name: {"type": "integer"} for name in names}
    return [{"name": "beds", "parameters": {"type": "object", "properties": properties}}]


def conversations(count: int, label: str) -> list[dict[str, Any]]:
    """Every second record calls its tool with another key."""
    rows = []
    for number in range(count):
        key = ("ward", "floor")[number % 2]
        said = [
            {"role": "user", "content": f"{label} {number}?"},
            call("beds", {key: number}),
            {"role": "tool", "name": "beds", "content": "3"},
        ]
        answer = [{"role": "assistant", "content": "three"}]
        rows.append(
            {
                "messages": [*said, *answer],
                "tools": tools_of(key),
                "prompt": said,
                "chosen": answer,
                "rejected": [{"role": "assistant", "content": "four"}],
            }
        )
    return rows


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "base", LLAMA | {"max_position_embeddings": 1024})
    settings = folder / "base" / "tokenizer_config.json"
    values = json.loads(settings.read_bytes()) | {"chat_template": TEMPLATE}
    settings.write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_records(tmp_path_factory.mktemp("talks"), 8, made=conversations)


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each call of a chat template gets."""
    from transformers import PreTrainedTokenizerBase

    seen: list[dict[str, Any]] = []
    apply = PreTrainedTokenizerBase.apply_chat_template

    def noted(tokenizer: Any, conversation: Any, *others: Any, **settings: Any) -> Any:
        given = {"messages": conversation, "tools": settings.get("tools")}
        seen.append(json.loads(json.dumps(given)))
        return apply(tokenizer, conversation, *others, **settings)

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", noted)
    return seen


def test_a_template_gets_messages_and_tools_with_their_own_keys(
    base_dir: Path, paths: dict[str, Path], rendered: list[dict[str, Any]], tmp_path: Path
) -> None:
    recipe = sft(
        model={"path": "base"},
        columns=COLUMNS,
        trainer={"max_steps": 4, "max_length": 1000},
        release_policy=releasing("loss"),
    )
    assert misfits(recipe, base_dir, recipe.owners) == []
    sealed = dict(seal_records(paths, tmp_path))
    run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=base_dir)
    written = [
        {"messages": record["messages"], "tools": record["tools"]}
        for path in paths.values()
        for record in map(json.loads, path.read_text().splitlines())
    ]
    got = [given for given in rendered if len(given["messages"]) == 4]
    assert got
    assert all(given in written for given in got)
    assert {len(given["tools"][0]["parameters"]["properties"]) for given in got} == {1}


def test_a_prompt_of_preferences_may_call_a_tool(
    base_dir: Path, paths: dict[str, Path], rendered: list[dict[str, Any]], tmp_path: Path
) -> None:
    columns = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    trainer = {"max_steps": 1, "max_length": 1000}
    recipe = preferring("dpo", model={"path": "base"}, columns=columns, trainer=trainer)
    plain = {}
    for key, path in paths.items():
        plain[key] = tmp_path / path.name
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        kept = [{name: row[name] for name in columns} for row in rows]
        plain[key].write_text("".join(json.dumps(row) + "\n" for row in kept))
        owner, _, name = key.partition(".")
        assert read_data(recipe, owner, name, plain[key], SealOptions()).count == len(rows)
    sealed = dict(seal_records(plain, tmp_path))
    run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=base_dir)
    prompts = [
        row["prompt"]
        for path in paths.values()
        for row in map(json.loads, path.read_text().splitlines())
    ]
    assert rendered
    assert all(given["messages"][:3] in prompts for given in rendered)


BAD: dict[str, tuple[list[Any], type[Exception]]] = {
    "empty": ([], RecordInvalid),
    "neither-text-nor-call": ([{"role": "user", "content": None}], RecordInvalid),
    "no-role": ([{"role": None, "content": "a"}], RecordInvalid),
    "no-call": ([{"role": "user", "content": None, "tool_calls": []}], RecordInvalid),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], SchemaMismatch),
}


@pytest.mark.parametrize("fault", BAD)
def test_the_desk_refuses_what_the_guest_could_not_render(fault: str, tmp_path: Path) -> None:
    turns, kind = BAD[fault]
    good = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [turns] if fault == "parts" else [good, turns]
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    recipe = sft(model={"path": "base"}, columns={"messages": "messages"})
    with pytest.raises(kind) as refused:
        read_data(recipe, "hospital-a", "records", path, SealOptions())
    assert refused.value.check == "columns"
    if fault != "parts":
        assert refused.value.got == "record 2"


ALONE = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
RENDERS = {
    "dpo": ("dpo", {}, ALONE | {"tools": "tools"}),
    "kto": (
        "dpo",
        {"loss_type": "kto"},
        {"prompt": "prompt", "completion": "chosen", "label": "label", "tools": "tools"},
    ),
    "reward": ("reward", {}, ALONE | {"tools": "tools"}),
}


@pytest.mark.parametrize("method", RENDERS)
def test_a_template_gets_the_tools_of_preferences(
    method: str,
    base_dir: Path,
    rendered: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    phase, changed, columns = RENDERS[method]
    trainer = {"max_steps": 1, "max_length": 1000} | changed
    if method == "kto":
        trainer["per_device_train_batch_size"] = 2

    def labelled(count: int, label: str) -> list[dict[str, Any]]:
        rows = conversations(count, label)
        names = set(columns.values())
        for number, row in enumerate(rows):
            row["label"] = number % 2 == 0
            row["tools"] = json.dumps(row["tools"]) if method == "reward" else row["tools"]
        return [{name: row[name] for name in names} for row in rows]

    (tmp_path / "rows").mkdir()
    paths = write_records(tmp_path / "rows", 8, made=labelled)
    recipe = preferring(phase, model={"path": "base"}, columns=columns, trainer=trainer)
    for key, path in paths.items():
        owner, _, name = key.partition(".")
        assert read_data(recipe, owner, name, path, SealOptions()).count > 0
    sealed = dict(seal_records(paths, tmp_path))
    run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), base_dir=base_dir)
    rows = [json.loads(line) for path in paths.values() for line in path.read_text().splitlines()]
    written = [
        row["tools"] if isinstance(row["tools"], list) else json.loads(row["tools"]) for row in rows
    ]
    assert rendered
    assert all(given["tools"] in written for given in rendered)


@pytest.mark.parametrize(
    ("tools", "refusal"),
    [
        ('{"name": "beds"}', RecordInvalid),
        ("[1]", RecordInvalid),
        ("[{", RecordInvalid),
        ([1], SchemaMismatch),
    ],
)
def test_tools_that_are_no_schemas_are_refused(
    tools: Any, refusal: type[Exception], tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps({"messages": turns, "tools": tools}) + "\n")
    recipe = sft(model={"path": "base"}, columns=COLUMNS)
    with pytest.raises(refusal) as refused:
        read_data(recipe, "hospital-a", "records", path, SealOptions())
    assert refused.value.check == "columns"


def test_tools_beside_plain_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    row = {"prompt": "a", "chosen": "b", "rejected": "c", "tools": "[]"}
    path.write_text(json.dumps(row) + "\n")
    recipe = preferring("dpo", columns=ALONE | {"tools": "tools"})
    with pytest.raises(SchemaMismatch) as refused:
        read_data(recipe, "hospital-a", "records", path, SealOptions())
    assert refused.value.column == "tools"


def test_orpo_gives_a_template_no_tools() -> None:
    settings = {"loss_type": "orpo"}
    with pytest.raises(RecipeInvalid):
        preferring("dpo", columns=ALONE | {"tools": "tools"}, trainer=settings)
    assert preferring("dpo", columns=ALONE, trainer=settings).columns.tools is None


@pytest.mark.parametrize("phase", ["sft", "dpo"])
def test_tools_that_no_template_would_get_are_refused(phase: str, paths: dict[str, Path]) -> None:
    wanted = {
        "sft": lambda: sft(model={"path": "base"}, columns={"messages": "messages"}),
        "dpo": lambda: preferring(
            "dpo", columns={"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
        ),
    }[phase]()
    with pytest.raises(SchemaMismatch) as refused:
        read_data(wanted, "hospital-a", "records", paths["hospital-a.records"], SealOptions())
    assert refused.value.got == "tools"


def test_conversations_need_a_template_at_the_desk(base_dir: Path, tmp_path: Path) -> None:
    recipe = sft(
        model={"path": "base"},
        columns={"messages": "messages"},
        release_policy=releasing("loss"),
    )
    write_base(tmp_path / "base")
    settings = tmp_path / "base" / "tokenizer_config.json"
    values = json.loads(settings.read_bytes())
    del values["chat_template"]
    settings.write_text(json.dumps(values))
    assert misfits(recipe, base_dir, recipe.owners) == []
    found = misfits(recipe, tmp_path, recipe.owners)
    assert [misfit.field for misfit in found] == ["columns.messages"]
    (tmp_path / "base" / "chat_template.jinja").write_text(TEMPLATE)
    assert misfits(recipe, tmp_path, recipe.owners) == []
