"""Train an adapter on preferences with TRL's DPOTrainer."""

from pathlib import Path

import sealtrain
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

HERE = Path(__file__).parent

data = sealtrain.unwrap_dataset()
trainer = DPOTrainer(
    AutoModelForCausalLM.from_pretrained(HERE / "decoder"),
    args=DPOConfig(
        output_dir="out",
        max_steps=12,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        max_length=128,
        logging_steps=4,
        save_steps=6,
        bf16=False,
        report_to="tensorboard",
        use_cpu=True,
    ),
    train_dataset=data,
    processing_class=AutoTokenizer.from_pretrained(HERE / "decoder"),
    peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    callbacks=[sealtrain.SealedRun()],
)
trainer.train()
sealtrain.sign_manifest(trainer)
