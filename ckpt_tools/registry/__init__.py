"""The registry of heads: a folder with one JSON manifest per head."""
