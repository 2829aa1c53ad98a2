"""Who ends last gives: the rule on which greedy, nic and the repair of plans stand."""
