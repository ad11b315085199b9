"""What is sent to others: Prometheus' metrics, OpenLineage's events, alerts."""
