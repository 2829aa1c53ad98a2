"""Where the nodes are: processes, alone or on a testbed."""
