"""What owners, engineers and auditors do from Python, each with the functions of the commands."""
