"""What each phase adds to a recipe: its columns, its trainer settings, its rules."""
