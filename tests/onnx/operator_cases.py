"""Writes small ONNX models for every operator that is read, with inputs and the outputs of onnxruntime.

usage: operator_cases.py FOLDER

FOLDER gets NAME.onnx, NAME.npz, with the inputs as in:NAME and the outputs as out:NAME, NAME.path, a file that contains
the path of the model, and operators.txt, a list of the operators in all models. Needs onnx, onnxruntime and numpy.
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

folder = pathlib.Path(sys.argv[1])
random = np.random.default_rng(0)
operators = set()
count = 0


class C:
    """A constant: an initializer of the model."""

    def __init__(self, values, dtype=np.int64):
        self.values = np.asarray(values, dtype)


def f(*sizes):
    return random.normal(size=sizes).astype(np.float32)


def positive(*sizes):
    return np.abs(f(*sizes)) + 0.1


def ints(low, high, *sizes, dtype=np.int64):
    return random.integers(low, high, sizes).astype(dtype)


def bools(*sizes):
    return random.integers(0, 2, sizes).astype(bool)


def save(name, nodes, feeds, initializers, outputs, opset):
    """Writes the model of these nodes, and what onnxruntime computes."""
    global count
    inputs = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for key, value in feeds.items()
    ]
    results = [onnx.ValueInfoProto(name=key) for key in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results, [numpy_helper.from_array(v, k) for k, v in initializers.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 19 else 10)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    for output in model.graph.output:
        if not output.type.HasField("tensor_type"):  # of functions such as GroupNormalization
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = dict(zip(outputs, session.run(outputs, feeds)))
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    named = {"in:" + k: v for k, v in feeds.items()} | {"out:" + k: v for k, v in values.items()}
    np.savez(folder / f"{name}.npz", **named)
    (folder / f"{name}.path").write_text(str(path))
    operators.update(node.op_type for node in nodes)
    count += 1


def case(op, *inputs, outputs=1, opset=20, **attributes):
    """Writes a model of one node. An input is a tensor that is fed, a constant, or None if it is left out."""
    feeds, initializers, names = {}, {}, []
    for i, value in enumerate(inputs):
        names.append("" if value is None else f"x{i}")
        if isinstance(value, C):
            initializers[f"x{i}"] = value.values
        elif value is not None:
            feeds[f"x{i}"] = value
    ys = [f"y{i}" for i in range(outputs)]
    number = sum(1 for p in folder.glob(f"{op}-*.onnx"))
    node = helper.make_node(op, names, ys, **attributes)
    save(f"{op}-{number}", [node], feeds, initializers, ys, opset)


for op in ["Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Mish", "Neg", "Relu", "Round", "Sigmoid", "Sign",
           "Sin", "Softplus", "Softsign", "Tanh", "Elu", "Celu", "Selu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu",
           "Gelu", "Identity"]:
    case(op, 3 * f(2, 5))
for op in ["Log", "Reciprocal", "Sqrt"]:
    case(op, positive(2, 5))
case("Round", np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32))
case("Abs", ints(-5, 5, 4, dtype=np.int32))
case("Neg", ints(-5, 5, 4))
case("Sign", ints(-2, 3, 6))
case("Not", bools(2, 5))
case("Elu", f(7), alpha=0.5)
case("Celu", f(7), alpha=1.5)
case("Selu", f(7), alpha=1.2, gamma=0.9)
case("LeakyRelu", f(7), alpha=0.3)
case("HardSigmoid", 3 * f(7), alpha=0.3, beta=0.4)
case("ThresholdedRelu", f(9), alpha=0.5)
case("Gelu", f(9), approximate="tanh")

for op in ["Add", "Sub", "Mul"]:
    case(op, f(2, 3, 4), f(3, 1))
    case(op, ints(-9, 9, 2, 3), ints(-9, 9, 3))
case("Div", f(2, 3), positive(3))
case("Div", ints(-20, 20, 12), np.tile(np.array([-7, -3, 2, 5]), 3))
case("Pow", positive(2, 3), f(3))
case("Pow", f(2, 3), C(2, np.float32))
case("Pow", positive(2, 3), ints(-2, 3, 3))
for op in ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]:
    case(op, ints(0, 3, 2, 6), ints(0, 3, 6))
    case(op, f(2, 6), f(6))
for op in ["And", "Or", "Xor"]:
    case(op, bools(2, 6), bools(6))
for op in ["Max", "Min", "Mean", "Sum"]:
    case(op, f(2, 3), f(3), f(2, 1))
    case(op, f(4))
case("Max", ints(-9, 9, 5), ints(-9, 9, 5))
case("Mod", ints(-20, 20, 12), np.tile(np.array([-7, -3, 2, 5]), 3))
case("Mod", 5 * f(8), positive(8), fmod=1)
case("PRelu", f(2, 3, 4), f(3, 1))
case("Where", bools(3, 1), f(2, 3, 4), f(4))
case("Clip", f(9), C(-0.5, np.float32), C(0.7, np.float32))
case("Clip", f(9), None, C(0.2, np.float32))
case("Clip", ints(-9, 9, 9), C(-3))
case("Cast", 3 * f(9), to=TensorProto.INT32)
case("Cast", ints(-2, 3, 9), to=TensorProto.BOOL)
case("Cast", ints(-2, 3, 9), to=TensorProto.DOUBLE)
case("CastLike", 3 * f(9), C([0], np.int64))
case("Dropout", f(4, 5), C(0.5, np.float32))

zero_one = np.array([1, 0, -1, 0], np.float32)
for op in ["IsInf", "IsNaN"]:
    nodes = [helper.make_node("Div", ["x", "z"], ["q"]), helper.make_node(op, ["q"], ["y"])]
    x = np.array([0, 1, 2, 0], np.float32)
    save(f"{op}-0", nodes, {"x": x}, {"z": zero_one}, ["y"], 20)
x = f(3)
nodes = [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(f(2, 3))), helper.make_node("Add", ["x", "c"], ["y"])]
save("Constant-0", nodes, {"x": x}, {}, ["y"], 20)
nodes = [helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.5, -3.0]), helper.make_node("Add", ["x", "c"], ["y"])]
save("Constant-1", nodes, {"x": x}, {}, ["y"], 20)

case("MatMul", f(2, 3, 4), f(4, 5))
case("MatMul", f(2, 1, 3, 4), f(1, 3, 4, 5))
case("MatMul", f(4), f(4, 5))
case("MatMul", f(3, 4), f(4))
case("Gemm", f(3, 4), C(f(5, 4), np.float32), C(f(5), np.float32), alpha=0.5, beta=2.0, transB=1)
case("Gemm", f(4, 3), f(4, 5), f(3, 1), transA=1)
case("Einsum", f(2, 3, 4), f(2, 4, 5), equation="bij,bjk->bik")
case("Einsum", f(3, 4), equation="ij->ji")

w = lambda *sizes: C(f(*sizes), np.float32)
case("Conv", f(2, 3, 8, 9), w(4, 3, 3, 3), w(4), pads=[1, 0, 2, 1], strides=[2, 1])
case("Conv", f(2, 4, 8, 8), w(6, 2, 3, 3), group=2, auto_pad="SAME_LOWER", strides=[2, 2])
case("Conv", f(2, 4, 8, 8), w(4, 1, 3, 3), group=4, dilations=[2, 2], auto_pad="VALID")
case("Conv", f(2, 3, 11), w(4, 3, 4), w(4), strides=[2], auto_pad="SAME_UPPER")
case("ConvTranspose", f(2, 3, 5, 5), w(3, 4, 3, 3), w(4), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
case("ConvTranspose", f(1, 3, 5, 6), w(3, 2, 2, 2), strides=[2, 2])
case("MaxPool", f(2, 3, 9, 8), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
case("MaxPool", f(2, 3, 9, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
case("MaxPool", f(2, 3, 9), kernel_shape=[2], strides=[2])
case("AveragePool", f(2, 3, 8, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
case("AveragePool", f(2, 3, 8, 8), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
case("AveragePool", f(2, 3, 7, 7), kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER")
case("GlobalAveragePool", f(2, 3, 4, 5))
case("GlobalMaxPool", f(2, 3, 4, 5))
case("BatchNormalization", f(2, 3, 4, 4), w(3), w(3), w(3), C(positive(3), np.float32), epsilon=1e-3)
case("BatchNormalization", f(5, 3), w(3), w(3), w(3), C(positive(3), np.float32))
case("InstanceNormalization", f(2, 3, 4, 4), w(3), w(3), epsilon=1e-3)
case("LayerNormalization", f(2, 3, 4), w(4), w(4), axis=-1)
case("LayerNormalization", f(2, 3, 4), w(3, 4), axis=1, epsilon=1e-3)
case("GroupNormalization", f(2, 4, 3, 3), w(4), w(4), num_groups=2, opset=21)
case("LpNormalization", f(3, 4), axis=1, p=2)
case("LpNormalization", f(3, 4), axis=0, p=1)
case("LRN", f(2, 6, 3, 3), size=3, alpha=0.1, beta=0.7, bias=1.5)
case("Softmax", f(2, 3, 4), axis=1)
case("Softmax", f(2, 3, 4), opset=11, axis=1)
case("LogSoftmax", f(2, 3, 4))

for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]:
    case(op, f(2, 3, 4), C([1]), keepdims=0)
    case(op, f(2, 3, 4), C([0, -1]))
    case(op, f(2, 3, 4))
case("ReduceLogSum", positive(2, 3, 4), C([2]), keepdims=0)
case("ReduceMean", f(2, 3), opset=13, axes=[1], keepdims=0)
case("ReduceSum", f(2, 3), C([], np.int64), noop_with_empty_axes=1)
for op in ["ArgMax", "ArgMin"]:
    case(op, f(3, 5), axis=1, keepdims=0)
    case(op, f(3, 5), axis=-2)
case("TopK", f(3, 7), C([3]), outputs=2, axis=1)
case("TopK", f(5, 4), C([2]), outputs=2, axis=0, largest=0)
case("CumSum", f(3, 4), C(1))
case("CumSum", f(3, 4), C(0), exclusive=1, reverse=1)

x = f(2, 3, 4)
case("Shape", x)
case("Shape", x, start=1, end=3)
case("Size", x)
case("Reshape", x, C([0, -1]))
case("Reshape", x, C([4, 6]))
case("Flatten", f(2, 3, 4, 5), axis=2)
case("Squeeze", f(1, 3, 1), C([0, 2]))
case("Squeeze", f(1, 3, 1))
case("Unsqueeze", f(3, 4), C([0, -1]))
case("Transpose", x, perm=[2, 0, 1])
case("Transpose", x)
case("Concat", f(2, 3), f(2, 1), f(2, 2), axis=-1)
case("Split", f(2, 7), C([3, 4]), outputs=2, axis=1)
case("Split", f(7, 2), outputs=3, axis=0, num_outputs=3)
case("Slice", f(5, 6), C([1, 5]), C([4, 0]), C([0, 1]), C([2, -2]))
case("Slice", f(5, 6), C([-3]), C([2**62]))
case("Pad", f(2, 3), C([1, 0, 0, 2]), C(1.5, np.float32))
case("Pad", f(4, 5), C([2, 1, 1, 2]), mode="reflect")
case("Pad", f(4, 5), C([2, 1, 1, 2]), mode="edge")
case("Tile", f(2, 3), C([2, 3]))
case("Expand", f(3, 1), C([2, 1, 4]))
nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"], value=numpy_helper.from_array(np.array([2.5], np.float32))), helper.make_node("Add", ["x", "c"], ["y"])]
save("ConstantOfShape-0", nodes, {"x": f(3)}, {"s": np.array([2, 3])}, ["y"], 20)
nodes = [helper.make_node("Range", ["a", "b", "d"], ["r"]), helper.make_node("Mul", ["x", "r"], ["y"])]
save("Range-0", nodes, {"x": ints(1, 9, 4)}, {"a": np.array(10), "b": np.array(-2), "d": np.array(-3)}, ["y"], 20)
case("Gather", f(5, 3), ints(-5, 5, 2, 2))
case("Gather", f(2, 5, 3), ints(0, 5, 4), axis=1)
case("GatherElements", f(4, 3), ints(-4, 4, 2, 3), axis=0)
case("GatherND", f(3, 4, 5), ints(0, 3, 2, 2))
case("ScatterND", f(5, 3), C([[0], [3]]), f(2, 3))
case("ScatterND", f(5, 3), C([[0], [3], [0]]), f(3, 3), reduction="add")
case("ScatterElements", f(3, 4), C([[1, 0, 2, 1]]), f(1, 4), axis=0)
case("ScatterElements", f(3, 4), C([[1, 0], [2, 1], [3, 0]]), f(3, 2), axis=1)
case("Scatter", f(3, 4), C([[1, 0, 2, 1]]), f(1, 4), axis=0, opset=10)
case("OneHot", ints(0, 5, 2, 3), C(5), C([0.5, 2], np.float32), axis=-1)
case("OneHot", ints(0, 4, 3), C(4), C([0, 1], np.float32), axis=0)
case("DepthToSpace", f(2, 8, 2, 3), blocksize=2)
case("DepthToSpace", f(2, 8, 2, 3), blocksize=2, mode="CRD")
case("SpaceToDepth", f(2, 3, 4, 6), blocksize=2)
case("Trilu", f(2, 4, 5), C(1))
case("Trilu", f(4, 5), C(-1), upper=0)
image = f(1, 2, 4, 5)
none = None
case("Resize", image, none, C([1, 1, 2, 2], np.float32), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
case("Resize", image, none, C([1, 1, 2, 2], np.float32), mode="linear")
case("Resize", image, none, none, C([1, 2, 7, 9]), mode="linear", coordinate_transformation_mode="align_corners")
case("Upsample", image, C([1, 1, 2, 2], np.float32), mode="nearest", opset=9)
for scales in [(0.7, 1.4), (0.3, 2.3), (0.6, 1.1), (0.15, 3)]:
    for mode in [{}, {"mode": "linear"}, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}]:
        case("Resize", f(1, 1, 10, 11), none, C([1, 1, *scales], np.float32), **mode)
case("Resize", f(1, 2, 5, 7), none, none, C([1, 2, 11, 3]))
case("ConvTranspose", f(2, 3, 5), w(3, 4, 3), strides=[2], pads=[1, 1], output_padding=[1])
case("LeakyRelu", 3 * f(9), alpha=1.5)
case("ReduceL1", np.array(-3.5, np.float32))
case("ReduceLogSum", positive(2, 3), noop_with_empty_axes=1)
case("LpNormalization", np.array([[0, 0, 0], [1, 2, 2]], np.float32))
case("OneHot", ints(-7, 7, 2, 3), C(5), C([-np.inf, 0], np.float32))
case("Pad", bools(3), C([1, 2]), C(True, bool))
case("Pow", positive(2, 3), C([[[2.5]]], np.float32))
nodes = [helper.make_node("LayerNormalization", ["x", "s"], ["y", "", ""])]
save("LayerNormalization-none", nodes, {"x": f(2, 4)}, {"s": f(4)}, ["y"], 17)
case("LSTM", f(5, 2, 3), w(1, 16, 3), w(1, 16, 4), w(1, 32), outputs=3, hidden_size=4)
case("LSTM", f(5, 2, 3), w(2, 16, 3), w(2, 16, 4), w(2, 32), outputs=3, hidden_size=4, direction="bidirectional")
case("GRU", f(5, 2, 3), w(1, 12, 3), w(1, 12, 4), w(1, 24), outputs=2, hidden_size=4, linear_before_reset=1)
case("GRU", f(5, 2, 3), w(1, 12, 3), w(1, 12, 4), w(1, 24), outputs=2, hidden_size=4, direction="reverse")


def branch(scale):
    y = helper.make_tensor_value_info(f"b{scale}", TensorProto.FLOAT, [3])
    nodes = [helper.make_node("Constant", [], [f"k{scale}"], value_float=float(scale)), helper.make_node("Mul", ["x", f"k{scale}"], [f"b{scale}"])]
    return helper.make_graph(nodes, f"branch{scale}", [], [y])


def shift(value):
    y = helper.make_tensor_value_info("b", TensorProto.FLOAT, [3])
    w = numpy_helper.from_array(np.full(3, value, np.float32), "w")
    return helper.make_graph([helper.make_node("Add", ["x", "w"], ["b"])], "shift", [], [y], [w])


nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch(2), else_branch=branch(5))]
save("If-0", nodes, {"x": f(3)}, {"c": np.array(False)}, ["y"], 20)
nodes = [helper.make_node("If", ["c"], [f"y{i}"], then_branch=shift(i), else_branch=shift(i + 10)) for i in range(2)]
save("If-1", nodes, {"x": f(3)}, {"c": np.array(True)}, ["y0", "y1"], 20)

(folder / "operators.txt").write_text("\n".join(sorted(operators)))
print(f"{count} models of {len(operators)} operators")
