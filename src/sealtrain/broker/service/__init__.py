"""What a broker decides and does for guests, owners and operators. No HTTP here."""
