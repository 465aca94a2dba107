"""Talks to a server of the model `double` (see mod.rs) with `tritonclient[http]`.

Usage: triton_client.py HOST:PORT
"""

import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def inputs(x, n, binary):
    tensors = [triton.InferInput("x", x.shape, "FP32"), triton.InferInput("n", n.shape, "INT64")]
    tensors[0].set_data_from_numpy(x, binary_data=binary)
    tensors[1].set_data_from_numpy(n, binary_data=binary)
    return tensors


client = triton.InferenceServerClient(sys.argv[1], concurrency=8)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("double")
assert client.is_model_ready("double", "1") and not client.is_model_ready("triple")
assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
metadata = client.get_model_metadata("double")
assert [i["name"] for i in metadata["inputs"]] == ["x", "n"], metadata

rng = np.random.default_rng(0)
for rows in [1, 5, 64]:
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    n = rng.integers(-(2**62), 2**62, size=rows)
    for binary_in in [True, False]:
        for outputs in [
            None,
            [triton.InferRequestedOutput("doubled", binary_data=True), triton.InferRequestedOutput("next", binary_data=False)],
            [triton.InferRequestedOutput("next")],
        ]:
            result = client.infer("double", inputs(x, n, binary_in), outputs=outputs, request_id="7")
            assert result.get_response()["id"] == "7"
            np.testing.assert_array_equal(result.as_numpy("next"), n + 1)
            if outputs is None or len(outputs) == 2:
                np.testing.assert_array_equal(result.as_numpy("doubled"), 2 * x)

x, n = np.ones((1, 2), np.float32), np.ones(1, np.int64)
pending = [client.async_infer("double", inputs(x * i, n * i, True)) for i in range(50)]
for i, request in enumerate(pending):
    np.testing.assert_array_equal(request.get_result().as_numpy("doubled"), 2 * x * i)

try:
    client.infer("double", inputs(np.ones((1, 3), np.float32), n, True))
    raise SystemExit("a wrong shape was accepted")
except InferenceServerException as e:
    assert "[1, 3]" in str(e), e
client.close()
print("ok")
