"""The demo, the benchmark and the fault drills. Imports everything; nothing imports it."""
