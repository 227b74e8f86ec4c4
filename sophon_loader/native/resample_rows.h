/*
 * One row of a resize, in plain C and with AVX2: what resample.c is made of, and nobody else needs.
 * All sums are exact, so the order of adding does not matter, and each of the ways gives the same.
 */
#ifndef SOPHON_RESAMPLE_ROWS_H
#define SOPHON_RESAMPLE_ROWS_H

#include <stddef.h>
#include <stdint.h>

/*
 * WEIGHT_BITS: of a weight, behind the point, as in Pillow.
 * TAPS:        weights come in groups of so many.
 * LOW_BITS:    of a weight's low part: 16-bit products of both parts are exact.
 */
enum { WEIGHT_BITS = 22, TAPS = 4, LOW_BITS = 11 };

/*
 * The weights of one axis: output px i is made of the `count[i]` input px from `first[i]` on.
 *
 * k:     groups * TAPS weights for each output px; 0 behind the last.
 * split: the same, of each group the low parts and then the high ones.
 */
typedef struct {
    size_t groups;
    uint32_t *first, *count;
    int32_t *k;
    int16_t *split;
} axis_weights;

/* Makes `width` px of a row. Up to 16 bytes behind the last px that is needed are read. */
typedef void row_across(const axis_weights *axis, const uint8_t *row, size_t channels, size_t width,
                        uint8_t *out);

/* Makes row `y` of the output, `nbytes` long, of as many rows. */
typedef void row_down(const axis_weights *axis, size_t y, const uint8_t *const *rows, size_t nbytes,
                      uint8_t *out);

row_across row_across_plain;
row_down row_down_plain;

/* The fastest for this processor. */
row_across *row_across_best(void);
row_down *row_down_best(void);

#endif
