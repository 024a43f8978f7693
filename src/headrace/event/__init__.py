"""Values: what an event is, who caused it, where it belongs."""
