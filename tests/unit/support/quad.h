/* SPDX-License-Identifier: Apache-2.0
 *
 * tests/unit/support/quad.h - 113-bit arithmetic: `quad` and the few functions of it that tests measure against.
 *
 * libquadmath on x86-64 (declared here, since only gcc has its header), long double on aarch64, where that is binary128.
 */
#ifndef MHA_TESTS_QUAD_H
#define MHA_TESTS_QUAD_H

#if defined(__x86_64__)
typedef __float128 quad;
extern quad expq(quad), exp2q(quad), logq(quad), tanhq(quad), ldexpq(quad, int);
extern int ilogbq(quad);
#define QUAD(name) name##q
#else
#include <math.h>
typedef long double quad;
#define QUAD(name) name##l
#endif

#define QUAD_LN2   ((quad)0x1.62e42fefa39efp-1 + (quad)0x1.abc9e3b39803fp-56 + (quad)0x1.7b57a079a1934p-111)
#define QUAD_LOG2E ((quad)0x1.71547652b82fep+0 + (quad)0x1.777d0ffda0d24p-56 - (quad)0x1.60bb8a5442ab9p-110)

#endif
