"""Wing 2: layers -> parallelisation strategies over workers."""
