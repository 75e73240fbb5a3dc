"""May this guest have the keys? The messages and the pure decision."""
