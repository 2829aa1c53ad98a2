"""Measured runs: step times, speed-up over a baseline, comparison with eager PyTorch."""
