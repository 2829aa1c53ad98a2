"""TensorFlow models become graphs, and run, in a process of their own that imports TensorFlow."""
