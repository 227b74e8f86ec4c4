/*
 * Pillow's Image.resize for pictures of 8 bits a channel, equal to it in every bit: the same
 * fixed-point weights, the same order of the two passes, the same rounding between them
 * (src/libImaging/Resample.c in Pillow).
 *
 * Knows no Python. Thread-safe: keeps nothing.
 */
#ifndef SOPHON_RESAMPLE_H
#define SOPHON_RESAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pillow's numbers. */
enum {
    RESAMPLE_NEAREST,
    RESAMPLE_LANCZOS,
    RESAMPLE_BILINEAR,
    RESAMPLE_BICUBIC,
    RESAMPLE_BOX,
    RESAMPLE_HAMMING,
    RESAMPLE_FILTERS,
};

/* Bounds, checked before memory is taken: px of a side, weights of one axis (8 bytes each), and the
   rows between the two passes. */
enum {
    RESAMPLE_MAX_SIDE = 65535,
    RESAMPLE_MAX_WEIGHTS = 1 << 23,
    RESAMPLE_MAX_ROWS_NBYTES = 1 << 28
};

typedef enum {
    RESAMPLE_DONE,
    RESAMPLE_BAD,     /* sides, channels, box or filter that Pillow refuses too */
    RESAMPLE_REFUSED, /* beyond the bounds, or weights so odd that sums could overflow */
    RESAMPLE_NO_MEMORY,
} resample_status;

/*
 * When the vertical pass goes first: the order changes pixels, and it has changed with Pillow's
 * releases.
 *
 * NEVER:   up to 12.1.
 * TALL:    12.2 and 12.3: for pictures over 100 times as high as wide that lose rows.
 * CHEAPER: since 13.0: where over twice as many rows are lost as columns.
 */
typedef enum {
    RESAMPLE_DOWN_FIRST_NEVER,
    RESAMPLE_DOWN_FIRST_TALL,
    RESAMPLE_DOWN_FIRST_CHEAPER,
} resample_order;

/*
 * pixels:   height * width * channels values, rows from the top, those of a pixel side by side.
 * channels: 1 or 3.
 * box:      left, top, right, bottom, px of the picture; inside it.
 * plain:    whether to use plain C where the processor could do better. The result is the same.
 */
typedef struct {
    const uint8_t *pixels;
    size_t width, height, channels;
    float box[4];
    size_t out_width, out_height;
    int filter;
    resample_order order;
    bool plain;
} resample_job;

/* Writes out_height * out_width * channels values to `out`, which does not overlap the pixels; all
   of them or, unless the status is RESAMPLE_DONE, none. Takes memory for the weights and for the
   rows that one row of the result is made of. */
resample_status resample(const resample_job *job, uint8_t *out);

/* The instructions used where `plain` is false: "avx2" or "plain". */
const char *resample_instructions(void);

#endif
