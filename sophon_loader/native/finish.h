/*
 * The end of a chain in one pass over memory: a window of the picture with a constant around it,
 * turned and mirrored, its values looked up in a table, written with the strides that the ops
 * themselves would leave.
 *
 * Knows no Python. Thread-safe: keeps nothing.
 */
#ifndef SOPHON_FINISH_H
#define SOPHON_FINISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The window covers px (left + x, top + y) of the picture for 0 <= x < width and 0 <= y < height;
 * what is outside of the picture is filled. Then it is transposed if so wanted, and then mirrored.
 *
 * pixels:      rows of the picture from the top, those of a pixel side by side.
 * fill:        `channels` values, for what lies outside.
 * item_nbytes: 1 or 4: of an item of the table and of the result.
 * table:       channels * 256 items; NULL for the values themselves, where item_nbytes is 1.
 * strides:     of the result, in items: from one channel, row and column to the next; may be
 * negative.
 */
typedef struct {
    const uint8_t *pixels;
    size_t in_width, in_height, channels;
    ptrdiff_t left, top;
    size_t width, height;
    const uint8_t *fill;
    bool transpose, flip_horizontal, flip_vertical;
    const void *table;
    size_t item_nbytes;
    ptrdiff_t strides[3];
} finish_job;

/* Writes [channels, height, width] items, or [channels, width, height] if transposed, from `out`,
 * the first item, on. */
void finish(const finish_job *job, void *out);

#endif
