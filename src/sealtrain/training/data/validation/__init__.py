"""Whether records keep the recipe's rules, and what may be said about it. No torch here."""
