"""What a run does: schema, lock, deployment document, diff, measurement. Format: spec/recipe.md."""
