"""A server that speaks the Open Inference Protocol and decides by a wing's policy."""
