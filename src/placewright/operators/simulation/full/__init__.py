"""The general play, compiled: who ran what when, on which link, in which bytes."""
