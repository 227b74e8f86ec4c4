/* See metadata.h. */
#include "metadata.h"

#include <string.h>

static jpegcrop_status damaged(frame *f, const char *reason)
{
    return frame_refuse(f, JPEGCROP_CORRUPT, reason);
}

static uint32_t load32(const uint8_t *p) { return (uint32_t)load16(p) << 16 | load16(p + 2); }

static bool starts_with(const uint8_t *body, size_t n, const char *word, size_t word_nbytes)
{
    return n >= word_nbytes && memcmp(body, word, word_nbytes) == 0;
}

/* Pillow gives up on a Photoshop segment that ends exactly behind a resource code. What Pillow
 * refuses must not become readable because the crop drops the segment. */
static bool photoshop_is_sound(const uint8_t *body, size_t n)
{
    size_t at = 14;
    while (n - at >= 12 && memcmp(body + at, "8BIM", 4) == 0) {
        at += 6;
        at += 1 + (size_t)body[at];
        at += at & 1;
        if (at > n || n - at < 4) return true;
        size_t size = load32(body + at);
        at += 4;
        if (size > n - at) return true;
        at += size;
        at += at & 1;
        if (at > n) return true;
    }
    return !(n - at == 6 && memcmp(body + at, "8BIM", 4) == 0);
}

/* `n` (2 or 4) bytes in the byte order of a TIFF header. */
static uint32_t load_tiff(const uint8_t *tiff, size_t at, size_t n)
{
    uint32_t value = 0;
    for (size_t i = 0; i < n; i++)
        value = value << 8 | tiff[at + (tiff[0] == 'M' ? i : n - 1 - i)];
    return value;
}

/* Where JFIF gives no density Pillow takes it from EXIF, and gives up on a horizontal resolution
 * that is a string of under two bytes, say. Only a single rational is surely fine. */
static bool exif_density_is_sound(const uint8_t *tiff, size_t n)
{
    enum { X_RESOLUTION = 0x011A, RATIONAL = 5, ENTRY_NBYTES = 12 };
    if (!starts_with(tiff, n, "MM\0*", 4) && !starts_with(tiff, n, "II*\0", 4)) return false;
    size_t at = n < 8 ? n : load_tiff(tiff, 4, 4);
    if (at > n || n - at < 2) return false;
    unsigned n_entries = load_tiff(tiff, at, 2);
    at += 2;
    for (unsigned i = 0; i < n_entries && n - at >= ENTRY_NBYTES; i++, at += ENTRY_NBYTES)
        if (load_tiff(tiff, at, 2) == X_RESOLUTION &&
            (load_tiff(tiff, at + 2, 2) != RATIONAL || load_tiff(tiff, at + 4, 4) != 1))
            return false;
    return true;
}

static bool has_sound_density(const frame *f)
{
    bool in_jfif = f->jfif && (f->jfif[7] == 1 || f->jfif[7] == 2); /* per inch, per cm */
    return in_jfif || !f->exif || exif_density_is_sound(f->exif, f->exif_nbytes);
}

/* An index of pictures (CIPA DC-007, 5.2.3): a TIFF directory of these two, and others. */
enum {
    TAG_N_PICTURES = 0xB001,
    TAG_PICTURES = 0xB002,
    TIFF_LONG = 4,
    TIFF_UNDEFINED = 7,
    ENTRY_NBYTES = 12,
    PICTURE_NBYTES = 16,
    MAX_PICTURES = 256
};

/* Whether the first picture is the one at the beginning of the file, and all are JPEGs. */
static bool pictures_are_sound(const uint8_t *tiff, size_t at, size_t n_pictures)
{
    enum { BASELINE_PRIMARY = 0x03, MULTI_FRAME = 0x02, FORMAT = 7 << 24 };
    uint32_t type = load_tiff(tiff, at, 4) >> 16 & 0xFF;
    if (type != BASELINE_PRIMARY && type != MULTI_FRAME) return false;
    for (size_t i = 0; i < n_pictures; i++, at += PICTURE_NBYTES) {
        bool is_at_start = load_tiff(tiff, at + 8, 4) == 0;
        if (is_at_start != (i == 0) || load_tiff(tiff, at, 4) & FORMAT) return false;
    }
    return true;
}

/* Stricter than Pillow, which warns of what it cannot read here and takes the file for a plain one:
 * the file is sent whole, for that warning. */
static bool index_is_sound(const uint8_t *tiff, size_t n)
{
    if (!starts_with(tiff, n, "MM\0*", 4) && !starts_with(tiff, n, "II*\0", 4)) return false;
    size_t at = n < 8 ? n : load_tiff(tiff, 4, 4);
    if (at > n || n - at < 2) return false;
    size_t n_entries = load_tiff(tiff, at, 2), room = n, n_pictures = 0;
    size_t pictures = 0, pictures_nbytes = 0;
    at += 2;
    if ((n - at) / ENTRY_NBYTES < n_entries || n - at - n_entries * ENTRY_NBYTES < 4) return false;
    for (; n_entries; n_entries--, at += ENTRY_NBYTES) {
        uint32_t tag = load_tiff(tiff, at, 2), type = load_tiff(tiff, at + 2, 2);
        uint32_t count = load_tiff(tiff, at + 4, 4), value = load_tiff(tiff, at + 8, 4);
        if ((type != TIFF_LONG && type != TIFF_UNDEFINED) || count == 0 || count > n) return false;
        size_t nbytes = type == TIFF_LONG ? 4 * (size_t)count : count;
        if (nbytes > 4) {
            if (nbytes > room || value > n || n - value < nbytes) return false;
            room -= nbytes; /* Pillow leaves out what is more than the segment in all */
        }
        if (tag == TAG_N_PICTURES) {
            if (n_pictures || type != TIFF_LONG || count != 1) return false;
            if (value < 1 || value > MAX_PICTURES) return false;
            n_pictures = value;
        } else if (tag == TAG_PICTURES) {
            if (pictures_nbytes || type != TIFF_UNDEFINED || count % PICTURE_NBYTES) return false;
            pictures = value;
            pictures_nbytes = count;
        }
    }
    return n_pictures && pictures_nbytes == n_pictures * PICTURE_NBYTES &&
           pictures_are_sound(tiff, pictures, n_pictures);
}

jpegcrop_status metadata_parse(frame *f, unsigned marker, const uint8_t *body, size_t n)
{
    f->metadata_nbytes += 4 + n;
    if (marker == MARKER_APP0 && starts_with(body, n, "JFIF", 4)) {
        if (n < JFIF_NBYTES || body[4] != 0) return damaged(f, "damaged JFIF segment");
        f->jfif = body;
    } else if (marker == MARKER_APP14 && starts_with(body, n, "Adobe", 5)) {
        if (n < ADOBE_NBYTES) return damaged(f, "damaged Adobe segment");
        f->adobe = body;
    } else if (marker == MARKER_APP1 && starts_with(body, n, "Exif\0", 6)) {
        /* Pillow joins several; then the rest of a directory may lie elsewhere. */
        f->exif_nbytes = f->exif ? 0 : n - 6;
        f->exif = body + 6;
    } else if (marker == MARKER_APP2 && starts_with(body, n, "ICC_PROFILE", 12)) {
        if (n < 14) return damaged(f, "damaged ICC segment");
        f->has_late_profile |= f->sof != 0;
    } else if (marker == MARKER_APP2 && starts_with(body, n, "MPF", 4)) {
        f->index_nbytes = f->index ? 0 : n - 4;
        f->index = body + 4;
    } else if (marker == MARKER_APP13 && starts_with(body, n, "Photoshop 3.0", 14)) {
        if (!photoshop_is_sound(body, n)) return damaged(f, "damaged Photoshop segment");
    }
    return JPEGCROP_OK;
}

jpegcrop_status metadata_check(frame *f)
{
    if (!has_sound_density(f)) return damaged(f, "damaged EXIF segment");
    if (f->index && !index_is_sound(f->index, f->index_nbytes))
        return frame_refuse(f, JPEGCROP_UNSUPPORTED, "unusual index of several pictures (MPF)");
    return JPEGCROP_OK;
}

jpegcrop_status metadata_check_kept(frame *f)
{
    if (f->index)
        return frame_refuse(f, JPEGCROP_UNSUPPORTED, "an index of pictures (MPF) cannot be kept");
    /* Pillow reads a profile in front of the frame header only, where all of it will be. */
    if (f->has_late_profile)
        return frame_refuse(f, JPEGCROP_UNSUPPORTED, "colour profile behind the frame header");
    if (f->metadata_nbytes > JPEGCROP_MAX_METADATA_NBYTES)
        return frame_refuse(f, JPEGCROP_TOO_LARGE, "over 64 KiB of metadata");
    return JPEGCROP_OK;
}

void metadata_copy(const frame *f, uint8_t *to)
{
    for (const uint8_t *at = f->header; at < f->scan;) {
        while (at[1] == 0xFF) at++; /* fill bytes */
        size_t nbytes = 2 + (size_t)load16(at + 2);
        if (is_metadata(at[1])) {
            memcpy(to, at, nbytes);
            to += nbytes;
        }
        at += nbytes;
    }
}
