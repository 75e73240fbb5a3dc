"""Train an encoder on pairs of texts with Sentence Transformers."""

from pathlib import Path

import sealtrain
import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

HERE = Path(__file__).parent
torch.manual_seed(7)

model = SentenceTransformer(str(HERE / "encoder"), device="cpu")
data = sealtrain.unwrap_dataset()
trainer = SentenceTransformerTrainer(
    model,
    SentenceTransformerTrainingArguments(
        output_dir="out",
        max_steps=12,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=4,
        save_steps=6,
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=data,
    loss=MultipleNegativesRankingLoss(model),
    callbacks=[sealtrain.SealedRun()],
)
trainer.train()
sealtrain.sign_manifest(trainer)
