"""Drills: faults made on purpose, on brokers of their own, that show what is kept and what is not."""
