# SPDX-License-Identifier: Apache-2.0
"""tests/bench/peers.py NAME THREADS - one peer (numpy, torch, onnxruntime) as a yardstick; driven by support/peer.c.

Model. The same layer on the same tensors: y = X W_q, X W_k, X W_v, heads split, softmax(Q K^T / sqrt(d_k)) V, heads merged, times
W_o. Each library is used the way its own users would use it when they want speed: NumPy with batched matmul and in-place
softmax, PyTorch with linear and scaled_dot_product_attention in inference mode, ONNX Runtime with its own fused
MultiHeadAttention operator in float32 and the plain graph in float64. Weights are prepared once (as resident), never timed.

Commands on stdin, answers ('=' first) on stdout:
    load FILE n d h f64|f32 causal n_past    tensors in FILE: X [n,d], W_q, W_k, W_v, W_o [d,d], past_K, past_V [h,n_past,d/h]
    run COUNT                                 seconds per call
    output FILE                               what the last call gave
"""

import sys
import time


def softmax_in_place(np, s):
    s -= s.max(axis=-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(axis=-1, keepdims=True)
    return s


class Numpy:
    def __init__(self, threads):
        import numpy as np
        from threadpoolctl import threadpool_info, threadpool_limits

        self.np = np
        threadpool_limits(threads)
        np.ones((64, 64)) @ np.ones((64, 64))
        blas = [i for i in threadpool_info() if i["user_api"] == "blas"]
        kernel = ", ".join(f"{i['internal_api']} {i['version']} kernel {i.get('architecture')}, {i['num_threads']} threads" for i in blas)
        self.about = f"NumPy {np.__version__} ({kernel})"

    def load(self, t, n, d, h, causal, n_past):
        np = self.np
        self.t, self.n, self.d, self.h, self.n_past = t, n, d, h, n_past
        self.hide = np.triu(np.ones((n, n), bool), 1) if causal else None
        if n_past:  # a cache with room for the new token, as a decoder keeps it
            dk = d // h
            self.k = np.empty((h, n_past + n, dk), t["X"].dtype)
            self.v = np.empty_like(self.k)
            self.k[:, :n_past], self.v[:, :n_past] = t["past_K"], t["past_V"]

    def run(self):
        np, t, n, h, dk = self.np, self.t, self.n, self.h, self.d // self.h
        x = t["X"]
        q = (x @ t["W_q"]).reshape(n, h, dk).transpose(1, 0, 2)
        q = q * x.dtype.type(dk**-0.5)
        k = (x @ t["W_k"]).reshape(n, h, dk).transpose(1, 0, 2)
        v = (x @ t["W_v"]).reshape(n, h, dk).transpose(1, 0, 2)
        if self.n_past:
            self.k[:, self.n_past :], self.v[:, self.n_past :] = k, v
            k, v = self.k, self.v
        s = q @ k.transpose(0, 2, 1)
        if self.hide is not None:
            np.copyto(s, -np.inf, where=self.hide)
        out = (softmax_in_place(np, s) @ v).transpose(1, 0, 2).reshape(n, self.d)
        self.y = out @ t["W_o"]

    def result(self):
        return self.y


class Torch:
    def __init__(self, threads):
        import torch

        self.torch = torch
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.about = f"PyTorch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads)"

    def load(self, t, n, d, h, causal, n_past):
        torch = self.torch
        self.n, self.d, self.h, self.causal, self.n_past = n, d, h, causal, n_past
        self.x = torch.from_numpy(t["X"])
        # nn.Linear keeps [out, in], and one product for Q, K and V is what nn.MultiheadAttention does
        self.w_in = torch.cat([torch.from_numpy(t[w]).T for w in ("W_q", "W_k", "W_v")]).contiguous()
        self.w_out = torch.from_numpy(t["W_o"]).T.contiguous()
        if n_past:
            dk = d // h
            self.k = torch.empty(h, n_past + n, dk, dtype=self.x.dtype)
            self.v = torch.empty_like(self.k)
            self.k[:, :n_past], self.v[:, :n_past] = torch.from_numpy(t["past_K"]), torch.from_numpy(t["past_V"])

    def run(self):
        f = self.torch.nn.functional
        n, h, dk = self.n, self.h, self.d // self.h
        q, k, v = (p.view(n, h, dk).transpose(0, 1) for p in f.linear(self.x, self.w_in).split(self.d, dim=1))
        if self.n_past:
            self.k[:, self.n_past :], self.v[:, self.n_past :] = k, v
            k, v = self.k, self.v
        o = f.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=self.causal)
        self.y = f.linear(o[0].transpose(0, 1).reshape(n, self.d), self.w_out)

    def result(self):
        return self.y.numpy()


class OnnxRuntime:
    def __init__(self, threads):
        import onnx
        import onnxruntime as ort

        self.onnx, self.ort = onnx, ort
        self.options = ort.SessionOptions()
        self.options.intra_op_num_threads = threads
        # after a run its threads must not spin on while others are measured
        self.options.add_session_config_entry("session.force_spinning_stop", "1")
        self.about = f"ONNX Runtime {ort.__version__} ({threads} threads)"

    def plain_graph(self, node, n, d, h, causal, kind, constant):
        import numpy as np

        constant("split", np.array([n, h, d // h], np.int64))
        constant("merge", np.array([n, d], np.int64))
        constant("scale", np.array((d // h) ** -0.5, kind))
        for p, order in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])):
            node("MatMul", ["X", "W_" + p], p)
            node("Reshape", [p, "split"], p + "s")
            node("Transpose", [p + "s"], p + "h", perm=order)
        node("Mul", ["qh", "scale"], "qq")
        node("MatMul", ["qq", "kh"], "s")
        scores = "s"
        if causal:
            constant("mask", np.triu(np.full((n, n), -np.inf, kind), 1))
            node("Add", ["s", "mask"], "sm")
            scores = "sm"
        node("Softmax", [scores], "p", axis=-1)
        node("MatMul", ["p", "vh"], "o")
        node("Transpose", ["o"], "ot", perm=[1, 0, 2])
        node("Reshape", ["ot", "merge"], "c")
        node("MatMul", ["c", "W_o"], "Y")

    def fused_graph(self, node, n, d, h, causal, kind, constant):
        import numpy as np

        constant("batch", np.array([1, n, d], np.int64))
        constant("flat", np.array([n, d], np.int64))
        for p in "qkv":
            node("MatMul", ["X", "W_" + p], p)
            node("Reshape", [p, "batch"], p + "b")
        node("MultiHeadAttention", ["qb", "kb", "vb"], "o", domain="com.microsoft", num_heads=h, unidirectional=int(causal))
        node("Reshape", ["o", "flat"], "c")
        node("MatMul", ["c", "W_o"], "Y")

    def load(self, t, n, d, h, causal, n_past):
        if n_past:
            raise ValueError("decoding is not built for this peer")
        helper, np_helper = self.onnx.helper, self.onnx.numpy_helper
        kind = t["X"].dtype.type
        element = self.onnx.TensorProto.DOUBLE if kind().itemsize == 8 else self.onnx.TensorProto.FLOAT
        nodes, constants = [], [np_helper.from_array(t[w], w) for w in ("W_q", "W_k", "W_v", "W_o")]

        def node(op, inputs, output, **attributes):
            nodes.append(helper.make_node(op, inputs, [output], **attributes))

        build = self.plain_graph if kind().itemsize == 8 else self.fused_graph
        build(node, n, d, h, causal, kind, lambda name, value: constants.append(np_helper.from_array(value, name)))
        graph = helper.make_graph(
            nodes,
            "layer",
            [helper.make_tensor_value_info("X", element, [n, d])],
            [helper.make_tensor_value_info("Y", element, [n, d])],
            constants,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        self.session = self.ort.InferenceSession(model.SerializeToString(), self.options, providers=["CPUExecutionProvider"])
        self.x = t["X"]

    def run(self):
        self.y = self.session.run(None, {"X": self.x})[0]

    def result(self):
        return self.y


def read_tensors(np, path, n, d, h, kind, n_past):
    dtype = np.float64 if kind == "f64" else np.float32
    flat, at, tensors = np.fromfile(path, dtype), 0, {}
    shapes = [("X", (n, d))] + [(w, (d, d)) for w in ("W_q", "W_k", "W_v", "W_o")]
    shapes += [(p, (h, n_past, d // h)) for p in ("past_K", "past_V")]
    for name, shape in shapes:
        size = int(np.prod(shape))
        tensors[name] = flat[at : at + size].reshape(shape)
        at += size
    return tensors


def command(peer, words):
    import numpy as np

    if words[0] == "load":
        path, kind = words[1], words[5]
        n, d, h, causal, n_past = (int(words[i]) for i in (2, 3, 4, 6, 7))
        peer.load(read_tensors(np, path, n, d, h, kind, n_past), n, d, h, bool(causal), n_past)
        peer.run()
        return "ready"
    if words[0] == "run":
        begun = time.perf_counter()
        for _ in range(int(words[1])):
            peer.run()
        return repr((time.perf_counter() - begun) / int(words[1]))
    np.ascontiguousarray(peer.result()).tofile(words[1])
    return "written"


def main():
    kinds = {"numpy": Numpy, "torch": Torch, "onnxruntime": OnnxRuntime}
    try:
        peer = kinds[sys.argv[1]](int(sys.argv[2]))
    except Exception as error:  # not installed, or broken: the driver goes on without it
        print("=error", repr(error)[:200], flush=True)
        return
    print("=" + peer.about, flush=True)
    for line in sys.stdin:
        try:
            answer = command(peer, line.split())
        except Exception as error:
            answer = "error " + " ".join(repr(error)[:200].split())
        print("=" + answer, flush=True)


main()
