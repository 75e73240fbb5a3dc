"""What a broker remembers: its database and its ledger, as one memory, and copies of both."""
