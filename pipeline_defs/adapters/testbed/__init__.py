"""A Kafka broker of our own, for the demo, the drills, the benchmark and tests."""
