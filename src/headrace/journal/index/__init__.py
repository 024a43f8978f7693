"""What a log cannot be asked by id: the index beside it, in SQLite on one host or in PostgreSQL."""
