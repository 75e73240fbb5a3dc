"""A script's model in its library's own layout, proven to load again before it is sealed.

1. The library writes the model into a folder in the guest's memory, as it writes one for
   ``from_pretrained``. A model that no library saves gives its weights as safetensors.
2. The folder holds regular files of kinds that carry no code, in whose settings no code from
   elsewhere is named, and nothing else.
3. The library loads the files again, and the weights equal those of the model in training.
4. No file names a path of the guest: an adapter names its base by digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from sealtrain.base.canonical import parse_foreign
from sealtrain.base.filenames import is_vocabulary, may_carry_code, portable_name
from sealtrain.errors import SealtrainError
from sealtrain.recipe.modelspec import refuse_foreign_code
from sealtrain.training.basefiles import files_in, script_files
from sealtrain.training.errors import ModelNotReloaded
from sealtrain.training.finite import require_finite_model, require_finite_weights
from sealtrain.training.model_files import ADAPTER_CONFIG, BASE_FIELD, weight_files

if TYPE_CHECKING:
    from torch import Tensor

_MAX_FILES: Final = 4096
_ADAPTER: Final = "default"
_CARD: Final = "README.md"
_SENTENCE_MODULES: Final = "modules.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFolder:
    """The recipe's base model, where it is a folder.

    Attributes:
        path: Where the guest has it.
    """

    path: Path | None


def save_files(
    model: Any, processing: Any, *, base: BaseFolder, memory: Path, trial: bool = False
) -> dict[str, bytes]:
    """The files of a model and its tokenizer or processor.

    Args:
        model: A ``torch.nn.Module``, not wrapped for training.
        processing: Saved beside the model with ``save_pretrained``; ``None`` for nothing.
        base: What an adapter may belong to.
        memory: Folder that lies in memory; nothing stays there.
        trial: Only find out whether the model can be sealed; the files are returned empty.

    Returns:
        Name → content, with licences of the recipe's base and the list of its files where it is a
        folder. An adapter of the recipe's base model has no name of its base yet.

    Raises:
        ModelNotReloaded: The files are not those of a model, or load as another one.
        TrainingDiverged: A weight to seal is not a finite number.
    """
    if not trial:
        _require_finite(model)
    with tempfile.TemporaryDirectory(prefix="saved-", dir=memory) as place:
        folder = Path(place)
        kept = _layout_of(model, base)
        try:
            kept.save(folder)
            if processing is not None and not kept.saves_processing:
                processing.save_pretrained(str(folder), save_jinja_files=False)
            kept.name_base(folder)
            names = _names_in(folder)
            kept.compare(folder)
            # Only now, when what was loaded is gone again: models are large.
            if trial:
                return dict.fromkeys(names, b"")
            files = {name: _content(folder / name) for name in names}
            return files if base.path is None else script_files(files, files_in(base.path))
        except SealtrainError:
            raise
        except Exception as error:
            raise ModelNotReloaded(
                "the model's library cannot save it and load it again",
                check="model",
                got=type(error).__name__,
                hint="a class of your own needs save_pretrained and from_pretrained, or neither",
            ) from error


def _require_finite(model: Any) -> None:
    """Of an adapter only what is its own: the base is not sealed with it."""
    if _is_a(model, "peft", "PeftModel") and _ADAPTER in model.peft_config:
        from peft import get_peft_model_state_dict

        require_finite_weights(get_peft_model_state_dict(model, adapter_name=_ADAPTER))
    else:
        require_finite_model(model, model.state_dict())


def unwrap(model: Any) -> Any:
    """A model without what Accelerate and ``torch.compile`` put around it."""
    from accelerate.utils import extract_model_from_parallel

    return extract_model_from_parallel(
        model, keep_fp32_wrapper=False, keep_torch_compile=False, recursive=False
    )


class _Layout(Protocol):
    """How one kind of model is saved and loaded."""

    saves_processing: bool

    def save(self, folder: Path) -> None:
        """Write its files."""

    def name_base(self, folder: Path) -> None:
        """Name the base model in them by what it is, not by where it lies."""

    def compare(self, folder: Path) -> None:
        """Load the files, and raise ``ModelNotReloaded`` unless they are the model."""


def _layout_of(model: Any, base: BaseFolder) -> _Layout:
    if _is_a(model, "peft", "PeftModel"):
        return _Adapter(model, base)
    if _is_a(model, "sentence_transformers.base.model", "BaseModel"):
        return _Encoder(model)
    if hasattr(model, "save_pretrained") and hasattr(type(model), "from_pretrained"):
        return _Pretrained(model)
    return _Weights(model)


def _is_a(model: Any, module: str, name: str) -> bool:
    """Whether a model is of a class of a library, which is loaded if it is."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(model, kind)


class _Weights:
    """A module that no library saves: ``model.safetensors``, for ``load_state_dict``."""

    saves_processing = False

    def __init__(self, model: Any) -> None:
        self._model = model

    def save(self, folder: Path) -> None:
        for name, data in weight_files(self._model).items():
            (folder / name).write_bytes(data)

    def name_base(self, folder: Path) -> None:
        """The folder of these weights names no base model."""

    def compare(self, folder: Path) -> None:
        from safetensors.torch import load_file

        loaded, trained = load_file(folder / "model.safetensors"), self._model.state_dict()
        # Tensors that share their memory are written once, under their first name.
        _require_equal(loaded, {name: trained[name] for name in loaded})


class _Pretrained:
    """A model of Transformers, or of any class with its two methods."""

    saves_processing = False

    def __init__(self, model: Any) -> None:
        if getattr(model, "_hf_peft_config_loaded", False):
            raise ModelNotReloaded(
                "the adapter was added inside a Transformers model, which saves only the adapter",
                check="adapter",
                hint="wrap the model with peft.get_peft_model",
            )
        self._model = model

    def save(self, folder: Path) -> None:
        self._model.save_pretrained(str(folder))

    def name_base(self, folder: Path) -> None:
        """The folder of these weights names no base model."""

    def compare(self, folder: Path) -> None:
        loaded = type(self._model).from_pretrained(str(folder))
        _require_equal(loaded.state_dict(), self._model.state_dict())


class _Encoder:
    """A model of Sentence Transformers, with its tokenizer."""

    saves_processing = True

    def __init__(self, model: Any) -> None:
        self._model = model

    def save(self, folder: Path) -> None:
        # Its card quotes texts of the training data.
        self._model.save_pretrained(str(folder), create_model_card=False)
        _embed_templates(folder)

    def name_base(self, folder: Path) -> None:
        if any(folder.rglob(ADAPTER_CONFIG)):
            raise ModelNotReloaded(
                "the encoder is an adapter, which does not load without its base",
                check="adapter",
                hint="merge the adapter into the encoder before sign_manifest",
            )

    def compare(self, folder: Path) -> None:
        listed = json.loads((folder / _SENTENCE_MODULES).read_bytes())
        kinds = [str(module["type"]) for module in listed]
        foreign = [kind for kind in kinds if not kind.startswith("sentence_transformers.")]
        if foreign:
            raise ModelNotReloaded(
                "the encoder has a module that Sentence Transformers cannot load elsewhere",
                check=_SENTENCE_MODULES,
                got=foreign[0][:200],
                expected="modules of sentence_transformers",
            )
        loaded = type(self._model)(str(folder), device="cpu")
        _require_equal(loaded.state_dict(), self._model.state_dict())


class _Adapter:
    """A PEFT model: its adapter, onto the base that it was trained beside."""

    saves_processing = False

    def __init__(self, model: Any, base: BaseFolder) -> None:
        if _ADAPTER not in model.peft_config:
            raise ModelNotReloaded(
                "PEFT finds an adapter under another name in a folder of its own only",
                check="adapter",
                got=", ".join(model.peft_config)[:200],
                expected=_ADAPTER,
                hint='call get_peft_model(model, config, adapter_name="default")',
            )
        self._model = model
        self._inner = model.get_base_model()
        self._held = bool(getattr(self._inner, "is_quantized", False))
        named = str(getattr(getattr(self._inner, "config", None), "_name_or_path", ""))
        folder = base.path
        self._folder = folder if folder is not None and _same_place(named, folder) else None

    def save(self, folder: Path) -> None:
        self._model.save_pretrained(str(folder), selected_adapters=[_ADAPTER])
        (folder / _CARD).unlink(missing_ok=True)

    def name_base(self, folder: Path) -> None:
        """By the digest of its weights, unless it is the recipe's, which the manifest names."""
        path = folder / ADAPTER_CONFIG
        settings = json.loads(path.read_bytes())
        settings[BASE_FIELD] = None if self._folder else f"weights@sha256:{self._digest()}"
        path.write_text(json.dumps(settings, indent=2), "utf-8")

    def compare(self, folder: Path) -> None:
        from peft import PeftModel, get_peft_model_state_dict
        from safetensors.torch import load_file

        trained = get_peft_model_state_dict(self._model, adapter_name=_ADAPTER)
        plain = self._plain()
        if plain is None:
            _require_equal(load_file(folder / "adapter_model.safetensors"), trained)
            return
        base = _rename_base(self._inner)
        fresh = plain.state_dict()
        if not self._held:
            _require_equal(fresh, {name: base[name] for name in fresh if name in base})
        loaded = PeftModel.from_pretrained(plain, str(folder))
        _require_equal(get_peft_model_state_dict(loaded, adapter_name=_ADAPTER), trained)

    def _plain(self) -> Any:
        """The base without the adapter, as a recipient has it; ``None`` if no class makes one."""
        kind = type(self._inner)
        if not _is_a(self._inner, "transformers", "PreTrainedModel"):
            return None
        config = deepcopy(self._inner.config)
        vars(config).pop("quantization_config", None)
        if self._folder is not None:
            return kind.from_pretrained(
                str(self._folder),
                config=config,
                dtype=self._inner.dtype,
                local_files_only=True,
                use_safetensors=True,
            )
        made = kind(config)
        made.load_state_dict(_rename_base(self._inner), strict=False)
        return made

    def _digest(self) -> str:
        seen = hashlib.sha256()
        for name, tensor in sorted(_rename_base(self._inner).items()):
            seen.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
            seen.update(_bytes(tensor))
        return seen.hexdigest()


def _rename_base(inner: Any) -> dict[str, Tensor]:
    """Weights of a base under the names that it has without the adapter inside.

    Those that the adapter has a trained copy of are left out.
    """
    state = inner.state_dict()
    copied = {name.partition(".original_module")[0] for name in state if ".original_module" in name}
    kept = {}
    for name, tensor in state.items():
        plain = name.replace(".base_layer.", ".")
        inside = any(name == copy or name.startswith(f"{copy}.") for copy in copied)
        if not inside and (plain != name or not _of_adapter(name)):
            kept[plain] = tensor
    return kept


def _of_adapter(name: str) -> bool:
    return f".{_ADAPTER}." in name or name.endswith(f".{_ADAPTER}")


def _same_place(named: str, folder: Path) -> bool:
    try:
        return bool(named) and Path(named).samefile(folder)
    except OSError:
        return False


def _names_in(folder: Path) -> list[str]:
    """Names of a folder's files; refuses what is no regular file and what may carry code."""
    names = []
    for path in _entries(folder):
        name = path.relative_to(folder).as_posix()
        problem = None
        try:
            portable_name(name)
        except ValueError as error:
            problem = str(error)
        if may_carry_code(name):
            problem = "can run code where a library loads it"
        elif name.endswith(".json") and not is_vocabulary(name):
            problem = problem or _foreign_code(path)
        if problem is not None:
            raise ModelNotReloaded(
                "the model's library saved a file that is not sealed",
                check="file kind",
                got=f"{name[:200]!r} {problem}",
                expected="weights as safetensors, settings as JSON, vocabularies",
                hint="have it save safetensors, or leave what writes the file out",
            )
        names.append(name)
    if not any(name.endswith(".safetensors") for name in names):
        raise ModelNotReloaded(
            "the model's library saved no weights",
            check="files",
            got=", ".join(sorted(names))[:200] or "no file",
            expected="a .safetensors file",
        )
    return names


def _foreign_code(path: Path) -> str | None:
    """What settings name that a library would fetch and run; recipients refuse to open these."""
    try:
        refuse_foreign_code(parse_foreign(_content(path)))
    except ValueError as error:
        return f"is not plain settings: {str(error)[:100]}"
    return None


def _content(path: Path) -> bytes:
    """A regular file's; a link that was put in its place is not followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _irregular(path.name)
        return file.read()


def _entries(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(place, name)
            mode = path.lstat().st_mode
            count += 1
            if count > _MAX_FILES or not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise _irregular(path.relative_to(folder).as_posix())
            if stat.S_ISREG(mode):
                if path.lstat().st_nlink != 1:
                    raise _irregular(path.relative_to(folder).as_posix())
                yield path


def _irregular(name: str) -> ModelNotReloaded:
    return ModelNotReloaded(
        "the model's library left something else than files of its own",
        check="file kind",
        got=repr(name[:200]),
        expected=f"regular files, at most {_MAX_FILES}, no links",
    )


def _embed_templates(folder: Path) -> None:
    """Move a chat template into the tokenizer's settings: recipients open no Jinja files."""
    for path in folder.rglob("chat_template.jinja"):
        settings = path.with_name("tokenizer_config.json")
        if settings.is_file():
            told = json.loads(settings.read_bytes())
            settings.write_text(json.dumps(told | {"chat_template": path.read_text()}), "utf-8")
            path.unlink()


def _require_equal(loaded: Mapping[str, Any], trained: Mapping[str, Any]) -> None:
    """Raises ``ModelNotReloaded`` at the first weight that is missing or has another value."""
    for name, tensor in trained.items():
        if not hasattr(tensor, "shape"):
            continue
        other = loaded.get(name)
        if other is None or not _equal(other, tensor):
            raise ModelNotReloaded(
                "the saved model loads with other weights than were trained",
                check="weights",
                got=f"{name[:200]} is {'missing' if other is None else 'another one'}",
                expected="every weight of the model in training",
                hint="save all that was trained: an adapter's modules_to_save, a head, resized "
                "embeddings",
            )


def _equal(own: Tensor, other: Tensor) -> bool:
    import torch

    if own.shape != other.shape:
        return False
    own, other = own.detach().cpu(), other.detach().cpu()
    if own.dtype != other.dtype:  # the type that a library loads in is its caller's choice
        wide = torch.promote_types(own.dtype, other.dtype)
        own, other = own.to(wide), other.to(wide)
    return torch.equal(_flat(own), _flat(other))


def _flat(tensor: Tensor) -> Tensor:
    """Its bytes, among which NaN equals NaN."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return bytes(_flat(tensor.detach().cpu()).numpy().tobytes())
