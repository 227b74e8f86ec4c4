/* The header of a JPEG file: what its segments up to the first scan say. */
#ifndef SOPHON_LOADER_FRAME_H
#define SOPHON_LOADER_FRAME_H

#include "jpegcrop.h"

#include <stdbool.h>

enum {
    MARKER_SOF0 = 0xC0,
    MARKER_SOF1 = 0xC1,
    MARKER_SOF2 = 0xC2,
    MARKER_DHT = 0xC4,
    MARKER_JPG = 0xC8,
    MARKER_DAC = 0xCC,
    MARKER_SOF15 = 0xCF,
    MARKER_RST0 = 0xD0,
    MARKER_SOI = 0xD8,
    MARKER_EOI = 0xD9,
    MARKER_SOS = 0xDA,
    MARKER_DQT = 0xDB,
    MARKER_DRI = 0xDD,
    MARKER_APP0 = 0xE0,
    MARKER_APP1 = 0xE1,
    MARKER_APP2 = 0xE2,
    MARKER_APP13 = 0xED,
    MARKER_APP14 = 0xEE,
    MARKER_APP15 = 0xEF,
    MARKER_COM = 0xFE,

    MAX_COMPONENTS = 3,
    MAX_BLOCKS = 10, /* per MCU, B.2.3 */
    MAX_CODE_LENGTH = 16,
    MAX_SYMBOLS = 256,

    /* The part of these segments that means something to a decoder. */
    JFIF_NBYTES = 14,
    ADOBE_NBYTES = 12
};

typedef struct {
    uint8_t id, h, v, quant, dc, ac; /* the last three are table numbers, 0..3 */
} component;

/* Pointers lead into the source file. */
typedef struct {
    uint32_t width, height; /* pixels */
    unsigned n_components;
    uint8_t sof; /* marker */
    component comp[MAX_COMPONENTS];
    unsigned h_max, v_max;
    unsigned restart_interval;    /* MCUs; 0 = none */
    const uint8_t *jfif, *adobe;  /* segment bodies, or NULL */
    const uint8_t *exif;          /* its TIFF part, or NULL */
    size_t exif_nbytes;
    const uint8_t *index;         /* of several pictures (MPF), its TIFF part, or NULL */
    size_t index_nbytes;
    bool has_late_profile;        /* a colour profile behind the frame header */
    size_t metadata_nbytes;       /* all APPn and COM segments */
    const uint8_t *quant[4];      /* at the precision/number byte, or NULL */
    const uint8_t *dc[4], *ac[4]; /* Huffman tables at their 16 counts, or NULL */
    const uint8_t *header;        /* the first segment */
    const uint8_t *scan, *end;    /* entropy-coded bytes and all behind them */
    const uint8_t *scan_header;   /* the body of the first, which is not read where `is_progressive` */
    size_t scan_header_nbytes;
    bool is_progressive;
    const char *reason;           /* why it was refused; else empty */
} frame;

static inline unsigned load16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }

/* Fills in `f` as far as the header is sound, and says whether the file can be cropped; or decoded,
 * where `f` may be progressive. */
jpegcrop_status frame_parse(frame *f, const uint8_t *src, size_t n, bool may_be_progressive);

/* Takes in the tables between two scans of a progressive file, from the byte behind an FF on. `at`
 * comes to stand at such a byte of the next scan header, all of which is there, or of the end of
 * the image. False for whatever else is there. */
bool frame_parse_between(frame *f, const uint8_t **at);

/* Sets the reason and returns `status`. */
jpegcrop_status frame_refuse(frame *f, jpegcrop_status status, const char *reason);

/* Bytes of the quantisation table that begins at its precision/number byte. */
size_t quant_nbytes(const uint8_t *table);

/* Number of symbols of the Huffman table that begins at its 16 counts. */
unsigned huff_n_symbols(const uint8_t *counts);

#endif
