"""The first programs of a guest of our own: from the kernel to the document's command."""
