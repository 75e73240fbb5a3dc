"""The part of a recipe that depends on its phase: columns, trainer settings, rules."""
