"""The shared suite of journals, on a real Kafka."""
