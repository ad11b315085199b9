"""What the lake holds of a topic: the plan log, manifests, and the coverage that follows from them."""
