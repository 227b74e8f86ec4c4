/*
 * Lossless rectangle crop of a JPEG file, done in its entropy-coded bits.
 *
 * From a baseline JPEG and a rectangle this makes a smaller JPEG that holds the minimum coded
 * units (MCUs) covering the rectangle. Nothing is dequantised: AC bits are copied as they stand and
 * only the first DC difference of each kept row is coded anew. Decoded and cut at (dx, dy), the
 * result equals the rectangle cut from the decoded original in every pixel, for a decoder that
 * up-samples chroma as libjpeg does.
 *
 * Supported: 8-bit sequential Huffman JPEG (SOF0, SOF1) with one component, or with three in one
 * interleaved scan; any integral sampling factors; restart intervals. Everything else is refused
 * with a reason, and the caller is meant to use the whole file instead. Of a file with several
 * pictures (MPF, as Ultra HDR photos are) the first is cropped, which is the one that Pillow loads.
 *
 * Rectangles are in stored coordinates. Unless metadata is kept, an EXIF orientation is dropped along
 * with EXIF itself: then a caller that turns pictures by it must not crop them here.
 *
 * The library knows nothing of Python, reads no files, keeps no global state and never prints.
 */
#ifndef SOPHON_LOADER_JPEGCROP_H
#define SOPHON_LOADER_JPEGCROP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Larger files and larger pictures are refused before any buffer is sized after them. The pixel
 * limit is the one above which Pillow warns of a decompression bomb: that warning must stay. */
#define JPEGCROP_MAX_NBYTES ((size_t)1 << 28)
#define JPEGCROP_MAX_PIXELS ((uint64_t)89478485)
/* For what is kept of metadata. */
#define JPEGCROP_MAX_METADATA_NBYTES ((size_t)1 << 16)
/* libjpeg's own limit for a side. */
#define JPEGCROP_MAX_SIDE_PX 65500u

typedef enum {
    JPEGCROP_OK = 0,
    JPEGCROP_UNSUPPORTED = 1, /* a sound file, perhaps, but of a kind that is not cropped here */
    JPEGCROP_CORRUPT = 2,     /* not a JPEG, or damaged where we had to read it */
    JPEGCROP_BAD_RECT = 3,    /* empty, or not wholly inside the picture */
    JPEGCROP_NO_MEMORY = 4,
    JPEGCROP_TOO_LARGE = 5 /* over one of the limits above */
} jpegcrop_status;

/* A rectangle in pixels of the stored picture. */
typedef struct {
    uint32_t x, y, width, height;
} jpegcrop_rect;

/* What the header alone says. */
typedef struct {
    uint32_t width, height; /* pixels; both 0 when the frame header was not reached */
    unsigned components;    /* 0 when the frame header was not reached */
    bool several;           /* there is an index of several pictures (MPF), sound or not */
    const char *reason;     /* static text; empty when the file can be cropped */
} jpegcrop_info;

typedef struct {
    const uint8_t *data; /* the new JPEG: owned by the context, valid until its next call */
    size_t nbytes;
    uint32_t dx, dy;    /* where the wanted rectangle begins inside the decoded new JPEG, pixels */
    const char *reason; /* static text; empty on JPEGCROP_OK */
} jpegcrop_result;

/* Scratch memory and Huffman tables, kept from call to call. A context serves one call at a time;
 * threads that crop at once need one each. */
typedef struct jpegcrop_ctx jpegcrop_ctx;

/* Returns NULL when memory is short. */
jpegcrop_ctx *jpegcrop_new(void);

/* Frees the context and the last result. NULL is allowed. */
void jpegcrop_free(jpegcrop_ctx *ctx);

/*
 * Reads the header of a JPEG up to its first scan, or up to what makes it unsupported.
 *
 * `info` is always filled in. The size is given for kinds that are not supported too (progressive,
 * CMYK, ...) if their frame header is sound. JPEGCROP_OK says that a crop may be tried; damage in
 * the scan shows only then.
 */
jpegcrop_status jpegcrop_size(const uint8_t *src, size_t src_nbytes, jpegcrop_info *info);

/*
 * Crops `src` to the MCUs that cover `rect`.
 *
 * `result` is always filled in; on anything but JPEGCROP_OK its data is NULL. The result is
 * usually, not always, smaller than `src`: a rectangle may cover it all.
 *
 * With `keep_metadata` it has the APPn and COM segments of `src` as they are, in their order, in
 * front of all others; without, only what a decoder needs of JFIF and Adobe. An index of several
 * pictures cannot be kept.
 *
 * Every MCU up to the last kept one is checked; behind it, up to the end-of-image marker, only the
 * markers are. A file without that marker is JPEGCROP_CORRUPT.
 */
jpegcrop_status jpegcrop_crop(jpegcrop_ctx *ctx, const uint8_t *src, size_t src_nbytes,
                              jpegcrop_rect rect, bool keep_metadata, jpegcrop_result *result);

/* A word for logs: "ok", "unsupported", "corrupt", "bad_rect", "no_memory", "too_large". */
const char *jpegcrop_status_name(jpegcrop_status status);

#ifdef __cplusplus
}
#endif

#endif
