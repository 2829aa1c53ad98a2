"""Models that capture was not written for, at sizes that train in a blink."""
