"""The terms that owners approve in a recipe: its datasets, its release policy, its hardware."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from sealtrain.base.models import Hex40, Hex64, OwnerName, StrictModel
from sealtrain.base.platforms import Platform
from sealtrain.base.tiers import Tier, reaches, tier_of
from sealtrain.errors import KeyProviderMismatch, UsageError
from sealtrain.recipe.collaboration import is_none
from sealtrain.recipe.fields import ColumnName, ImageName, RecipePath, describe_keyword

MetricName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
_HEX = r"([0-9a-f]{2}){1,1024}"


def _name_or_series(schema: dict[str, Any]) -> None:
    """Written is one of the two; ``Dataset`` has the name of a series as ``name`` too."""
    schema["required"].remove("name")
    schema["oneOf"] = [{"required": ["name"]}, {"required": ["series"]}]


class Dataset(StrictModel):
    """One sealed dataset, or a series of them, named by owner.

    Its bytes are pinned by the owner's approval.
    """

    model_config = ConfigDict(json_schema_extra=_name_or_series)

    owner: OwnerName
    name: OwnerName
    """Of the dataset, or of the series where ``series`` is written in its place."""
    series: OwnerName | None = Field(
        default=None,
        exclude_if=is_none,
        description="Name of a series, in place of name: a run reads all its members, or the "
        "newest.",
    )
    role: Literal["train", "test", "model"]
    weight: float = Field(
        default=1.0,
        gt=0,
        le=1_000_000,
        description="How often a record comes up, relative to those of other datasets.",
    )
    max_records: int | None = Field(
        default=None,
        ge=1,
        le=(1 << 53) - 1,
        description="Most records of this dataset in an epoch, chosen by the seed.",
    )
    columns: dict[ColumnName, ColumnName] = Field(
        default_factory=dict,
        max_length=256,
        description="Name of a column in this dataset → its name in this recipe.",
    )

    @model_validator(mode="before")
    @classmethod
    def _is_named_once(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "series" not in data:
            return data
        if "name" in data:
            raise ValueError("series stands in place of name: leave one of them out")
        return data | {"name": data["series"]}

    @model_serializer(mode="wrap")
    def _as_written(self, inner: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = inner(self)
        if self.series is not None:
            del written["name"]
        return written

    @model_validator(mode="after")
    def _is_read_whole_as_a_series(self) -> Self:
        if self.series is None:
            if "series" in self.model_fields_set:
                raise ValueError("series that names nothing is left out")
        elif self.role == "model" or self.max_records is not None:
            raise ValueError("a series has role train or test and no max_records")
        return self

    @model_validator(mode="after")
    def _only_training_data_has_a_share(self) -> Self:
        if self.role != "train" and (self.weight != 1 or self.max_records is not None):
            raise ValueError("weight and max_records belong to role train; the rest is read whole")
        if self.role == "model" and self.columns:
            raise ValueError("a sealed model has files and no columns")
        return self

    @model_validator(mode="after")
    def _columns_stay_apart(self) -> Self:
        if len(set(self.columns.values())) != len(self.columns):
            raise ValueError("columns give two columns one name")
        return self


def expect_data(datasets: Sequence[Dataset], given: Iterable[str]) -> list[str]:
    """Names of a recipe's datasets, ``owner.name``, if exactly these are given.

    Raises:
        UsageError: A dataset is missing, or not of the recipe.
    """
    wanted = [f"{dataset.owner}.{dataset.name}" for dataset in datasets]
    if set(given) != set(wanted):
        raise UsageError(
            "the data given are not the datasets of the recipe",
            got=", ".join(sorted(given)) or "none",
            expected=", ".join(sorted(wanted)),
            hint="give --records OWNER.NAME=PATH once for each",
        )
    return wanted


class HandOn(StrictModel):
    """The recipe to whose guests, and to no person, the trained model is sealed."""

    deployment: RecipePath = Field(
        description="app-compose.json of the recipe that uses the model; it is locked before."
    )
    threshold: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="So many of several brokers restore the model's key; null for one broker.",
    )


class ModelRelease(StrictModel):
    """Where the trained model goes: it is sealed to each recipient, or to another recipe."""

    recipients: Annotated[tuple[OwnerName, ...], describe_keyword("uniqueItems", True)] = Field(
        default=(), max_length=256
    )
    handed_on: HandOn | None = Field(
        default=None,
        exclude_if=is_none,
        description="Seal the model to the guests of another recipe and to no person; left out "
        "of locks when there is none.",
    )

    @model_validator(mode="after")
    def _recipients_once(self) -> Self:
        if len(set(self.recipients)) != len(self.recipients):
            raise ValueError("recipients name an owner twice")
        return self

    @model_validator(mode="after")
    def _goes_to_persons_or_guests(self) -> Self:
        if bool(self.recipients) == (self.handed_on is not None):
            raise ValueError("model has recipients or handed_on: one of them, and not both")
        return self


class ReleasePolicy(StrictModel):
    """All that may leave the guest in the clear, and the recipients of the sealed model."""

    metrics: Annotated[tuple[MetricName, ...], describe_keyword("uniqueItems", True)] = Field(
        max_length=64, description="Averages over a logging interval that may leave, by name."
    )
    round_to: int = Field(ge=0, le=8, description="Decimal places of a released metric.")
    every_n_steps: int = Field(default=1, ge=1, le=10_000_000)
    logs: Literal["none", "error-summary", "structured"] = Field(
        default="none",
        description="none; the code of an error; or also named events without free text.",
    )
    model: ModelRelease

    @model_validator(mode="after")
    def _metrics_once(self) -> Self:
        if len(set(self.metrics)) != len(self.metrics):
            raise ValueError("metrics name one twice")
        return self


class EnclaveConfig(StrictModel):
    """How a parent must start an AWS Nitro enclave of the recipe."""

    processors: Annotated[int, Field(ge=1, le=1024)]
    memory_mib: Annotated[int, Field(ge=64, le=1 << 24)] = Field(
        description="MiB; at least four times the enclave image file."
    )
    mode: Literal["production"] = Field(
        default="production",
        description="There is no other value: in debug mode the parent reads the console.",
    )


class Hardware(StrictModel):
    """Where the recipe may run, and with which keys."""

    platforms: Annotated[tuple[Platform, ...], describe_keyword("uniqueItems", True)] = Field(
        min_length=1
    )
    tier: Tier = Field(
        description="Lowest tier that the machine must reach: what its evidence proves, and by "
        "whose word. Strongest first: processor, processor-and-paravisor, cloud-tpm, cloud."
    )
    image: ImageName | None = Field(
        default=None, description="Container image by digest; hardware needs one."
    )
    key_provider: Literal["none", "kms", "local", "tpm"] = "none"
    key_provider_id: Annotated[str, describe_keyword("pattern", f"^{_HEX}$")] | None = Field(
        default=None,
        description="Pin of the key provider, hex. Unpinned, a host could bring its own.",
    )
    app_id: Hex40 | None = Field(
        default=None,
        description="Address of the KMS contract; else the compose hash's first 20 bytes.",
    )
    gpu: Literal["nvidia"] | None = Field(
        default=None,
        exclude_if=is_none,
        description="Accelerators that the guest's container is given: all of the machine's.",
    )
    launch_script: Hex64 | None = Field(
        default=None,
        exclude_if=is_none,
        description="SHA-256 of a script that the platform runs before the container.",
    )
    enclave: EnclaveConfig | None = Field(
        default=None,
        exclude_if=is_none,
        description="Processors and memory of the enclave, on nitro.",
    )

    @model_validator(mode="after")
    def _check_pins(self) -> Self:
        if len(set(self.platforms)) != len(self.platforms):
            raise ValueError("platforms name one twice")
        hardware = [name for name in self.platforms if name != "simulator"]
        if len(hardware) > 1:
            raise ValueError("platforms name two kinds of hardware: lock a recipe for each")
        if hardware and self.image is None:
            raise ValueError(
                f"image is required on {hardware[0]}, as name@sha256:… "
                "(make images, or the digest that the image's publisher names)"
            )
        if hardware and not reaches(tier_of(hardware[0]), self.tier):
            raise ValueError(
                f"{hardware[0]} proves {tier_of(hardware[0])}, which is below tier {self.tier}: "
                "no machine could run this recipe"
            )
        if hardware not in ([], ["dstack"]) and self.key_provider != "none":
            raise ValueError(f"{hardware[0]} has no key provider: write none")
        if self.enclave is not None and hardware != ["nitro"]:
            raise ValueError("enclave is for platform nitro alone")
        if self.key_provider == "kms" and self.key_provider_id is None:
            raise ValueError(
                "key_provider kms needs key_provider_id, the hex id that its guests measure: "
                "unpinned, the host chooses"
            )
        if self.key_provider == "none" and self.key_provider_id is not None:
            raise ValueError("key_provider_id without a key_provider")
        if self.key_provider_id is not None and not re.fullmatch(_HEX, self.key_provider_id):
            raise ValueError("key_provider_id is lower-case hex")
        if self.app_id is not None and self.key_provider != "kms":
            raise ValueError("app_id is the address of a KMS contract: key_provider kms")
        return self

    def require_key_provider(self, found: str) -> None:
        """Check that a guest got its keys from the key provider that the recipe pins, if any.

        Args:
            found: Id that the guest measured; empty if it measured none.

        Raises:
            KeyProviderMismatch: The recipe pins another key provider.
        """
        if self.key_provider_id is not None and found != self.key_provider_id:
            raise KeyProviderMismatch(
                "the guest got its keys from another key provider than the recipe pins",
                check="key provider",
                got=found or "none",
                expected=self.key_provider_id,
                hint="deploy the guest with the key provider that the owners approved",
            )
