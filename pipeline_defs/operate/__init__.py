"""What people and their monitors look at: status, metrics, alerts, traces, `read`."""
