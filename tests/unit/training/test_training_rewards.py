"""Rules, reward models, prompts and sampling of ``rlhf``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries
from collecting import COLLECTING
from preference_world import SCORER, rlhf, write_scorer
from training_world import (
    LLAMA,
    LORA,
    PlainDataset,
    checkpoint_store,
    run,
    sources_of,
)

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.models.base import adopt_tokens, build_model, byte_tokenizer
from sealtrain.training.rewards import rewards_of
from sealtrain.training.sampling import Sampler, likelihood

if not COLLECTING:
    import torch

    from sealtrain.training.ppo.rollout import Critic

pytestmark = pytest.mark.long

TEMPLATE = "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}{% endfor %}"


def work(recipe: Any, base_dir: Path = Path()) -> Any:
    return SimpleNamespace(recipe=recipe, base_dir=base_dir)


@pytest.fixture(scope="module")
def scorer_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scorer(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize(
    ("rule", "scores"), [("exact-match", [1, 1, 0, 0]), ("contains", [1, 1, 1, 0])]
)
def test_rules(rule: str, scores: list[int]) -> None:
    columns = {"prompt": "prompt", "answer": "answer"}
    rewards = rewards_of(work(rlhf("ppo", columns=columns, reward={"rule": rule})))
    given = ["first", " first\n", "first or so", "FIRST"]
    assert rewards(["?"] * 4, given, ["first"] * 4) == scores
    turns = [[{"role": "assistant", "content": text}] for text in given]
    assert rewards([[]] * 4, turns, ["first"] * 4) == scores


def test_a_reward_model_reads_prompt_answer_and_end(scorer_at: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    rewards = rewards_of(work(rlhf("ppo"), scorer_at))
    scores = rewards(["a?", "a much longer question?"], ["yes", "no"], None)
    model = AutoModelForSequenceClassification.from_pretrained(scorer_at / "scorer").eval()
    tokenizer = byte_tokenizer()
    for text, score in zip(("a?yes<eos>", "a much longer question?no<eos>"), scores, strict=True):
        alone = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            expected = float(model(input_ids=alone).logits[0, 0])
        assert score == pytest.approx(expected, abs=1e-6)
    assert scores[0] != scores[1]


def test_of_a_long_text_a_reward_model_reads_the_end(scorer_at: Path) -> None:
    short = rlhf("ppo", reward=SCORER | {"max_length": 8})
    rewards = rewards_of(work(short, scorer_at))
    same = rewards(["x" * 50, "y" * 50], ["the end", "the end"], None)
    assert same[0] == same[1]


def test_only_a_classifier_with_one_output_is_a_reward_model(tmp_path: Path) -> None:
    for folder, kind, labels in (
        ("causal", "LlamaForCausalLM", 1),
        ("classes", "LlamaForSequenceClassification", 3),
    ):
        (tmp_path / folder).mkdir()
        write_scorer(tmp_path / folder, kind, labels)
        with pytest.raises(ModelInvalid, check=carries(check="reward")):
            rewards_of(work(rlhf("ppo"), tmp_path / folder))


def test_scores_that_are_no_numbers_stop_the_run(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_scorer(tmp_path)
    weights = load_file(tmp_path / "scorer" / "model.safetensors")
    weights["score.weight"].fill_(float("nan"))
    save_file(weights, tmp_path / "scorer" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelInvalid, check=carries(check="reward")):
        rewards_of(work(rlhf("ppo"), tmp_path))(["a?"], ["b"], None)


@pytest.fixture(scope="module")
def policy() -> Any:
    recipe = rlhf("ppo")
    model: Any = build_model(recipe, Path(), "AutoModelForCausalLM")
    adopt_tokens(model, byte_tokenizer())
    return model.eval()


def sampler_of(policy: Any, **changed: Any) -> Sampler:
    return Sampler(byte_tokenizer(), policy, rlhf("ppo", trainer=changed).trainer)


def test_padding_changes_no_likelihood(policy: Any) -> None:
    sampler = sampler_of(policy, max_completion_length=5, temperature=0.7)
    torch.manual_seed(0)
    answers = sampler.sample(policy, ["short", "a prompt that is much longer than that"])
    answers[0].tokens = answers[0].tokens[:2]
    together = sampler.batch(answers, "cpu")
    assert together.answered.tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]
    critic = Critic(policy)
    torch.nn.init.ones_(critic.value_head.weight)
    with torch.no_grad():
        chances, entropies, values = critic(together, sampler.temperature)
        for row, answer in enumerate(answers):
            alone = critic(sampler.batch([answer], "cpu"), sampler.temperature)
            length = len(answer.tokens)
            for both, value in zip((chances, entropies, values), alone, strict=True):
                assert torch.allclose(both[row, :length], value[0, :length], atol=1e-5)


def test_likelihoods_are_those_of_the_tokens_given(policy: Any) -> None:
    sampler = sampler_of(policy, max_completion_length=4, temperature=2.0)
    torch.manual_seed(1)
    (answer,) = sampler.sample(policy, ["why?"])
    batch = sampler.batch([answer], "cpu")
    with torch.no_grad():
        chances, entropies, _ = likelihood(policy, batch, 2.0)
        logits = policy(torch.tensor([answer.prompt + answer.tokens])).logits[0]
    for at, token in enumerate(answer.tokens):
        log = (logits[len(answer.prompt) + at - 1] / 2.0).log_softmax(-1)
        assert float(chances[0, at]) == pytest.approx(float(log[token]), abs=1e-5)
        assert float(entropies[0, at]) == pytest.approx(float(-(log.exp() * log).sum()), abs=1e-4)


def test_an_answer_ends_with_its_first_end_token(policy: Any) -> None:
    tokenizer = byte_tokenizer()
    sampler = sampler_of(policy, max_completion_length=4)
    end, letter = tokenizer.eos_token_id, tokenizer("x")["input_ids"][0]

    class Scripted:
        device = "cpu"

        def generate(self, input_ids: Any, **_: Any) -> Any:
            tail = torch.tensor([[letter, end, letter, end], [letter] * 4])
            return torch.cat([input_ids, tail], 1)

    first, second = sampler.sample(Scripted(), ["a", "bcd"])
    assert (first.tokens, first.ended, first.text) == ([letter, end], True, "x")
    assert (second.tokens, second.ended, second.text) == ([letter] * 4, False, "xxxx")
    assert second.prompt == tokenizer("bcd")["input_ids"]


def trained(recipe: Any, rows: list[dict[str, Any]], tmp_path: Path, base_dir: Path) -> Any:
    clear = PlainDataset([pa.RecordBatch.from_pylist(rows)])
    names = (f"{dataset.owner}.{dataset.name}" for dataset in recipe.datasets)
    sources = sources_of(recipe, dict.fromkeys(names, clear))
    return run(recipe, sources, checkpoint_store(tmp_path / "store"), base_dir=base_dir)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize(
    ("rows", "changed", "error"),
    [
        ([{"prompt": ""}], {}, RecordInvalid),
        ([{"prompt": None}, {"prompt": "x"}], {}, RecordInvalid),
        ([{"prompt": 3}], {}, SchemaMismatch),
        ([{"prompt": [{"role": "user", "content": "x"}]}], {}, ModelInvalid),
        ([{"question": "x"}], {}, SchemaMismatch),
        (
            [{"prompt": "x", "answer": None}, {"prompt": "x", "answer": "y"}],
            {"columns": {"prompt": "prompt", "answer": "answer"}, "reward": {"rule": "contains"}},
            RecordInvalid,
        ),
    ],
)
def test_records_that_hold_no_prompt_are_refused(
    algorithm: str,
    rows: list[dict[str, Any]],
    changed: dict[str, Any],
    error: type[Exception],
    tmp_path: Path,
    scorer_at: Path,
) -> None:
    with pytest.raises(error):
        trained(rlhf(algorithm, **changed), rows, tmp_path, scorer_at)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_prompts_may_be_conversations(algorithm: str, tmp_path: Path, scorer_at: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "words")
    (tmp_path / "scorer").symlink_to(scorer_at / "scorer")
    words = {"path": "words"}
    recipe = rlhf(
        algorithm,
        trainer={"max_steps": 2},
        model={"config": LLAMA, "init_seed": 7, "tokenizer": words},
        reward={"model": {"path": "scorer", "tokenizer": words}},
    )
    rows = [{"prompt": [{"role": "user", "content": f"size {size}?"}]} for size in range(8)]
    ran = trained(recipe, rows, tmp_path, tmp_path)
    assert ran.trained.steps == 2
    assert ran.trained.metrics["eval_length"] > 0


def test_an_adapter_alone_is_trained(tmp_path: Path, scorer_at: Path) -> None:
    rows = [{"prompt": f"size {size}?"} for size in range(8)]
    ran = trained(
        rlhf("ppo", peft=LORA | {"lora_dropout": 0.0}, trainer={"max_steps": 2}),
        rows,
        tmp_path,
        scorer_at,
    )
    assert "adapter_model.safetensors" in ran.trained.files
    assert b"value_head" not in ran.trained.files["adapter_model.safetensors"]


@pytest.mark.parametrize("settings", [{"optim": "sgd"}, {"bf16": True}])
def test_trainer_settings_count_in_the_loop(
    settings: dict[str, Any], tmp_path: Path, scorer_at: Path
) -> None:
    rows = [{"prompt": f"size {size}?"} for size in range(8)]
    usual = trained(rlhf("ppo", trainer={"max_steps": 2}), rows, tmp_path / "a", scorer_at)
    other = trained(
        rlhf("ppo", trainer={"max_steps": 2} | settings), rows, tmp_path / "b", scorer_at
    )
    assert usual.weights != other.weights


def test_a_step_ends_when_the_policy_has_moved(tmp_path: Path, scorer_at: Path) -> None:
    rows = [{"prompt": f"size {size}?"} for size in range(8)]
    far = {"max_steps": 2, "num_ppo_epochs": 6, "learning_rate": 0.05, "warmup_steps": 0}
    free = trained(rlhf("ppo", trainer=far), rows, tmp_path / "a", scorer_at)
    held = trained(rlhf("ppo", trainer=far | {"target_kl": 1e-4}), rows, tmp_path / "b", scorer_at)
    moved = [ran.history[0][1]["policy_kl"] for ran in (free, held)]
    assert moved[1] <= 1e-4 < moved[0]
