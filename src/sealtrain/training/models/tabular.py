"""A small classifier over columns of numbers, saved and loaded as any Transformers model."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput


class TabularConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # untyped base
    """``model_type: sealtrain-tabular``.

    Attributes:
        num_features: Columns of input.
        hidden_size: Width of the hidden layers.
        num_hidden_layers: How many.
        dropout: Probability, 0 to below 1.
        filled: Places of the features whose missing values the model fills; none when ``None``.
        marked: Places of those of them of which it also reads that a value is missing.
    """

    model_type = "sealtrain-tabular"

    def __init__(
        self,
        num_features: int = 1,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        dropout: float = 0.0,
        filled: list[int] | None = None,
        marked: list[int] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.num_features = num_features
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.dropout = dropout
        self.filled = filled
        self.marked = marked


class TabularClassifier(PreTrainedModel):  # type: ignore[no-untyped-call]  # untyped base
    """Standardised features, then a perceptron with GELU.

    Mean and deviation of the training records are buffers, set once before training; so is what
    stands for a missing value, which comes in as not a number. A missing value that is a category
    of its own is a further input, 1 where the value is missing.
    """

    config_class = TabularConfig
    accepts_loss_kwargs = False
    mean: torch.Tensor
    deviation: torch.Tensor
    stand_in: torch.Tensor

    def __init__(self, config: TabularConfig) -> None:
        super().__init__(config)
        self.register_buffer("mean", torch.zeros(config.num_features))
        self.register_buffer("deviation", torch.ones(config.num_features))
        if config.filled:
            self.register_buffer("stand_in", torch.zeros(len(config.filled)))
        layers: list[torch.nn.Module] = []
        width = config.num_features + len(config.marked or ())
        for _ in range(config.num_hidden_layers):
            layers += [
                torch.nn.Linear(width, config.hidden_size),
                torch.nn.GELU(),
                torch.nn.Dropout(config.dropout),
            ]
            width = config.hidden_size
        layers.append(torch.nn.Linear(width, int(config.num_labels or 2)))
        self.layers = torch.nn.Sequential(*layers)
        self.post_init()  # type: ignore[no-untyped-call]  # untyped in the library

    def standardise(self, mean: torch.Tensor, deviation: torch.Tensor) -> None:
        """Set the scale of the features.

        Args:
            mean: float32, (num_features,).
            deviation: float32, (num_features,); 0 for a constant feature.
        """
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(deviation > 0, deviation, torch.ones_like(deviation)))

    def fill(self, stand_in: torch.Tensor) -> None:
        """Set what stands for missing values.

        Args:
            stand_in: float32, one for each feature of ``config.filled``.
        """
        self.stand_in.copy_(stand_in)

    def forward(
        self, features: torch.Tensor, labels: torch.Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Scores of each label.

        Args:
            features: float32, (batch, num_features); of those that are filled, not a number where
                a value is missing.
            labels: int64, (batch,).
        """
        absent = None
        if self.config.filled:
            given = features[:, self.config.filled]
            whole = torch.where(torch.isnan(given), self.stand_in, given)
            places = torch.tensor(self.config.filled, device=features.device)
            absent = torch.isnan(features)
            features = features.index_copy(1, places, whole)
        inputs = (features - self.mean) / self.deviation
        if absent is not None and self.config.marked:
            inputs = torch.cat([inputs, absent[:, self.config.marked].to(inputs.dtype)], dim=1)
        logits = self.layers(inputs)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.kaiming_uniform_(module.weight, a=5**0.5)
            torch.nn.init.zeros_(module.bias)


AutoConfig.register(TabularConfig.model_type, TabularConfig)
AutoModelForSequenceClassification.register(TabularConfig, TabularClassifier)
