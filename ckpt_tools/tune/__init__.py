"""Training a draft head while its target moves: the MTP objective, tuning, drift."""
