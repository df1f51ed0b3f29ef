"""Independent oracles that tests compare the converter with."""
