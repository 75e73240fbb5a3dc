"""Other ways to train: libraries made ready before all others, models laid over several ranks."""
