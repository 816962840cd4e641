#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Derives the polynomial coefficients of core/kernels/vmath.h and prints them as C hexadecimal floats.

Usage: minimax.py            (needs mpmath; about a minute)

Model. Each function is fitted as  f(x) ~ fixed(x) + sum_j c_j basis_j(x)  so that max |error / weight| over the interval is
least: Lawson's iteration (weighted least squares whose weights are multiplied by the error) on Chebyshev points, in
60-digit arithmetic. Then the coefficients are rounded to the target type one after another, lowest order first, and the ones
not yet rounded are fitted again each time, so that later coefficients absorb the rounding of earlier ones.

The last column printed is log2 of the largest relative error of the rounded polynomial, evaluated exactly. It does not model
rounding during evaluation; tests/unit/test_vmath.c measures that.
"""
import mpmath as mp

mp.mp.dps = 60


def round_to(x, bits):
    """x rounded to `bits` significant bits, ties to even."""
    if x == 0:
        return mp.mpf(0)
    man, exp = mp.frexp(x)
    return mp.ldexp(mp.nint(man * 2**bits), int(exp) - bits)


def c_hex(x, bits):
    """A C hexadecimal literal, exact, without trailing zeros."""
    man, exp = float(x).hex().split("p")
    return man.rstrip("0").rstrip(".") + "p" + exp + ("f" if bits == 24 else "")


def weighted_least_squares(rows, rhs, w):
    n = len(rows[0])
    a, b = mp.matrix(n, n), mp.matrix(n, 1)
    for row, y, wi in zip(rows, rhs, w):
        for i in range(n):
            wr = wi * row[i]
            b[i] += wr * y
            for j in range(i, n):
                a[i, j] += wr * row[j]
    for i in range(n):
        for j in range(i):
            a[i, j] = a[j, i]
    return list(mp.lu_solve(a, b))


def lawson(rows, rhs, steps):
    """Minimax solution of rows * c = rhs over the given points; rows and rhs are already divided by the weight."""
    w = [mp.mpf(1) / len(rows)] * len(rows)
    best, best_err = None, mp.inf
    for _ in range(steps):
        c = weighted_least_squares(rows, rhs, w)
        err = [abs(mp.fdot(row, c) - y) for row, y in zip(rows, rhs)]
        if max(err) < best_err:
            best, best_err = c, max(err)
        w = [wi * e for wi, e in zip(w, err)]
        total = mp.fsum(w)
        w = [wi / total for wi in w]
    return best


def fit(name, f, fixed, weight, powers, lo, hi, bits, points=200, steps=40):
    """Coefficients of x^p for p in powers, rounded to `bits`."""
    lo, hi = mp.mpf(lo), mp.mpf(hi)
    xs = [(lo + hi) / 2 + (hi - lo) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * points)) for k in range(points)]
    xs = [x for x in xs if weight(x) != 0]
    ws = [weight(x) for x in xs]
    rhs = [(f(x) - fixed(x)) / w for x, w in zip(xs, ws)]
    rows = [[x**p / w for p in powers] for x, w in zip(xs, ws)]
    done = []
    for i in range(len(powers)):
        left = [y - mp.fdot(row[:i], done) for row, y in zip(rows, rhs)]
        c = lawson([row[i:] for row in rows], left, steps)
        done.append(round_to(c[0], bits))
    worst = max(abs(mp.fdot(row, done) - y) for row, y in zip(rows, rhs))
    print(f"/* {name}: {len(powers)} coefficients, largest relative error 2^{float(mp.log(worst, 2)):.1f} */")
    for p, c in zip(powers, done):
        print(f"  x^{p:<2} {c_hex(c, bits)}")


def tanh_tail(y):
    """(tanh(x)/x - 1) as a function of y = x^2."""
    if abs(y) < mp.mpf(10) ** -20:
        return -y / 3 + 2 * y * y / 15
    x = mp.sqrt(y)
    return mp.tanh(x) / x - 1


def log_tail(z):
    """(log f - 2 s)/s as a function of z = s^2, s = (f-1)/(f+1)."""
    if abs(z) < mp.mpf(10) ** -20:
        return 2 * z / 3 + 2 * z * z / 5
    s = mp.sqrt(z)
    return 2 * mp.atanh(s) / s - 2


def constants():
    ln2 = mp.log(2)
    for bits, short in ((53, 33), (24, 12)):
        hi = round_to(ln2, bits)
        hi_short = round_to(ln2, short)
        print(f"/* {bits} bits */")
        print("  log2e     ", c_hex(round_to(1 / ln2, bits), bits))
        print("  ln2 hi lo ", c_hex(hi, bits), c_hex(round_to(ln2 - hi, bits), bits))
        print(f"  ln2 hi lo, hi of {short} bits ", c_hex(hi_short, bits), c_hex(round_to(ln2 - hi_short, bits), bits))


def main():
    constants()
    # |r| <= ln2/2; the margin covers the error of the product that chooses the integer.
    r = mp.log(2) / 2 * (1 + mp.mpf(2) ** -8)
    z = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mp.mpf("1.0001")
    for label, bits, exp_deg, tanh_terms, log_terms in (("f64", 53, 11, 12, 7), ("f32", 24, 6, 6, 3)):
        fit(f"exp {label}", mp.exp, lambda x: 1 + x, mp.exp, list(range(2, exp_deg + 1)), -r, r, bits)
        fit(f"tanh(x)/x - 1 in x^2 {label}", tanh_tail, lambda y: 0, lambda y: 1 + tanh_tail(y),
            list(range(1, tanh_terms + 1)), 0, mp.mpf("0.7") ** 2, bits)
        fit(f"(log f)/s - 2 in s^2 {label}", log_tail, lambda y: 0, lambda y: 2 + log_tail(y),
            list(range(1, log_terms + 1)), 0, z, bits)


if __name__ == "__main__":
    main()
