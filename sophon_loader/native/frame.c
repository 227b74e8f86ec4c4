/* See frame.h. Clause numbers, here and in the other files, are those of ITU-T T.81. */
#include "frame.h"

#include <string.h>

#include "metadata.h"

jpegcrop_status frame_refuse(frame *f, jpegcrop_status status, const char *reason)
{
    f->reason = reason;
    return status;
}

static jpegcrop_status unsupported(frame *f, const char *reason)
{
    return frame_refuse(f, JPEGCROP_UNSUPPORTED, reason);
}

static jpegcrop_status corrupt(frame *f, const char *reason)
{
    return frame_refuse(f, JPEGCROP_CORRUPT, reason);
}

static jpegcrop_status too_large(frame *f, const char *reason)
{
    return frame_refuse(f, JPEGCROP_TOO_LARGE, reason);
}

size_t quant_nbytes(const uint8_t *table) { return table[0] >> 4 ? 129 : 65; }

static jpegcrop_status parse_dqt(frame *f, const uint8_t *body, size_t n)
{
    while (n) {
        unsigned precision = body[0] >> 4, number = body[0] & 15;
        size_t table_nbytes = quant_nbytes(body);
        if (precision > 1 || number > 3 || n < table_nbytes)
            return corrupt(f, "damaged quantisation table");
        f->quant[number] = body;
        body += table_nbytes;
        n -= table_nbytes;
    }
    return JPEGCROP_OK;
}

unsigned huff_n_symbols(const uint8_t *counts)
{
    unsigned total = 0;
    for (int i = 0; i < MAX_CODE_LENGTH; i++) total += counts[i];
    return total;
}

static jpegcrop_status parse_dht(frame *f, const uint8_t *body, size_t n)
{
    while (n) {
        unsigned class = body[0] >> 4, number = body[0] & 15;
        if (class > 1 || number > 3 || n < 17) return corrupt(f, "damaged Huffman table");
        unsigned n_symbols = huff_n_symbols(body + 1);
        if (n_symbols > MAX_SYMBOLS || n - 17 < n_symbols) return corrupt(f, "damaged Huffman table");
        (class ? f->ac : f->dc)[number] = body + 1;
        body += 17 + n_symbols;
        n -= 17 + n_symbols;
    }
    return JPEGCROP_OK;
}

static jpegcrop_status parse_components(frame *f, const uint8_t *at)
{
    unsigned n_blocks = 0;
    for (unsigned i = 0; i < f->n_components; i++, at += 3) {
        component c = {.id = at[0], .h = at[1] >> 4, .v = at[1] & 15, .quant = at[2]};
        if (c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4 || c.quant > 3)
            return corrupt(f, "damaged frame header");
        for (unsigned j = 0; j < i; j++)
            if (f->comp[j].id == c.id) return unsupported(f, "component id used twice");
        f->comp[i] = c;
        if (c.h > f->h_max) f->h_max = c.h;
        if (c.v > f->v_max) f->v_max = c.v;
        n_blocks += c.h * c.v;
    }
    if (f->n_components > 1 && n_blocks > MAX_BLOCKS) return corrupt(f, "MCU of over 10 blocks");
    for (unsigned i = 0; i < f->n_components; i++)
        if (f->h_max % f->comp[i].h || f->v_max % f->comp[i].v)
            return unsupported(f, "fractional sampling");
    return JPEGCROP_OK;
}

static jpegcrop_status parse_sof(frame *f, unsigned marker, const uint8_t *body, size_t n)
{
    if (f->sof) return corrupt(f, "second frame header");
    if (n < 6 || n != 6 + 3 * (size_t)body[5]) return corrupt(f, "damaged frame header");
    f->sof = (uint8_t)marker;
    f->height = load16(body + 1);
    f->width = load16(body + 3);
    f->n_components = body[5];
    if (f->width == 0) return corrupt(f, "picture without width");
    if (f->height == 0) return unsupported(f, "height is given behind the scan (DNL)");
    if (f->width > JPEGCROP_MAX_SIDE_PX || f->height > JPEGCROP_MAX_SIDE_PX)
        return too_large(f, "side longer than 65500 pixels");
    if ((uint64_t)f->width * f->height > JPEGCROP_MAX_PIXELS)
        return too_large(f, "over 89 million pixels");
    f->is_progressive &= marker == MARKER_SOF2;
    if (marker != MARKER_SOF0 && marker != MARKER_SOF1 && !f->is_progressive)
        return unsupported(f, "progressive, lossless, hierarchical or arithmetic");
    if (body[0] != 8) return unsupported(f, "not 8 bits per sample");
    if (f->n_components != 1 && f->n_components != 3)
        return unsupported(f, "neither 1 nor 3 components");
    return parse_components(f, body + 6);
}

static jpegcrop_status check_quant(frame *f)
{
    for (unsigned i = 0; i < f->n_components; i++)
        if (!f->quant[f->comp[i].quant]) return corrupt(f, "quantisation table missing");
    return JPEGCROP_OK;
}

static jpegcrop_status parse_sos(frame *f, const uint8_t *body, size_t n)
{
    if (!f->sof) return corrupt(f, "scan without frame header");
    f->scan_header = body;
    f->scan_header_nbytes = n;
    if (f->is_progressive) return check_quant(f);
    if (n < 1 || n != 4 + 2 * (size_t)body[0]) return corrupt(f, "damaged scan header");
    if (body[0] != f->n_components) return unsupported(f, "several scans");
    const uint8_t *at = body + 1;
    for (unsigned i = 0; i < f->n_components; i++, at += 2) {
        component *c = &f->comp[i];
        if (at[0] != c->id) return unsupported(f, "components in another order in the scan");
        c->dc = at[1] >> 4;
        c->ac = at[1] & 15;
        if (c->dc > 3 || c->ac > 3) return corrupt(f, "damaged scan header");
        if (!f->dc[c->dc] || !f->ac[c->ac])
            return unsupported(f, "Huffman table not in the file");
    }
    if (check_quant(f) != JPEGCROP_OK) return JPEGCROP_CORRUPT;
    if (at[0] != 0 || at[1] != 63 || at[2] != 0) return unsupported(f, "not a sequential scan");
    return JPEGCROP_OK;
}

static jpegcrop_status parse_dri(frame *f, const uint8_t *body, size_t n)
{
    if (n != 2) return corrupt(f, "damaged restart interval");
    f->restart_interval = load16(body);
    return JPEGCROP_OK;
}

static jpegcrop_status parse_segment(frame *f, unsigned marker, const uint8_t *body, size_t n)
{
    if (marker == MARKER_DHT) return parse_dht(f, body, n);
    if (marker == MARKER_DQT) return parse_dqt(f, body, n);
    if (marker == MARKER_SOS) return parse_sos(f, body, n);
    if (is_metadata(marker)) return metadata_parse(f, marker, body, n);
    if (marker == MARKER_DRI) return parse_dri(f, body, n);
    if (marker >= MARKER_SOF0 && marker <= MARKER_SOF15 && marker != MARKER_JPG &&
        marker != MARKER_DAC)
        return parse_sof(f, marker, body, n);
    return unsupported(f, "marker of an unsupported kind in the header");
}

/* Stricter than libjpeg, which skips junk between segments: a file that needs that is sent whole. */
jpegcrop_status frame_parse(frame *f, const uint8_t *src, size_t n, bool may_be_progressive)
{
    memset(f, 0, sizeof *f);
    f->reason = "";
    f->is_progressive = may_be_progressive;
    if (n > JPEGCROP_MAX_NBYTES) return too_large(f, "file over 256 MiB");
    if (n < 4 || src[0] != 0xFF || src[1] != MARKER_SOI) return corrupt(f, "not a JPEG");
    const uint8_t *at = src + 2, *end = src + n;
    f->header = at;
    for (;;) {
        if (at >= end || *at != 0xFF) return corrupt(f, "no marker where one is due");
        while (at < end && *at == 0xFF) at++; /* fill bytes, B.1.1.2 */
        if (end - at < 3) return corrupt(f, "header cut short");
        unsigned marker = *at++;
        if (marker < MARKER_SOF0 || (marker >= MARKER_RST0 && marker <= MARKER_EOI))
            return corrupt(f, "marker out of place in the header");
        size_t length = load16(at);
        if (length < 2 || (size_t)(end - at) < length) return corrupt(f, "header cut short");
        jpegcrop_status status = parse_segment(f, marker, at + 2, length - 2);
        at += length;
        if (status != JPEGCROP_OK) return status;
        if (marker == MARKER_SOS) break;
    }
    f->scan = at;
    f->end = end;
    return metadata_check(f);
}

bool frame_parse_between(frame *f, const uint8_t **at)
{
    const uint8_t *p = *at;
    for (;;) {
        uint8_t marker = *p;
        *at = p++;
        if (marker == MARKER_EOI) return true;
        if (f->end - p < 2) return false;
        size_t length = load16(p);
        if (length < 2 || (size_t)(f->end - p) < length) return false;
        if (marker == MARKER_SOS) return true;
        jpegcrop_status status = JPEGCROP_UNSUPPORTED;
        if (marker == MARKER_DHT) status = parse_dht(f, p + 2, length - 2);
        if (marker == MARKER_DRI) status = parse_dri(f, p + 2, length - 2);
        p += length;
        if (status != JPEGCROP_OK || p == f->end || *p != 0xFF) return false;
        while (p < f->end && *p == 0xFF) p++;
        if (p == f->end) return false;
    }
}
