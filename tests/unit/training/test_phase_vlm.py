"""Models that read images: which parts train, where an image stands, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from image_world import encoded, png
from PIL import Image
from sealing_world import CANARY
from training_world import checkpoint_store, run, sources_of
from vision_world import IDEFICS, LLAVA, LORA, VISION, image_reader, seal_digits

from sealtrain.errors import ModelInvalid, RecipeInvalid, RecordInvalid
from sealtrain.training.models.base import build_model, build_tokenizer
from sealtrain.training.models.imagetext import (
    IGNORED,
    ImageTextEncoder,
    image_layout,
    name_image_token,
    train_parts,
)

SHORT = {"max_steps": 2, "save_steps": 2}
IDEFICS_MODEL = {"config": IDEFICS, "init_seed": 1, "tokenizer": {"kind": "bytes"}}


def ready(recipe: Any) -> tuple[Any, Any, Any]:
    """Model, tokenizer and layout as the phase makes them."""
    tokenizer = build_tokenizer(recipe, Path())
    model = build_model(recipe, Path(), "AutoModelForImageTextToText")
    name_image_token(model, tokenizer, fresh=True)
    return model, tokenizer, image_layout(model, tokenizer, recipe.preparation)


def encoder(recipe: Any) -> tuple[ImageTextEncoder, Any, Any]:
    _, tokenizer, layout = ready(recipe)
    return ImageTextEncoder(recipe, tokenizer, layout, recipe.preparation), tokenizer, layout


def record(prompt: str = "what?", completion: str = "a 7") -> dict[str, Any]:
    return {"image": png(), "prompt": prompt, "completion": completion}


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({}, 16),
        ({"vision_feature_select_strategy": "full"}, 17),
        ({"vision_config": LLAVA["vision_config"] | {"patch_size": 8}}, 4),
    ],
)
def test_an_image_takes_as_many_tokens_as_the_model_makes_of_it(
    changed: dict[str, Any], count: int
) -> None:
    model = {"config": LLAVA | changed, "init_seed": 1, "tokenizer": {"kind": "bytes"}}
    _, tokenizer, layout = ready(image_reader(model=model))
    assert layout.tokens == (tokenizer.convert_tokens_to_ids("<image>"),) * count
    assert ready(image_reader(model=IDEFICS_MODEL))[2].tokens == (259,) * 4


@pytest.mark.parametrize("model", [LLAVA, IDEFICS])
def test_only_the_answer_and_its_end_are_learned(model: dict[str, Any]) -> None:
    recipe = image_reader(model=IDEFICS_MODEL | {"config": model})
    encode, tokenizer, layout = encoder(recipe)
    batch = encode([record(), record("a longer prompt", "9")])
    for row, answer in enumerate(("a 7", "9")):
        learned = batch["labels"][row][batch["labels"][row] != IGNORED].tolist()
        assert learned == [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
        ids = batch["input_ids"][row]
        assert (ids == layout.token).sum() == len(layout.tokens)
        assert int(batch["attention_mask"][row].sum()) == int((ids != 0).sum())
    several = model is IDEFICS
    assert batch["pixel_values"].shape == ((2, 1, 3, 16, 16) if several else (2, 3, 16, 16))


def test_an_image_stands_where_the_prompt_says() -> None:
    encode, tokenizer, layout = encoder(image_reader())
    middle = encode([record("ab<image>cd")])["input_ids"][0].tolist()
    first = encode([record("abcd")])["input_ids"][0].tolist()
    ab, cd = (tokenizer(text)["input_ids"] for text in ("ab", "cd"))
    assert middle[:20] == [*ab, *layout.tokens, *cd]
    assert first[:20] == [*layout.tokens, *ab, *cd]


@pytest.mark.parametrize(
    "bad",
    [
        record("<image> and <image>"),
        record(completion="<image>"),
        record("p" * 60),
        record() | {"prompt": 3},
        record() | {"image": CANARY.encode()},
    ],
)
def test_a_bad_record_is_refused_without_its_content(bad: dict[str, Any]) -> None:
    encode, _, _ = encoder(image_reader())
    bad = {
        name: f"{CANARY}{value}" if name == "completion" else value for name, value in bad.items()
    }
    with pytest.raises(RecordInvalid) as caught:
        encode([bad])
    assert CANARY not in repr(vars(caught.value)) + str(caught.value)


def test_a_long_text_is_cut_at_its_end() -> None:
    recipe = image_reader(columns={"image": "image", "text": "text"})
    encode, _, _ = encoder(recipe)
    batch = encode([{"image": png(), "text": "x" * 500}])
    assert batch["input_ids"].shape == (1, 64)


def test_a_black_image_is_no_padding_to_idefics() -> None:
    import torch

    recipe = image_reader(
        model=IDEFICS_MODEL, preparation={"size": 16, "mean": [0, 0, 0], "std": [1, 1, 1]}
    )
    model, tokenizer, layout = ready(recipe)
    encode = ImageTextEncoder(recipe, tokenizer, layout, recipe.preparation)
    black = record() | {"image": encoded(Image.new("RGB", (16, 16)))}
    with torch.no_grad():
        assert torch.isfinite(model(**encode([record(), black])).loss)


def trainable(model: Any) -> set[str]:
    return {name for name, one in model.named_parameters() if one.requires_grad}


# One library deprecates what another still calls.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("config", [LLAVA, IDEFICS])
def test_the_parts_that_the_recipe_names_train_and_no_others(config: dict[str, Any]) -> None:
    model = IDEFICS_MODEL | {"config": config}
    vision = ("vision_tower", "vision_model")
    projector = ("multi_modal_projector", "connector")

    def of(parts: list[str], **changed: Any) -> set[str]:
        recipe = image_reader(model=model, parts=parts, **changed)
        return trainable(train_parts(recipe, ready(recipe)[0]))

    assert all(any(one in name for one in projector) for name in of(["projector"]))
    default = of(["projector", "language"])
    assert not any(one in name for name in default for one in vision)
    assert of(["projector"]) < default
    everything = of(["vision", "projector", "language"])
    assert {name for name in everything - default if any(one in name for one in vision)} == (
        everything - default
    )
    adapted = of(["projector", "language"], peft=LORA)
    assert adapted
    for name in adapted:
        whole = any(one in name for one in projector) and "modules_to_save" in name
        assert whole or ("lora_" in name and not any(one in name for one in vision))
    seeing = of(["vision"], peft=LORA)
    assert all("lora_" in name and any(one in name for one in vision) for name in seeing)


@pytest.mark.slow
def test_what_does_not_train_stays_as_it_was(tmp_path: Path) -> None:
    from safetensors.torch import load

    sealed = seal_digits(tmp_path / "digits", 20)
    recipe = image_reader(trainer=SHORT)
    before = build_model(recipe, Path(), "AutoModelForImageTextToText").state_dict()
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "c"))
    after = load(ran.trained.files["model.safetensors"])
    same = {name for name in after if after[name].equal(before[name])}
    assert same == {name for name in after if "vision_tower" in name}
    assert {"eval_loss", "accuracy", "majority"} <= ran.trained.metrics.keys()
    assert "<image>" in ran.trained.files["tokenizer.json"].decode()
    assert "preprocessor_config.json" in ran.trained.files


@pytest.mark.slow
def test_a_saved_model_trains_on_with_its_own_tokens(tmp_path: Path) -> None:
    sealed = seal_digits(tmp_path / "digits", 20)
    first = image_reader(trainer=SHORT)
    base = tmp_path / "base"
    base.mkdir()
    ran = run(first, sources_of(first, sealed), checkpoint_store(tmp_path / "a"))
    for name, data in ran.trained.files.items():
        (base / name).write_bytes(data)
    second = image_reader(trainer=SHORT, model={"path": "base"}, preparation=None, peft=LORA)
    ran = run(
        second, sources_of(second, sealed), checkpoint_store(tmp_path / "b"), base_dir=tmp_path
    )
    assert "adapter_model.safetensors" in ran.trained.files
    (base / "config.json").write_text(
        (base / "config.json")
        .read_text()
        .replace('"image_token_index": 259', '"image_token_index": 263')
    )
    with pytest.raises(ModelInvalid, check=carries(check="tokenizer")):
        run(second, sources_of(second, sealed), checkpoint_store(tmp_path / "d"), base_dir=tmp_path)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"preparation": {"size": 32}}, ModelInvalid),
        ({"trainer": {"max_length": 16}}, RecipeInvalid),
        ({"peft": LORA | {"target_modules": ["query"]}}, RecipeInvalid),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_training(
    changed: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    recipe = image_reader(**changed)
    with pytest.raises(error):
        run(recipe, sources_of(recipe, seal_digits(tmp_path, 8)), checkpoint_store(tmp_path / "c"))


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"config": VISION | {"model_type": "llama"}, "init_seed": 1}},
        {"model": {"config": LLAVA, "init_seed": 1}},
        {"model": {"config": LLAVA | {"model_type": "gpt2"}, "init_seed": 1}},
        {"preparation": None},
        {"parts": []},
        {"parts": ["projector", "projector"]},
        {"parts": ["head"]},
        {"parts": ["projector"], "peft": LORA},
        {"peft": LORA | {"modules_to_save": ["lm_head"]}},
        {"peft": {"method": "prompt_tuning", "num_virtual_tokens": 4}},
        {"columns": {"image": "image"}},
        {"augmentation": {"token_dropout": 0.1}},
        {"trainer": {"neftune_noise_alpha": 1.0}},
    ],
)
def test_what_a_recipe_may_not_ask(changed: dict[str, Any]) -> None:
    with pytest.raises(RecipeInvalid):
        image_reader(**changed)
