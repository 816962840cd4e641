#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the layers of tests/tools/accuracy_dump.c with NumPy and compares errors against the exact outputs.

Usage: accuracy_numpy.py DUMP [TABLE]

Prints the largest and the mean error of NumPy and of the library, per element type and kind of layer, and how many layers
each wins. Writes NumPy's errors to TABLE (tests/unit/support/accuracy_numpy.inc), against which tests/unit/test_accuracy.c
holds the library without Python. NumPy computes in the layer's own type, the way a textbook does:
softmax((Q W_q + b_q)(K W_k + b_k)^T * scale) (V W_v + b_v) per head, maximum subtracted, heads joined, W_o.
"""
import sys

import numpy as np

KINDS = ["scores of +-700", "scores that nearly agree", "equal tokens", "4096 keys, small heads", "4096 keys, peaked",
         "2048 inputs", "256 inputs, 4 heads of 64", "one head of 512", "one key"]
RANDOM = 200


def kind(index):
    return "random" if index < RANDOM else KINDS[(index - RANDOM) % len(KINDS)]


def records(path):
    data = open(path, "rb").read()
    at = 0

    def take(dtype, *shape):
        nonlocal at
        count = int(np.prod(shape))
        array = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += array.nbytes
        return array

    while at < len(data):
        index, size, n_q, n_k, h, d, d_in, causal, biases, is_self = (int(x) for x in take(np.int64, 16)[:10])
        scale, our_max, our_mean = (float(x) for x in take(np.float64, 3))
        t = np.float64 if size == 8 else np.float32
        width = h * d
        r = dict(index=index, dtype=t, n_q=n_q, n_k=n_k, h=h, d=d, causal=causal, scale=t(scale), ours=(our_max, our_mean))
        r["Q"] = take(t, n_q, d_in)
        r["K"] = r["Q"] if is_self else take(t, n_k, d_in)
        for name, shape in (("W_q", (d_in, width)), ("W_k", (d_in, width)), ("W_v", (d_in, width)), ("W_o", (width, d_in))):
            r[name] = take(t, *shape)
        for name, n in (("b_q", width), ("b_k", width), ("b_v", width), ("b_o", d_in)):
            r[name] = take(t, n) if biases else None
        r["high"] = take(np.float64, n_q, d_in)
        r["low"] = take(np.float64, n_q, d_in)
        yield r


def project(x, w, b):
    y = x @ w
    return y if b is None else y + b


def split(x, h):
    return x.reshape(x.shape[0], h, -1).transpose(1, 0, 2)


def attention(r):
    h = r["h"]
    q, k, v = (split(project(x, r["W_" + n], r["b_" + n]), h) for n, x in (("q", r["Q"]), ("k", r["K"]), ("v", r["K"])))
    s = (q @ k.transpose(0, 2, 1)) * r["scale"]
    if r["causal"]:
        s = np.where(np.tri(r["n_q"], r["n_k"], dtype=bool), s, r["dtype"](-np.inf))
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    concat = (p @ v).transpose(1, 0, 2).reshape(r["n_q"], -1)
    return project(concat, r["W_o"], r["b_o"])


def errors(r):
    out = attention(r)
    assert out.dtype == r["dtype"]
    error = np.abs((out.astype(np.float64) - r["high"]) - r["low"])
    largest = np.abs(r["high"]).max()
    return error.max() / largest, error.mean() / largest


def report(rows):
    print(f"{'type':4} {'kind':26} {'layers':>6}  {'worst: ours':>11} {'NumPy':>9}  {'mean of max: ours':>17} {'NumPy':>9}"
          f"  {'mean: ours':>10} {'NumPy':>9}  lost (max, mean)")
    groups = sorted({(size, name) for size, name, *_ in rows}, reverse=True)
    for size, name in groups:
        a = np.array([row[2:] for row in rows if row[:2] == (size, name)])
        print(f"f{8 * size:<3} {name:26} {len(a):6d}  {a[:, 0].max():11.3e} {a[:, 2].max():9.3e}  {a[:, 0].mean():17.3e}"
              f" {a[:, 2].mean():9.3e}  {a[:, 1].mean():10.3e} {a[:, 3].mean():9.3e}"
              f"  {np.sum(a[:, 0] > a[:, 2]):4d} {np.sum(a[:, 1] > a[:, 3]):4d}")


def main():
    rows, table = [], {}
    for r in records(sys.argv[1]):
        worst, mean = errors(r)
        rows.append((r["high"].itemsize if r["dtype"] is np.float64 else 4, kind(r["index"]), *r["ours"], worst, mean))
        table.setdefault(r["index"], {})[r["dtype"]] = (worst, mean)
    report(rows)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as f:
            f.write(f"/* Errors of NumPy {np.__version__} on the layers of accuracy_layer.h: {{f64 max, mean}}, {{f32 max, mean}}.\n"
                    " * Written by tests/bench/accuracy_numpy.py (make accuracy). */\n")
            for i in sorted(table):
                (a, b), (c, d) = table[i][np.float64], table[i][np.float32]
                f.write(f"{{{{{a:.6e}, {b:.6e}}}, {{{c:.6e}, {d:.6e}}}}},\n")


if __name__ == "__main__":
    main()
