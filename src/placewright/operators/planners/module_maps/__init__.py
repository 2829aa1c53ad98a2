"""Which device every module of a model goes to, and what that means for operators."""
