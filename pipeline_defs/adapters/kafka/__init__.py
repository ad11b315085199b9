"""Kafka, and the Schema Registry beside it."""
