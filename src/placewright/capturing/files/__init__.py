"""Models in files of other runtimes become graphs: ONNX and OpenVINO."""
