"""Spark: the warm server, sessions of it, and what it reads and writes for us."""
