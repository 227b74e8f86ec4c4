/* The coefficients of a progressive JPEG file, which come in several scans. */
#ifndef SOPHON_LOADER_PROGRESSIVE_H
#define SOPHON_LOADER_PROGRESSIVE_H

#include "scan.h"

enum {
    /* Standard scripts have 10 scans, those of optimisers up to about 30. */
    MAX_SCANS = 64,
    /* Of coefficients, 128 bytes a block: a photo of 40 megapixels with halved chroma. */
    MAX_COEFFICIENT_NBYTES = 128 << 20
};

/* The blocks of one component, in whole rows of MCUs from the top of the picture. */
typedef struct {
    unsigned h, v;         /* blocks of an MCU */
    size_t width, height;  /* blocks that a scan of this component alone has */
    size_t stride, n_rows; /* blocks that are kept, and those that pad the last MCUs among them */
    int16_t *coefficients; /* 64 for each block, in rows */
    uint64_t *nonzero;     /* for each block, a bit for each zigzag index: which are not 0; but DC */
    int8_t exact_to[64];   /* for each zigzag index, the lowest bit that is known; -1 for none */
} coefficient_plane;

typedef struct {
    coefficient_plane planes[MAX_COMPONENTS];
    huff_table dc[4], ac[4];
    void *memory; /* of all planes; kept for the next file */
    size_t nbytes;
} progressive;

/* Bytes that `progressive_begin` takes for planes of which all but the pointers is set. */
size_t progressive_nbytes(const progressive *p, unsigned n_components);

/* Gets memory for the planes and sets their blocks to 0; false when memory is short. */
bool progressive_begin(progressive *p, unsigned n_components);

/* Reads all scans of a file whose header `f` has: the blocks that are kept become what libjpeg has
 * at the end of the file. NULL, or why the file must be left to it. */
const char *progressive_read(progressive *p, frame *f, scan *in);

void progressive_free(progressive *p);

#endif
