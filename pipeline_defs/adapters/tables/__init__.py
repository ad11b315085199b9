"""Delta logs, the tables that they tell of, and DuckDB over all of it."""
