"""What derived tables cost beside landing the same records: the append, decoding, updates of latest."""
