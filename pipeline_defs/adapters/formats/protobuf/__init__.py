"""Protobuf."""
