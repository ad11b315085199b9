"""Who is told: Prometheus, OpenLineage, and whoever gets alerts."""
