"""What a tensor on one side is made of on the other: pure, no files, no torch."""
