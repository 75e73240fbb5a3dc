"""Settings of Transformers and TRL that no recipe has, and what to write instead.

A recipe refuses every name that it does not know. For these the refusal says why, and which word
does what the setting was for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NO_TRACKER: Final = "a guest reaches no tracker and no hub; release_policy names what leaves it"
_FED: Final = "a process of the guest decrypts and feeds records; leave it out"

TRAINER: Final[Mapping[str, str]] = {
    "attn_implementation": "write it under model",
    "chat_template": "write it under model, as a list of lines",
    "chat_template_path": "write the file's lines as model.chat_template",
    "dataloader_num_workers": _FED,
    "dataloader_pin_memory": _FED,
    "dataloader_prefetch_factor": _FED,
    "dataset_num_proc": _FED,
    "dataset_text_field": "columns says which column is read: {text: NAME}",
    "deepspeed": "write backend: {name: deepspeed, zero_stage: 2}",
    "eval_strategy": "write eval_steps; test data are measured at the end besides",
    "evaluation_strategy": "write eval_steps; test data are measured at the end besides",
    "fsdp": "write backend: {name: fsdp}",
    "gradient_checkpointing": "write 'activation_checkpointing', which means the same",
    "group_by_length": "records come in the order that data_seed draws; packing saves padding",
    "hub_model_id": _NO_TRACKER,
    "logging_dir": _NO_TRACKER,
    "optim_args": "write the optimizer's settings by their own names, such as adam_beta1",
    "output_dir": "the run chooses where it writes; leave it out",
    "push_to_hub": _NO_TRACKER,
    "report_to": _NO_TRACKER,
    "resume_from_checkpoint": "leave it out; sealtrain resume goes on from a sealed checkpoint",
    "run_name": _NO_TRACKER,
    "save_strategy": "write save_steps; a checkpoint is sealed every so many",
    "tf32": "leave it out; float32 is computed whole, and bf16 is the faster one",
    "torch_compile_mode": "leave it out; compiled models were tried in their default mode",
    "warmup_ratio": "write the fraction as warmup_steps, such as 0.03",
}
"""Names of ``trainer``."""
OPTIMIZERS: Final[Mapping[str, str]] = {
    "adamw_8bit": "write adamw_bnb_8bit, the same optimizer",
    "adamw_hf": "write adamw_torch",
    "paged_adamw": "write paged_adamw_32bit, the same optimizer",
}
"""Values of ``optim``."""
