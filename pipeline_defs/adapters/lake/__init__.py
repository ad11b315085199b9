"""The lake: its documents, its published files, and the Parquet in them."""
