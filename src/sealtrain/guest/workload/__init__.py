"""The process that runs a recipe's code, and the channel to the keeper of keys."""
