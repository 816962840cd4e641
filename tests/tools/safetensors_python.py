# SPDX-License-Identifier: Apache-2.0
"""safetensors_python.py ST_COPY: our safetensors reader and writer against the `safetensors` package.

Round trip: files written by the package, read and rewritten by ours, read back by the package: same names, dtypes, shapes,
bytes and metadata. Refusal: whatever ours accepts among damaged files, the package must accept too (ours may be stricter).
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_]
copy = sys.argv[1]
failures = 0


def check(ok, what):
    global failures
    if not ok:
        failures += 1
        print("FAILED", what)


def random_tensors(rng):
    tensors = {}
    for i in range(rng.integers(0, 9)):
        shape = tuple(int(d) for d in rng.integers(0, 6, size=rng.integers(0, 5)))
        dtype = DTYPES[rng.integers(0, len(DTYPES))]
        tensors[["w.%d", "α.%d", 'q"\\%d', "a b%d"][i % 4] % i] = np.asarray(rng.normal(size=shape) * 50).astype(dtype)
    return tensors


def round_trip(folder, seed):
    rng = np.random.default_rng(seed)
    tensors = random_tensors(rng)
    metadata = {"format": "np", "mha": '{"num_heads":2,"note":"\n\\u00e9\\""}'} if seed % 2 else None
    source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
    save_file(tensors, source, metadata=metadata)
    run = subprocess.run([copy, source, target], capture_output=True, text=True)
    check(run.returncode == 0, f"seed {seed}: {run.stdout}")
    back = load_file(target)
    check(set(back) == set(tensors), f"seed {seed}: names {set(back)}")
    for name, tensor in tensors.items():
        same = back[name].dtype == tensor.dtype and back[name].shape == tensor.shape
        check(same and back[name].tobytes() == tensor.tobytes(), f"seed {seed}: {name}")
    with safe_open(target, framework="np") as opened:
        check((opened.metadata() or None) == metadata, f"seed {seed}: metadata {opened.metadata()}")


def bfloat16(folder):
    """The numpy side of the package has no BF16: such a file is laid by hand."""
    header = json.dumps({"b": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
    with open(source, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + b"\x80\x3f\x00\xc0\x49\x40")
    check(subprocess.run([copy, source, target], stdout=subprocess.DEVNULL).returncode == 0, "BF16 is read")
    with safe_open(target, framework="np") as opened:
        view = opened.get_slice("b")
        check(view.get_dtype() == "BF16" and view.get_shape() == [3], "BF16 is kept")


def damage(folder, seed):
    """One byte of a small file changed, dropped or doubled."""
    rng = random.Random(seed)
    tensors = {"a": np.arange(4, dtype=np.float32), "b": np.zeros((2, 0), np.int8), "c": np.array(1.5)}
    path = os.path.join(folder, "damaged")
    save_file(tensors, path, metadata={"k": "v"})
    data = bytearray(open(path, "rb").read())
    at = rng.randrange(len(data))
    kind = rng.randrange(3)
    if kind == 0:
        data[at] = rng.choice(b'0123456789{}[]",: \x00\xff')
    elif kind == 1:
        del data[at]
    else:
        data.insert(at, data[at])
    if rng.random() < 0.5:  # keep the length of the header right, so that what is inside matters
        end = data.rfind(b"}") + 1
        data[:8] = struct.pack("<Q", max(end - 8, 0))
    open(path, "wb").write(bytes(data))
    ours = subprocess.run([copy, path], capture_output=True, text=True).returncode == 0
    try:
        load_file(path)
        theirs = True
    except Exception:
        theirs = False
    check(theirs or not ours, f"damage {seed}: accepted by ours, refused by the package: {bytes(data)!r}")
    return ours, theirs


with tempfile.TemporaryDirectory() as scratch:
    for number in range(200):
        round_trip(scratch, number)
    bfloat16(scratch)
    verdicts = [damage(scratch, number) for number in range(1500)]
print(
    "safetensors package: 200 round trips, 1500 damaged files (%d accepted by ours, %d by the package), %d failures"
    % (sum(o for o, _ in verdicts), sum(t for _, t in verdicts), failures)
)
sys.exit(1 if failures else 0)
