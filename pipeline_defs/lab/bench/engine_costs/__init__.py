"""What a run, a client and a backlog cost on Spark, on this machine or on a cluster."""
