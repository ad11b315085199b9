"""What runs did and do, and where a topic stands because of that."""
