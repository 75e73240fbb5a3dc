"""One readable module per phase; none imports another."""
