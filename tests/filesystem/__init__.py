"""Real file systems: other devices, full ones, folders that may not be read or written, odd names, files beyond 4 GiB."""
