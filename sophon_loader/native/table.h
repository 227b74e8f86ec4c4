/*
 * A table for each channel, applied to the pixels of a picture: what a chain's last ops make of a
 * pixel's value depends on nothing else, so 256 results per channel are all that they can give.
 *
 * Knows no Python. Thread-safe: keeps nothing.
 */
#ifndef SOPHON_TABLE_H
#define SOPHON_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * out[c][i] = table[c][pixels[i][c]] for each pixel i and channel c.
 *
 * pixels: area * channels values, those of a pixel side by side.
 * table:  channels * 256 items.
 * out:    area * channels items: all of channel 0, then all of channel 1, ... (planes), or those of
 *         a pixel side by side. Overlaps neither of the others.
 * item_nbytes: 1, 2, 4 or 8; `table` and `out` are aligned to it.
 *
 * Returns false, having written nothing, if item_nbytes is another number.
 */
bool table_apply(const uint8_t *pixels, size_t area, size_t channels, const void *table, void *out,
                 size_t item_nbytes, bool planes);

#endif
