"""Broken and malicious inputs, made by code: each must end in one clear finding."""
