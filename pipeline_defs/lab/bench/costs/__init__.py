"""One figure of the benchmark each, and what it is measured with: servers, clients, load."""
