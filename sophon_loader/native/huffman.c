/* See huffman.h. */
#include "huffman.h"

#include <string.h>

static bool holds(const huff_table *t, const uint8_t *counts)
{
    return t->built && memcmp(t->counts, counts, MAX_CODE_LENGTH) == 0 &&
           memcmp(t->symbols, counts + MAX_CODE_LENGTH, huff_n_symbols(counts)) == 0;
}

/* False for more codes than bits, or an all-ones code: libjpeg refuses both. */
static bool derive_codes(huff_table *t, const uint8_t *counts)
{
    uint32_t code = 0;
    int32_t first = 0;
    for (int length = 1; length <= MAX_CODE_LENGTH; length++) {
        unsigned n = counts[length - 1];
        t->offset[length] = first - (int32_t)code;
        code += n;
        first += (int32_t)n;
        if (n && code >= 1u << length) return false;
        t->limit[length] = code << (MAX_CODE_LENGTH - length);
        code <<= 1;
    }
    memcpy(t->counts, counts, MAX_CODE_LENGTH);
    memcpy(t->symbols, counts + MAX_CODE_LENGTH, (size_t)first);
    return true;
}

static void fill16(uint16_t *at, size_t n, unsigned value)
{
    for (size_t i = 0; i < n; i++) at[i] = (uint16_t)value;
}

/* Entries of one symbol each, whose lower four bits say how many bits follow its code. */
static bool build_symbols(huff_table *t, unsigned largest)
{
    uint16_t *fast = t->level;
    const uint8_t *symbol = t->symbols;
    memset(fast, 0, sizeof *fast << DC_BITS);
    for (unsigned length = 1; length <= MAX_CODE_LENGTH; length++) {
        for (unsigned i = 0; i < t->counts[length - 1]; i++, symbol++) {
            if (*symbol > largest) return false;
            if (length > DC_BITS) continue;
            size_t span = (size_t)1 << (DC_BITS - length);
            fill16(fast, span, (length + (*symbol & 15u)) | (unsigned)*symbol << STEP_SHIFT);
            fast += span;
        }
    }
    return true;
}

/* Writes the entries of one AC symbol into the table for `bits` bits of look-ahead. What follows
 * its value bits is the same question with fewer bits, answered by a smaller table. */
static uint16_t *place_ac(huff_table *t, uint16_t *out, unsigned bits, unsigned length,
                          unsigned symbol)
{
    unsigned run = symbol >> 4, size = symbol & 15;
    bool ends = size == 0 && run != 15; /* r/0 ends the block for every r < 15, as in libjpeg */
    unsigned used = length + size;
    unsigned entry = used | (ends ? STEP_EOB : run + 1) << STEP_SHIFT;
    if (ends || used >= bits) {
        size_t span = (size_t)1 << (bits - length);
        fill16(out, span, entry);
        return out + span;
    }
    size_t n_rest = (size_t)1 << (bits - used);
    const uint16_t *rest = t->level + n_rest;
    for (unsigned value = 0; value < 1u << size; value++, out += n_rest)
        for (size_t i = 0; i < n_rest; i++) out[i] = (uint16_t)(rest[i] + entry);
    return out;
}

static void build_ac(huff_table *t)
{
    t->level[1] = 0; /* no bits left: no symbol */
    for (unsigned bits = 1; bits <= AC_BITS; bits++) {
        uint16_t *out = t->level + ((size_t)1 << bits), *end = out + ((size_t)1 << bits);
        const uint8_t *symbol = t->symbols;
        for (unsigned length = 1; length <= bits; length++)
            for (unsigned i = 0; i < t->counts[length - 1]; i++)
                out = place_ac(t, out, bits, length, *symbol++);
        unsigned none = bits == AC_BITS ? STEP_SLOW << STEP_SHIFT : 0;
        fill16(out, (size_t)(end - out), none);
    }
}

bool huff_load_dc(huff_table *t, const uint8_t *counts)
{
    if (holds(t, counts)) return true;
    t->built = derive_codes(t, counts) && build_symbols(t, MAX_CATEGORY);
    return t->built;
}

bool huff_load_symbols(huff_table *t, const uint8_t *counts)
{
    if (holds(t, counts)) return true;
    t->built = derive_codes(t, counts) && build_symbols(t, UINT8_MAX);
    return t->built;
}

bool huff_load_ac(huff_table *t, const uint8_t *counts)
{
    if (holds(t, counts)) return true;
    t->built = derive_codes(t, counts);
    if (t->built) build_ac(t);
    return t->built;
}

bool huff_load_codes(huff_table *t, const uint8_t *counts)
{
    if (holds(t, counts)) return true;
    t->built = false;
    return derive_codes(t, counts);
}

int huff_slow_symbol(const huff_table *t, uint64_t acc, unsigned *length)
{
    uint32_t peek = (uint32_t)(acc >> 48);
    for (unsigned n = 1; n <= MAX_CODE_LENGTH; n++) {
        if (peek >= t->limit[n]) continue;
        *length = n;
        return t->symbols[t->offset[n] + (int32_t)(peek >> (MAX_CODE_LENGTH - n))];
    }
    return -1;
}
