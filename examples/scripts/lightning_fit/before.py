"""Classify biopsies with a LightningModule."""

from pathlib import Path

import datasets
import lightning as L
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

HERE = Path(__file__).parent
L.seed_everything(7)
tokenizer = AutoTokenizer.from_pretrained(HERE / "encoder")


class Triage(L.LightningModule):
    def __init__(self):
        super().__init__()
        folder = HERE / "encoder"
        self.model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
        self.model.train()

    def training_step(self, batch, _index):
        loss = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 4)]


def collate(rows):
    texts = [row["text"] for row in rows]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    return {**batch, "labels": torch.tensor([row["label"] for row in rows])}


data = datasets.load_dataset("json", data_files=str(HERE / "records/*.jsonl"), split="train")
loader = DataLoader(data, batch_size=8, collate_fn=collate)
trainer = L.Trainer(
    max_steps=12,
    accelerator="cpu",
    enable_progress_bar=False,
    gradient_clip_val=1.0,
)
trainer.fit(Triage(), loader)
trainer.lightning_module.model.save_pretrained("out/model")
