"""Rewards of sampled answers: from a built-in rule, or from a measured reward model.

The reward model reads the same text as in phase ``reward``: the prompt, the answer and the end
token; of conversations, the chat template over both. It never learns here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.data.conversations import check_template
from sealtrain.training.devices import compute_device
from sealtrain.training.models.base import build_tokenizer, check_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from sealtrain.recipe.modelspec import SavedModel
    from sealtrain.recipe.phases.rlhf import RewardModel, RlhfRecipe
    from sealtrain.training.context import TrainingContext

Rewards = Callable[[Sequence[Any], Sequence[Any], Sequence[str] | None], list[float]]
"""Prompts, the model's answers (text or conversations) and the records' own answers → rewards."""


def rewards_of(work: TrainingContext[RlhfRecipe]) -> Rewards:
    """The recipe's rewards.

    Raises:
        ModelInvalid: The folder does not hold a reward model: a classifier with one output.
    """
    reward = work.recipe.reward
    return _RULES[reward.rule] if reward.kind == "rule" else _Scorer(work, reward)


def _exact_match(
    prompts: Sequence[Any], completions: Sequence[Any], answers: Sequence[str] | None
) -> list[float]:
    return [
        float(_text(completion).strip() == answer.strip())
        for completion, answer in zip(completions, answers or (), strict=True)
    ]


def _contains(
    prompts: Sequence[Any], completions: Sequence[Any], answers: Sequence[str] | None
) -> list[float]:
    return [
        float(answer.strip() in _text(completion))
        for completion, answer in zip(completions, answers or (), strict=True)
    ]


_RULES: dict[str, Rewards] = {"contains": _contains, "exact-match": _exact_match}


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


class _Scorer:
    """Scores of the recipe's reward model."""

    def __init__(self, work: TrainingContext[RlhfRecipe], reward: RewardModel) -> None:
        self._tokenizer: PreTrainedTokenizerBase = build_tokenizer(reward, work.base_dir)
        model: Any = _load(reward.model, work.base_dir, self._tokenizer)
        self._model = model.to(compute_device())
        self._length = reward.max_length
        self._batch = work.recipe.trainer.per_device_eval_batch_size

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], answers: Sequence[str] | None
    ) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        texts = [self._whole(prompt, completion) for prompt, completion in pairs]
        scores: list[float] = []
        for at in range(0, len(texts), self._batch):
            scores += self._scores(texts[at : at + self._batch])
        if not all(math.isfinite(score) for score in scores):
            raise ModelInvalid(
                "the reward model gives scores that are no numbers",
                check="reward",
                hint="check its weights and dtype",
            )
        return scores

    def _whole(self, prompt: Any, completion: Any) -> str:
        if not isinstance(prompt, str):
            check_template(self._tokenizer)
            return str(self._tokenizer.apply_chat_template([*prompt, *completion], tokenize=False))
        return f"{prompt}{completion}{self._tokenizer.eos_token or ''}"

    def _scores(self, texts: list[str]) -> list[float]:
        import torch

        rows = [self._tokenizer(text)["input_ids"][-self._length :] for text in texts]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self._tokenizer.pad_token_id or 0, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[number, : len(row)] = 1
        device = self._model.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            logits = self._model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        scores: list[float] = logits[:, 0].double().cpu().tolist()
        return scores


def _load(
    wanted: SavedModel, base_dir: Path, tokenizer: PreTrainedTokenizerBase
) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForSequenceClassification

    try:
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            base_dir / wanted.path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=getattr(torch, wanted.dtype),
            num_labels=1,
            pad_token_id=tokenizer.pad_token_id,
            output_loading_info=True,
        )
    except Exception as error:  # libraries have errors of their own for a bad folder
        raise _no_reward_model(type(error).__name__) from error
    model, info = loaded
    if info["missing_keys"]:
        # A head that loading initialised would score at random.
        raise _no_reward_model(f"{len(info['missing_keys'])} tensors missing")
    check_vocabulary(model, tokenizer)
    scorer: PreTrainedModel = model.eval().requires_grad_(False)
    return scorer


def _no_reward_model(got: str) -> ModelInvalid:
    return ModelInvalid(
        "the folder holds no reward model",
        check="reward",
        got=got,
        expected="a classifier with one output, as phase reward trains",
    )
