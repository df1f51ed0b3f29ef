"""The registry of heads: one JSON manifest per head, in a folder or in a Hub repository."""
