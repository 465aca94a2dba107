"""Measures predictions of an ONNX file in onnxruntime, in f32 on the CPU, with all graph optimizations."""

import predict_timer

args = predict_timer.arguments(__doc__, ["session"])
if args.model is None:
    raise SystemExit("onnxruntime_predict.py needs --model FILE.onnx; `bench -- predict --onnx FILE.onnx` writes it")

import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = args.threads
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
session = onnxruntime.InferenceSession(args.model, options, providers=["CPUExecutionProvider"])
x = predict_timer.examples(args)
predict_timer.measure(args, onnxruntime.__version__, lambda: session.run(None, {"x": x}))
