/*
 * Decodes a rectangle of a JPEG file to the pixels that Pillow gives, to the last bit, or not at
 * all. Knows no Python and uses no JPEG library.
 *
 * Whatever is unusual or damaged is given up: the caller lets Pillow decode that file, or fail.
 */
#ifndef SOPHON_LOADER_DECODE_H
#define SOPHON_LOADER_DECODE_H

#include "frame.h"
#include "pixels.h"

typedef enum { DECODE_OK, DECODE_GIVEN_UP, DECODE_NO_MEMORY } decode_status;

/* Buffers and tables of one decoder. Those of its last file serve the next. */
typedef struct decode_ctx decode_ctx;

decode_ctx *decode_new(void); /* NULL when memory is short */
void decode_free(decode_ctx *ctx);

/*
 * Reads the header and chooses what to decode. `src` must stay, unchanged, until decode_run is done.
 *   rect: not empty and inside the picture, else the file is given up. Of width and height 0: all
 *         of the picture, and is set to that.
 *   n_channels: set to 1 for grey and 3 for RGB
 * Where this returns DECODE_OK the file has at least two bits for each block that must be read, so
 * that a small file cannot ask for much memory.
 */
decode_status decode_begin(decode_ctx *ctx, const uint8_t *src, size_t src_nbytes,
                           jpegcrop_rect *rect, unsigned *n_channels);

/* Decodes what decode_begin chose: rows of width * n_channels bytes, without gaps. */
decode_status decode_run(decode_ctx *ctx, const pixel_ops *ops, uint8_t *out);

/* Why the last file was given up. */
const char *decode_reason(const decode_ctx *ctx);

/* Bytes that the buffers hold. */
size_t decode_nbytes(const decode_ctx *ctx);

#endif
