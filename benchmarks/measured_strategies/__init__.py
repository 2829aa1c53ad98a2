"""Training plans that others measured: their problem and plan, to predict the step from."""
