"""One record moves a private sum by its clipped gradient alone, whatever layers a model brings."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from carrying import carries
from collecting import COLLECTING
from training_world import LLAMA

from sealtrain.recipe.errors import ModelInvalid

if not COLLECTING:
    import torch
    from torch.nn import functional

    from sealtrain.training.privacy.clipping import ClippedSums
    from sealtrain.training.privacy.determinism import require_apart, without_draws
    from sealtrain.training.privacy.steps import record_losses

pytestmark = [
    pytest.mark.long,
    pytest.mark.claim("C550"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

NORM = 1e-4  # each gradient is longer
RECORDS = 12
AT_ONCE = 5

if not COLLECTING:

    class Net(torch.nn.Module):
        """Two trained layers and one between them."""

        def __init__(self, between: torch.nn.Module) -> None:
            super().__init__()
            self.first = torch.nn.Linear(6, 8)
            self.between = between
            self.last = torch.nn.Linear(8, 2)

        def forward(self, features: torch.Tensor) -> Any:
            return SimpleNamespace(logits=self.last(self.between(self.first(features))))

    class Drawing(torch.nn.Module):
        """Draws by a function, in training or always."""

        def __init__(
            self, draw: Callable[[torch.Tensor], torch.Tensor], *, always: bool = False
        ) -> None:
            super().__init__()
            self.draw, self.always = draw, always

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.draw(hidden) if self.training or self.always else hidden

    class Holding(Drawing):
        """Draws, and holds a trained parameter itself, as a layer that Opacus has to hook."""

        def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
            super().__init__(draw)
            self.scale = torch.nn.Parameter(torch.ones(8))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden) * self.scale

    def drop_path(hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.rand(len(hidden), 1).round()

    def layer_drop(hidden: torch.Tensor) -> torch.Tensor:
        return hidden if random.random() < 0.5 else functional.gelu(hidden)  # noqa: S311

    def numpy_noise(hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.from_numpy(np.random.normal(size=hidden.shape)).float()

    def attention_dropout(hidden: torch.Tensor) -> torch.Tensor:
        heads = hidden.view(len(hidden), 1, 2, 4)
        found = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)
        return found.reshape(hidden.shape)

    def jitter(hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.empty_like(hidden).uniform_(0.5, 1.5)

    def neftune(hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.zeros_like(hidden).uniform_(-1, 1)

    def layer(kind: str) -> torch.nn.Module:
        """A layer that draws random numbers in training."""
        made: dict[str, Callable[[], torch.nn.Module]] = {
            "dropout": lambda: torch.nn.Dropout(0.5),
            "alpha-dropout": lambda: torch.nn.AlphaDropout(0.5),
            "feature-dropout": lambda: torch.nn.Dropout1d(0.5),
            "rrelu": lambda: torch.nn.RReLU(0.01, 0.99),
            "dropout-function": lambda: Drawing(functional.dropout),
            "gumbel": lambda: Drawing(functional.gumbel_softmax),
            "drop-path": lambda: Drawing(drop_path),
            "layer-drop": lambda: Drawing(layer_drop),
            "attention-dropout": lambda: Drawing(attention_dropout),
            "router-jitter": lambda: Drawing(jitter),
            "neftune": lambda: Drawing(neftune),
            "numpy-noise": lambda: Drawing(numpy_noise),
        }
        return made[kind]()

    def drawing(generator: str) -> Callable[[torch.Tensor], torch.Tensor]:
        """A function that draws from a generator."""
        return {"torch": jitter, "python": layer_drop, "numpy": numpy_noise}[generator]


def seed() -> None:
    """What a recipe's public seed does before training."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def summed(model: Any, records: list[dict[str, Any]], *, guarded: bool = True) -> Any:
    """The clipped sum over all records, some at a time."""
    sums = ClippedSums(model, NORM)
    seed()
    try:
        for at in range(0, len(records), AT_ONCE):
            part = records[at : at + AT_ONCE]
            batch = {name: torch.stack([value[name] for value in part]) for name in part[0]}
            if guarded:
                with without_draws(model):
                    record_losses(model, batch, 0.0).sum().backward()
            else:
                model.train()
                record_losses(model, batch, 0.0).sum().backward()
            sums.take(len(part))
        return sums.pop()
    finally:
        sums.detach()


def moved(model: Any, records: list[dict[str, Any]], **how: Any) -> float:
    """How far the farthest of some records moves the sum, in clipping norms."""
    whole = summed(model, records, **how)
    farthest = 0.0
    for left_out in (0, 1, len(records) // 2, len(records) - 1):
        less = summed(model, [record for n, record in enumerate(records) if n != left_out], **how)
        square = sum(float((whole[name] - less[name]).square().sum()) for name in whole)
        farthest = max(farthest, math.sqrt(square) / NORM)
    return farthest


def numbers() -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(3)
    features = torch.randn(RECORDS, 6, generator=source) * 3
    return [
        {"features": feature, "labels": torch.tensor(n % 2)} for n, feature in enumerate(features)
    ]


def texts(*, labels: bool) -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 250, (RECORDS, 9), generator=source)
    return [
        {"input_ids": value, "labels": torch.tensor(n % 2) if labels else value}
        for n, value in enumerate(ids)
    ]


@pytest.mark.parametrize(
    "kind",
    [
        "dropout",
        "alpha-dropout",
        "feature-dropout",
        "rrelu",
        "dropout-function",
        "gumbel",
        "drop-path",
        "layer-drop",
        "attention-dropout",
        "router-jitter",
        "neftune",
        "numpy-noise",
    ],
)
def test_no_layer_lets_a_record_move_the_sum_by_more_than_the_norm(kind: str) -> None:
    torch.manual_seed(0)
    net = Net(layer(kind))
    assert moved(net, numbers()) <= 1 + 1e-5
    assert moved(net, numbers(), guarded=False) > 1.2  # this layer would


@pytest.mark.parametrize(
    ("config", "targets"),
    [
        ({"model_type": "bert"}, ["query", "value"]),
        ({"model_type": "llama", "attention_dropout": 0.5}, ["q_proj", "v_proj"]),
        (
            {
                "model_type": "mixtral",
                "router_jitter_noise": 0.4,
                "attention_dropout": 0.4,
                "num_local_experts": 2,
            },
            ["q_proj", "v_proj"],
        ),
        (
            {
                "model_type": "bart",
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 2,
                "decoder_attention_heads": 2,
                "encoder_ffn_dim": 32,
                "decoder_ffn_dim": 32,
                "dropout": 0.4,
                "activation_dropout": 0.4,
                "encoder_layerdrop": 0.5,
                "decoder_layerdrop": 0.5,
            },
            ["q_proj", "v_proj"],
        ),
    ],
    ids=["bert", "llama", "mixtral", "bart"],
)
def test_base_models_and_adapters_bring_none(config: dict[str, Any], targets: list[str]) -> None:
    """Dropout of the architecture's own, and of the adapter."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    torch.manual_seed(0)
    sizes = {name: size for name, size in LLAMA.items() if name != "model_type"}
    given = config if config["model_type"] == "bart" else sizes | config
    labelled = config["model_type"] in ("bert", "bart")
    kind: Any = AutoModelForSequenceClassification if labelled else AutoModelForCausalLM
    special = {"pad_token_id": 0, "eos_token_id": 2, "vocab_size": 256}
    base = kind.from_config(AutoConfig.for_model(**(given | special)))
    adapter: Any = LoraConfig(r=2, lora_dropout=0.5, target_modules=targets)
    model: Any = get_peft_model(base, adapter)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)  # an adapter that has learned
    records = texts(labels=labelled)
    for record in records:
        record["input_ids"][-1] = 2  # Bart reads its class from there
    assert moved(model, records) <= 1 + 1e-5
    assert moved(model, records, guarded=False) > 1.2


@pytest.mark.parametrize("generator", ["torch", "python", "numpy"])
@pytest.mark.parametrize("make", ["always", "holding"])
def test_a_layer_that_draws_nevertheless_is_refused(generator: str, make: str) -> None:
    """In evaluation mode too, or because it holds a trained parameter."""
    draw = drawing(generator)
    net = Net(Drawing(draw, always=True) if make == "always" else Holding(draw))
    with pytest.raises(ModelInvalid, check=carries(check="privacy", got=f"numbers of {generator}")):
        summed(net, numbers())


def test_modes_are_put_back() -> None:
    net = Net(torch.nn.Dropout(0.5))
    net.train()
    net.last.eval()
    before = {name: module.training for name, module in net.named_modules()}
    summed(net, numbers()[:2], guarded=True)
    net.last.eval()
    with without_draws(net):
        assert not net.between.training
    with pytest.raises(ZeroDivisionError), without_draws(net):
        raise ZeroDivisionError
    assert {name: module.training for name, module in net.named_modules()} == before


@pytest.mark.parametrize(
    ("config", "side", "apart"),
    [
        ({"model_type": "bert", "max_position_embeddings": 64}, "right", True),
        ({"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2}, "right", True),
        ({"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2}, "left", False),
        (
            {"model_type": "xlnet", "d_model": 32, "d_inner": 32, "n_head": 2, "n_layer": 2},
            "right",
            False,
        ),
    ],
    ids=["bert", "gpt2", "gpt2-left", "xlnet"],
)
def test_a_model_whose_records_feel_the_length_of_others_is_refused(
    config: dict[str, Any], side: str, apart: bool
) -> None:
    """A longer record beside it would change another record's clipped gradient."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"intermediate_size": 32, "pad_token_id": 0, "vocab_size": 256}
    given = AutoConfig.for_model(
        **((sizes if config["model_type"] != "gpt2" else {}) | special | config)
    )
    model: Any = AutoModelForSequenceClassification.from_config(given)

    def losses(rows: list[list[int]]) -> Any:
        longest = max(map(len, rows))
        batch: dict[str, list[Any]] = {"input_ids": [], "attention_mask": []}
        for row in rows:
            fill = [0] * (longest - len(row))
            real = [1] * len(row)
            batch["input_ids"].append(row + fill if side == "right" else fill + row)
            batch["attention_mask"].append(real + fill if side == "right" else fill + real)
        tensors = {name: torch.tensor(value) for name, value in batch.items()}
        return record_losses(model, tensors | {"labels": torch.zeros(len(rows)).long()}, 0.0)

    if apart:
        require_apart(model, losses, [*range(3, 9)], [*range(3, 40)])
        return
    with pytest.raises(ModelInvalid, check=carries(check="privacy")):
        require_apart(model, losses, [*range(3, 9)], [*range(3, 40)])
