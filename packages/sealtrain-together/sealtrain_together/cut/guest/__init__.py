"""The roles of a cut run in guests and at owners' machines."""
