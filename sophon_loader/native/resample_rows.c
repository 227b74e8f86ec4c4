#include "resample_rows.h"

/* Right shifts of negative numbers are arithmetic with all compilers that build CPython. */
static uint8_t clipped(int32_t sum)
{
    const int32_t value = sum >> WEIGHT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static const int32_t HALF = 1 << (WEIGHT_BITS - 1);

void row_across_plain(const axis_weights *axis, const uint8_t *row, size_t channels, size_t width, uint8_t *out)
{
    const int32_t *k = axis->k;
    for (size_t x = 0; x < width; x++, k += axis->groups * TAPS) {
        const uint8_t *pixels = row + axis->first[x] * channels;
        const size_t n = axis->count[x];
        for (size_t c = 0; c < channels; c++) {
            int32_t sum = HALF;
            for (size_t i = 0; i < n; i++) sum += pixels[i * channels + c] * k[i];
            *out++ = clipped(sum);
        }
    }
}

/* The bytes from `from` on. */
static void down_from(const axis_weights *axis, size_t y, const uint8_t *const *rows, size_t from, size_t nbytes,
                      uint8_t *out)
{
    enum { STRETCH = 64 };
    const int32_t *k = axis->k + y * axis->groups * TAPS;
    const size_t n = axis->count[y];
    for (; from < nbytes; from += STRETCH) {
        const size_t length = nbytes - from < STRETCH ? nbytes - from : STRETCH;
        int32_t sums[STRETCH];
        for (size_t i = 0; i < length; i++) sums[i] = HALF;
        for (size_t r = 0; r < n; r++) {
            const uint8_t *row = rows[r] + from;
            for (size_t i = 0; i < length; i++) sums[i] += row[i] * k[r];
        }
        for (size_t i = 0; i < length; i++) out[from + i] = clipped(sums[i]);
    }
}

void row_down_plain(const axis_weights *axis, size_t y, const uint8_t *const *rows, size_t nbytes, uint8_t *out)
{
    down_from(axis, y, rows, 0, nbytes, out);
}

row_across *row_across_best(void) { return row_across_plain; }
row_down *row_down_best(void) { return row_down_plain; }
