"""What bounds solve: the load problem's dual, work between heads and tails."""
