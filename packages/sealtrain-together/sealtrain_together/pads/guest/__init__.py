"""The guests of a run under pads: one that trains, one that deals."""
