"""The byte program against numpy, and what happens when the machine fails under it."""
