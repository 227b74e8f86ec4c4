/* Huffman tables that give AC coefficients: several symbols and their values in one look-up. */
#ifndef SOPHON_LOADER_VALUES_H
#define SOPHON_LOADER_VALUES_H

#include "frame.h"

enum {
    /* Files have tables of their own, so that building is a cost of each file: 8 KiB a table. */
    VALUE_BITS = 11,
    /* A look-up uses at most this many bits, so that one refill of 56 bits serves three. */
    VALUE_MAX_USED = 18,

    VALUE_MOVE_SHIFT = 6,
    VALUE_RUN_SHIFT = 14,
    VALUE_FIRST_SHIFT = 18,
    VALUE_LAST_SHIFT = 23,
    VALUE_SLOW = 64,
    VALUE_ENDS = 128
};

/*
 * An entry resolves one or two coefficients, and an end of the block behind them:
 *   bits 0..5    bits used, codes and values
 *   bits 6..13   how far the coefficient index moves to the last of them, plus VALUE_ENDS if the
 *                block ends there; VALUE_SLOW for what does not fit an entry
 *   bits 14..17  zeros in front of the first
 *   bits 18..22  the first of two, signed; 0 where there is one
 *   bits 23..31  the last, signed. Where more than VALUE_BITS bits are used, its lowest bits lie
 *                behind the look-ahead: they are 0 here, and are to be added.
 * An end of the block alone counts as one coefficient of 0.
 */
typedef struct {
    bool built;
    uint8_t counts[MAX_CODE_LENGTH]; /* the definition, to recognise it in the next file */
    uint8_t symbols[MAX_SYMBOLS];
    uint32_t entry[1 << VALUE_BITS];
} value_table;

/* Makes `t` the table defined at `counts`, which must be one that libjpeg does not refuse. */
void value_load(value_table *t, const uint8_t *counts);

#endif
