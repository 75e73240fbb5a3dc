"""From opened datasets to batches: order (pure), streams, and what each kind of record becomes."""
