# SPDX-License-Identifier: Apache-2.0
"""layers_peer.py PORT UNIX_PATH D H: the yardstick of bench_layers, what one would write in Python.

FastAPI on uvicorn (uvloop, httptools), orjson both ways, NumPy for the layer, float64, weights resident. One process listens on
both sockets. POST /v1/mha takes {"Q": [[...]], optionally W_q, W_k, W_v, W_o} as JSON, or a safetensors file with those names,
and answers {"output": ...} in the same format. The weights are the same formula as in bench_layers.c.
"""
import asyncio
import socket
import sys

import numpy as np
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from safetensors.numpy import load, save

port, path, D, H = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
NAMES = ("W_q", "W_k", "W_v", "W_o")


def matrix(seed, rows, columns):
    """number_at of bench_layers.c: 32-bit integer hash, scaled; the same bits."""
    with np.errstate(over="ignore"):
        x = np.uint32(seed * 2654435761 % 2**32) ^ (np.arange(rows * columns, dtype=np.uint32) * np.uint32(2246822519))
        x ^= x >> np.uint32(15)
        x *= np.uint32(3266489917)
        x ^= x >> np.uint32(13)
    return ((x.astype(np.float64) - 2.0**31) / 2.0**31 / np.sqrt(columns)).reshape(rows, columns)


resident = {name: matrix(i + 1, D, D) for i, name in enumerate(NAMES)}


def layer(q, w):
    n, d = q.shape[0], D // H
    heads = lambda x: x.reshape(n, H, d).transpose(1, 0, 2)
    s = heads(q @ w["W_q"]) @ heads(q @ w["W_k"]).transpose(0, 2, 1)
    s *= 1 / np.sqrt(d)
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    return (s @ heads(q @ w["W_v"])).transpose(1, 0, 2).reshape(n, D) @ w["W_o"]


app = FastAPI()


@app.post("/v1/mha")
async def mha(request: Request):
    body = await request.body()
    if request.headers["content-type"] == "application/vnd.safetensors":
        tensors = load(body)
        out = layer(tensors["Q"], tensors if "W_q" in tensors else resident)
        return Response(save({"output": np.ascontiguousarray(out)}), media_type="application/vnd.safetensors")
    fields = orjson.loads(body)
    w = {name: np.array(fields[name]) for name in NAMES} if "W_q" in fields else resident
    out = layer(np.array(fields["Q"]), w)
    return Response(orjson.dumps({"output": np.ascontiguousarray(out)}, option=orjson.OPT_SERIALIZE_NUMPY),
                    media_type="application/json")


tcp = socket.create_server(("127.0.0.1", port))
tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it; without it answers wait 40 ms for an ACK
unix = socket.socket(socket.AF_UNIX)
unix.bind(path)
config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="error", access_log=False,
                        timeout_keep_alive=600)
asyncio.run(uvicorn.Server(config).serve(sockets=[tcp, unix]))
