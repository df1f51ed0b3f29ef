"""Before a job starts: what its script says, against the checkpoints, the head and the server that it names."""
