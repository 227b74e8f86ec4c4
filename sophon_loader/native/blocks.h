/* From entropy-coded bits to samples: decodes runs of MCUs and transforms their blocks. */
#ifndef SOPHON_LOADER_BLOCKS_H
#define SOPHON_LOADER_BLOCKS_H

#include "pixels.h"
#include "scan.h"
#include "values.h"

/* Where in a block, in rows, the coefficient of a zigzag index goes. Indices past the block lead to
 * a place that nobody reads; those of VALUE_ENDS and more are the same again, with the end of the
 * block behind them. */
extern const uint8_t block_place[256];

/* One block of the MCU: its tables, and where its samples go. */
typedef struct {
    const huff_table *dc, *codes; /* `codes`: the AC codes that `values` has no room for */
    const value_table *values;
    const uint16_t *quant;
    uint8_t *out;     /* of the first MCU */
    size_t step;      /* to the next MCU */
    size_t stride;    /* to the next row of samples */
} block_target;

/* Blocks decoded and not yet transformed. Several at once let the stores of coefficients settle. */
typedef struct {
    int16_t coefficients[BATCH_BLOCKS][BLOCK_LEN];
    idct_job job[BATCH_BLOCKS];
    unsigned n;
} block_batch;

/* Decodes `n` MCUs, which must not span a restart, into columns from `column` on. False if they are
 * damaged, or have coefficients out of the range in which all of libjpeg's transforms agree. Some
 * blocks may stay in the batch until `blocks_flush`. */
bool blocks_decode(scan *s, const block_target *targets, block_batch *batch, const pixel_ops *ops,
                   size_t column, size_t n);

bool blocks_flush(block_batch *batch, const pixel_ops *ops);

#endif
