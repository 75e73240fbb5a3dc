"""Check 18 for each kind of collaboration: its run log's entries together tell one story."""
