"""How a model is laid over ranks: what a trainer, and a checkpoint, have to do differently."""
