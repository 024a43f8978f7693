"""What can be seen of a worker from outside."""
