"""The names of the metrics that each phase measures, so that a misspelt one is refused early.

A name in a release policy that nothing measures releases nothing: its owner would notice when the
training has ended.
"""

from __future__ import annotations

import re
from typing import Final

from sealtrain.recipe.missing import list_learned
from sealtrain.recipe.recipe import PhaseRecipe

_EVERY_PHASE: Final = (
    "loss",
    "grad_norm",
    "learning_rate",
    "epoch",
    "eval_loss",
    "train_loss",
    "total_flos",
    "tokens_per_second",
    "samples_per_second",
    "steps_per_second",
    "train_runtime",
    "train_tokens_per_second",
    "train_samples_per_second",
    "train_steps_per_second",
    "num_input_tokens_seen",
    "num_tokens",
    "cpu_percent",
    "memory_bytes",
    "memory_percent",
    "gpu_utilization_percent",
    "gpu_memory_bytes",
    "disk_read_bytes",
    "disk_write_bytes",
    "network_received_bytes",
    "network_sent_bytes",
)
_CLASSIFIER: Final = ("accuracy", "majority", "f1", "auroc", "ece", "brier", "temperature")
_AUDIT: Final = ("canary_exposure", "canary_exposure_max", "membership_auc")
_TOKENS: Final = ("entropy", "mean_token_accuracy", "aux_loss")
_PAIRS: Final = (
    "rewards_chosen",
    "rewards_rejected",
    "rewards_margins",
    "rewards_accuracies",
    "logps_chosen",
    "logps_rejected",
    "logits_chosen",
    "logits_rejected",
    "reward_accuracy",
    "reward_margin",
)
_OF_PHASE: Final[dict[str, tuple[str, ...]]] = {
    "classify": (*_CLASSIFIER, *_AUDIT),
    "cpt": ("perplexity", "bits_per_byte"),
    "dpo": (*_TOKENS, *_PAIRS, "kl", "nll_loss", "log_odds_ratio", "log_odds_chosen"),
    "embed": ("recall_at_1", "mrr_at_10", "cosine_margin"),
    "evaluate": _CLASSIFIER,
    "reward": (
        *("accuracy", "margin", "max_reward", "mean_reward", "min_reward", "aux_loss"),
        *("reward_accuracy", "reward_margin"),
    ),
    "rlhf": (
        *("reward", "reward_std", "frac_reward_zero_std", "kl", "kl_coef", "entropy", "aux_loss"),
        *(
            "policy_loss",
            "policy_kl",
            "value_loss",
            "clip_ratio",
            "completion_length",
            "step_time",
            "cispo_clip_ratio",
        ),
        *("entropy_coef", "eval_reward", "eval_reward_before", "eval_kl", "eval_length"),
    ),
    "sft": ("accuracy", "majority", *_TOKENS, *_AUDIT),
    "vlm": ("accuracy", "majority"),
}
_OF_TEST_DATA: Final[dict[str, tuple[str, ...]]] = {
    "classify": (*_CLASSIFIER, "eval_loss"),
    "cpt": ("eval_loss", *_OF_PHASE["cpt"]),
    "dpo": ("eval_loss", "reward_accuracy", "reward_margin"),
    "embed": _OF_PHASE["embed"],
    "reward": ("eval_loss", "reward_accuracy", "reward_margin"),
    "rlhf": ("eval_reward", "eval_reward_before", "eval_kl", "eval_length"),
    "sft": ("accuracy", "majority", "eval_loss"),
    "vlm": ("accuracy", "majority", "eval_loss"),
}
"""Metrics that a phase measures on test records alone."""
_OF_ANSWERS: Final = ("accuracy", "majority")
"""Of phases that compare answers: texts and conversations have none to compare."""
_GROUPS_OF_TRL: Final = re.compile(
    r"(rewards|completions|clip_ratio|sampling|tools|vespo|objective)_.+"
)
"""What TRL's ``GRPOTrainer`` and ``RLOOTrainer`` log, a name for each reward among them."""


def list_metrics(phase: str) -> frozenset[str]:
    """Names of the metrics that a phase measures."""
    return frozenset((*_EVERY_PHASE, *_OF_PHASE.get(phase, ())))


def find_unmeasured(recipe: PhaseRecipe) -> list[str]:
    """Metrics that the release policy names and that nothing in the run measures, in its order."""
    known = list_metrics(recipe.phase) | set(list_learned(recipe).values())
    return [
        name
        for name in recipe.release_policy.metrics
        if name not in known
        and name.removeprefix("eval_") not in known
        and not (recipe.phase == "rlhf" and _GROUPS_OF_TRL.fullmatch(name))
    ]


def find_untested(recipe: PhaseRecipe) -> list[str]:
    """Metrics of the release policy for which the recipe brings no test records, in its order.

    In federated runs and the like, parties bring theirs; those are not judged.
    """
    if recipe.collaboration is not None:
        return []
    names = _OF_TEST_DATA.get(recipe.phase, ())
    if any(dataset.role == "test" for dataset in recipe.datasets):
        compares = recipe.columns.kind == "prompt-completion"
        names = () if compares or recipe.phase not in ("sft", "vlm") else _OF_ANSWERS
    return [name for name in recipe.release_policy.metrics if name in names]
