"""What all kinds share in which several parties train: a lead, its parties, one manifest."""
