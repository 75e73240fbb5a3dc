"""What owners, engineers and auditors do at home, by command and from Python alike."""
