"""The files of a base model that go along with a trained one, and a list of all of them.

A recipient gets what ``save_pretrained`` would have written (spec/recipe.md §2.17). Weights and
``config.json`` come from the training. Generation settings, the tokenizer, its chat template, the
processor and licences are the base's own bytes, unless the training changed what they say.
``base_files.json`` names each file of the base, with its state and a reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.base.filenames import may_carry_code
from sealtrain.base.limits import MAX_SETTINGS_BYTES
from sealtrain.errors import DataInvalid
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.training.model_files import ADAPTER_CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.recipe import PhaseRecipe
    from sealtrain.training.data.sources import SealedFolder

BASE_FILES: Final = "base_files.json"
"""The list, among the files of the trained model."""

_MAX_BYTES: Final = 256 << 20
_CONFIG: Final = "config.json"
_GENERATION: Final = "generation_config.json"
_TOKENIZER: Final = "tokenizer.json"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_SPECIAL_MAP: Final = "special_tokens_map.json"
_TEMPLATE: Final = "chat_template.jinja"
_TEMPLATES: Final = "additional_chat_templates/"
_TEMPLATE_SETTINGS: Final = "chat_template.json"
_PREPARATION: Final = "preprocessor_config.json"
_PROCESSORS: Final = (
    _PREPARATION,
    "processor_config.json",
    "video_preprocessor_config.json",
    _TEMPLATE_SETTINGS,
)
_VOCABULARIES: Final = ("vocab.json", "vocab.txt", "merges.txt", "added_tokens.json", _SPECIAL_MAP)
_VOCABULARY_SUFFIXES: Final = (".model", ".tiktoken")
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json")
_LICENCES: Final = ("licen", "notice", "use_policy", "copying")
_CACHE: Final = "use_cache"
_NO_GENERATION: Final = ("SEQ_CLS", "FEATURE_EXTRACTION")
"""Tasks of adapters, as PEFT names them."""
_IDS: Final = ("bos_token", "eos_token", "pad_token")

_STATES: Final = ("kept", "changed", "left-out")
_State = tuple[Literal["kept", "changed", "left-out"], str]
_KEPT: Final[_State] = ("kept", "unchanged")


def base_folder(recipe: PhaseRecipe, base_dir: Path) -> Path | None:
    """Where the base of a recipe lies; ``None`` where it is not a folder."""
    return base_dir / recipe.model.path if recipe.model.kind == "folder" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFiles:
    """The files of a base model.

    Attributes:
        names: Relative POSIX paths, sorted.
        read: Content of one of them.
    """

    names: tuple[str, ...]
    read: Callable[[str], bytes]

    def settings(self, name: str) -> dict[str, Any]:
        """A JSON object; empty where the file is missing or holds another value."""
        if name not in self.names:
            return {}
        found = json.loads(self.read(name))
        return found if isinstance(found, dict) else {}


def base_files_of(recipe: Any, base_dir: Path, sealed: SealedFolder | None) -> BaseFiles | None:
    """The files of a recipe's base model; ``None`` where a configuration makes the model.

    Args:
        recipe: Names the model.
        base_dir: Folder that the recipe's paths start from.
        sealed: The opened model, where the recipe names a sealed one.
    """
    if sealed is not None:
        return BaseFiles(names=tuple(sorted(sealed.file_names)), read=_reader_of(sealed))
    if recipe.model.kind != "folder":
        return None
    return files_in(base_dir / recipe.model.path)


def files_in(folder: Path) -> BaseFiles:
    """The files of a base model's folder, without those that download tools left there."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    names = [path.as_posix() for path in paths if not path.parts[0].startswith(".")]
    return BaseFiles(names=tuple(sorted(names)), read=lambda name: (folder / name).read_bytes())


def with_base_files(
    files: Mapping[str, bytes],
    base: BaseFiles,
    recipe: Any,
    tokenizer: PreTrainedTokenizerBase | None,
) -> dict[str, bytes]:
    """A trained model's files, those of its base that go along, and the list of the base's files.

    Args:
        files: From ``training.trained.model_files``, and what the phase adds.
        base: Files of the base model.
        recipe: That was trained.
        tokenizer: As it was in training; ``None`` without one.
    """
    states: dict[str, _State] = {}
    whole = dict(files)
    own = tokenizer is not None and _reads_own_tokenizer(recipe)
    if own and tokenizer is not None:
        _keep_ids(whole, base, recipe)
        _add_tokenizer(whole, base, recipe, tokenizer, states)
    _keep_cache(whole, base.settings(_CONFIG))
    _add_generation(whole, base, states)
    for name in base.names:
        if name not in states:
            states[name] = _other_file(whole, base, name, recipe, own_tokenizer=own)
    listed = {name: {"state": state, "reason": why} for name, (state, why) in states.items()}
    return whole | {BASE_FILES: canonical_json({"files": listed})}


def read_list(data: bytes) -> dict[str, dict[str, str]]:
    """Name of each file of the base → its ``state`` and ``reason``, from ``base_files.json``.

    Raises:
        DataInvalid: It has another form.
    """
    read = parse_json(data, max_bytes=MAX_SETTINGS_BYTES)
    files = read.get("files") if isinstance(read, dict) and len(read) == 1 else None
    listed: dict[str, dict[str, str]] = {}
    for name, entry in files.items() if isinstance(files, dict) else ():
        known = isinstance(entry, dict) and entry.keys() == {"state", "reason"}
        if not isinstance(entry, dict) or not known or str(entry["state"]) not in _STATES:
            raise _no_list()
        listed[name] = {key: str(value) for key, value in entry.items()}
    if not isinstance(files, dict):
        raise _no_list()
    return listed


def _no_list() -> DataInvalid:
    return DataInvalid(
        f"{BASE_FILES} does not list the files of a base model",
        check=BASE_FILES,
        hint="open the model again, or remove the file",
    )


def merge_files(
    beside: Mapping[str, bytes], weights: Mapping[str, bytes], base: BaseFiles
) -> dict[str, bytes]:
    """Files of an adapter that was merged into its base after the run, with a list of its own.

    Args:
        beside: Files beside the adapter. Settings and tokenizer are those of the run.
        weights: From ``training.trained.weight_files``, of the merged model.
        base: Files of the base model.
    """
    whole = dict(beside) | {
        name: data for name, data in weights.items() if name != _GENERATION or name not in beside
    }
    if BASE_FILES not in beside:
        states: dict[str, _State] = {}
        _add_generation(whole, base, states)
        return whole
    files = read_list(whole[BASE_FILES])
    for name in base.names:
        if name.endswith(_WEIGHTS):
            state, why = _state_of_weights(whole, name)
            files[name] = {"state": state, "reason": why}
    return whole | {BASE_FILES: canonical_json({"files": files})}


def add_base_files(
    files: Mapping[str, bytes], recipe: Any, base_dir: Path, tokenizer: Any
) -> dict[str, bytes]:
    """As ``with_base_files``, of the base that a recipe names by its folder, if it does."""
    base = base_files_of(recipe, base_dir, None)
    if base is None:
        return baseless_files(files, recipe)
    return with_base_files(files, base, recipe, tokenizer)


def baseless_files(files: Mapping[str, bytes], recipe: Any) -> dict[str, bytes]:
    """A trained model's files, where the recipe's configuration made the model."""
    whole = dict(files)
    _keep_cache(whole, getattr(recipe.model, "config", None) or {})
    return whole


def script_files(files: Mapping[str, bytes], base: BaseFiles) -> dict[str, bytes]:
    """A script's model as its library saved it, the base's licences, and the list of its files.

    Args:
        files: As saved. Only licences are added: what else a model of its own needs is the script's
            to save.
        base: Files of the recipe's base model, which the script may have read.
    """
    whole = dict(files)
    listed: dict[str, dict[str, str]] = {}
    for name in base.names:
        if name not in whole and _is_licence(name):
            whole[name] = base.read(name)
        state, why = _state_of_saved(whole, base, name)
        listed[name] = {"state": state, "reason": why}
    return whole | {BASE_FILES: canonical_json({"files": listed})}


def _state_of_saved(whole: Mapping[str, bytes], base: BaseFiles, name: str) -> _State:
    if name == BASE_FILES:
        return "changed", "as-saved"
    if name.endswith(_WEIGHTS):
        return _state_of_weights(whole, name)
    if name in whole:
        return _KEPT if whole[name] == base.read(name) else ("changed", "as-saved")
    about = name.rpartition("/")[2].lower().startswith("readme")
    return "left-out", "about-the-base" if about else "not-saved"


def _is_licence(name: str) -> bool:
    """Whether it is one that recipients open: of another kind they would open nothing at all."""
    return "/" not in name and name.lower().startswith(_LICENCES) and not may_carry_code(name)


def _reads_own_tokenizer(recipe: Any) -> bool:
    model, named = recipe.model, recipe.model.tokenizer
    if getattr(named, "kind", None) == "sealed":
        return True
    return bool(model.kind == "folder" and getattr(named, "path", None) == model.path)


def _keep_ids(whole: dict[str, bytes], base: BaseFiles, recipe: Any) -> None:
    """Give back the ids of special tokens that the tokenizer does not define."""
    defined = base.settings(_SPECIAL_MAP) | base.settings(_TOKENIZER_CONFIG)
    before = base.settings(_CONFIG)
    for name in (_CONFIG, _GENERATION):
        if name not in whole:
            continue
        settings = json.loads(whole[name])
        said = base.settings(name) or before
        kept = dict(settings)
        for token in _IDS:
            chosen = defined.get(token) or getattr(recipe.trainer, token, None)
            key = f"{token}_id"
            if chosen is None and said.get(key) is not None:
                kept[key] = said[key]
        if kept != settings:
            whole[name] = (json.dumps(kept, indent=2, sort_keys=True) + "\n").encode()


def _keep_cache(whole: dict[str, bytes], before: Mapping[str, Any]) -> None:
    """Give back ``use_cache``: trainers switch it off in the model's config while they train."""
    if _CONFIG not in whole:
        return
    settings = json.loads(whole[_CONFIG])
    kept = _with_cache(settings, before)
    if kept != settings:
        whole[_CONFIG] = (json.dumps(kept, indent=2, sort_keys=True) + "\n").encode()


def _with_cache(settings: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, also of parts of a model, with ``use_cache`` as it was."""
    kept = {key: value for key, value in settings.items() if key != _CACHE}
    if _CACHE in settings and _CACHE in before:
        kept[_CACHE] = before[_CACHE]
    for key, value in settings.items():
        if isinstance(value, Mapping):
            part = before.get(key)
            kept[key] = _with_cache(value, part if isinstance(part, Mapping) else {})
    return kept


def _add_generation(whole: dict[str, bytes], base: BaseFiles, states: dict[str, _State]) -> None:
    """Generation settings: the base's bytes, unless they now mean another generation."""
    if _GENERATION not in base.names:
        return
    if _GENERATION not in whole and not _is_generating_adapter(whole):
        states[_GENERATION] = ("left-out", "does-not-generate")
        return
    before = base.read(_GENERATION)
    if _GENERATION in whole and _generation(whole[_GENERATION]) != _generation(before):
        states[_GENERATION] = ("changed", "special-tokens")
        return
    whole[_GENERATION], states[_GENERATION] = before, _KEPT


def _is_generating_adapter(whole: Mapping[str, bytes]) -> bool:
    """Whether the model is an adapter, and not one that scores, classifies or embeds."""
    if ADAPTER_CONFIG not in whole:
        return False
    return json.loads(whole[ADAPTER_CONFIG]).get("task_type") not in _NO_GENERATION


def _generation(data: bytes) -> str:
    """Generation settings in one form: without defaults and notes of the library."""
    from transformers import GenerationConfig

    config: Any = GenerationConfig.from_dict(json.loads(data))
    return str(config.to_json_string(use_diff=True, ignore_metadata=True))


def _add_tokenizer(
    whole: dict[str, bytes],
    base: BaseFiles,
    recipe: Any,
    tokenizer: PreTrainedTokenizerBase,
    states: dict[str, _State],
) -> None:
    """The base's own tokenizer files; settings that the training changed are written into them."""
    changed = _list_changed_settings(base, recipe, tokenizer)
    if _TOKENIZER_CONFIG in base.names:
        before = base.read(_TOKENIZER_CONFIG)
        settings = base.settings(_TOKENIZER_CONFIG) | changed
        whole[_TOKENIZER_CONFIG] = _json(settings) if changed else before
        moved = changed.keys() <= {"chat_template"}
        why = "holds-template" if moved else "special-tokens"
        why = "recipe-template" if moved and recipe.model.template is not None else why
        states[_TOKENIZER_CONFIG] = ("changed", why) if changed else _KEPT
    if _TOKENIZER in base.names:
        before = base.read(_TOKENIZER)
        same = _TOKENIZER not in whole or _vocabulary(before) == _vocabulary(whole[_TOKENIZER])
        if same:
            whole[_TOKENIZER] = before
        states[_TOKENIZER] = _KEPT if same else ("changed", "tokens")
    for name in base.names:
        superseded = name == _SPECIAL_MAP and changed.keys() - {"chat_template"}
        if superseded or name == _TEMPLATE or name.startswith(_TEMPLATES):
            replaced = recipe.model.template is not None and name != _SPECIAL_MAP
            states[name] = ("left-out", "replaced" if replaced else "in-tokenizer-config")
        elif name in _VOCABULARIES or ("/" not in name and name.endswith(_VOCABULARY_SUFFIXES)):
            whole[name], states[name] = base.read(name), _KEPT
    if _TEMPLATE in base.names and any(name in base.names for name in _PROCESSORS[:2]):
        # A processor reads its template from its own file, never from the tokenizer's settings.
        template = recipe.model.template or base.read(_TEMPLATE).decode()
        whole.setdefault(_TEMPLATE_SETTINGS, _json({"chat_template": template}))


def _list_changed_settings(
    base: BaseFiles, recipe: Any, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Settings of the tokenizer that its base's ``tokenizer_config.json`` does not have."""
    changed: dict[str, Any] = {}
    for token in ("eos_token", "pad_token"):
        if getattr(recipe.trainer, token, None) is not None:
            changed[token] = str(getattr(tokenizer, token))
    if recipe.model.template is not None:
        return changed | {"chat_template": recipe.model.template}
    templates = {
        PurePosixPath(name).stem: base.read(name).decode()
        for name in base.names
        if name.startswith(_TEMPLATES) and name.endswith(".jinja")
    }
    if _TEMPLATE in base.names:
        default = base.read(_TEMPLATE).decode()
        changed["chat_template"] = (
            [
                {"name": name, "template": template}
                for name, template in ({"default": default} | templates).items()
            ]
            if templates
            else default
        )
    return changed


def _vocabulary(data: bytes) -> dict[str, int]:
    from tokenizers import Tokenizer

    tokens: dict[str, int] = Tokenizer.from_buffer(data).get_vocab(with_added_tokens=True)
    return tokens


def _other_file(
    whole: dict[str, bytes], base: BaseFiles, name: str, recipe: Any, *, own_tokenizer: bool
) -> _State:
    """State of a file that is neither generation settings nor part of a tokenizer in use."""
    if name.endswith(_WEIGHTS):
        return _state_of_weights(whole, name)
    if name == _PREPARATION and name in whole and getattr(recipe, "preparation", None) is None:
        whole[name] = base.read(name)
        return _KEPT
    if name == BASE_FILES:  # the base is itself the model of a run
        return "changed", "as-saved"
    if name in whole:
        same = whole[name] == base.read(name)
        return _KEPT if same else ("changed", "as-saved" if name == _CONFIG else "as-trained")
    last = name.rpartition("/")[2].lower()
    if name in _PROCESSORS or _is_licence(name):
        whole[name] = base.read(name)
        return _KEPT
    if last.startswith("readme"):
        return "left-out", "about-the-base"
    return "left-out", "not-read" if own_tokenizer or not _of_tokenizer(name) else "other-tokenizer"


def _state_of_weights(whole: Mapping[str, bytes], name: str) -> _State:
    if ADAPTER_CONFIG in whole:
        return "left-out", "under-adapter"
    return ("changed", "trained") if name in whole else ("left-out", "in-one-file")


def _of_tokenizer(name: str) -> bool:
    return (
        name in (*_VOCABULARIES, _TOKENIZER, _TOKENIZER_CONFIG, _TEMPLATE)
        or name.startswith(_TEMPLATES)
        or name.endswith(_VOCABULARY_SUFFIXES)
    )


def _reader_of(sealed: SealedFolder) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        most = MAX_SETTINGS_BYTES if name.endswith("config.json") else _MAX_BYTES
        with sealed.open_file(name) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ModelInvalid(
                f"{name} of the sealed model is too long", expected=f"at most {most}"
            )
        return data

    return read


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()
