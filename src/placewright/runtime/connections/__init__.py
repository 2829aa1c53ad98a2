"""Connections between processes, of this machine or of several.

authentication   both ends prove that they know the run's secret before anything is read
channel          messages over a connection or a pipe
codec            messages as data (msgpack): nothing that arrives is executed
"""
