"""JSON, with a schema in Spark's DDL or a JSON Schema."""
