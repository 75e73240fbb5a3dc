"""Phase ``cpt``: what it measures, what it says of its tokens, what it refuses."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from language_world import PROMPT_ADAPTERS, cpt, write_base, write_files
from training_world import (
    LLAMA,
    PlainDataset,
    checkpoint_store,
    records,
    run,
    seal_records,
    sources_of,
    write_records,
)

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.data.stream import RecordStream
from sealtrain.training.models.base import byte_tokenizer

pytestmark = pytest.mark.long

NO_TOKENIZER = {"config": LLAMA, "init_seed": 7}
TOKENS = {"tokens": "tokens"}


def tokens_of(*rows: list[list[int]], kind: pa.DataType | None = None) -> dict[str, Any]:
    """Datasets of token rows under the recipe's names."""
    names = ("hospital-a.records", "hospital-b.records", "hospital-a.held-out")
    kind = pa.list_(pa.uint16()) if kind is None else kind
    return {
        name: PlainDataset([pa.RecordBatch.from_arrays([pa.array(part, kind)], names=["tokens"])])
        for name, part in zip(names, rows, strict=True)
    }


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("records")
    return dict(seal_records(write_records(folder), folder))


@pytest.fixture(scope="module")
def ran(sealed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    recipe = cpt()
    store = checkpoint_store(tmp_path_factory.mktemp("store"))
    return run(recipe, sources_of(recipe, sealed), store)


def test_what_is_measured_is_what_a_second_count_finds(ran: Any, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(write_files(tmp_path / "m", ran.trained.files))
    tokenizer = byte_tokenizer()
    texts = [row["text"] for row in records(20, "hospital-a.held-out")]
    ids = [token for text in texts for token in (*tokenizer(text)["input_ids"], 2)]
    assert tokenizer.eos_token_id == 2
    nats = 0.0
    with torch.no_grad():
        for at in range(1, len(ids)):
            # Windows of 32 tokens share one token, so each begins at a multiple of 31.
            start = (at - 1) // 31 * 31
            row = torch.tensor([ids[start:at]])
            nats -= float(model(input_ids=row).logits[0, -1].log_softmax(-1)[ids[at]])
    loss = nats / (len(ids) - 1)
    metrics = ran.trained.metrics
    assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    size = sum(len(text.encode()) for text in texts)
    assert metrics["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def test_the_digest_in_the_result_can_be_recomputed_from_the_records(
    ran: Any, sealed: dict[str, Any]
) -> None:
    recipe = cpt()
    train = [source for source in sources_of(recipe, sealed) if source.role == "train"]
    tokenizer = byte_tokenizer()
    run_of_tokens = [
        token
        for row in RecordStream(train, ["text"], seed=7).rows(0, 60)
        for token in (*tokenizer(row["text"])["input_ids"], tokenizer.eos_token_id)
    ]
    digest = hashlib.sha256(b"sealtrain/tokens/v1").digest()
    assert ran.trained.tokens == 8 * 4 * 32
    for at in range(0, ran.trained.tokens, 32):
        block = run_of_tokens[at : at + 32]
        data = b"".join(token.to_bytes(4, "little") for token in block)
        digest = hashlib.sha256(digest + data).digest()
    assert ran.trained.tokens_sha256 == digest.hex()


def test_the_digest_can_be_left_out(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = cpt(trainer={"token_digest": False, "max_steps": 1})
    done = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path)).trained
    assert done.tokens_sha256 is None


def test_the_model_that_is_handed_out_caches_as_its_config_said(ran: Any) -> None:
    assert b'"use_cache": false' not in ran.trained.files["config.json"]


@pytest.mark.parametrize("name", PROMPT_ADAPTERS)
def test_learned_prompts_are_measured_where_the_text_is(
    name: str, sealed: dict[str, Any], tmp_path: Path
) -> None:
    write_base(tmp_path / "base")
    recipe = cpt(model={"path": "base"}, peft=PROMPT_ADAPTERS[name], trainer={"max_steps": 1})
    store = checkpoint_store(tmp_path)
    done = run(recipe, sources_of(recipe, sealed), store, base_dir=tmp_path).trained
    # A model that knows nothing needs about ln 259 nats; one read at other places needs more.
    assert done.metrics["eval_loss"] == pytest.approx(math.log(259), rel=0.03)


def test_tokens_train_without_a_tokenizer(tmp_path: Path) -> None:
    data = tokens_of([[n % 50] * 40 for n in range(20)], [[7] * 40] * 9, [[7] * 40] * 3)
    recipe = cpt(model=NO_TOKENIZER, columns=TOKENS, trainer={"max_steps": 3})
    done = run(recipe, sources_of(recipe, data), checkpoint_store(tmp_path)).trained
    assert set(done.files) == {"model.safetensors", "config.json", "generation_config.json"}
    assert set(done.metrics) == {"loss", "eval_loss", "perplexity"}
    assert done.tokens == 3 * 4 * 32


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_token_the_model_does_not_have_stops_the_run(place: int, tmp_path: Path) -> None:
    rows = [[[1] * 40], [[2] * 40], [[3] * 40]]
    rows[place] = [[259] * 40]
    recipe = cpt(model=NO_TOKENIZER, columns=TOKENS, trainer={"max_steps": 2})
    with pytest.raises(RecordInvalid, check=carries(check="tokens")):
        run(recipe, sources_of(recipe, tokens_of(*rows)), checkpoint_store(tmp_path))


def test_a_column_that_holds_no_tokens_is_refused(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = cpt(model=NO_TOKENIZER, columns={"tokens": "text"})
    with pytest.raises(SchemaMismatch, check=carries(check="columns", got="string")):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))


def test_a_tokenizer_without_an_end_token_is_refused(
    sealed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sealtrain.training.phases.cpt as phase

    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    monkeypatch.setattr(phase, "build_tokenizer", lambda *_: tokenizer)
    recipe = cpt()
    with pytest.raises(ModelInvalid, check=carries(check="tokenizer")):
        run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
