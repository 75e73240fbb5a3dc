"""How an owner says that a dataset may be used, and until when (spec/approvals.md §5.1).

The words are those of the field: purpose, legal basis and personal data category of GDPR Art. 5, 6
and 9 (and of the W3C Data Privacy Vocabulary), PHI status of HIPAA, and *data use* of the GA4GH.
The statement is the owner's. Software can enforce two of its fields: ``retention_until``, and
``purposes`` where the owner says that they bind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from sealtrain.base.clock import from_rfc3339, to_rfc3339
from sealtrain.base.files import read_bounded
from sealtrain.base.models import RealTime, StrictModel, load_model, printable
from sealtrain.base.yamltext import parse_yaml
from sealtrain.errors import ConfigError
from sealtrain.signing.errors import PurposeMismatch, RetentionEnded

_MAX_BYTES: Final = 32 << 10
REMINDER_DAYS: Final = 30
"""So many days before its end a retention is worth a reminder."""

LegalBasis = Literal[
    "consent",
    "contract",
    "legal-obligation",
    "vital-interests",
    "public-task",
    "legitimate-interests",
    "other",
]
"""GDPR Art. 6(1)(a) to (f), or a basis of another law."""
Phi = Literal["none", "de-identified", "limited", "identified"]
"""HIPAA: no PHI; §164.514(a) to (c); a limited data set of §164.514(e); or PHI."""

_VISIBLE = AfterValidator(printable)
Purpose = Annotated[str, StringConstraints(min_length=1, max_length=200), _VISIBLE]
"""A purpose of processing, as its owner reads it; compared letter by letter."""
Category = Annotated[str, StringConstraints(min_length=1, max_length=100), _VISIBLE]
Note = Annotated[str, StringConstraints(min_length=1, max_length=500), _VISIBLE]


def _none(value: Any) -> bool:
    return value is None


def _empty(value: Any) -> bool:
    return not value


class DataUse(StrictModel):
    """The block ``data_use`` of a dataset manifest. A field that is not stated is left out."""

    purposes: tuple[Purpose, ...] = Field(default=(), max_length=16, exclude_if=_empty)
    purposes_bind: bool = Field(default=False, exclude_if=_empty)
    """No key is released to a recipe whose purpose is not among ``purposes``."""
    legal_basis: LegalBasis | None = Field(default=None, exclude_if=_none)
    legal_basis_note: Note | None = Field(default=None, exclude_if=_none)
    """The law, the condition of GDPR Art. 9(2), the number of a contract or of an ethics vote."""
    categories: tuple[Category, ...] = Field(default=(), max_length=64, exclude_if=_empty)
    """Categories of personal data."""
    phi: Phi | None = Field(default=None, exclude_if=_none)
    retention_until: RealTime | None = Field(default=None, exclude_if=_none)
    """The last second at which keys are released and leases are good."""

    @model_validator(mode="after")
    def _says_something_once(self) -> Self:
        for field, given in (("purposes", self.purposes), ("categories", self.categories)):
            if len(set(given)) != len(given):
                raise ValueError(f"{field} name one twice")
        if self.purposes_bind and not self.purposes:
            raise ValueError("purposes_bind without purposes: list those that you allow")
        if self.legal_basis == "other" and self.legal_basis_note is None:
            raise ValueError("legal_basis other needs legal_basis_note: which one it is")
        if self.legal_basis is None and self.legal_basis_note is not None:
            raise ValueError("legal_basis_note without legal_basis")
        if not self.to_dict():
            raise ValueError("it states nothing: leave it out")
        return self

    def in_words(self) -> dict[str, str]:
        """What is stated, by the name that people read."""
        basis = self.legal_basis
        note = self.legal_basis_note
        stated = {
            "purposes": "; ".join(self.purposes) + (" (binding)" if self.purposes_bind else ""),
            "legal basis": f"{basis} ({note})" if basis and note else basis,
            "data categories": "; ".join(self.categories),
            "PHI": self.phi,
            "retention until": self.retention_until,
        }
        return {name: text for name, text in stated.items() if text}

    @property
    def last_second(self) -> int | None:
        """``retention_until`` as seconds since the epoch."""
        return None if self.retention_until is None else from_rfc3339(self.retention_until)

    def allows(self, purpose: str | None) -> bool:
        """Whether a recipe's purpose is one of those listed, or none are listed."""
        return not self.purposes or purpose in self.purposes

    def require_purpose(self, purpose: str | None, *, owner: str, name: str) -> None:
        """Return if the purposes do not bind, or allow a recipe's.

        Args:
            purpose: Of the recipe; ``None`` where it states none.
            owner: Of the dataset.
            name: Of the dataset.

        Raises:
            PurposeMismatch: They bind and do not allow it.
        """
        if self.purposes_bind and not self.allows(purpose):
            raise PurposeMismatch(
                f"the recipe's purpose is none of those that {owner} allows for {name}",
                check="purpose",
                owner=owner,
                dataset=name,
                got="none stated" if purpose is None else purpose,
                expected=" or ".join(self.purposes),
                hint="state one of these purposes in the recipe, word for word, and have it "
                "approved; or ask the owner",
            )

    def require_retained(self, moment: int, *, owner: str, name: str) -> None:
        """Return if the dataset may be used at a moment.

        Args:
            moment: Seconds since the epoch.
            owner: Of the dataset.
            name: Of the dataset.

        Raises:
            RetentionEnded: ``retention_until`` has passed then.
        """
        if self.last_second is not None and moment > self.last_second:
            raise RetentionEnded(
                f"the retention of {name} has ended",
                check="retention",
                owner=owner,
                dataset=name,
                got=to_rfc3339(moment),
                expected=f"at most {self.retention_until}",
                hint="its owner decides whether the data may be kept longer, and then states a "
                "later end: sealtrain rewrap --data-use",
            )


def load_data_use(path: Path) -> DataUse:
    """Read the statement that an owner wrote in YAML.

    Raises:
        ConfigError: The file cannot be read, is too long, no such YAML, or a field is unknown or of
            another form.
    """
    what = "data use file"
    document = parse_yaml(
        read_bounded(path, _MAX_BYTES), error=ConfigError, what=what, max_bytes=_MAX_BYTES
    )
    return load_model(DataUse, document, ConfigError, what)
