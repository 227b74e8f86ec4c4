/* See pixels.h: the way for 64-bit ARM processors, all of which have NEON. */
#include "pixels.h"

#if defined(__GNUC__) && defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
enum { AT_ONCE = 8 };

/* Eight values at four places: as `transform` in pixels.c. `bias` is what is added before the
 * shift, which is 11 or 18. */
INLINE void transform(const int16x4_t x[8], int32x4_t bias, int shift, int16x4_t out[8])
{
    int32x4_t sum = vmlal_n_s16(vmlal_n_s16(bias, x[0], 8192), x[4], 8192);
    int32x4_t difference = vmlsl_n_s16(vmlal_n_s16(bias, x[0], 8192), x[4], 8192);
    int32x4_t outer = vmlal_n_s16(vmull_n_s16(x[2], 10703), x[6], 4433);
    int32x4_t inner = vmlsl_n_s16(vmull_n_s16(x[2], 4433), x[6], 10704);
    int32x4_t even[4] = {vaddq_s32(sum, outer), vaddq_s32(difference, inner),
                         vsubq_s32(difference, inner), vsubq_s32(sum, outer)};
    static const int16_t factors[4][4] = {{11363, 9633, 6437, 2260},
                                          {9633, -2259, -11362, -6436},
                                          {6437, -11362, 2261, 9633},
                                          {2260, -6436, 9633, -11363}};
    for (int i = 0; i < 4; i++) {
        int32x4_t odd = vmull_n_s16(x[1], factors[i][0]);
        for (int j = 1; j < 4; j++) odd = vmlal_n_s16(odd, x[2 * j + 1], factors[i][j]);
        int32x4_t plus = vaddq_s32(even[i], odd), minus = vsubq_s32(even[i], odd);
        out[i] = shift == 11 ? vqshrn_n_s32(plus, 11) : vqmovn_s32(vshrq_n_s32(plus, 18));
        out[7 - i] = shift == 11 ? vqshrn_n_s32(minus, 11) : vqmovn_s32(vshrq_n_s32(minus, 18));
    }
}

/* All columns of a block; `x` are its rows. */
INLINE void transform_columns(int16x8_t x[8], int32x4_t bias, int shift)
{
    int16x4_t low[8], high[8], left[8], right[8];
    for (int i = 0; i < 8; i++) low[i] = vget_low_s16(x[i]), high[i] = vget_high_s16(x[i]);
    transform(low, bias, shift, left);
    transform(high, bias, shift, right);
    for (int i = 0; i < 8; i++) x[i] = vcombine_s16(left[i], right[i]);
}

INLINE void transpose(int16x8_t x[8])
{
    int32x4_t a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = vreinterpretq_s32_s16(vtrn1q_s16(x[i], x[i + 1]));
        a[i + 1] = vreinterpretq_s32_s16(vtrn2q_s16(x[i], x[i + 1]));
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = i; j < i + 2; j++)
            b[j] = vtrn1q_s32(a[j], a[j + 2]), b[j + 2] = vtrn2q_s32(a[j], a[j + 2]);
    for (int i = 0; i < 4; i++) {
        int64x2_t upper = vreinterpretq_s64_s32(b[i]), lower = vreinterpretq_s64_s32(b[i + 4]);
        x[i] = vreinterpretq_s16_s64(vtrn1q_s64(upper, lower));
        x[i + 4] = vreinterpretq_s16_s64(vtrn2q_s64(upper, lower));
    }
}

/* Returns the larger of `most` and of the columns' sums. */
INLINE int32x4_t dequantise(const idct_job *job, int16x8_t x[8], int32x4_t most)
{
    int32x4_t left = vdupq_n_s32(0), right = left;
    for (int i = 0; i < 8; i++) {
        int16x8_t c = vld1q_s16(job->coefficients + 8 * i);
        int16x8_t q = vreinterpretq_s16_u16(vld1q_u16(job->quant + 8 * i));
        int32x4_t low = vmull_s16(vget_low_s16(c), vget_low_s16(q)), high = vmull_high_s16(c, q);
        x[i] = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
        left = vqaddq_s32(left, vabsq_s32(low)), right = vqaddq_s32(right, vabsq_s32(high));
    }
    return vmaxq_s32(most, vmaxq_s32(left, right));
}

static bool idct(idct_job *jobs, unsigned n)
{
    const int32x4_t first = vdupq_n_s32(1 << 10);
    const int32x4_t second = vdupq_n_s32((1 << 17) + (128 << 18)); /* samples are unsigned */
    int32x4_t most = vdupq_n_s32(0);
    for (const idct_job *job = jobs; job < jobs + n; job++) {
        int16x8_t x[8];
        most = dequantise(job, x, most);
        transform_columns(x, first, 11);
        transpose(x);
        transform_columns(x, second, 18);
        transpose(x);
        for (size_t i = 0; i < 8; i++) vst1_u8(job->out + i * job->stride, vqmovun_s16(x[i]));
    }
    return vmaxvq_s32(most) <= COLUMN_LIMIT;
}

INLINE uint16x8_t times3(uint16x8_t x) { return vmulq_n_u16(x, 3); }

INLINE uint16x8_t load_samples(const uint8_t *at) { return vmovl_u8(vld1_u8(at)); }

INLINE void store_alternating(uint8_t *out, uint8x8_t left, uint8x8_t right)
{
    vst2_u8(out, ((uint8x8x2_t){{left, right}}));
}

static void widen(const uint8_t *in, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i += AT_ONCE) {
        uint16x8_t here = times3(load_samples(in + i));
        uint16x8_t left = vaddw_u8(vaddq_u16(here, vdupq_n_u16(1)), vld1_u8(in + i - 1));
        uint16x8_t right = vaddw_u8(here, vld1_u8(in + i + 1));
        store_alternating(out + 2 * i, vshrn_n_u16(left, 2), vrshrn_n_u16(right, 2));
    }
}

static void between(const uint8_t *in, const uint8_t *near, unsigned bias, size_t n, uint8_t *out)
{
    const uint16x8_t added = vdupq_n_u16((uint16_t)bias);
    for (size_t i = 0; i < n; i += AT_ONCE) {
        uint16x8_t mixed = vaddw_u8(times3(load_samples(in + i)), vld1_u8(near + i));
        vst1_u8(out + i, vshrn_n_u16(vaddq_u16(mixed, added), 2));
    }
}

INLINE uint16x8_t blend(const uint8_t *in, const uint8_t *near)
{
    return vaddw_u8(times3(load_samples(in)), vld1_u8(near));
}

static void widen_between(const uint8_t *in, const uint8_t *near, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i += AT_ONCE) {
        uint16x8_t here = times3(blend(in + i, near + i));
        uint16x8_t left = vaddq_u16(here, blend(in + i - 1, near + i - 1));
        uint16x8_t right = vaddq_u16(here, blend(in + i + 1, near + i + 1));
        right = vaddq_u16(right, vdupq_n_u16(7));
        store_alternating(out + 2 * i, vrshrn_n_u16(left, 4), vshrn_n_u16(right, 4));
    }
}

/* (a * p + b * q) / 2^16, rounded. */
INLINE int16x8_t scaled(int16x8_t a, int16_t p, int16x8_t b, int16_t q)
{
    int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(a), p), vget_low_s16(b), q);
    int32x4_t high = vmlal_n_s16(vmull_n_s16(vget_high_s16(a), p), vget_high_s16(b), q);
    return vcombine_s16(vrshrn_n_s32(low, 16), vrshrn_n_s32(high, 16));
}

/* Eight pixels. The factors of colour() in pixels.c do not fit 16 bits: whole multiples are taken
 * out of them. */
INLINE void colour8(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *out)
{
    const int16x8_t middle = vdupq_n_s16(128), none = vdupq_n_s16(0);
    int16x8_t luma = vreinterpretq_s16_u16(load_samples(y));
    int16x8_t blue = vsubq_s16(vreinterpretq_s16_u16(load_samples(cb)), middle);
    int16x8_t red = vsubq_s16(vreinterpretq_s16_u16(load_samples(cr)), middle);
    int16x8_t r = vaddq_s16(vaddq_s16(luma, red), scaled(red, 91881 - 65536, none, 0));
    int16x8_t g = vaddq_s16(vsubq_s16(luma, red), scaled(blue, -22554, red, 65536 - 46802));
    int16x8_t b = vaddq_s16(vaddq_s16(luma, vaddq_s16(blue, blue)),
                            scaled(blue, 116130 - 131072, none, 0));
    vst3_u8(out, ((uint8x8x3_t){{vqmovun_s16(r), vqmovun_s16(g), vqmovun_s16(b)}}));
}

static void colour(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, size_t n, uint8_t *out)
{
    size_t i = 0;
    for (; n - i >= AT_ONCE; i += AT_ONCE) colour8(y + i, cb + i, cr + i, out + 3 * i);
    if (i < n) {
        uint8_t last[3 * AT_ONCE];
        colour8(y + i, cb + i, cr + i, last);
        memcpy(out + 3 * i, last, 3 * (n - i));
    }
}

const pixel_ops *pixels_fast(void)
{
    static const pixel_ops ops = {idct, widen, between, widen_between, colour};
    return &ops;
}

#endif
