"""From opened datasets to shuffled rows: order (pure), stream (threads), adapters (frameworks)."""
