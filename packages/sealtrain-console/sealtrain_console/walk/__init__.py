"""Walk through a sealed run: five steps, each protection of which can be switched off."""
