"""An Axolotl configuration as a recipe. Nothing of it is dropped without a word.

Every key with a value ends in one of four ways:

1. *translated*: it is in the recipe, under the name it has there;
2. *left out*: it changes no weight (paths, trackers, kernels), and the answer says so by name;
3. *refused*: the recipe cannot say it, and training without it would be another training; the
   refusal says the word to write, in the file or on the command line;
4. *left out on demand*: a key of 3 that the caller names in ``without``.

Where Axolotl's defaults differ from a recipe's, the recipe has Axolotl's. What it does without a
key for it is in ``Imported.notes``. Owners, names of their datasets, what may leave and who gets
the model are not in Axolotl's file; the caller says them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sealtrain.recipe.axolotlkeys import (
    ADAPTER,
    AS_TRUE,
    ATTENTION,
    DEFAULTS,
    FLAGS,
    HARMLESS_FALSE,
    INNER,
    LOSSES,
    NO_WEIGHT,
    OF_FILES,
    OPTIMIZERS,
    OWN_FILES,
    PREFERENCES,
    RENAMED,
    REWRITES,
    TYPES,
    USUAL,
    WORDS,
    refuse_learning,
    why_refused,
)
from sealtrain.recipe.errors import RecipeInvalid

_LONG: Final = (
    "Axolotl leaves out records that are longer than sequence_len; this recipe cuts them at "
    "trainer.max_length"
)
_ORDER: Final = "the order of records is sealtrain's own, by trainer.seed"
_WARMUP: Final = 0.03
_PACKED: Final = "records share rows as TRL packs them (bfd), not in Axolotl's batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What Axolotl's file does not say.

    Attributes:
        name: The recipe's.
        train: ``OWNER.NAME`` of the datasets to train on.
        test: ``OWNER.NAME`` of the datasets to measure on.
        recipients: Owners that the model is sealed to; the owners of the data when empty.
        records: Number of records to train on, which turns epochs into steps; ``None`` to leave
            epochs as they are.
        steps: ``max_steps``, where the file has epochs.
        base: Path of the base model in place of ``base_model``.
        prepared: Records hold prompts or messages as Axolotl's strategies would make them.
        own_files: The model's folder has the chat template, the tokens, rows and settings that the
            file names, and needs no code of its own.
        whole_base: A frozen base is held whole where the file quantizes it as no recipe does.
        template: Text of the file that TRL's ``chat_template_path`` names.
        without: Keys to leave out although training without them is another training.
    """

    name: str
    train: Sequence[str]
    test: Sequence[str] = ()
    recipients: Sequence[str] = ()
    records: int | None = None
    steps: int | None = None
    base: str | None = None
    prepared: bool = False
    own_files: bool = False
    whole_base: bool = False
    template: str | None = None
    without: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A recipe, and what became of each key.

    Attributes:
        recipe: To be written as YAML; ``parse_recipe`` accepts it.
        translated: Key → field of the recipe.
        left_out: Key → why it changes no weight, or that the caller wanted it.
        notes: Differences that no key speaks of.
    """

    recipe: dict[str, Any]
    translated: dict[str, str]
    left_out: dict[str, str]
    notes: tuple[str, ...]


def import_axolotl(config: Mapping[str, Any], wanted: Wanted) -> Imported:
    """Translate a configuration.

    Args:
        config: Axolotl's YAML, as read.
        wanted: What it does not say.

    Raises:
        RecipeInvalid: Names every key that cannot be translated and changes the result.
    """
    return _Translation(config, wanted).finish()


def write_translation(wanted: Wanted, **parts: Any) -> dict[str, Any]:
    """The recipe of a translation, to be written as YAML.

    Args:
        wanted: What another tool's file does not say.
        parts: Fields that the file says: phase, model, datasets, columns, trainer and peft.
    """
    owners = sorted({dataset.partition(".")[0] for dataset in wanted.train})
    return {
        "version": 1,
        "name": wanted.name,
        **parts,
        "privacy": {"dp": "none"},
        "release_policy": {
            "metrics": ["loss"],
            "round_to": 3,
            "model": {"recipients": list(wanted.recipients) or owners},
        },
        "hardware": {
            "platforms": ["simulator"],
            "tier": "processor",
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    }


def list_datasets(named: Sequence[str], role: str) -> list[dict[str, str]]:
    """Datasets of a recipe by their names ``OWNER.NAME``.

    Raises:
        RecipeInvalid: A name without an owner.
    """
    found = []
    for dataset in named:
        owner, dot, name = dataset.partition(".")
        if not dot:
            raise RecipeInvalid(
                "a dataset is named by owner and name",
                check="dataset",
                got=dataset,
                expected="OWNER.NAME",
            )
        found.append({"owner": owner, "name": name, "role": role})
    return found


@dataclass(slots=True)
class _Translation:
    """One translation under way; ``todo`` holds the keys that nothing has dealt with."""

    config: Mapping[str, Any]
    wanted: Wanted
    todo: dict[str, Any] = field(default_factory=dict)
    translated: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def finish(self) -> Imported:
        # A key without a value says nothing, in Axolotl as here.
        self.todo = {
            key: WORDS.get(value, value) if isinstance(value, str) else value
            for key, value in self.config.items()
            if value is not None
        }
        for key in sorted(set(self.wanted.without) & self.todo.keys()):
            del self.todo[key]
            self.left_out[key] = "left out on demand: training may differ"
        rl = self.take("rl", "phase")
        if rl is not None and (not isinstance(rl, str) or rl not in LOSSES):
            self.refuse("rl", f"{rl!r}; {refuse_learning(rl)}")
            rl = next(iter(LOSSES))
        model = self._model()
        columns = self._columns(rl)
        trainer = self._trainer(rl, columns)
        peft = self._adapter()
        if rl is not None and peft is not None and peft.pop("lora_dropout", None) is not None:
            del self.translated["lora_dropout"]
            self.left_out["lora_dropout"] = "TRL switches dropout off where preferences are learned"
        self._rest(model)
        if self.refused:
            raise RecipeInvalid(
                "the Axolotl file asks for what a recipe cannot say",
                check="axolotl",
                got="; ".join(f"{key}: {why}" for key, why in sorted(self.refused.items())),
                expected="keys that have a counterpart, or change no weight",
                hint="change these keys, or leave them out knowingly with --without KEY",
            )
        recipe = write_translation(
            self.wanted,
            phase="sft" if rl is None else "dpo",
            model=model,
            datasets=[
                *list_datasets(self.wanted.train, "train"),
                *list_datasets(self.wanted.test, "test"),
            ],
            columns=columns,
            trainer=trainer,
            peft=peft,
        )
        return Imported(
            recipe=recipe,
            translated=self.translated,
            left_out=self.left_out,
            notes=(*self.notes, _LONG, _ORDER),
        )

    def take(self, key: str, place: str) -> Any:
        """Value of a key that becomes a field; ``None`` without it."""
        if key not in self.todo:
            return None
        self.translated[key] = place
        return self.todo.pop(key)

    def refuse(self, key: str, why: str) -> None:
        """Note that a key cannot be translated."""
        self.translated.pop(key, None)
        self.todo.pop(key, None)
        self.refused[key] = why

    def _model(self) -> dict[str, Any]:
        named = self.take("base_model", "model.path")
        path = self.wanted.base or named
        if not isinstance(path, str):
            self.refuse("base_model", "missing; a recipe names a folder")
            return {}
        if self.wanted.base is None and not path.startswith("."):
            self.refuse(
                "base_model", f"{path!r} is no folder beside the recipe; --base PATH names one"
            )
        model: dict[str, Any] = {"path": path.removeprefix("./").rstrip("/")}
        for key in ("base_model_config", "tokenizer_config"):
            other = self.take(key, "model")
            if other not in (None, named):
                if key == "base_model_config":
                    self.refuse(key, "the configuration lies in the model's folder")
                else:
                    model["tokenizer"] = {"path": str(other).removeprefix("./").rstrip("/")}
        whole = self.todo.get("bfloat16") is True and self.take("bfloat16", "model.dtype")
        if whole or self.config.get("bf16") in (True, "auto", "True"):
            model["dtype"] = "bfloat16"
        for key, means in ATTENTION.items():
            if self.todo.get(key) in means:
                model["attn_implementation"] = means[self.take(key, "model.attn_implementation")]
        return model

    def _columns(self, rl: str | None) -> dict[str, str]:
        datasets = self.take("datasets", "datasets, columns")
        if not isinstance(datasets, list) or not datasets:
            self.refuse("datasets", "missing, or no list")
            return {}
        if len(datasets) not in (1, len(self.wanted.train)):
            self.refuse(
                "datasets", f"{len(datasets)} of them; name as many with --dataset OWNER.NAME"
            )
            return {}
        if not all(isinstance(dataset, dict) for dataset in datasets):
            self.refuse("datasets", "each of them is a mapping with path and type")
            return {}
        kinds = [self._read_as(dict(dataset), rl) for dataset in datasets]
        if any(kind != kinds[0] for kind in kinds):
            self.refuse("datasets", "their records differ in form; a recipe reads one form")
            return {}
        return kinds[0]

    def _read_as(self, dataset: dict[str, Any], rl: str | None) -> dict[str, str]:
        """Columns of a dataset; keys of it that nothing translates are refused."""
        for key in ("path", "ds_type", "data_files", "name", "split", "shards", "revision"):
            dataset.pop(key, None)  # where Axolotl found it; owners seal it
        kind = dataset.pop("type", None)
        form: dict[str, str] = {}
        if rl is not None:
            form = self._preferences(kind, rl)
        elif kind == "completion":
            form = {"text": str(dataset.pop("field", "text"))}
        elif kind == "chat_template":
            form = {"messages": str(dataset.pop("field_messages", "messages"))}
            self._turns(dataset)
            if self.wanted.prepared:
                form = self._prepare_turns(dataset)
        elif self.wanted.prepared:
            form = {"prompt": "prompt", "completion": "completion"}
            for key in [key for key in dataset if key.startswith(("field", "format"))]:
                del dataset[key]
            self.notes.append(f"records hold Axolotl's prompts (type {kind!r}) in column prompt")
        else:
            self.refuse(
                "datasets[].type",
                f"{kind!r} writes a prompt around each record; have owners seal columns prompt and "
                f"completion as it makes them, and say --prepared; without it: {TYPES[0]}, "
                f"{TYPES[1]}",
            )
        if rl is not None and self.wanted.prepared:
            self._prepare_turns(dataset)
        for key in sorted(dataset):
            if dataset[key] is not None:
                self.refuse(
                    f"datasets[].{key}",
                    "have owners seal records as it makes them, and say --prepared"
                    if REWRITES.fullmatch(key)
                    else "has no counterpart",
                )
        return form

    def _prepare_turns(self, dataset: dict[str, Any]) -> dict[str, str]:
        """Leave out how records become messages: they hold messages with role and content."""
        gone = [key for key in dataset if REWRITES.fullmatch(key)]
        for key in gone:
            del dataset[key]
        if gone:
            self.notes.append(f"records hold messages as Axolotl makes them ({', '.join(gone)})")
        return {"messages": "messages"}

    def _turns(self, dataset: dict[str, Any]) -> None:
        usual: dict[str, Any] = {
            "roles_to_train": ["assistant"],
            "train_on_eos": "turn",
            "message_property_mappings": {"role": "role", "content": "content"},
            "chat_template": "tokenizer_default",
        }
        for key, value in usual.items():
            if dataset.get(key) in (None, value):
                dataset.pop(key, None)
        if dataset.get("eot_tokens") is not None and self.wanted.own_files:
            del dataset["eot_tokens"]

    def _preferences(self, kind: Any, rl: str) -> dict[str, str]:
        if isinstance(kind, dict):
            names = {"prompt", "completion", "label"} if rl == "kto" else {
                "prompt", "chosen", "rejected"
            }  # fmt: skip
            found = {name: str(kind.get(f"field_{name}") or name) for name in sorted(names)}
            for key, value in kind.items():
                name = key.removesuffix("_format").removeprefix("field_")
                plain = key.startswith("field_") or value in (None, f"{{{name}}}")
                if name not in names or not plain:
                    self.refuse(f"datasets[].type.{key}", "has no counterpart")
            return found
        if not self.wanted.prepared:
            self.refuse(
                "datasets[].type",
                f"{kind!r} rewrites each record; name the columns (type: {{field_prompt: …}}), or "
                "have owners seal them rewritten, and say --prepared",
            )
        if rl == "kto":
            return {"prompt": "prompt", "completion": "completion", "label": "label"}
        return {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}

    def _trainer(self, rl: str | None, columns: Mapping[str, str]) -> dict[str, Any]:
        trainer: dict[str, Any] = {}
        for key, place in RENAMED.items():
            value = self.take(key, f"trainer.{place}")
            if value is not None:
                trainer[place] = value
        if rl is not None:
            trainer["loss_type"] = LOSSES.get(rl, rl)
            for key, place in PREFERENCES.items():
                value = self.take(key, f"trainer.{place}")
                if value is not None:
                    trainer[place] = value
        trainer = DEFAULTS | trainer
        self._flags(trainer, rl)
        self._losses_of_prompts(trainer, columns)
        optimizer = trainer["optim"]
        if isinstance(optimizer, str) and optimizer in OPTIMIZERS:
            trainer["optim"] = OPTIMIZERS[optimizer]
            self.notes.append(f"optimizer {optimizer} became {trainer['optim']}")
        special = self.take("special_tokens", "trainer") or {}
        if not isinstance(special, dict):
            self.refuse("special_tokens", "is no mapping")
            special = {}
        for name, token in special.items():
            if name not in ("pad_token", "eos_token") or rl is not None:
                if self.wanted.own_files:
                    self.notes.append(f"{_line(name)} is what the model's tokenizer says")
                else:
                    self.refuse("special_tokens", f"{name}; {OWN_FILES}")
            else:
                trainer[name] = token
        if "early_stopping_patience" in trainer and "eval_steps" in trainer:
            trainer.setdefault("metric_for_best_model", "eval_loss")
        self._steps(trainer)
        if "warmup_steps" not in trainer and _is_count(trainer.get("max_steps")):
            trainer["warmup_steps"] = min(int(_WARMUP * trainer["max_steps"]), 100)
        elif "warmup_steps" not in trainer and "num_train_epochs" in trainer:
            trainer["warmup_steps"] = _WARMUP
            self.notes.append("warmup_steps is a fraction of all steps; Axolotl takes 100 at most")
        return trainer

    def _flags(self, trainer: dict[str, Any], rl: str | None) -> None:
        if self.config.get("adapter") == "qlora" and self.todo.pop("torch_compile", None):
            self.todo.pop("torch_compile_backend", None)
            self.left_out["torch_compile"] = "no model was compiled beside a base in four bits here"
        for key, place in FLAGS.items():
            if key == "sample_packing" and rl is not None and key in self.todo:
                del self.todo[key]
                self.left_out[key] = "pairs and labels are not packed, in Axolotl neither"
            value = self.take(key, f"trainer.{place}")
            if value in AS_TRUE.get(key, ()):
                self.notes.append(f"{key}: {value} is written as true")
                value = True
            if isinstance(value, bool):
                trainer[place] = value
            elif value is not None:
                self.refuse(key, f"{value!r}; write true or false")
        if trainer.get("packing"):
            self.notes.append(_PACKED)
        strategy = self.take("excess_length_strategy", "trainer.truncation_mode")
        if strategy not in (None, "truncate"):
            self.refuse("excess_length_strategy", f"{strategy!r}; long records are cut")

    def _losses_of_prompts(self, trainer: dict[str, Any], columns: Mapping[str, str]) -> None:
        learned = self.take("train_on_inputs", "trainer")
        if "messages" in columns:
            trainer["assistant_only_loss"] = learned is not True
        elif "completion" in columns and "label" not in columns:
            trainer["completion_only_loss"] = learned is not True
        elif learned is not None:
            self.translated.pop("train_on_inputs")
            self.left_out["train_on_inputs"] = "records have no prompt to leave out of the loss"

    def _steps(self, trainer: dict[str, Any]) -> None:
        counted = self.wanted.steps is not None or self.wanted.records is not None
        counted = counted or "max_steps" in trainer
        place = "trainer.max_steps" if counted else "trainer.num_train_epochs"
        epochs = self.take("num_epochs", place)
        if self.wanted.steps is not None:
            trainer["max_steps"] = self.wanted.steps
        if "max_steps" in trainer:
            return
        if trainer.get("packing"):
            self.refuse(
                "num_epochs",
                "packed rows are not known before training; write max_steps, or say --steps N",
            )
            return
        epochs = 1 if epochs is None else epochs
        batches = {
            "micro_batch_size": trainer.get("per_device_train_batch_size", 1),
            "gradient_accumulation_steps": trainer.get("gradient_accumulation_steps", 1),
        }
        wrong = {key: n for key, n in {"num_epochs": epochs, **batches}.items() if not _is_count(n)}
        for key, value in wrong.items():
            self.refuse(key, f"{_line(value)!r}; write a number above 0")
        if wrong:
            return
        if self.wanted.records is None:
            trainer["num_train_epochs"] = epochs
        else:
            records = epochs * self.wanted.records
            trainer["max_steps"] = max(1, math.ceil(records / math.prod(batches.values())))

    def _adapter(self) -> dict[str, Any] | None:
        kind = self.take("adapter", "peft.method")
        if kind is None:
            return None
        if kind not in ("lora", "qlora"):
            self.refuse("adapter", f"{kind!r}; lora or qlora")
            return None
        peft: dict[str, Any] = {"method": "lora"}
        for key, place in ADAPTER.items():
            value = self.take(key, f"peft.{place}")
            if value is not None:
                peft[place] = value
        if self.take("lora_target_linear", "peft.target_modules") is True:
            named = peft.get("target_modules", [])
            if not isinstance(named, list) or not all(map(_is_inner, named)):
                self.refuse("lora_target_linear", "with lora_target_modules; keep one of them")
            peft["target_modules"] = "all-linear"  # every linear one, so the named ones too
        if isinstance(peft.get("target_modules"), str) and peft["target_modules"] != "all-linear":
            self.refuse(
                "lora_target_modules",
                "a pattern; list the names, or write lora_target_linear: true instead",
            )
        if "target_modules" not in peft:
            self.refuse("lora_target_modules", "missing; a recipe names them")
        in_four_bits = self.take("load_in_4bit", "peft.quantization")
        if (in_four_bits is True) != (kind == "qlora"):
            self.refuse("load_in_4bit", f"{in_four_bits!r} with adapter {kind}")
        if kind == "qlora":
            peft["quantization"] = {
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
                "bnb_4bit_compute_dtype": "bfloat16" if self.config.get("bf16") else "float32",
            }
        return peft

    def _rest(self, model: dict[str, Any]) -> None:
        for key in ("test_datasets", "val_set_size"):
            if self.todo.get(key) and self.wanted.test:
                self.take(key, "datasets")
        template = self.take("chat_template", "model's tokenizer")
        jinja = self.todo.get("chat_template_jinja")
        if template == "jinja" and isinstance(jinja, str) and not self.wanted.own_files:
            self.translated["chat_template"] = "model.chat_template"
            model["chat_template"] = self.take("chat_template_jinja", "model.chat_template").split(
                "\n"
            )
        elif template not in (None, "tokenizer_default") and not self.wanted.own_files:
            self.refuse("chat_template", f"{template!r}; {OWN_FILES}")
        for key in OF_FILES:
            if self.wanted.own_files:
                self.take(key, "model's tokenizer")
        if self.wanted.prepared and self.todo.pop("dataset_exact_deduplication", None) is not None:
            self.left_out["dataset_exact_deduplication"] = "owners seal records without repetitions"
        for key in ("load_in_8bit", "quantize_moe_experts"):
            if self.wanted.whole_base and self.todo.get(key) is True:
                del self.todo[key]
                self.left_out[key] = "the frozen base is held whole, which takes more memory"
        for key, value in list(self.todo.items()):
            why = next((why for names, why in NO_WEIGHT if re.fullmatch(names, key)), None)
            if key in HARMLESS_FALSE and value in (False, 0):
                why = "off, as in a recipe"
            if key in USUAL and re.fullmatch(USUAL[key], str(value)):
                why = "as usual: it changes no weight"
            if why is None:
                self.refuse(key, why_refused(key, value))
            else:
                self.left_out[key] = why
                del self.todo[key]


def _is_inner(module: Any) -> bool:
    """Whether a module of a LoRA is a linear layer inside the model, neither its head nor rows."""
    return isinstance(module, str) and INNER.fullmatch(module) is not None


def _line(text: Any) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", str(text))[:60]


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9
