/* Reading the entropy-coded bits: walks over MCUs, keeping track of DC values and bit positions. */
#ifndef SOPHON_LOADER_SCAN_H
#define SOPHON_LOADER_SCAN_H

#include "huffman.h"

/* `acc` holds `count` unread bits at its top, and below them bits that `next` will give again. */
typedef struct {
    uint64_t acc;
    unsigned count;
    const uint8_t *next;
} bit_reader;

/* One block of the MCU. */
typedef struct {
    const huff_table *dc, *ac;
    unsigned comp;
} block_plan;

/* A scan, or, with restart intervals, the segment of it up to the next marker. */
typedef struct {
    block_plan plan[MAX_BLOCKS];
    unsigned n_blocks;
    unsigned restart_interval; /* MCUs; 0 = none */

    const uint8_t *raw, *end; /* source bytes not yet in `bits` */
    uint8_t *bits;            /* the segment without byte stuffing, as far as it was needed */
    size_t capacity, filled;
    bool closed;          /* a marker or the end of the file was met: no more bytes will come */
    uint8_t marker;       /* which; 0 = end of file */
    const uint8_t *watch; /* a reader beyond it must be topped up */
    bit_reader reader;

    uint32_t dc_value[MAX_COMPONENTS]; /* unsigned, as damaged files may wrap it around */
    bool wild;            /* a DC value out of any sane range, or fill bytes before a stuffed zero */
    size_t until_restart;              /* MCUs; SIZE_MAX = never */
    unsigned next_restart;             /* 0..7 */
} scan;

/* Where things lie in the first MCU of a run. */
typedef struct {
    /* Of each component's first block: bit position of the DC code and of what follows it. */
    size_t dc_at[MAX_COMPONENTS], ac_at[MAX_COMPONENTS];
    uint32_t value[MAX_COMPONENTS]; /* its DC value */
} first_mcu;

/* Begins at `raw`; false when memory is short. `plan`, `n_blocks` and `restart_interval` are the
 * caller's to set. The buffer is kept for the next scan. */
bool scan_begin(scan *s, const uint8_t *raw, const uint8_t *end);

/* Steps over a restart marker; false if it is not where, or not the one, it should be. */
bool scan_restart(scan *s);

/* Walks over `n` MCUs, which must not span a restart; false if they are damaged. */
bool scan_walk(scan *s, size_t n);

/* Walks over one MCU and notes where its parts lie. */
bool scan_walk_first(scan *s, first_mcu *mcu);

/* Makes the bytes of at least one more MCU readable; false if the last MCU overran the segment. To
 * be called before an MCU where `r` is beyond `watch`. */
bool scan_top_up(scan *s, const bit_reader *r);

/* Bits of the segment read so far. */
size_t scan_position(const scan *s);

/* Finds the marker behind the scan, restarts apart, in what was not walked over: `marker` comes to
 * stand at the byte behind its FF. NULL, or what is wrong. */
const char *scan_find_marker(const scan *s, const uint8_t **marker);

/* Looks at the markers in what was not walked over: NULL if only restarts and the end-of-image
 * marker are there, else what is wrong. */
const char *scan_check_tail(const scan *s);

void scan_free(scan *s);

/* Written so that compilers make one load and a byte swap of it. */
static inline uint64_t load64(const uint8_t *p)
{
    return (uint64_t)p[0] << 56 | (uint64_t)p[1] << 48 | (uint64_t)p[2] << 40 |
           (uint64_t)p[3] << 32 | (uint64_t)p[4] << 24 | (uint64_t)p[5] << 16 |
           (uint64_t)p[6] << 8 | (uint64_t)p[7];
}

#endif
