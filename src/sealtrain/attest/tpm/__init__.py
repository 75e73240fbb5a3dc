"""TPM 2.0: quotes, keys that sign them, logs that replay to them, and reports that carry them."""
