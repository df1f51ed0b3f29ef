"""One module per source or target format: a table of names, a small config reader, a small config writer."""
