"""Real services for tests: Apache Kafka and PostgreSQL, fetched by package, started and stopped by pid."""
