/* See pixels.h: the way for x86 processors with AVX2, which are asked for it at run time. */
#include "pixels.h"

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2")))
#define AVX2_INLINE static inline __attribute__((always_inline, target("avx2")))

/* A pair of factors for _mm256_madd_epi16. */
AVX2_INLINE __m256i factors(int first, int second)
{
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)first | (uint32_t)(uint16_t)second << 16));
}

AVX2_INLINE __m256i twice(__m256i a, __m256i p, __m256i b, __m256i q)
{
    return _mm256_add_epi32(_mm256_madd_epi16(a, p), _mm256_madd_epi16(b, q));
}

/* Eight values at four places a lane, from pairs (0, 4), (2, 6), (1, 3), (5, 7): as `transform` in
 * pixels.c. `bias` is what is added before the shift. */
AVX2_INLINE void transform(const __m256i pair[4], __m256i bias, int shift, __m256i out[8])
{
    __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(pair[0], factors(8192, 8192)), bias);
    __m256i difference = _mm256_add_epi32(_mm256_madd_epi16(pair[0], factors(8192, -8192)), bias);
    __m256i outer = _mm256_madd_epi16(pair[1], factors(10703, 4433));
    __m256i inner = _mm256_madd_epi16(pair[1], factors(4433, -10704));
    __m256i even[4] = {_mm256_add_epi32(sum, outer), _mm256_add_epi32(difference, inner),
                       _mm256_sub_epi32(difference, inner), _mm256_sub_epi32(sum, outer)};
    __m256i odd[4] = {
        twice(pair[2], factors(11363, 9633), pair[3], factors(6437, 2260)),
        twice(pair[2], factors(9633, -2259), pair[3], factors(-11362, -6436)),
        twice(pair[2], factors(6437, -11362), pair[3], factors(2261, 9633)),
        twice(pair[2], factors(2260, -6436), pair[3], factors(9633, -11363)),
    };
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_srai_epi32(_mm256_add_epi32(even[i], odd[i]), shift);
        out[7 - i] = _mm256_srai_epi32(_mm256_sub_epi32(even[i], odd[i]), shift);
    }
}

/* All columns of the block in each lane; `x` are its rows. */
AVX2_INLINE void transform_columns(__m256i x[8], __m256i bias, int shift)
{
    const __m256i low[4] = {_mm256_unpacklo_epi16(x[0], x[4]), _mm256_unpacklo_epi16(x[2], x[6]),
                            _mm256_unpacklo_epi16(x[1], x[3]), _mm256_unpacklo_epi16(x[5], x[7])};
    const __m256i high[4] = {_mm256_unpackhi_epi16(x[0], x[4]), _mm256_unpackhi_epi16(x[2], x[6]),
                             _mm256_unpackhi_epi16(x[1], x[3]), _mm256_unpackhi_epi16(x[5], x[7])};
    __m256i left[8], right[8];
    transform(low, bias, shift, left);
    transform(high, bias, shift, right);
    for (int i = 0; i < 8; i++) x[i] = _mm256_packs_epi32(left[i], right[i]);
}

AVX2_INLINE void transpose(__m256i x[8])
{
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        a[4 + i] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        x[2 * i] = _mm256_unpacklo_epi64(b[i], b[2 + i]);
        x[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[2 + i]);
        x[4 + 2 * i] = _mm256_unpacklo_epi64(b[4 + i], b[6 + i]);
        x[5 + 2 * i] = _mm256_unpackhi_epi64(b[4 + i], b[6 + i]);
    }
}

AVX2_INLINE __m256i load_rows(const void *low, const void *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                   _mm_loadu_si128(high), 1);
}

/* What breaks the rule of COLUMN_LIMIT: the largest sums, and products of over 16 bits. */
typedef struct {
    __m256i sums, wraps;
} excess;

AVX2_INLINE void dequantise(const idct_job *job, __m256i x[8], excess *found)
{
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++) {
        __m256i c = load_rows(job[0].coefficients + 8 * i, job[1].coefficients + 8 * i);
        __m256i q = load_rows(job[0].quant + 8 * i, job[1].quant + 8 * i);
        x[i] = _mm256_mullo_epi16(c, q);
        __m256i top = _mm256_xor_si256(_mm256_mulhi_epi16(c, q), _mm256_srai_epi16(x[i], 15));
        found->wraps = _mm256_or_si256(found->wraps, top);
        sum = _mm256_adds_epu16(sum, _mm256_abs_epi16(x[i]));
    }
    found->sums = _mm256_max_epu16(found->sums, sum);
}

AVX2_INLINE void store_rows(__m128i two, uint8_t *out, size_t stride)
{
    _mm_storel_epi64((__m128i *)out, two);
    _mm_storeh_pd((double *)(out + stride), _mm_castsi128_pd(two));
}

/* `x` are the columns of the samples, not yet clamped. */
AVX2_INLINE void store_columns(const __m256i x[8], const idct_job *job)
{
    __m256i p[4], q[4];
    for (int i = 0; i < 4; i++) p[i] = _mm256_packus_epi16(x[i], x[i + 4]);
    __m256i c01 = _mm256_unpacklo_epi8(p[0], p[1]), c45 = _mm256_unpackhi_epi8(p[0], p[1]);
    __m256i c23 = _mm256_unpacklo_epi8(p[2], p[3]), c67 = _mm256_unpackhi_epi8(p[2], p[3]);
    __m256i upper_left = _mm256_unpacklo_epi16(c01, c23), lower_left = _mm256_unpackhi_epi16(c01, c23);
    __m256i upper_right = _mm256_unpacklo_epi16(c45, c67);
    __m256i lower_right = _mm256_unpackhi_epi16(c45, c67);
    q[0] = _mm256_unpacklo_epi32(upper_left, upper_right);
    q[1] = _mm256_unpackhi_epi32(upper_left, upper_right);
    q[2] = _mm256_unpacklo_epi32(lower_left, lower_right);
    q[3] = _mm256_unpackhi_epi32(lower_left, lower_right);
    for (size_t i = 0; i < 4; i++) {
        size_t a = job[0].stride, b = job[1].stride;
        store_rows(_mm256_castsi256_si128(q[i]), job[0].out + 2 * i * a, a);
        store_rows(_mm256_extracti128_si256(q[i], 1), job[1].out + 2 * i * b, b);
    }
}

/* Two blocks at a time, one in each lane. */
AVX2 static bool idct(idct_job *jobs, unsigned n)
{
    const __m256i first = _mm256_set1_epi32(1 << 10);
    const __m256i second = _mm256_set1_epi32((1 << 17) + (128 << 18)); /* samples are unsigned */
    excess found = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (n % 2) jobs[n] = jobs[n - 1];
    for (const idct_job *job = jobs; job < jobs + n; job += 2) {
        __m256i x[8];
        dequantise(job, x, &found);
        transform_columns(x, first, 11);
        transpose(x);
        transform_columns(x, second, 18);
        store_columns(x, job);
    }
    __m256i limit = _mm256_set1_epi16(COLUMN_LIMIT);
    __m256i over = _mm256_or_si256(_mm256_subs_epu16(found.sums, limit), found.wraps);
    return _mm256_testz_si256(over, over);
}

AVX2_INLINE __m256i load_samples(const uint8_t *at)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at));
}

AVX2_INLINE __m256i times3(__m256i x) { return _mm256_add_epi16(x, _mm256_add_epi16(x, x)); }

/* (a + b + bias) >> shift */
AVX2_INLINE __m256i mix(__m256i a, __m256i b, short bias, int shift)
{
    return _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(bias)), shift);
}

AVX2_INLINE void store_alternating(uint8_t *out, __m256i left, __m256i right)
{
    _mm256_storeu_si256((__m256i *)out, _mm256_or_si256(left, _mm256_slli_epi16(right, 8)));
}

AVX2 static void widen(const uint8_t *in, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i += 16) {
        __m256i here = times3(load_samples(in + i));
        store_alternating(out + 2 * i, mix(here, load_samples(in + i - 1), 1, 2),
                          mix(here, load_samples(in + i + 1), 2, 2));
    }
}

AVX2 static void between(const uint8_t *in, const uint8_t *near, unsigned bias, size_t n,
                         uint8_t *out)
{
    for (size_t i = 0; i < n; i += 16) {
        __m256i mixed = mix(times3(load_samples(in + i)), load_samples(near + i), (short)bias, 2);
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(mixed, mixed), 0x08);
        _mm_storeu_si128((__m128i *)(out + i), _mm256_castsi256_si128(bytes));
    }
}

AVX2_INLINE __m256i blend(const uint8_t *in, const uint8_t *near)
{
    return _mm256_add_epi16(times3(load_samples(in)), load_samples(near));
}

AVX2 static void widen_between(const uint8_t *in, const uint8_t *near, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i += 16) {
        __m256i here = times3(blend(in + i, near + i));
        store_alternating(out + 2 * i, mix(here, blend(in + i - 1, near + i - 1), 8, 4),
                          mix(here, blend(in + i + 1, near + i + 1), 7, 4));
    }
}

/* (value * factor / 2^16), rounded. */
AVX2_INLINE __m256i scaled(__m256i value, short factor)
{
    __m256i high = _mm256_mulhi_epi16(_mm256_add_epi16(value, value), _mm256_set1_epi16(factor));
    return _mm256_srai_epi16(_mm256_add_epi16(high, _mm256_set1_epi16(1)), 1);
}

AVX2_INLINE __m256i scaled_sums(__m256i pairs)
{
    __m256i sums = _mm256_madd_epi16(pairs, factors(-22554, 65536 - 46802));
    return _mm256_srai_epi32(_mm256_add_epi32(sums, _mm256_set1_epi32(32768)), 16);
}

/* Sixteen pixels; writes 52 bytes, of which 48 count. The factors of colour() in pixels.c do not
 * fit 16 bits: whole multiples are taken out of them. */
AVX2_INLINE void colour16(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *out)
{
    const __m256i middle = _mm256_set1_epi16(128);
    const __m256i drop_fourth = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    __m256i luma = load_samples(y);
    __m256i blue = _mm256_sub_epi16(load_samples(cb), middle);
    __m256i red = _mm256_sub_epi16(load_samples(cr), middle);
    __m256i mixed = _mm256_packs_epi32(scaled_sums(_mm256_unpacklo_epi16(blue, red)),
                                       scaled_sums(_mm256_unpackhi_epi16(blue, red)));
    __m256i r = _mm256_add_epi16(_mm256_add_epi16(luma, red), scaled(red, 91881 - 65536));
    __m256i g = _mm256_add_epi16(_mm256_sub_epi16(luma, red), mixed);
    __m256i b = _mm256_add_epi16(_mm256_add_epi16(luma, _mm256_add_epi16(blue, blue)),
                                 scaled(blue, (short)(116130 - 131072)));
    __m256i rb = _mm256_packus_epi16(r, b), g0 = _mm256_packus_epi16(g, _mm256_setzero_si256());
    __m256i rg = _mm256_unpacklo_epi8(rb, g0), b0 = _mm256_unpackhi_epi8(rb, g0);
    __m256i even = _mm256_shuffle_epi8(_mm256_unpacklo_epi16(rg, b0), drop_fourth);
    __m256i odd = _mm256_shuffle_epi8(_mm256_unpackhi_epi16(rg, b0), drop_fourth);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(even));
    _mm_storeu_si128((__m128i *)(out + 12), _mm256_castsi256_si128(odd));
    _mm_storeu_si128((__m128i *)(out + 24), _mm256_extracti128_si256(even, 1));
    _mm_storeu_si128((__m128i *)(out + 36), _mm256_extracti128_si256(odd, 1));
}

AVX2 static void colour(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, size_t n,
                        uint8_t *out)
{
    size_t i = 0;
    for (; n - i >= 18; i += 16) colour16(y + i, cb + i, cr + i, out + 3 * i);
    for (size_t left; i < n; i += left) {
        uint8_t last[64];
        left = n - i < 16 ? n - i : 16;
        colour16(y + i, cb + i, cr + i, last);
        memcpy(out + 3 * i, last, 3 * left);
    }
}

const pixel_ops *pixels_fast(void)
{
    static const pixel_ops ops = {idct, widen, between, widen_between, colour};
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? &ops : NULL;
}

#elif !(defined(__GNUC__) && defined(__aarch64__)) /* which has pixels_neon.c */

const pixel_ops *pixels_fast(void) { return NULL; }

#endif
