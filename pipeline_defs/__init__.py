"""How Kafka offset ranges are landed. `landing.py` is the protocol; `core/` decides, `edges/` touches the world."""
