"""What the Delta tables are made of: actions and snapshots, which files they get, what is decoded, what is latest."""
