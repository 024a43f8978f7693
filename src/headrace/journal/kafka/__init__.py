"""The journal on a Kafka cluster, with an index beside it."""
