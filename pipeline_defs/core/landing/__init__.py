"""What a landing decides: which ranges, in which scans, and whether what was read is right."""
