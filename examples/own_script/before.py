"""Fine-tune a model with TRL, on records in the clear: what an engineer has today."""

from pathlib import Path

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

HERE = Path(__file__).parent

train_ds = load_dataset("json", data_files=str(HERE / "*.jsonl"), split="train")
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
)
trainer.train()
trainer.save_model("out/model")
