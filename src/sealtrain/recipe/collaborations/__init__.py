"""Settings of a recipe for each kind of collaboration (spec/recipe.md §2.14)."""
