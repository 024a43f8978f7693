"""Where events are kept: the embedded journal on SQLite."""
