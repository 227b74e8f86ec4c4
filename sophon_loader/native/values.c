/* See values.h. */
#include "values.h"

#include <string.h>

enum { N_ENTRIES = 1 << VALUE_BITS, MOVE_MASK = 255 << VALUE_MOVE_SHIFT, USED_MASK = 63 };

static uint32_t move_by(unsigned n) { return n << VALUE_MOVE_SHIFT; }

static int32_t last_of(uint32_t entry) { return (int32_t)entry >> VALUE_LAST_SHIFT; }

static uint32_t *fill32(uint32_t *at, size_t n, uint32_t value)
{
    while (n--) *at++ = value;
    return at;
}

/* The entries of one symbol with a value of `size` bits, of which the look-ahead has `seen`. */
static uint32_t *place_values(uint32_t *out, unsigned left, unsigned run, unsigned size,
                              uint32_t used)
{
    unsigned seen = size < left ? size : left;
    for (unsigned bits = 0; bits < 1u << seen; bits++) {
        int32_t value = (int32_t)(bits << (size - seen));
        if (!(bits >> (seen - 1))) value += 1 - (1 << size); /* F.2.2.1 (EXTEND) */
        uint32_t entry = used | move_by(run + 1) | run << VALUE_RUN_SHIFT;
        out = fill32(out, (size_t)1 << (left - seen), entry | (uint32_t)value << VALUE_LAST_SHIFT);
    }
    return out;
}

static uint32_t *place_symbol(uint32_t *out, unsigned length, unsigned symbol)
{
    unsigned run = symbol >> 4, size = symbol & 15, left = VALUE_BITS - length;
    size_t span = (size_t)1 << left;
    if (size == 0 && run == 15)
        return fill32(out, span, length | move_by(16) | run << VALUE_RUN_SHIFT);
    if (size == 0) return fill32(out, span, length | move_by(VALUE_ENDS + 1));
    if (size > 8 || left == 0 || length + size > VALUE_MAX_USED)
        return fill32(out, span, move_by(VALUE_SLOW));
    return place_values(out, left, run, size, length + size);
}

static bool is_plain(uint32_t entry)
{
    return !(entry & move_by(VALUE_SLOW | VALUE_ENDS));
}

/* What the bits behind `entry` say, as far as they are all in the look-ahead; VALUE_SLOW if not. */
static uint32_t behind(const uint32_t *single, size_t bits, uint32_t entry)
{
    unsigned used = entry & USED_MASK;
    if (used >= VALUE_BITS) return move_by(VALUE_SLOW);
    uint32_t next = single[bits << used & (N_ENTRIES - 1)];
    return used + (next & USED_MASK) <= VALUE_BITS ? next : move_by(VALUE_SLOW);
}

static bool ends_alone(uint32_t entry)
{
    return (entry & (uint32_t)MOVE_MASK) == move_by(VALUE_ENDS + 1) && last_of(entry) == 0;
}

static uint32_t with_end(const uint32_t *single, size_t bits, uint32_t entry)
{
    uint32_t next = behind(single, bits, entry);
    if (!ends_alone(next) || last_of(entry) == 0) return entry;
    return entry + (next & USED_MASK) + move_by(VALUE_ENDS);
}

/* One symbol joined with those behind it. */
static uint32_t joined(const uint32_t *single, size_t bits)
{
    uint32_t first = single[bits];
    if (!is_plain(first)) return first;
    uint32_t next = behind(single, bits, first);
    int32_t value = last_of(first);
    if (is_plain(next) && value >= -16 && value < 16) {
        uint32_t keep = first & 15u << VALUE_RUN_SHIFT;
        uint32_t sums = (first & (USED_MASK | MOVE_MASK)) + (next & (USED_MASK | MOVE_MASK));
        first = keep | sums | ((uint32_t)value & 31) << VALUE_FIRST_SHIFT |
                (next & ~0u << VALUE_LAST_SHIFT);
    }
    return with_end(single, bits, first);
}

static bool holds(const value_table *t, const uint8_t *counts)
{
    return t->built && memcmp(t->counts, counts, MAX_CODE_LENGTH) == 0 &&
           memcmp(t->symbols, counts + MAX_CODE_LENGTH, huff_n_symbols(counts)) == 0;
}

void value_load(value_table *t, const uint8_t *counts)
{
    if (holds(t, counts)) return;
    uint32_t single[N_ENTRIES], *out = single;
    const uint8_t *symbol = counts + MAX_CODE_LENGTH;
    for (unsigned length = 1; length <= VALUE_BITS; length++)
        for (unsigned i = 0; i < counts[length - 1]; i++)
            out = place_symbol(out, length, *symbol++);
    fill32(out, (size_t)(single + N_ENTRIES - out), move_by(VALUE_SLOW)); /* longer codes, or none */
    for (size_t bits = 0; bits < N_ENTRIES; bits++) t->entry[bits] = joined(single, bits);
    memcpy(t->counts, counts, MAX_CODE_LENGTH);
    memcpy(t->symbols, counts + MAX_CODE_LENGTH, huff_n_symbols(counts));
    t->built = true;
}
