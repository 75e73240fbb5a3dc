"""Fine-tune a language model in a loop of one's own with Accelerate."""

from pathlib import Path

import sealtrain
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
EPOCHS = 1
torch.manual_seed(7)

tokenizer = AutoTokenizer.from_pretrained(HERE / "decoder")
model = AutoModelForCausalLM.from_pretrained(HERE / "decoder")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def collate(rows):
    texts = [row["prompt"] + row["completion"] for row in rows]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


data = sealtrain.unwrap_dataset()
loader = DataLoader(data, batch_size=8, collate_fn=collate)
accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loader = sealtrain.SealedLoop(model, optimizer, processing_class=tokenizer, loader=loader)
model.train()
for _epoch in range(EPOCHS):
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
sealtrain.sign_manifest(loader)
