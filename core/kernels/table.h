/* SPDX-License-Identifier: Apache-2.0
 *
 * core/kernels/table.h - the table of one (instruction set, dtype): mha_kernels_f64_v3 and so on. Included by f64.c, f32.c.
 */
#ifndef MHA_KERNELS_TABLE_H
#define MHA_KERNELS_TABLE_H

#include "attention.h"
#include "pack.h"
#include "project.h"

#define TABLE_NAME KERNEL_JOIN(KERNEL_JOIN(KERNEL_JOIN(mha_kernels_, KERNEL_TYPE), _), KERNEL_ISA)

extern const struct mha_kernels TABLE_NAME;
const struct mha_kernels TABLE_NAME = {
    .isa = KERNEL_TEXT(KERNEL_ISA),
    .dtype = REAL_BITS == 64 ? MHA_F64 : MHA_F32,
    .nr = NR,
    .pack = pack,
    .project = project,
    .attend_panels = attend_panels,
    .attend = attend,
    .attend_scratch = attend_scratch,
};

#endif
