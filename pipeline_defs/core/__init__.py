"""Pure: no clock, disk, network, Dagster or Spark; the standard library only."""
