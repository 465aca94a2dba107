"""Serves the net of `bench -- serve` with FastAPI and PyTorch, and the protocol of `tensorpack serve`.

Requests that wait at the same time run as one batch, as in `tensorpack serve`: the model runs in a thread of its own,
and takes up to --max-batch-size requests whenever it is free.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib

import fastapi
import torch
import uvicorn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--port", type=int, default=8000)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--max-batch-size", type=int, default=32)
args = parser.parse_args()

torch.set_num_threads(args.threads)
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10), torch.nn.Softmax(dim=1)
).eval()
waiting: asyncio.Queue = asyncio.Queue()
model_thread = concurrent.futures.ThreadPoolExecutor(1)


def run(batch):
    with torch.inference_mode():
        return net(torch.tensor(batch, dtype=torch.float32)).tolist()


async def batches():
    loop = asyncio.get_running_loop()
    while True:
        taken = [await waiting.get()]
        while len(taken) < args.max_batch_size and not waiting.empty():
            taken.append(waiting.get_nowait())
        outputs = await loop.run_in_executor(model_thread, run, [data for data, _ in taken])
        for (_, answer), output in zip(taken, outputs):
            if not answer.cancelled():
                answer.set_result(output)


@contextlib.asynccontextmanager
async def lifespan(_):
    task = asyncio.create_task(batches())
    yield
    task.cancel()


app = fastapi.FastAPI(lifespan=lifespan)


@app.get("/v2/health/ready")
async def ready():
    return {}


@app.post("/v2/models/mlp/infer")
async def infer(request: fastapi.Request):
    (x,) = (await request.json())["inputs"]
    answer = asyncio.get_running_loop().create_future()
    await waiting.put((x["data"], answer))
    output = {"name": "y", "shape": [1, 10], "datatype": "FP32", "data": await answer}
    return fastapi.responses.JSONResponse({"model_name": "mlp", "model_version": "1", "outputs": [output]})


uvicorn.run(app, port=args.port, log_level="warning", access_log=False)
