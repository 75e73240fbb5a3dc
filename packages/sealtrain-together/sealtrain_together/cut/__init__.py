"""A model cut between two layers: owners run the front, a guest trains the back."""
