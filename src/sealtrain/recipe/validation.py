"""Rules that the records must keep before training begins. Owners read them with the recipe.

Every rule names a column, a share of records or a count; only ``values``, which owners agree on,
names values of records. The guest and the owners, on their own machines, check the same rules.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe.fields import ColumnName, Text

Share = Annotated[float, Field(ge=0, le=1)]
"""Part of the records, 0 … 1."""
Length = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]

PiiKind = Literal["credit-card", "email", "iban", "ip-address", "nhs-number", "phone", "us-ssn"]
PII_KINDS: tuple[PiiKind, ...] = (
    "credit-card",
    "email",
    "iban",
    "ip-address",
    "nhs-number",
    "phone",
    "us-ssn",
)


class ColumnRule(StrictModel):
    """What every record has in one column."""

    type: Literal["text", "integer", "number", "boolean", "bytes", "list", "struct"] | None = None
    max_nulls: Share = Field(default=0.0, description="Largest share of records without a value.")
    min: float | None = Field(default=None, description="Least number.")
    max: float | None = Field(default=None, description="Greatest number.")
    min_length: Length | None = Field(
        default=None, description="Characters of a text, bytes, or items of a list."
    )
    max_length: Length | None = None
    max_tokens: Length | None = Field(
        default=None, description="By the recipe's tokenizer; checked in the guest only."
    )
    values: tuple[Text, ...] | None = Field(
        default=None, min_length=1, max_length=4096, description="The only values it may have."
    )

    @model_validator(mode="after")
    def _ranges_hold_something(self) -> Self:
        for low, high in ((self.min, self.max), (self.min_length, self.max_length)):
            if low is not None and high is not None and low > high:
                raise ValueError("a range is empty")
        if self.values is not None and len(set(self.values)) != len(self.values):
            raise ValueError("values name one twice")
        return self


class DuplicateRule(StrictModel):
    """How many records may be there more than once."""

    columns: tuple[ColumnName, ...] = Field(
        min_length=1, max_length=64, description="Records are equal when these are."
    )
    within_owner: Share = Field(description="Share of an owner's records that repeat one.")
    across_owners: Share = Field(description="Share of records that another owner has too.")


class LabelRule(StrictModel):
    """How the labels of the training data are spread."""

    column: ColumnName
    values: tuple[Text, ...] = Field(min_length=2, max_length=4096)
    min_share: Share = Field(description="Least share of each label over all training data.")

    @model_validator(mode="after")
    def _labels_once(self) -> Self:
        if len(set(self.values)) != len(self.values):
            raise ValueError("values name one twice")
        return self


class PersonalRule(StrictModel):
    """Where personal data may stand: patterns with check digits, never a proof of absence."""

    columns: tuple[ColumnName, ...] = Field(min_length=1, max_length=64)
    kinds: tuple[PiiKind, ...] = Field(default=PII_KINDS, min_length=1)
    regions: tuple[Annotated[str, Field(pattern=r"^[A-Z]{2}$")], ...] = Field(
        default=("US", "GB"),
        min_length=1,
        max_length=16,
        description="Countries whose national telephone numbers are looked for.",
    )
    max_share: Share = Field(description="Largest share of records with a finding of any kind.")


class Validation(StrictModel):
    """Checked in the guest before the first step. A rule that does not hold stops the run."""

    columns: dict[ColumnName, ColumnRule] = Field(default_factory=dict, max_length=256)
    min_records: int | None = Field(default=None, ge=1, description="In each dataset.")
    duplicates: DuplicateRule | None = None
    label: LabelRule | None = None
    personal: PersonalRule | None = None
    floor: int = Field(
        default=10,
        ge=2,
        le=1_000_000,
        description="A report gives counts as multiples of this and none below it.",
    )

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        rules = (self.columns, self.min_records, self.duplicates, self.label, self.personal)
        if not any(rules):
            raise ValueError("validation without a rule; leave it out")
        return self
