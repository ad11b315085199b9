"""Kafka's client properties, as Java and Python read them."""
