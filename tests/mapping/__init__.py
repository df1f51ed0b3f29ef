"""Arrangements, rules and detection: pure tests against independent statements."""
