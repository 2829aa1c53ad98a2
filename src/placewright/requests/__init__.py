"""Wing 4: inference requests -> servers and model variants."""
