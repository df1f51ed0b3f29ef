"""What the tiny models of make_tiny.py are made of: kinds, configs, families, weights."""
