"""Monitoring of a training in a recipe, and the target of alerts. Owners approve it, too."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe.fields import describe_keyword

AlertName = Literal[
    "loss-not-finite", "loss-diverges", "no-step", "memory-percent", "lease-seconds-left"
]
_URL = r"https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,512})?"


class Alert(StrictModel):
    """One threshold."""

    when: AlertName = Field(
        description="loss-not-finite; loss-diverges: loss above threshold times its best; no-step: "
        "seconds without a step; memory-percent of what the guest may use; lease-seconds-left."
    )
    threshold: float | None = Field(default=None, gt=0, le=1e9)

    @model_validator(mode="after")
    def _has_a_threshold(self) -> Self:
        wants = self.when != "loss-not-finite"
        if wants != (self.threshold is not None):
            raise ValueError(f"{self.when} {'needs a' if wants else 'takes no'} threshold")
        if self.when == "loss-diverges" and self.threshold is not None and self.threshold <= 1:
            raise ValueError("loss-diverges needs a threshold above 1: times the best loss")
        return self


class Monitoring(StrictModel):
    """What is watched besides the metrics that the release policy names."""

    system_metrics: bool = Field(
        default=False, description="Use of processor, memory, accelerator, disk and network."
    )
    tensorboard: bool = Field(
        default=False, description="Event file of the released metrics beside the sealed model."
    )
    alerts: tuple[Alert, ...] = Field(default=(), max_length=32)
    alert_to: Annotated[str, describe_keyword("pattern", f"^(file|{_URL})$")] | None = Field(
        default=None,
        max_length=1024,
        description="file (alerts.jsonl in the run's folder) or the URL of a webhook.",
    )

    @model_validator(mode="after")
    def _alerts_go_somewhere(self) -> Self:
        if bool(self.alerts) != (self.alert_to is not None):
            raise ValueError("alerts and alert_to belong together")
        if self.alert_to not in (None, "file") and not re.fullmatch(_URL, self.alert_to or ""):
            raise ValueError("alert_to is file, or http(s)://host[:port]/path without a query")
        kinds = [(alert.when, alert.threshold) for alert in self.alerts]
        if len(set(kinds)) != len(kinds):
            raise ValueError("alerts name one twice")
        return self

    @property
    def webhook(self) -> str | None:
        """URL of the webhook for alerts; ``None`` without a webhook."""
        return None if self.alert_to in (None, "file") else self.alert_to
