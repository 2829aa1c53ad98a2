"""Files of problems and plans: schema, reading, writing."""
