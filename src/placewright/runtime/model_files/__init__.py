"""Execute placed models by ONNX Runtime and OpenVINO."""
