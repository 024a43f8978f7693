"""What may pass: pure decisions."""
