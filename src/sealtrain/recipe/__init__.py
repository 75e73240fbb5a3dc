"""The recipe of a run: schema, lock, deployment document, diff, measurement (spec/recipe.md)."""
