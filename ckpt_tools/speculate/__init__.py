"""Draft heads as torch modules, speculative decoding with real verification, and what it gains."""
