"""Records in the form a phase's trainer reads: a classifier's batches, preferences, prompts."""
