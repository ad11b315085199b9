"""The Delta tables: actions and snapshots, which files they get, what is decoded, what is latest."""
