"""How large a schema may be: what a few hundred characters of references can expand to would otherwise end a process.

Constants only; each reader of schemas holds them. Far beyond what tables of people have.
"""

MOST_COLUMNS = 10_000
"""Columns, those within structs, lists and maps included."""
MOST_LEVELS = 100
"""Levels of columns, and of schemas, within each other."""
MOST_CHECKS = 1_000_000
"""Checks of one value by a JSON Schema: about 30 ms."""
MOST_FIXED_BYTES = 64 << 20
"""Bytes of a `fixed` of Avro, which a reader makes room for before it reads."""
MOST_REFERENCES = 1_000
"""Schemas that one schema of a registry refers to, and those that they refer to."""
MOST_ANSWER_BYTES = 64 << 20
"""Bytes of one answer of a registry."""
