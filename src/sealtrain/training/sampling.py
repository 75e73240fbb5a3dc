"""Answers sampled from a policy, and how likely a policy finds them.

Prompts are padded on the left, answers on the right. An answer ends with its first end token,
which belongs to it; an answer without an end token was cut off. Positions count real tokens only,
so padding changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sealtrain.training.finite import answers_not_finite
from sealtrain.training.inputs.prompts import prompt_tokens

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

_NO_CHANCES: Final = "probability tensor contains"
"""PyTorch draws no token from these."""


@dataclass(slots=True, kw_only=True)
class SampledAnswer:
    """One sampled answer.

    Attributes:
        prompt: Token ids of its prompt.
        tokens: Its own, an end token included.
        ended: Whether it ended by itself.
        text: Text, or a conversation of one turn where the prompt is a conversation.
    """

    prompt: list[int]
    tokens: list[int]
    ended: bool
    text: Any


@dataclass(slots=True, kw_only=True)
class SampleBatch:
    """Prompts and answers as a model reads them; int64 of shape (answers, tokens).

    Attributes:
        ids: Tokens of both.
        mask: 1 where a real token stands.
        answered: 1 where a token of the answer stands, of shape (answers, longest answer).
    """

    ids: torch.Tensor
    mask: torch.Tensor
    answered: torch.Tensor


class Sampler:
    """Samples answers as the recipe says."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: Any, arguments: Any) -> None:
        """Prepare.

        Args:
            tokenizer: The recipe's.
            model: Its base model; the end tokens of its configuration end an answer too.
            arguments: Trainer settings: length and temperature, and how to narrow the choice.
        """
        from transformers import GenerationConfig

        self._tokenizer = tokenizer
        declared = getattr(model.generation_config, "eos_token_id", None)
        ends = declared if isinstance(declared, list) else [declared]
        self._ends = {token for token in (tokenizer.eos_token_id, *ends) if token is not None}
        self.temperature: float = arguments.temperature
        config: Any = GenerationConfig  # untyped in the library
        self._config = config(
            max_new_tokens=arguments.max_completion_length,
            do_sample=True,
            temperature=arguments.temperature,
            top_k=getattr(arguments, "top_k", 0),
            top_p=getattr(arguments, "top_p", 1.0),
            min_p=getattr(arguments, "min_p", None),
            repetition_penalty=getattr(arguments, "repetition_penalty", 1.0),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=sorted(self._ends),
            disable_compile=True,
        )

    def sample(self, model: Any, prompts: Sequence[Any]) -> list[SampledAnswer]:
        """One answer to each prompt, from ``model`` as it is now.

        Raises:
            TrainingDiverged: The model finds no token likely: its logits are not finite.
        """
        import torch

        rows = list(prompt_tokens(self._tokenizer, list(prompts)))
        ids = pad_rows([torch.tensor(row) for row in rows], self._tokenizer.pad_token_id, left=True)
        mask = pad_rows([torch.ones(len(row), dtype=torch.int64) for row in rows], 0, left=True)
        device = model.device
        try:
            with torch.no_grad():
                whole = model.generate(
                    input_ids=ids.to(device),
                    attention_mask=mask.to(device),
                    generation_config=self._config,
                )
        except RuntimeError as error:
            if _NO_CHANCES not in str(error):
                raise
            raise answers_not_finite("logits") from None
        answers = []
        for prompt, row, given in zip(
            prompts, rows, whole[:, ids.shape[1] :].tolist(), strict=True
        ):
            end = next((at for at, token in enumerate(given) if token in self._ends), None)
            tokens = given if end is None else given[: end + 1]
            text = str(self._tokenizer.decode(tokens, skip_special_tokens=True))
            answers.append(
                SampledAnswer(
                    prompt=row,
                    tokens=tokens,
                    ended=end is not None,
                    text=text if isinstance(prompt, str) else _turn(text),
                )
            )
        return answers

    def batch(self, answers: Sequence[SampledAnswer], device: Any) -> SampleBatch:
        """Prompts and answers side by side."""
        import torch

        pad = self._tokenizer.pad_token_id
        prompts = [torch.tensor(answer.prompt) for answer in answers]
        tokens = [torch.tensor(answer.tokens) for answer in answers]
        answered = pad_rows([torch.ones_like(token) for token in tokens], 0)
        mask = torch.cat(
            [pad_rows([torch.ones_like(prompt) for prompt in prompts], 0, left=True), answered], 1
        )
        ids = torch.cat([pad_rows(prompts, pad, left=True), pad_rows(tokens, pad)], 1)
        return SampleBatch(ids=ids.to(device), mask=mask.to(device), answered=answered.to(device))


def likelihood(
    model: Any, batch: SampleBatch, temperature: float, *, states: bool = False
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """How likely ``model`` finds each token of each answer, given all before it.

    Args:
        model: A causal language model.
        batch: Prompts and answers.
        temperature: Divides the logits, as it did when the answers were sampled.
        states: Also return the last hidden state before each token.

    Returns:
        Log probabilities and entropies in nats, float32 (answers, longest answer); hidden states
        (answers, longest answer, width) or ``None``. Entropies carry no gradient.
    """
    import torch
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    length = batch.answered.shape[1]
    inputs: dict[str, Any] = {"input_ids": batch.ids, "attention_mask": batch.mask}
    taken = _parameters(model)
    if "position_ids" in taken:
        inputs["position_ids"] = (batch.mask.cumsum(1) - 1).clamp(min=0)
    if "logits_to_keep" in taken:
        inputs["logits_to_keep"] = length + 1
    outputs = model(**inputs, use_cache=False, output_hidden_states=states)
    logits = outputs.logits[:, -length - 1 : -1].float() / temperature
    chances = selective_log_softmax(logits, batch.ids[:, -length:])
    with torch.no_grad():
        entropies = entropy_from_logits(logits)
    last = outputs.hidden_states[-1][:, -length - 1 : -1] if states else None
    return chances, entropies, last


@contextmanager
def reference(model: Any, frozen: Any | None) -> Iterator[Any]:
    """The policy before training: ``frozen``, or without one ``model`` with its adapter off."""
    if frozen is not None:
        yield frozen
        return
    with model.disable_adapter():
        yield model


def pad_rows(rows: Sequence[torch.Tensor], value: int, *, left: bool = False) -> torch.Tensor:
    """Rows of shape (length,) as one tensor (rows, longest), filled with ``value``."""
    from trl.trainer.utils import pad

    joined: torch.Tensor = pad(
        list(rows), padding_value=value, padding_side="left" if left else "right"
    )
    return joined


def _turn(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def _parameters(model: Any) -> set[str]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # A wrapped forward (TRL's fused head) takes any argument; the class lists the real ones.
    return set(inspect.signature(type(base).forward).parameters)
