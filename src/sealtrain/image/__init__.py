"""Container images that anyone can make again, and whose every file is accounted for."""
