"""Look at a machine from inside: what it could show, what would be refused, how to fix it."""
