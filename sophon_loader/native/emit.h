/* Writing a JPEG file: entropy-coded bits, DC codes, and the header in front of them. */
#ifndef SOPHON_LOADER_EMIT_H
#define SOPHON_LOADER_EMIT_H

#include "huffman.h"

enum { EMIT_HEADER_NBYTES = 2560 /* without metadata, never more than about 2150 */ };

/* A growing output file. Its header is written last, right-aligned in the room left for it, because
 * writing the scan may add to the DC tables. */
typedef struct {
    uint8_t *data;
    size_t capacity, used, room; /* the last: bytes left for the header */
    uint64_t acc; /* the last `fill` (< 64) bits, at the bottom */
    unsigned fill;
} bit_writer;

/* A DC table as the output has it: the source's, plus categories it turned out to lack. */
typedef struct {
    uint8_t counts[MAX_CODE_LENGTH];
    uint8_t symbols[MAX_SYMBOLS];
    unsigned n_symbols;
    unsigned longest, next_code; /* length and value of the free code behind the last one */
    uint16_t code[MAX_CATEGORY + 1];
    uint8_t length[MAX_CATEGORY + 1]; /* 0 = no code */
} dc_coder;

/* Starts a new file in the buffer of the last one, with room for that much metadata; false when
 * memory is short. */
bool emit_begin(bit_writer *w, size_t metadata_nbytes);

/* Appends the bits [from, to) of `bits`, shifted to where the output stands. Up to 16 bytes behind
 * them must be readable. */
bool emit_copy(bit_writer *w, const uint8_t *bits, size_t from, size_t to);

void emit_load_coder(dc_coder *coder, const huff_table *t);

/* Appends a DC difference, within +-32767. */
jpegcrop_status emit_dc(bit_writer *w, dc_coder *coder, int32_t difference);

/* Ends the scan and writes the header of `f` with another size, and with its metadata where there is
 * room for it. Returns where the file begins in `w->data`; it ends at `w->used`. 0 when memory is
 * short. */
size_t emit_finish(bit_writer *w, const frame *f, const dc_coder coders[4], uint32_t width,
                   uint32_t height);

void emit_free(bit_writer *w);

#endif
