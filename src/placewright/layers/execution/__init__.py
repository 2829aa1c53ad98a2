"""Plans of wing 2 on worker processes, by the parallel parts of torch.distributed."""
