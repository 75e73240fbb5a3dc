"""What Axolotl's keys and values mean in a recipe: the tables of ``recipe.axolotl``.

The keys are those of Axolotl's documentation and examples, collected as facts. A key that is in no
table is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sealtrain.base.suggestion import nearest
from sealtrain.recipe.trainersettings import SETTINGS

FLAGS: Final[Mapping[str, str]] = {
    "bf16": "bf16",
    "gradient_checkpointing": "activation_checkpointing",
    "sample_packing": "packing",
    "torch_compile": "torch_compile",
}
"""Keys that are true or false, or a word that means so (``AS_TRUE``)."""
RENAMED: Final[Mapping[str, str]] = {
    str(use.axolotl): name
    for name, use in SETTINGS.items()
    if use.axolotl not in (None, "num_epochs", *FLAGS)
} | {
    "neftune_alpha": "neftune_noise_alpha",
    "sequence_len": "max_length",
    "warmup_ratio": "warmup_steps",
}
ADAPTER: Final = {
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_modules_to_save": "modules_to_save",
    "lora_r": "r",
    "lora_target_modules": "target_modules",
    "peft_init_lora_weights": "init_lora_weights",
    "peft_layers_to_transform": "layers_to_transform",
    "peft_use_dora": "use_dora",
    "peft_use_rslora": "use_rslora",
}
PREFERENCES: Final = {
    "dpo_beta": "beta",
    "dpo_label_smoothing": "label_smoothing",
    "dpo_use_weighting": "use_weighting",
    "kto_desirable_weight": "desirable_weight",
    "kto_undesirable_weight": "undesirable_weight",
    "orpo_alpha": "beta",
    "rl_beta": "beta",
}
DEFAULTS: Final[dict[str, Any]] = {
    "per_device_train_batch_size": 1,
    "max_length": 512,
    "lr_scheduler_type": "cosine",
    "optim": "adamw_torch_fused",
}
"""What Axolotl does without these keys, where a recipe's own defaults differ."""
ATTENTION: Final[Mapping[str, Mapping[Any, str]]] = {
    "attn_implementation": {"eager": "eager", "sdpa": "sdpa"},
    "eager_attention": {True: "eager"},
    "sdp_attention": {True: "sdpa"},
}
"""Keys and values that a recipe has; the others call kernels that no guest holds."""
OPTIMIZERS: Final = {
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw": "paged_adamw_32bit",
}
"""Optimizers under another name here."""
LOSSES: Final = {"dpo": "sigmoid", "ipo": "ipo", "kto": "kto", "orpo": "orpo"}
NO_WEIGHT: Final = (
    (r"(wandb|mlflow|comet|trackio|swanlab|use_wandb|use_mlflow|use_comet|use_trackio|swanlab|use_swanlab|otel|use_otel)(_\w+)?",
     "a run reports released metrics only"),
    (r"use_tensorboard", "monitoring.tensorboard of a recipe does it, for released metrics"),
    (r"hub_\w+|hf_use_auth_token|push_dataset_to_hub", "a guest reaches no hub"),
    (r"output_dir|dataset_prepared_path|logging_dir|save_safetensors|save_only_model",
     "the run chooses where it writes; weights are safetensors"),
    (r"save_strategy|saves_per_epoch|auto_resume_from_checkpoints",
     "checkpoints are sealed every save_steps, and resumed by sealtrain resume"),
    (r"eval_strategy|evals_per_epoch|eval_table_size|eval_max_new_tokens|eval_causal_lm_metrics"
     r"|do_causal_lm_eval|eval_sample_packing|include_tokens_per_second|include_tkps",
     "test data are measured at the end, and every eval_steps"),
    (r"(flash|xformers|sdp|flex|eager)_attention|lora_(mlp|qkv|o|embedding)_kernel|unsloth_\w+"
     r"|torch_compile_mode|liger_\w+|flash_attn_\w+|cut_cross_entropy|tf32|use_kernels"
     r"|experts_implementation|use_scattermoe|use_sonicmoe|fused_attn_kernel|flex_attn_\w+"
     r"|gemma4_hybrid_attn_impl|use_onebitllms_kernels",
     "another way to compute the same numbers, up to rounding"),
    (r"fsdp|fsdp_config|fsdp_version|dp_shard_size|dp_replicate_size|context_parallel_size"
     r"|tensor_parallel_size|ring_attn_func|heads_k_stride",
     "how processes share the work: backend {name: fsdp, ranks: N} of the recipe says it"),
    (r"dataset_processes|dataset_num_proc|dataloader_\w+|dataset_keep_in_memory|low_cpu_mem_usage"
     r"|pad_to_sequence_len|gradient_checkpointing_kwargs|ddp_\w+|local_rank|device_map"
     r"|gpu_memory_limit|profiler_steps\w*|gc_steps|debug|strict|max_memory|activation_offloading"
     r"|layer_offloading|experimental_skip_move_to_device|torchdistx_path|low_cpu_\w+",
     "changes speed or memory only"),
    (r"remove_unused_columns", "the columns that the recipe names are read, and no others"),
    (r"revision_of_model", "the lock has the digests of the base that lies there"),
    (r"loss_watchdog_(threshold|patience)", "a run whose loss is not finite ends by itself"),
    (r"tokenizer_type|is_\w+_derived_model",
     "the model's own files say it"),
)  # fmt: skip
"""Keys that change no weight, with the reason."""
HARMLESS_FALSE: Final = (
    "fp16", "tf32", "load_in_8bit", "load_in_4bit", "group_by_length", "val_set_size", "strict",
    "trust_remote_code", "sample_packing", "lora_fan_in_fan_out", "load_best_model_at_end",
    "lora_target_linear", "resize_token_embeddings_to_32x", "quantize_moe_experts", "gptq",
    "bfloat16", "float16",
    "cosine_constant_lr_ratio", "tokenizer_use_mistral_common", "sample_packing_eff_est",
    "dpo_norm_loss", "s2_attention", "expert_parallel_size", "lora_on_cpu",
)  # fmt: skip
"""Keys that mean nothing when they are false or 0."""
USUAL: Final = {
    "attn_implementation": r"eager|sdpa|flash_attention_[234]|flex_attention|xformers"
    r"|kernels-community/(vllm-)?flash-attn\d",
    "bnb_config_kwargs": r"\{'bnb_4bit_use_double_quant': True\}",
    "model_type": r"Auto\w*ForCausalLM|\w+ForCausalLM",
    "deepspeed": r"deepspeed_configs/zero[123](_bf16)?(_cpuoffload_\w+)?\.json",
    "expert_parallel_size": "1",
    "plugins": r"\[('axolotl\.integrations\.(liger|cut_cross_entropy|kernels|swanlab)\."
    r"\w+'(, )?)+\]",
    "shuffle_merged_datasets": "True",
    "tokenizer_legacy": "False",
    "tokenizer_use_fast": "True",
}
"""Keys that change no weight with these values, and may with others."""
TYPES: Final = ("completion", "chat_template", "alpaca")
OF_FILES: Final = (
    "added_tokens_overrides", "chat_template_jinja", "eot_tokens", "model_config",
    "model_quantization_config", "model_quantization_config_kwargs", "overrides_of_model_config",
    "resize_token_embeddings_to_32x", "tokenizer_use_mistral_common", "tokens",
    "trust_remote_code",
)  # fmt: skip
"""Keys about what the model's folder holds by itself, where the caller says so."""
OWN_FILES: Final = "put it into the files of the model's folder, and say --own-files"
AS_TRUE: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("auto",),
    "gradient_checkpointing": ("offload", "offload_disk", "unsloth"),
    "torch_compile": ("auto",),
}
"""Words that mean true here: every accelerator of a guest has bfloat16; where activations lie
changes no number."""
REWRITES: Final = re.compile(
    r"field(_\w+)?|roles|message_\w+|drop_system_message|conversation|format|no_input_format"
    r"|template_thinking_key|chat_template_kwargs"
)
"""Keys of a dataset that say how its records become prompts or messages."""


INNER: Final = re.compile(r"[a-z_.]*(proj|fc\d|query_key_value|w[123]|dense\w*)")


WORDS: Final = {"True": True, "TRUE": True, "False": False, "FALSE": False}
"""What Axolotl's own reader takes for a boolean, and ``base.foreignyaml`` for a text."""


def why_refused(key: str, value: Any) -> str:
    """Why a key is refused, with the word to write where there is one."""
    if key in WHY:
        return WHY[key](value)
    for names, why in _OTHER_TRAININGS:
        if re.fullmatch(names, key):
            return why
    known = {*FLAGS, *RENAMED, *ADAPTER, *PREFERENCES, *USUAL, *HARMLESS_FALSE, *WHY}
    meant = nearest(key, known)
    said = f"{str(value)[:60]!r} is not known here"
    return f"{said}; did you mean {meant}?" if meant not in (None, key) else said


def refuse_learning(rl: Any) -> str:
    """Why a value of ``rl`` is refused."""
    if rl in ("grpo", "gdpo", "ppo", "rloo"):
        return "write a recipe of phase rlhf: sealtrain recipes"
    return f"phase dpo has {', '.join(LOSSES)}"


_OTHER_TRAININGS: Final = (
    (r"trl|vllm", "write a recipe of phase rlhf: sealtrain recipes"),
    (r"lisa_\w+", "a recipe trains a LoRA or the whole model"),
    (r"kd_\w+", "no recipe distils a model"),
    (r"peft", "write peft_init_lora_weights and the other keys of the adapter instead"),
    (r"optim_args", "write the optimizer's own keys, such as adam_beta2"),
    (r"resume_from_checkpoint", "sealtrain resume continues a run"),
    (r"streaming", "records are read as they are needed; write max_steps, and leave it out"),
)
"""Keys of trainings that are not this one, and what says them."""


WHY: Final[dict[str, Callable[[Any], str]]] = {
    "batch_size": lambda _: "write micro_batch_size and gradient_accumulation_steps instead",
    "chat_template_jinja": lambda _: OWN_FILES,
    "eot_tokens": lambda _: OWN_FILES,
    "tokens": lambda _: OWN_FILES,
    "tokenizer_use_mistral_common": lambda _: OWN_FILES,
    "pretraining_dataset": lambda _: "write datasets with type completion",
    "processor_type": lambda _: "images: write a recipe of phase vlm",
    "skip_prepare_dataset": lambda _: "images: write a recipe of phase vlm",
    "reward_model": lambda _: "write a recipe of phase reward",
    "num_labels": lambda _: "write a recipe of phase classify or reward",
    "resize_token_embeddings_to_32x": lambda _: OWN_FILES,
    "model_config": lambda _: OWN_FILES,
    "model_quantization_config": lambda _: OWN_FILES,
    "model_quantization_config_kwargs": lambda _: OWN_FILES,
    "overrides_of_model_config": lambda _: OWN_FILES,
    "dataset_exact_deduplication": lambda _: (
        "have owners seal records without repetitions, and say --prepared"
    ),
    "unfrozen_parameters": lambda _: "a recipe trains a LoRA or the whole model",
    "lora_target_parameters": lambda _: "write lora_target_modules, or lora_target_linear: true",
    "quantize_moe_experts": lambda _: "experts are held whole, if you say --whole-base",
    "qat": lambda _: "train whole, and quantize the opened model",
    "cosine_min_lr_ratio": lambda _: (
        "write lr_scheduler: cosine_with_min_lr and lr_scheduler_kwargs: {min_lr_rate: …}"
    ),
    "val_set_size": lambda _: "a part held back; have an owner seal a test dataset (--test)",
    "test_datasets": lambda _: "have their owners seal them, and name them with --test",
    "trust_remote_code": lambda _: (
        "code of the model's folder is never run; say --own-files where transformers itself has "
        "this architecture"
    ),
    "deepspeed": lambda _: "backend: {name: deepspeed, …} of a recipe says it",
    "fp16": lambda _: "a recipe of backend axolotl trains in float32, or with bf16",
    "load_in_8bit": lambda _: (
        "a frozen base is held in four bits (adapter: qlora, load_in_4bit: "
        "true), or whole, if you say --whole-base"
    ),
    "group_by_length": lambda _: "records come in the order of the seed",
}
