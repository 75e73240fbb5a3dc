"""Intel TDX quotes: strict parsing, verification, collateral."""
