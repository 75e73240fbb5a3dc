"""Models that read images: which parts train, where an image stands, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from collecting import COLLECTING
from image_world import encoded, png
from PIL import Image
from sealing_world import CANARY
from training_world import checkpoint_store, run, sources_of
from vision_world import (
    AREA,
    IDEFICS,
    LLAVA,
    LORA,
    MLLAMA,
    QWEN2,
    QWEN3,
    QWEN25,
    TILES,
    VISION,
    image_reader,
    reading,
    seal_digits,
)

from sealtrain.recipe.errors import ModelInvalid, RecipeInvalid
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.census import census
from sealtrain.training.model_files import weight_files
from sealtrain.training.models.base import build_model, build_tokenizer
from sealtrain.training.models.imageforms import image_layout

if not COLLECTING:
    from sealtrain.training.inputs.images import image_judge
    from sealtrain.training.models.imagetext import (
        IGNORED,
        ImageTextEncoder,
        name_image_token,
        train_parts,
    )

pytestmark = pytest.mark.long

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
    return (
        ImageTextEncoder(recipe, tokenizer, layout, recipe.preparation.max_pixels),
        tokenizer,
        layout,
    )


def sized(width: int, height: int) -> dict[str, Any]:
    return record() | {"image": encoded(Image.new("RGB", (width, height), (200, 10, 10)))}


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


# A token is a square of 8 pixels; an area of 512 pixels has room for eight of them.
@pytest.mark.parametrize(
    ("width", "height", "grid"),
    [(16, 16, (1, 4, 4)), (32, 8, (1, 2, 8)), (8, 24, (1, 6, 2)), (320, 320, (1, 4, 4))],
)
@pytest.mark.parametrize("config", [QWEN2, QWEN25, QWEN3], ids=lambda one: one["model_type"])
def test_an_image_of_a_grid_takes_as_many_tokens_as_its_shape(
    config: dict[str, Any], width: int, height: int, grid: tuple[int, ...]
) -> None:
    import torch

    recipe = image_reader(**reading(config))
    model, tokenizer, layout = ready(recipe)
    encode = ImageTextEncoder(recipe, tokenizer, layout, recipe.preparation.max_pixels)
    batch = encode([record("ab<image>"), sized(width, height)])
    assert tuple(batch["image_grid_thw"][1].tolist()) == grid
    taken = (batch["input_ids"] == layout.token).sum(1).tolist()
    assert taken == (batch["image_grid_thw"].prod(1) // 4).tolist()
    assert batch["pixel_values"].shape == (sum(taken) * 4, 3 * 2 * 4 * 4)
    assert max(taken) <= layout.most == 8
    with torch.no_grad():
        assert torch.isfinite(model(**batch).loss)


def test_an_unplaced_image_of_a_grid_is_marked_as_its_model_marks_it() -> None:
    config = QWEN2 | {"vision_start_token_id": 5, "vision_end_token_id": 6}
    recipe = image_reader(**reading(config))
    _, tokenizer, layout = ready(recipe)
    encode = ImageTextEncoder(recipe, tokenizer, layout, recipe.preparation.max_pixels)
    first, placed = (
        encode([record(text)])["input_ids"][0].tolist() for text in ("ab", "ab<image>")
    )
    image = [layout.token] * first.count(layout.token)
    ab = tokenizer("ab")["input_ids"]
    assert first[: len(image) + 4] == [5, *image, 6, *ab]
    assert placed[: len(image) + 2] == [*ab, *image]


def test_tiles_are_looked_at_from_their_image_on_as_the_library_says() -> None:
    from transformers import MllamaProcessor

    recipe = image_reader(**reading(MLLAMA))
    _, tokenizer, layout = ready(recipe)
    encode = ImageTextEncoder(recipe, tokenizer, layout, recipe.preparation.max_pixels)
    wide, small = Image.new("RGB", (40, 16), (9, 80, 7)), Image.new("RGB", (9, 9), (1, 2, 200))
    texts = [("ab<image>cd", "7"), ("<image>a", "72")]
    batch = encode(
        [
            record(*text) | {"image": encoded(image)}
            for text, image in zip(texts, (wide, small), strict=True)
        ]
    )
    tokenizer.image_token, tokenizer.image_token_id = "<image>", layout.token
    made: Any = MllamaProcessor
    theirs = made(layout.processor, tokenizer)(
        images=[[wide], [small]],
        # It puts the first token before the text itself; ours end with the last one.
        text=[f"{prompt}{answer}" for prompt, answer in texts],
        padding=True,
        return_tensors="pt",
    )
    for name in ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask"):
        assert theirs[name].equal(batch[name]), name
    for row, tiles in enumerate((2, 1)):
        since = batch["input_ids"][row].tolist().index(layout.token)
        looked = batch["cross_attention_mask"][row, :, 0]
        assert not looked[:since].any()
        assert looked[since:].sum(1).unique().tolist() == [tiles]
        its = theirs["input_ids"][row].tolist().index(layout.token)
        assert theirs["cross_attention_mask"][row, its:, 0].equal(
            looked[since : since + len(looked) - its]
        )


def test_an_image_that_no_grid_can_have_is_refused() -> None:
    encode, _, _ = encoder(image_reader(**reading(QWEN2)))
    with pytest.raises(RecordInvalid, check=carries(check="images")):
        encode([sized(1000, 2)])


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
    encode = ImageTextEncoder(recipe, tokenizer, layout, recipe.preparation.max_pixels)
    black = record() | {"image": encoded(Image.new("RGB", (16, 16)))}
    with torch.no_grad():
        assert torch.isfinite(model(**encode([record(), black])).loss)


FEW = "72"
MANY = "7" * 80


@pytest.mark.claim("C583")
@pytest.mark.parametrize(
    "config", [LLAVA, IDEFICS, QWEN2, QWEN3, MLLAMA], ids=lambda one: one["model_type"]
)
def test_the_part_of_a_record_is_that_of_its_batch(config: dict[str, Any]) -> None:
    recipe = image_reader(**reading(config))
    encode, tokenizer, layout = encoder(recipe)
    judge = image_judge(recipe, Path(), build_tokenizer(recipe, Path()))
    images = [sized(*size) for size in ((16, 16), (40, 16), (8, 24), (9, 9))]
    room = 64 - layout.most - 5
    for image in images:
        for answer in (FEW, *("7" * length for length in range(room, room + 12)), MANY):
            asked = image | {"completion": answer}
            learned = encode([asked])["labels"][0].tolist()
            cut = learned[-1] != tokenizer.eos_token_id
            assert judge([asked]) == ["truncated" if cut else "whole"]


@pytest.mark.claim("C583")
@pytest.mark.parametrize("bad", [record("p" * 64), record("<image> and <image>"), sized(1000, 2)])
def test_a_record_that_the_phase_refuses_is_refused_as_it_is_counted(bad: dict[str, Any]) -> None:
    recipe = image_reader(**reading(QWEN2))
    judge = image_judge(recipe, Path(), build_tokenizer(recipe, Path()))
    with pytest.raises(RecordInvalid):
        judge([record(), bad])


@pytest.mark.claim("C583")
@pytest.mark.parametrize("config", [LLAVA, QWEN2], ids=lambda one: one["model_type"])
def test_records_are_counted_without_the_weights_of_their_model(
    config: dict[str, Any], tmp_path: Path
) -> None:
    first = image_reader(**reading(config))
    model, tokenizer, _ = ready(first)
    model.config.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    saved = image_reader(model={"path": "base"}, preparation=first.preparation.model_dump())
    records = [record(completion=FEW), record(completion=MANY)]
    judge = image_judge(saved, tmp_path, build_tokenizer(saved, tmp_path))
    assert judge(records) == ["whole", "truncated"]
    assert sorted(path.suffix for path in (tmp_path / "base").iterdir()) == [".json"] * 3


@pytest.mark.claim("C583")
def test_records_with_images_are_counted_by_dataset(tmp_path: Path) -> None:
    sealed = seal_digits(tmp_path, 8)
    recipe = image_reader(columns={"image": "image", "text": "caption"}, trainer={"max_length": 24})
    found = census(
        recipe, sources_of(recipe, sealed), lambda: build_tokenizer(recipe, Path()), Path()
    )
    counted = [tally for _, tally in found]
    assert [tally.truncated for tally in counted] == [tally.records for tally in counted] == [8, 8]


def trainable(model: Any) -> set[str]:
    return {name for name, tensor in model.named_parameters() if tensor.requires_grad}


# One library deprecates what another still calls.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(
    "config", [LLAVA, IDEFICS, QWEN2, QWEN3, MLLAMA], ids=lambda one: one["model_type"]
)
def test_the_parts_that_the_recipe_names_train_and_no_others(config: dict[str, Any]) -> None:
    vision = ("vision_tower", "vision_model", "visual.blocks", "visual.patch", "visual.pos")
    projector = ("multi_modal_projector", "connector", "visual.merger", "deepstack_merger_list")

    def of(parts: list[str], **changed: Any) -> set[str]:
        recipe = image_reader(**reading(config), parts=parts, **changed)
        return trainable(train_parts(recipe, ready(recipe)[0]))

    assert all(any(part in name for part in projector) for name in of(["projector"]))
    default = of(["projector", "language"])
    assert not any(part in name for name in default for part in vision)
    assert of(["projector"]) < default
    everything = of(["vision", "projector", "language"])
    assert {name for name in everything - default if any(part in name for part in vision)} == (
        everything - default
    )
    adapted = of(["projector", "language"], peft=LORA)
    assert adapted
    for name in adapted:
        whole = any(part in name for part in projector) and "modules_to_save" in name
        assert whole or ("lora_" in name and not any(part in name for part in vision))
    adapter = LORA | {"target_modules": ["qkv" if "qwen" in config["model_type"] else "q_proj"]}
    seeing = of(["vision"], peft=adapter)
    assert all("lora_" in name and any(part in name for part in vision) for name in seeing)


@pytest.mark.slow
def test_what_does_not_train_stays_as_it_was(tmp_path: Path) -> None:
    from safetensors.torch import load

    sealed = seal_digits(tmp_path / "digits", 20)
    recipe = image_reader(trainer=SHORT)
    model = build_model(recipe, Path(), "AutoModelForImageTextToText")
    before = load(weight_files(model)["model.safetensors"])
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / "c"))
    after = load(ran.trained.files["model.safetensors"])
    same = {name for name in after if after[name].equal(before[name])}
    assert same == {name for name in after if "vision_tower" in name}
    assert {"eval_loss", "accuracy", "majority"} <= ran.trained.metrics.keys()
    assert "<image>" in ran.trained.files["tokenizer.json"].decode()
    assert "preprocessor_config.json" in ran.trained.files


@pytest.mark.slow
@pytest.mark.parametrize("config", [QWEN3, MLLAMA], ids=lambda one: one["model_type"])
def test_a_saved_model_says_itself_how_it_reads_images(
    config: dict[str, Any], tmp_path: Path
) -> None:
    from sealtrain.training.data.images import preparation_of

    sealed = seal_digits(tmp_path / "digits", 20)
    first = image_reader(trainer=SHORT, **reading(config))
    ran = run(first, sources_of(first, sealed), checkpoint_store(tmp_path / "a"))
    (tmp_path / "base").mkdir()
    for name, data in ran.trained.files.items():
        (tmp_path / "base" / name).write_bytes(data)
    second = image_reader(trainer=SHORT, model={"path": "base"}, preparation=None, peft=LORA)
    assert preparation_of(second, tmp_path) == first.preparation
    ran = run(
        second, sources_of(second, sealed), checkpoint_store(tmp_path / "b"), base_dir=tmp_path
    )
    assert "adapter_model.safetensors" in ran.trained.files


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
        (reading(MLLAMA) | {"preparation": TILES | {"size": 32}}, ModelInvalid),
        (reading(MLLAMA) | {"preparation": TILES | {"max_image_tiles": 4}}, ModelInvalid),
        (reading(QWEN2) | {"preparation": AREA | {"max_area": 64 * 64}}, RecipeInvalid),
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
        {"preparation": AREA},
        {"preparation": TILES},
        reading(QWEN2) | {"preparation": {"size": 16}},
        reading(QWEN2) | {"preparation": {"min_area": 64}},
        reading(QWEN2) | {"preparation": {"min_area": 64, "max_area": 32}},
        reading(MLLAMA) | {"preparation": {"size": 16}},
        reading(MLLAMA) | {"preparation": TILES | {"max_image_tiles": 0}},
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
