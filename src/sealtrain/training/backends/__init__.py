"""Other libraries that train: made ready before anything else is loaded, and given our data."""
