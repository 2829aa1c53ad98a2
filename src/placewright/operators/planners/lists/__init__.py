"""List scheduling: ranks, timelines with gaps, links and memory reserved."""
