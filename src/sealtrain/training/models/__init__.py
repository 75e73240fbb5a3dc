"""Models of a recipe: built from files or a config, adapted, merged, read out of sealed files."""
