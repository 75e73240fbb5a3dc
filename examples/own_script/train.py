"""The same on records of three hospitals that stay sealed until they are in the guest's memory."""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import sealtrain

HERE = Path(__file__).parent

train_ds = sealtrain.unwrap_dataset()
trainer = SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained(HERE / "model"),
    args=SFTConfig(
        output_dir="out",
        max_steps=40,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        max_length=192,
        logging_steps=10,
        save_steps=20,
        bf16=False,
        use_cpu=True,
        report_to="none",
    ),
    train_dataset=train_ds,
    processing_class=AutoTokenizer.from_pretrained(HERE / "model"),
    callbacks=[sealtrain.SealedRun()],
)
trainer.train()
sealtrain.sign_manifest(trainer)
