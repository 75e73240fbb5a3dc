"""The console: pages rendered on this machine for a browser on it (``spec/console.md``)."""
