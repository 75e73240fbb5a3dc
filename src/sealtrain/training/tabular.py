"""A small classifier over columns of numbers, as a Transformers model: saved and loaded like any."""

from __future__ import annotations

from typing import Any

from sealtrain.training import quiet

quiet.silence()

import torch  # noqa: E402  # after silence()
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput  # noqa: E402

__all__ = ["TabularClassifier", "TabularConfig"]


class TabularConfig(PretrainedConfig):  # type: ignore[misc]  # transformers ships no types for it
    """``model_type: sealtrain-tabular``.

    Attributes:
        num_features: Columns of input.
        hidden_size: Width of the hidden layers.
        num_hidden_layers: How many.
        dropout: Probability, 0 to below 1.
    """

    model_type = "sealtrain-tabular"

    def __init__(
        self,
        num_features: int = 1,
        hidden_size: int = 64,
        num_hidden_layers: int = 2,
        dropout: float = 0.0,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.num_features = num_features
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.dropout = dropout


class TabularClassifier(PreTrainedModel):  # type: ignore[misc]  # transformers ships no types
    """Batch normalisation of the features, then a perceptron with GELU."""

    config_class = TabularConfig

    def __init__(self, config: TabularConfig) -> None:
        super().__init__(config)
        layers: list[torch.nn.Module] = [torch.nn.BatchNorm1d(config.num_features, affine=False)]
        width = config.num_features
        for _ in range(config.num_hidden_layers):
            layers += [
                torch.nn.Linear(width, config.hidden_size),
                torch.nn.GELU(),
                torch.nn.Dropout(config.dropout),
            ]
            width = config.hidden_size
        layers.append(torch.nn.Linear(width, config.num_labels))
        self.layers = torch.nn.Sequential(*layers)
        self.post_init()

    def forward(
        self, features: torch.Tensor, labels: torch.Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Scores of each label.

        Args:
            features: float32, (batch, num_features).
            labels: int64, (batch,).
        """
        logits = self.layers(features)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.kaiming_uniform_(module.weight, a=5**0.5)
            torch.nn.init.zeros_(module.bias)


AutoConfig.register(TabularConfig.model_type, TabularConfig)
AutoModelForSequenceClassification.register(TabularConfig, TabularClassifier)
