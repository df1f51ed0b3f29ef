"""Launch scripts read without running anything: assignments, arrays, sourced files, the command line that results."""
