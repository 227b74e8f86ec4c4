/* Reading bits and DC values: what walking over a scan and decoding it have in common. */
#ifndef SOPHON_LOADER_BITS_H
#define SOPHON_LOADER_BITS_H

#include "scan.h"

#if defined(__GNUC__)
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define INLINE static inline __attribute__((always_inline))
#else
#define LIKELY(condition) (condition)
#define INLINE static inline
#endif

/* To at least 56 bits. `next` was known one refill ago, so the load waits for no look-up. */
INLINE void refill(bit_reader *r)
{
    r->acc |= load64(r->next) >> r->count;
    r->next += (63 - r->count) >> 3;
    r->count |= 56;
}

INLINE void consume(bit_reader *r, unsigned n)
{
    r->acc <<= n;
    r->count -= n;
}

/* The number of zeros below the lowest one of `bits`, which must not be 0. */
INLINE unsigned lowest_bit(uint64_t bits)
{
#if defined(__GNUC__)
    return (unsigned)__builtin_ctzll(bits);
#else
    unsigned n = 0;
    while (!(bits >> n & 1)) n++;
    return n;
#endif
}

/* The value of `size` bits at the top of `bits`, F.2.2.1 (EXTEND); 0 for size 0. Without a branch:
 * a sign is not to be guessed. */
INLINE uint32_t extend(uint64_t bits, unsigned size)
{
    uint32_t value = (uint32_t)(bits >> 1 >> (63 - size));
    uint32_t if_negative = (uint32_t)(bits >> 63) - 1;
    return value - (if_negative & ((1u << size) - 1));
}

/* Adds the difference to `value`; false for a code that the table has not. */
INLINE bool read_dc(bit_reader *r, const huff_table *t, uint32_t *value)
{
    refill(r);
    unsigned entry = t->level[r->acc >> (64 - DC_BITS)];
    unsigned used = entry & LENGTH_MASK, size = entry >> STEP_SHIFT;
    if (!LIKELY(entry)) {
        unsigned length = 0;
        int symbol = huff_slow_symbol(t, r->acc, &length);
        if (symbol < 0) return false;
        size = (unsigned)symbol;
        used = length + size;
    }
    *value += extend(r->acc << (used - size), size);
    consume(r, used);
    return true;
}

/* +-16383 is far outside what 8-bit samples give, and its differences still have a category. */
INLINE bool out_of_range(uint32_t dc) { return dc + 16383u > 32766u; }

#endif
