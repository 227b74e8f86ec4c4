/* Huffman tables made for walking over a scan fast, without the coefficients' values. */
#ifndef SOPHON_LOADER_HUFFMAN_H
#define SOPHON_LOADER_HUFFMAN_H

#include <stdbool.h>

#include "frame.h"

enum {
    MAX_CATEGORY = 15,

    /* Two AC tables of 12 bits fit a 32 KiB first-level cache. In one run each over 309 files, 10 and
     * 11 bits were 6-8 % slower; 13 was within the noise of 12, for double the cache and the time to
     * build. DC codes are short. */
    AC_BITS = 12,
    DC_BITS = 9,

    STEP_SHIFT = 5,
    STEP_SLOW = 512,
    STEP_EOB = 1024,
    LENGTH_MASK = 31
};

/*
 * An AC entry resolves as many whole symbols as fit AC_BITS bits of look-ahead:
 *   bits 0..4   bits used up, codes and values; the last value may reach past the look-ahead, as it
 *               is skipped and never looked at
 *   bits 5..15  how far the coefficient index moves, plus STEP_EOB if the last symbol ends the
 *               block; STEP_SLOW alone for a code longer than the look-ahead, or no code at all
 * A DC entry resolves one symbol: bits 0..4 bits used up, bits 5..8 category; 0 = slow.
 */
typedef struct {
    bool built;
    uint8_t counts[MAX_CODE_LENGTH]; /* the definition, to recognise it in the next file */
    uint8_t symbols[MAX_SYMBOLS];
    /* Canonical decoding, F.2.2.3, with limits aligned to 16 bits so that they never fall. */
    uint32_t limit[MAX_CODE_LENGTH + 1];
    int32_t offset[MAX_CODE_LENGTH + 1];
    /* DC: one table, from 0. AC: the table for b bits of look-ahead begins at 1 << b. */
    uint16_t level[2 << AC_BITS];
} huff_table;

/* Makes `t` the table defined at `counts`; false for one that libjpeg refuses. Many files share the
 * tables of T.81 Annex K: a table that `t` holds already is not built again. */
bool huff_load_dc(huff_table *t, const uint8_t *counts);
bool huff_load_ac(huff_table *t, const uint8_t *counts);

/* For one AC symbol at a time, as in progressive scans: entries as of DC, with all 8 bits of the
 * symbol in bits 5..12. `t` must be used for nothing else. */
bool huff_load_symbols(huff_table *t, const uint8_t *counts);

/* Only what `huff_slow_symbol` needs, and none of the look-up tables. */
bool huff_load_codes(huff_table *t, const uint8_t *counts);

/* The symbol at the top of `acc`, bit by bit, and its code length; -1 for no code. */
int huff_slow_symbol(const huff_table *t, uint64_t acc, unsigned *length);

#endif
