"""What a machine's registers hold after it booted published files, computed without a machine."""
