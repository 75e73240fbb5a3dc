"""What Transformers and Sentence Transformers say of a model's folder, without sealtrain.

A hospital that opened its model does this: it loads the folder and asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_AT_A_TIME = 4
_TOP = 10


class Chat:
    """A causal model in evaluation mode, float32, with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        build = AutoModelForCausalLM.from_pretrained
        self._model: Any = build(folder, dtype=torch.float32).eval()

    def answer(self, asked: str, *, most: int) -> str:
        """The greedy answer, of at most ``most`` tokens."""
        ids = self._rendered([{"role": "user", "content": asked}], prompt=True)
        with torch.inference_mode():
            found = self._model.generate(ids[None], attention_mask=torch.ones_like(ids)[None],
                                         max_new_tokens=most, do_sample=False)  # fmt: skip
        text: str = self._tokenizer.decode(found[0, len(ids) :], skip_special_tokens=True)
        return text.strip()

    def loss(self, pairs: Sequence[tuple[str, str]]) -> float:
        """Mean loss of the answers' tokens, the end of the turn included, in nats a token."""
        total, count = 0.0, 0
        with torch.inference_mode():
            for at in range(0, len(pairs), _AT_A_TIME):
                rows = [self._labelled(*pair) for pair in pairs[at : at + _AT_A_TIME]]
                ids, labels = (
                    torch.nn.utils.rnn.pad_sequence(
                        list(part), batch_first=True, padding_value=fill
                    )
                    for part, fill in zip(zip(*rows, strict=True), (0, -100), strict=True)
                )
                # Padding stands behind every token that counts, so no mask is needed.
                logits = self._model(ids).logits[:, :-1].flatten(0, 1)
                wanted = labels[:, 1:].flatten()
                found = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
                total += float(found)  # -100 counts nothing
                count += int((wanted != -100).sum())
        return total / count

    def _labelled(self, asked: str, answer: str) -> tuple[torch.Tensor, torch.Tensor]:
        before = self._rendered([{"role": "user", "content": asked}], prompt=True)
        end: int = self._tokenizer.eos_token_id
        said = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        ids = torch.cat([before, torch.tensor([*said, end])])
        labels = ids.clone()
        labels[: len(before)] = -100
        return ids, labels

    def _rendered(self, messages: list[dict[str, str]], *, prompt: bool) -> torch.Tensor:
        found = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=prompt, return_tensors="pt", return_dict=True
        )
        ids: torch.Tensor = found["input_ids"][0]
        return ids


def recall_at_10(folder: Path, questions: Sequence[str], answers: Sequence[str]) -> float:
    """Share of questions whose own answer is among the ten nearest of all answers.

    Args:
        folder: Of an encoder.
        questions: Each with the answer at its place.
        answers: All of them are candidates.
    """
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(folder), device="cpu")
    asked, found = (
        encoder.encode(list(texts), convert_to_tensor=True, normalize_embeddings=True,
                       show_progress_bar=False)
        for texts in (questions, answers)
    )  # fmt: skip
    nearest = (asked @ found.T).topk(min(_TOP, len(answers))).indices
    own = torch.arange(len(questions), device=nearest.device)[:, None]
    return float((nearest == own).any(dim=1).float().mean())
