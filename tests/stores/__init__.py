"""Stores against the libraries that own the formats."""
