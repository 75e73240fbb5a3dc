"""The roles of a federation in guests: the lead merges, a party joins."""
