/* What the APPn and COM segments mean to Pillow, so that no crop hides what it would refuse. */
#ifndef SOPHON_LOADER_METADATA_H
#define SOPHON_LOADER_METADATA_H

#include "frame.h"

static inline bool is_metadata(unsigned marker)
{
    return (marker >= MARKER_APP0 && marker <= MARKER_APP15) || marker == MARKER_COM;
}

/* Takes in one such segment. */
jpegcrop_status metadata_parse(frame *f, unsigned marker, const uint8_t *body, size_t n);

/* Judges them together, when the header has been read. */
jpegcrop_status metadata_check(frame *f);

/* Whether a crop may keep them. */
jpegcrop_status metadata_check_kept(frame *f);

/* Copies them as they are, `f->metadata_nbytes` bytes. */
void metadata_copy(const frame *f, uint8_t *to);

#endif
