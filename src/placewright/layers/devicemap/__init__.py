"""Layer ranges of a language model -> the devices of a cluster, for generation."""
