"""May this guest have the keys? The messages, the pure decision and the client's side of it."""
