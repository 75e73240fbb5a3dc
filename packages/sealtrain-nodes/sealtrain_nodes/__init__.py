"""Several guests of one deployment that train one recipe together (spec/nodes.md)."""
