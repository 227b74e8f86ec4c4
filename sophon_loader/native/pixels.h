/* From coefficients to pixels, to libjpeg-turbo's last bit: inverse DCT, up-sampling, colour. */
#ifndef SOPHON_LOADER_PIXELS_H
#define SOPHON_LOADER_PIXELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BATCH_BLOCKS = 8, /* even, as two go through a vector unit together */
    BLOCK_LEN = 80,   /* 64 coefficients, a place for strays, and padding */

    /* Bytes that may be read behind, and in front of, a row of samples, and written behind a row
     * that is not the caller's. */
    ROW_PADDING = 64,

    /* The largest sum of |coefficient * step| in a column of a block. Up to it no 16-bit sum in
     * libjpeg-turbo's vector code can saturate or wrap, so that all of its transforms agree. No
     * picture of 8 bits comes near. */
    COLUMN_LIMIT = 2950
};

/* One block. `coefficients` and `quant` are in rows, not in zigzag; no step of `quant` is over
 * 32767. */
typedef struct {
    const int16_t *coefficients;
    const uint16_t *quant;
    uint8_t *out;
    size_t stride;
} idct_job;

/*
 * One way to do it. All functions have a twin in each way, with the same results.
 * Rows have samples left and right of what is given, also at the edges of the picture.
 */
typedef struct {
    /* Of up to BATCH_BLOCKS blocks; false, with any samples, if one is beyond COLUMN_LIMIT. `jobs`
     * has room for one more than an odd `n`. */
    bool (*idct)(idct_job *jobs, unsigned n);
    /* `n` samples to 2 n, smoothly. */
    void (*widen)(const uint8_t *in, size_t n, uint8_t *out);
    /* `n` samples to as many of a row between `in` and `near`; `bias` 1 above `in`, 2 below. */
    void (*between)(const uint8_t *in, const uint8_t *near, unsigned bias, size_t n, uint8_t *out);
    /* Both: `n` samples to 2 n of a row between `in` and `near`. */
    void (*widen_between)(const uint8_t *in, const uint8_t *near, size_t n, uint8_t *out);
    /* YCbCr to RGB. Writes 3 n bytes and none behind. */
    void (*colour)(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, size_t n, uint8_t *out);
} pixel_ops;

/* Plain C. */
extern const pixel_ops pixels_plain;

/* The fastest on this machine; NULL if there is only plain C, which libjpeg-turbo's vector code
 * outruns. */
const pixel_ops *pixels_fast(void);

/* Each sample `across` times. */
void pixels_repeat(const uint8_t *in, size_t n, unsigned across, uint8_t *out);

#endif
