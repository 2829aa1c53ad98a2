"""Models of many architectures at sizes that train in under a second, to test capture with."""
