"""What happens to an event: start reading at `headrace.runtime.pipeline`."""
