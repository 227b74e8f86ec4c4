/* See emit.h. */
#include "emit.h"

#include <stdlib.h>
#include <string.h>

#include "metadata.h"
#include "scan.h"

static bool reserve(bit_writer *w, size_t nbytes)
{
    if (nbytes > SIZE_MAX / 4 - w->used) return false;
    size_t need = w->used + nbytes;
    if (need <= w->capacity) return true;
    size_t capacity = need + need / 2;
    uint8_t *data = realloc(w->data, capacity);
    if (!data) return false;
    w->data = data;
    w->capacity = capacity;
    return true;
}

bool emit_begin(bit_writer *w, size_t metadata_nbytes)
{
    w->used = 0;
    w->acc = 0;
    w->fill = 0;
    w->room = EMIT_HEADER_NBYTES + metadata_nbytes;
    if (!reserve(w, w->room)) return false;
    w->used = w->room;
    return true;
}

/* A zero byte in the complement, found without a loop. */
static inline bool has_ff(uint64_t word)
{
    return (word & (~word - 0x0101010101010101u) & 0x8080808080808080u) != 0;
}

static void put_byte(bit_writer *w, uint8_t byte)
{
    w->data[w->used++] = byte;
    if (byte == 0xFF) w->data[w->used++] = 0;
}

/* Room must have been reserved, two bytes for each, as every byte may need stuffing. */
static inline void put_word(bit_writer *w, uint64_t word)
{
    if (!has_ff(word)) {
        for (int i = 0; i < 8; i++) w->data[w->used + (size_t)i] = (uint8_t)(word >> (56 - 8 * i));
        w->used += 8;
        return;
    }
    for (int i = 0; i < 8; i++) put_byte(w, (uint8_t)(word >> (56 - 8 * i)));
}

/* Appends the low `n` (< 64) bits of `value`; bits above them are ignored. */
static void put_bits(bit_writer *w, uint64_t value, unsigned n)
{
    value &= ((uint64_t)1 << n) - 1;
    if (w->fill + n < 64) {
        w->acc = w->acc << n | value;
        w->fill += n;
        return;
    }
    unsigned rest = w->fill + n - 64;
    put_word(w, w->acc << (64 - w->fill) | value >> rest);
    w->acc = value;
    w->fill = rest;
}

static inline uint64_t peek64(const uint8_t *bits, size_t position)
{
    const uint8_t *p = bits + (position >> 3);
    unsigned shift = position & 7;
    return load64(p) << shift | p[8] >> (8 - shift);
}

bool emit_copy(bit_writer *w, const uint8_t *bits, size_t from, size_t to)
{
    if (!reserve(w, (to - from) / 4 + 32)) return false;
    for (; to - from >= 64; from += 64) {
        uint64_t word = peek64(bits, from);
        put_word(w, w->acc << 1 << (63 - w->fill) | word >> w->fill);
        w->acc = word; /* only its last `fill` bits count, and `fill` stays */
    }
    unsigned n = (unsigned)(to - from);
    if (n) put_bits(w, peek64(bits, from) >> (64 - n), n);
    return true;
}

void emit_load_coder(dc_coder *coder, const huff_table *t)
{
    unsigned code = 0;
    memset(coder, 0, sizeof *coder);
    coder->longest = 1;
    memcpy(coder->counts, t->counts, sizeof coder->counts);
    memcpy(coder->symbols, t->symbols, sizeof coder->symbols);
    for (unsigned length = 1; length <= MAX_CODE_LENGTH; length++, code <<= 1) {
        for (unsigned i = 0; i < t->counts[length - 1]; i++, code++) {
            unsigned category = t->symbols[coder->n_symbols++];
            coder->code[category] = (uint16_t)code;
            coder->length[category] = (uint8_t)length;
            coder->longest = length;
            coder->next_code = code + 1;
        }
    }
}

/* An optimised table lacks the categories its file never needed. A new one goes behind all others,
 * so that the codes in the copied bits stay valid, and never to the all-ones code. */
static bool add_category(dc_coder *coder, unsigned category)
{
    unsigned length = coder->longest, code = coder->next_code;
    for (; code + 1 >= 1u << length; code <<= 1)
        if (++length > MAX_CODE_LENGTH) return false;
    if (coder->n_symbols == MAX_SYMBOLS) return false;
    coder->symbols[coder->n_symbols++] = (uint8_t)category;
    coder->counts[length - 1]++;
    coder->code[category] = (uint16_t)code;
    coder->length[category] = (uint8_t)length;
    coder->longest = length;
    coder->next_code = code + 1;
    return true;
}

/* Bits of the magnitude, F.1.2.1. */
static unsigned category_of(int32_t difference)
{
    uint32_t magnitude = (uint32_t)(difference < 0 ? -difference : difference);
    unsigned n = 0;
    for (; magnitude; magnitude >>= 1) n++;
    return n;
}

jpegcrop_status emit_dc(bit_writer *w, dc_coder *coder, int32_t difference)
{
    unsigned category = category_of(difference);
    if (!coder->length[category] && !add_category(coder, category)) return JPEGCROP_UNSUPPORTED;
    if (!reserve(w, 32)) return JPEGCROP_NO_MEMORY;
    put_bits(w, coder->code[category], coder->length[category]);
    /* A negative value is sent as its one's complement, F.1.2.1. */
    put_bits(w, (uint64_t)(int64_t)(difference < 0 ? difference - 1 : difference), category);
    return JPEGCROP_OK;
}

static void finish_scan(bit_writer *w)
{
    unsigned pad = (8 - (w->fill & 7)) & 7;
    put_bits(w, 0xFF, pad); /* ones, F.1.2.3 */
    for (; w->fill; w->fill -= 8) put_byte(w, (uint8_t)(w->acc >> (w->fill - 8)));
    w->data[w->used++] = 0xFF;
    w->data[w->used++] = MARKER_EOI;
}

typedef struct {
    uint8_t data[EMIT_HEADER_NBYTES];
    size_t used;
} header_writer;

static void put_u8(header_writer *w, unsigned value) { w->data[w->used++] = (uint8_t)value; }

static void put_u16(header_writer *w, unsigned value)
{
    put_u8(w, value >> 8);
    put_u8(w, value & 0xFF);
}

static void put_raw(header_writer *w, const uint8_t *data, size_t n)
{
    memcpy(w->data + w->used, data, n);
    w->used += n;
}

static void put_segment(header_writer *w, unsigned marker, size_t body_nbytes)
{
    put_u16(w, 0xFF00 | marker);
    put_u16(w, (unsigned)body_nbytes + 2);
}

/* JFIF, Adobe, the component ids and the kind of SOF decide the colour space: they are kept. */
static void put_app(header_writer *w, const frame *f)
{
    if (f->jfif) {
        put_segment(w, MARKER_APP0, JFIF_NBYTES);
        put_raw(w, f->jfif, JFIF_NBYTES - 2);
        put_u16(w, 0); /* no thumbnail */
    }
    if (f->adobe) {
        put_segment(w, MARKER_APP14, ADOBE_NBYTES);
        put_raw(w, f->adobe, ADOBE_NBYTES);
    }
}

static void put_quant(header_writer *w, const uint8_t *table)
{
    put_segment(w, MARKER_DQT, quant_nbytes(table));
    put_raw(w, table, quant_nbytes(table));
}

static void put_huff(header_writer *w, unsigned class_and_number, const uint8_t *counts,
                     const uint8_t *symbols, size_t n_symbols)
{
    put_segment(w, MARKER_DHT, 1 + MAX_CODE_LENGTH + n_symbols);
    put_u8(w, class_and_number);
    put_raw(w, counts, MAX_CODE_LENGTH);
    put_raw(w, symbols, n_symbols);
}

static void put_tables(header_writer *w, const frame *f, const dc_coder coders[4])
{
    unsigned quant = 0, dc = 0, ac = 0; /* sets of the table numbers written */
    for (const component *c = f->comp; c < f->comp + f->n_components; c++) {
        const dc_coder *coder = &coders[c->dc];
        const uint8_t *counts = f->ac[c->ac];
        if (!(quant >> c->quant & 1)) put_quant(w, f->quant[c->quant]);
        if (!(dc >> c->dc & 1)) put_huff(w, c->dc, coder->counts, coder->symbols, coder->n_symbols);
        if (!(ac >> c->ac & 1))
            put_huff(w, 0x10u | c->ac, counts, counts + MAX_CODE_LENGTH, huff_n_symbols(counts));
        quant |= 1u << c->quant;
        dc |= 1u << c->dc;
        ac |= 1u << c->ac;
    }
}

static void put_frame(header_writer *w, const frame *f, uint32_t width, uint32_t height)
{
    put_segment(w, f->sof, 6 + 3 * (size_t)f->n_components);
    put_u8(w, 8);
    put_u16(w, height);
    put_u16(w, width);
    put_u8(w, f->n_components);
    for (const component *c = f->comp; c < f->comp + f->n_components; c++) {
        put_u8(w, c->id);
        put_u8(w, (unsigned)c->h << 4 | c->v);
        put_u8(w, c->quant);
    }
}

static void put_scan(header_writer *w, const frame *f)
{
    put_segment(w, MARKER_SOS, 4 + 2 * (size_t)f->n_components);
    put_u8(w, f->n_components);
    for (const component *c = f->comp; c < f->comp + f->n_components; c++) {
        put_u8(w, c->id);
        put_u8(w, (unsigned)c->dc << 4 | c->ac);
    }
    put_u8(w, 0); /* coefficients 0..63, all bits of them */
    put_u8(w, 63);
    put_u8(w, 0);
}

size_t emit_finish(bit_writer *w, const frame *f, const dc_coder coders[4], uint32_t width,
                   uint32_t height)
{
    header_writer header;
    size_t metadata_nbytes = w->room - EMIT_HEADER_NBYTES;
    header.used = 0;
    if (!reserve(w, 32)) return 0;
    finish_scan(w);
    if (!metadata_nbytes) put_app(&header, f);
    put_tables(&header, f, coders);
    put_frame(&header, f, width, height);
    put_scan(&header, f);
    memcpy(w->data + w->room - header.used, header.data, header.used);
    size_t start = w->room - header.used - metadata_nbytes - 2;
    w->data[start] = 0xFF;
    w->data[start + 1] = MARKER_SOI;
    if (metadata_nbytes) metadata_copy(f, w->data + start + 2);
    return start;
}

void emit_free(bit_writer *w)
{
    free(w->data);
    *w = (bit_writer){0};
}
