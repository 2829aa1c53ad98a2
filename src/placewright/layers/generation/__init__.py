"""Language models whose layers are on workers, and tokens from them."""
