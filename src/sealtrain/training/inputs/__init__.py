"""Records as the trainer of a phase reads them: a classifier's batches, preferences, prompts."""
