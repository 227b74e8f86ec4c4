/* See pixels.h. The arithmetic is that of libjpeg's jidctint.c, jdsample.c and jdcolor.c. */
#include "pixels.h"

#include <stdlib.h>
#include <string.h>

static uint8_t clamp(int32_t value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

static bool dequantise(const idct_job *job, int32_t *out)
{
    for (int column = 0; column < 8; column++) {
        uint64_t sum = 0;
        for (int i = column; i < 64; i += 8) {
            out[i] = job->coefficients[i] * (int32_t)job->quant[i];
            sum += (uint64_t)abs(out[i]);
        }
        if (sum > COLUMN_LIMIT) return false;
    }
    return true;
}

/* Loeffler, Ligtenberg and Moschytz's transform of eight values, multiplied out: libjpeg rounds
 * only at its end, so that any order of its products gives the same. Constants times 2^13. */
static void transform(const int32_t *in, size_t in_step, int32_t *out, size_t out_step,
                      unsigned shift)
{
    int32_t x[8];
    for (int i = 0; i < 8; i++) x[i] = in[(size_t)i * in_step];
    int32_t half = 1 << (shift - 1);
    int32_t sum = (x[0] + x[4]) * 8192 + half, difference = (x[0] - x[4]) * 8192 + half;
    int32_t outer = x[2] * 10703 + x[6] * 4433, inner = x[2] * 4433 - x[6] * 10704;
    int32_t even[4] = {sum + outer, difference + inner, difference - inner, sum - outer};
    int32_t odd[4] = {
        x[1] * 11363 + x[3] * 9633 + x[5] * 6437 + x[7] * 2260,
        x[1] * 9633 - x[3] * 2259 - x[5] * 11362 - x[7] * 6436,
        x[1] * 6437 - x[3] * 11362 + x[5] * 2261 + x[7] * 9633,
        x[1] * 2260 - x[3] * 6436 + x[5] * 9633 - x[7] * 11363,
    };
    for (size_t i = 0; i < 4; i++) {
        out[i * out_step] = (even[i] + odd[i]) >> shift;
        out[(7 - i) * out_step] = (even[i] - odd[i]) >> shift;
    }
}

static bool idct_one(const idct_job *job)
{
    int32_t in[64], columns[64], row[8];
    if (!dequantise(job, in)) return false;
    for (int i = 0; i < 8; i++) transform(in + i, 8, columns + i, 8, 11);
    for (size_t i = 0; i < 8; i++) {
        transform(columns + 8 * i, 1, row, 1, 18);
        for (int j = 0; j < 8; j++) job->out[i * job->stride + (size_t)j] = clamp(row[j] + 128);
    }
    return true;
}

static bool idct(idct_job *jobs, unsigned n)
{
    bool good = true;
    for (unsigned i = 0; i < n; i++) good &= idct_one(&jobs[i]);
    return good;
}

static void widen(const uint8_t *in, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++, in++) {
        out[2 * i] = (uint8_t)((3 * in[0] + in[-1] + 1) >> 2);
        out[2 * i + 1] = (uint8_t)((3 * in[0] + in[1] + 2) >> 2);
    }
}

static void between(const uint8_t *in, const uint8_t *near, unsigned bias, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)((3 * in[i] + near[i] + bias) >> 2);
}

static void widen_between(const uint8_t *in, const uint8_t *near, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++, in++, near++) {
        int left = 3 * in[-1] + near[-1], here = 3 * in[0] + near[0], right = 3 * in[1] + near[1];
        out[2 * i] = (uint8_t)((3 * here + left + 8) >> 4);
        out[2 * i + 1] = (uint8_t)((3 * here + right + 7) >> 4);
    }
}

/* Constants times 2^16. */
static void colour(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++, out += 3) {
        int32_t blue = cb[i] - 128, red = cr[i] - 128;
        out[0] = clamp(y[i] + ((91881 * red + 32768) >> 16));
        out[1] = clamp(y[i] + ((-22554 * blue - 46802 * red + 32768) >> 16));
        out[2] = clamp(y[i] + ((116130 * blue + 32768) >> 16));
    }
}

const pixel_ops pixels_plain = {idct, widen, between, widen_between, colour};

void pixels_repeat(const uint8_t *in, size_t n, unsigned across, uint8_t *out)
{
    for (size_t i = 0; i < n; i++, out += across) memset(out, in[i], across);
}
