#include "resample_rows.h"

/* Right shifts of negative numbers are arithmetic with all compilers that build CPython. */
static uint8_t clipped(int32_t sum)
{
    const int32_t value = sum >> WEIGHT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static const int32_t HALF = 1 << (WEIGHT_BITS - 1);

void row_across_plain(const axis_weights *axis, const uint8_t *row, size_t channels, size_t width,
                      uint8_t *out)
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
static void down_from(const axis_weights *axis, size_t y, const uint8_t *const *rows, size_t from,
                      size_t nbytes, uint8_t *out)
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

void row_down_plain(const axis_weights *axis, size_t y, const uint8_t *const *rows, size_t nbytes,
                    uint8_t *out)
{
    down_from(axis, y, rows, 0, nbytes, out);
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))

/*
 * A weight has more bits than a factor of a 16-bit multiplication, so its two parts are multiplied
 * apart. Each instruction adds up two products of 16 bits, in 32: exact.
 *
 * Four px side by side become, per channel, two pairs: those of the first two px in the lower half,
 * the others' above.
 */
AVX2 static void row_across_avx2(const axis_weights *axis, const uint8_t *row, size_t channels,
                                 size_t width, uint8_t *out)
{
    if (channels != 3) {
        row_across_plain(axis, row, channels, width, out);
        return;
    }
    const __m256i pairs =
        _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                         -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const __m256i low_parts = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    const __m256i high_parts = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
    const __m128i half = _mm_set1_epi32(HALF);
    const int16_t *split = axis->split;
    for (size_t x = 0; x < width; x++, split += axis->groups * TAPS * 2, out += 3) {
        __m256i low = _mm256_setzero_si256(), high = low;
        const uint8_t *pixels = row + axis->first[x] * 3;
        const size_t n = axis->count[x];
        for (size_t i = 0; i < n; i += TAPS, pixels += 3 * TAPS) {
            const __m128i four = _mm_loadu_si128((const __m128i *)pixels);
            const __m256i values = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), pairs);
            const __m256i k =
                _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(split + 2 * i)));
            low = _mm256_add_epi32(
                low, _mm256_madd_epi16(values, _mm256_permutevar8x32_epi32(k, low_parts)));
            high = _mm256_add_epi32(
                high, _mm256_madd_epi16(values, _mm256_permutevar8x32_epi32(k, high_parts)));
        }
        low = _mm256_add_epi32(low, _mm256_slli_epi32(high, LOW_BITS));
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
        sum = _mm_srai_epi32(_mm_add_epi32(sum, half), WEIGHT_BITS);
        sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
        const uint32_t pixel = (uint32_t)_mm_cvtsi128_si32(sum);
        if (x + 1 < width) {
            memcpy(out, &pixel, 4); /* the fourth byte is the next px's */
        } else {
            memcpy(out, &pixel, 3);
        }
    }
}

/* Sums of two rows' products, for 8 of the 32 columns: `values` are pairs, one of each row. */
#define ADD_PRODUCTS(j, values) \
    do { \
        const __m256i both = (values); \
        low[j] = _mm256_add_epi32(low[j], _mm256_madd_epi16(both, k_low)); \
        high[j] = _mm256_add_epi32(high[j], _mm256_madd_epi16(both, k_high)); \
    } while (0)

AVX2 static void down_32(const int16_t *split, size_t n, const uint8_t *const *rows, size_t at,
                         uint8_t *out)
{
    const __m256i none = _mm256_setzero_si256();
    __m256i low[4], high[4];
    for (int j = 0; j < 4; j++) low[j] = _mm256_set1_epi32(HALF), high[j] = none;
    for (size_t r = 0; r < n; r += 2) {
        /* The weight behind the last is 0, whichever row it is for. */
        const __m256i a = _mm256_loadu_si256((const __m256i *)(rows[r] + at));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(rows[r + 1 < n ? r + 1 : r] + at));
        const int16_t *pair = split + r / TAPS * TAPS * 2 + r % TAPS;
        int32_t parts[2];
        memcpy(&parts[0], pair, 4);
        memcpy(&parts[1], pair + TAPS, 4);
        const __m256i k_low = _mm256_set1_epi32(parts[0]), k_high = _mm256_set1_epi32(parts[1]);
        const __m256i left = _mm256_unpacklo_epi8(a, b), right = _mm256_unpackhi_epi8(a, b);
        ADD_PRODUCTS(0, _mm256_unpacklo_epi8(left, none));
        ADD_PRODUCTS(1, _mm256_unpackhi_epi8(left, none));
        ADD_PRODUCTS(2, _mm256_unpacklo_epi8(right, none));
        ADD_PRODUCTS(3, _mm256_unpackhi_epi8(right, none));
    }
    for (int j = 0; j < 4; j++)
        low[j] = _mm256_srai_epi32(_mm256_add_epi32(low[j], _mm256_slli_epi32(high[j], LOW_BITS)),
                                   WEIGHT_BITS);
    const __m256i left = _mm256_packs_epi32(low[0], low[1]),
                  right = _mm256_packs_epi32(low[2], low[3]);
    _mm256_storeu_si256((__m256i *)(out + at), _mm256_packus_epi16(left, right));
}

AVX2 static void row_down_avx2(const axis_weights *axis, size_t y, const uint8_t *const *rows,
                               size_t nbytes, uint8_t *out)
{
    enum { AT_ONCE = 32 };
    const int16_t *split = axis->split + y * axis->groups * TAPS * 2;
    const size_t n = axis->count[y];
    if (nbytes < AT_ONCE) {
        down_from(axis, y, rows, 0, nbytes, out);
        return;
    }
    size_t at = 0;
    for (; at + AT_ONCE <= nbytes; at += AT_ONCE) down_32(split, n, rows, at, out);
    if (at < nbytes) down_32(split, n, rows, nbytes - AT_ONCE, out); /* some columns once more */
}

row_across *row_across_best(void)
{
    return __builtin_cpu_supports("avx2") ? row_across_avx2 : row_across_plain;
}
row_down *row_down_best(void)
{
    return __builtin_cpu_supports("avx2") ? row_down_avx2 : row_down_plain;
}

#elif defined(__aarch64__) && defined(__GNUC__)

#include <arm_neon.h>
#include <string.h>

/* As plain C: products of 32 bits need no splitting here. Returns (sum >> WEIGHT_BITS), clamped. */
static inline uint16x4_t clipped_4(int32x4_t sums)
{
    return vqmovun_s32(vshrq_n_s32(sums, WEIGHT_BITS));
}

/* The byte at 3 * `tap`, and the two behind it, as 32-bit values. */
static inline int32x4_t pixel_of(uint8x16_t four, uint8_t tap)
{
    const uint8_t at = (uint8_t)(3 * tap), none = 0xFF;
    const uint8x16_t places = {at,   none, none, none, (uint8_t)(at + 1), none, none, none,
                               (uint8_t)(at + 2), none, none, none, none, none, none, none};
    return vreinterpretq_s32_u8(vqtbl1q_u8(four, places));
}

static void row_across_neon(const axis_weights *axis, const uint8_t *row, size_t channels,
                            size_t width, uint8_t *out)
{
    if (channels != 3) {
        row_across_plain(axis, row, channels, width, out);
        return;
    }
    const int32_t *k = axis->k;
    for (size_t x = 0; x < width; x++, k += axis->groups * TAPS, out += 3) {
        const uint8_t *pixels = row + axis->first[x] * 3;
        const size_t n = axis->count[x];
        int32x4_t even = vdupq_n_s32(HALF), odd = vdupq_n_s32(0);
        for (size_t i = 0; i < n; i += TAPS, pixels += 3 * TAPS) {
            const uint8x16_t four = vld1q_u8(pixels);
            const int32x4_t weights = vld1q_s32(k + i);
            even = vmlaq_laneq_s32(even, pixel_of(four, 0), weights, 0);
            odd = vmlaq_laneq_s32(odd, pixel_of(four, 1), weights, 1);
            even = vmlaq_laneq_s32(even, pixel_of(four, 2), weights, 2);
            odd = vmlaq_laneq_s32(odd, pixel_of(four, 3), weights, 3);
        }
        const uint16x4_t values = clipped_4(vaddq_s32(even, odd));
        const uint8x8_t bytes = vqmovn_u16(vcombine_u16(values, values));
        const uint32_t pixel = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
        memcpy(out, &pixel, x + 1 < width ? 4 : 3); /* the fourth byte is the next px's */
    }
}

static void down_16(const int32_t *k, size_t n, const uint8_t *const *rows, size_t at, uint8_t *out)
{
    int32x4_t sums[4];
    for (int j = 0; j < 4; j++) sums[j] = vdupq_n_s32(HALF);
    for (size_t r = 0; r < n; r++) {
        const uint8x16_t bytes = vld1q_u8(rows[r] + at);
        const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
        const uint32x4_t values[4] = {vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low),
                                      vmovl_u16(vget_low_u16(high)), vmovl_high_u16(high)};
        for (int j = 0; j < 4; j++)
            sums[j] = vmlaq_n_s32(sums[j], vreinterpretq_s32_u32(values[j]), k[r]);
    }
    const uint16x8_t left = vcombine_u16(clipped_4(sums[0]), clipped_4(sums[1]));
    const uint16x8_t right = vcombine_u16(clipped_4(sums[2]), clipped_4(sums[3]));
    vst1q_u8(out + at, vcombine_u8(vqmovn_u16(left), vqmovn_u16(right)));
}

static void row_down_neon(const axis_weights *axis, size_t y, const uint8_t *const *rows,
                          size_t nbytes, uint8_t *out)
{
    enum { AT_ONCE = 16 };
    const int32_t *k = axis->k + y * axis->groups * TAPS;
    const size_t n = axis->count[y];
    if (nbytes < AT_ONCE) {
        down_from(axis, y, rows, 0, nbytes, out);
        return;
    }
    size_t at = 0;
    for (; at + AT_ONCE <= nbytes; at += AT_ONCE) down_16(k, n, rows, at, out);
    if (at < nbytes) down_16(k, n, rows, nbytes - AT_ONCE, out); /* some columns once more */
}

row_across *row_across_best(void) { return row_across_neon; }
row_down *row_down_best(void) { return row_down_neon; }

#else

row_across *row_across_best(void) { return row_across_plain; }
row_down *row_down_best(void) { return row_down_plain; }

#endif
