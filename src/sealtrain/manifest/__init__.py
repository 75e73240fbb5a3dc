"""Build, verify and show run manifests: one signed file that says what was trained on what."""
