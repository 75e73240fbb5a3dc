"""The base model and the tokenizer of a recipe."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from sealtrain.base.canonical import JsonValue, canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.base.models import OwnerName, StrictModel
from sealtrain.recipe.fields import (
    RecipePath,
    Visible,
    by_key,
    check_plain_json,
    describe_keyword,
    later,
)

_COMMIT = re.compile("[0-9a-f]{40}")
_PART = "[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_ID = f"{_PART}/{_PART}"


def _plain_id(text: str) -> str:
    if not re.fullmatch(_ID, text) or "--" in text or ".." in text:
        raise ValueError("id is ORG/NAME of a model on the hub, such as org/name")
    return text


HubId = Annotated[
    str,
    StringConstraints(max_length=96),
    AfterValidator(_plain_id),
    describe_keyword("pattern", rf"^(?!.*(--|\.\.)){_ID}$"),
]
"""Name of a model on the hub; the hub knows the same rules."""
HubRevision = Annotated[
    str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
"""A commit, a tag or a branch of a model on the hub."""

# Each of these makes a library fetch or run code that the lock does not measure.
_FOREIGN_CODE = ("auto_map", "custom_pipelines", "custom_generate", "trust_remote_code")


def refuse_foreign_code(value: JsonValue, *, own: bool = False) -> None:
    """Refuse settings that load code from elsewhere, at any depth of a model's configuration.

    Args:
        value: The configuration.
        own: Also refuse every name that starts with an underscore (a config written by hand needs
            none; saved configs carry harmless ones).

    Raises:
        ValueError: Names the setting.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            # "attn_implementation: org/name" downloads a kernel and runs it.
            kernel = "implementation" in key and "/" in canonical_json(item).decode()
            if key in _FOREIGN_CODE or kernel or (own and key.startswith("_")):
                raise ValueError(f"{key!r} would load code that is not measured")
            refuse_foreign_code(item, own=own)
    elif isinstance(value, list):
        for item in value:
            refuse_foreign_code(item, own=own)


MAX_TEMPLATE_LINES: Final = 2000
TemplateLine = Annotated[Visible, StringConstraints(max_length=4096)]
"""A line of a chat template, without its line feed."""
_OTHER_ATTENTION: Final = {
    "flash_attention_2": "it needs a library that no guest holds; sdpa calls PyTorch's own kernels",
    "flash_attention_3": "it needs a library that no guest holds; sdpa calls PyTorch's own kernels",
    "flex_attention": "it compiles kernels as it trains, untried in a guest; write sdpa",
}


def _of_torch(value: Any) -> Any:
    word = _OTHER_ATTENTION.get(value) if isinstance(value, str) else None
    if word is not None:
        raise ValueError(f"{value} is not for recipes: {word}")
    return value


class _AnyModel(StrictModel):
    """How a model computes attention, and how its tokenizer writes conversations."""

    attn_implementation: Annotated[Literal["eager", "sdpa"] | None, BeforeValidator(_of_torch)] = (
        later(
            default=None,
            description="As Transformers names it; null for what it takes for the architecture.",
        )
    )
    chat_template: (
        Annotated[tuple[TemplateLine, ...], Field(min_length=1, max_length=MAX_TEMPLATE_LINES)]
        | None
    ) = later(
        default=None,
        description="Lines of the Jinja template that writes conversations; null for the "
        "tokenizer's own.",
    )

    @property
    def template(self) -> str | None:
        """The recipe's own chat template as a text; ``None`` for the tokenizer's own."""
        return None if self.chat_template is None else "\n".join(self.chat_template)


class BytesTokenizer(StrictModel):
    """The built-in tokenizer: one token for each byte of UTF-8."""

    kind: Literal["bytes"]


class FolderTokenizer(StrictModel):
    """A tokenizer saved by Transformers."""

    path: RecipePath


class SealedTokenizer(StrictModel):
    """The tokenizer that lies in the sealed model."""

    kind: Literal["sealed"]


Tokenizer = Annotated[
    Annotated[BytesTokenizer, Tag("bytes")] | Annotated[FolderTokenizer, Tag("folder")],
    Discriminator(by_key("folder", kind="bytes")),
]


class ModelFromFolder(_AnyModel):
    """Weights saved by Transformers, as safetensors only."""

    kind: ClassVar[Literal["folder"]] = "folder"
    path: RecipePath
    tokenizer: Tokenizer | None = Field(
        default_factory=lambda known: FolderTokenizer(path=known.get("path", "")),
        description="The model's own when left out; null for a model that reads no text.",
    )
    dtype: Literal["float32", "bfloat16"] = "float32"


class ModelFromHub(ModelFromFolder):
    """Saved weights that locking brings from the Hugging Face hub into a folder."""

    path: RecipePath = Field(
        default_factory=lambda: "",  # _own_folder has filled it, or id or revision is refused
        description="models/ORG--NAME@REVISION when left out.",
    )
    id: HubId = Field(description="ORG/NAME on the hub.")
    revision: HubRevision = Field(
        description="A commit, 40 hex digits; or a tag, which locking resolves to its commit."
    )

    @model_validator(mode="before")
    @classmethod
    def _own_folder(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "path" in value:
            return value
        name, revision = value.get("id"), value.get("revision")
        if not (isinstance(name, str) and re.fullmatch(_ID, name) and isinstance(revision, str)):
            return value  # refused by its own field
        return value | {"path": f"models/{name.replace('/', '--')}@{revision}"}

    @property
    def commit(self) -> str | None:
        """The commit that ``revision`` is by itself; ``None`` for a tag."""
        return self.revision if _COMMIT.fullmatch(self.revision) else None


class ModelFromConfig(_AnyModel):
    """A model that starts from random weights: architecture and seed."""

    kind: ClassVar[Literal["config"]] = "config"
    config: dict[str, Any] = Field(min_length=1, max_length=256)
    init_seed: int = Field(ge=0, lt=1 << 32)
    tokenizer: Tokenizer | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _config_is_plain(self) -> Self:
        check_plain_json(self.config)
        model_type = self.config.get("model_type")
        if not isinstance(model_type, str) or not model_type:
            raise ValueError("config needs model_type, such as 'llama'")
        refuse_foreign_code(self.config, own=True)
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of what the starting weights depend on, 64 hex digits."""
        start = {"config": self.config, "init_seed": self.init_seed, "dtype": self.dtype}
        return sha256_hex(canonical_json(start))


class SealedModel(_AnyModel):
    """Weights that their owner sealed: the recipe's one dataset of role ``model``."""

    kind: ClassVar[Literal["sealed"]] = "sealed"
    sealed: OwnerName = Field(description="Name of the dataset of role model.")
    tokenizer: SealedTokenizer | BytesTokenizer | FolderTokenizer | None = Field(
        default=SealedTokenizer(kind="sealed"),
        description="The model's own when left out; null for a model that reads no text.",
    )
    dtype: Literal["float32", "bfloat16"] = "float32"


SavedModel = Annotated[
    Annotated[ModelFromFolder, Tag("folder")] | Annotated[ModelFromHub, Tag("hub")],
    Discriminator(by_key("folder", id="hub", revision="hub")),
]

Model = Annotated[
    Annotated[ModelFromFolder, Tag("folder")]
    | Annotated[ModelFromHub, Tag("hub")]
    | Annotated[ModelFromConfig, Tag("config")]
    | Annotated[SealedModel, Tag("sealed")],
    Discriminator(
        by_key("folder", id="hub", revision="hub", path="folder", config="config", sealed="sealed")
    ),
]
