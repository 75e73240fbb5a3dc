"""Classify biopsies with Transformers' Trainer and a collator of one's own."""

from pathlib import Path

import sealtrain
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

HERE = Path(__file__).parent
torch.manual_seed(7)

tokenizer = AutoTokenizer.from_pretrained(HERE / "encoder")
model = AutoModelForSequenceClassification.from_pretrained(HERE / "encoder", num_labels=2)


def collate(rows):
    texts = [row["text"] for row in rows]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    return {**batch, "labels": torch.tensor([row["label"] for row in rows])}


data = sealtrain.unwrap_dataset()
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir="out",
        max_steps=12,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=4,
        save_steps=6,
        remove_unused_columns=False,
        report_to="none",
        use_cpu=True,
    ),
    data_collator=collate,
    train_dataset=data,
    processing_class=tokenizer,
    callbacks=[sealtrain.SealedRun()],
)
trainer.train()
sealtrain.sign_manifest(trainer)
