/* See progressive.h. The procedures are those of T.81, annex G; libjpeg's jdphuff.c is stricter and
 * laxer here and there, and what it warns of is left to it. */
#include "progressive.h"

#include <stdlib.h>
#include <string.h>

#include "bits.h"
#include "blocks.h"

enum { MAX_AL = 13, NOT_KNOWN = -1 };

/* What a scan header says. */
typedef struct {
    unsigned n, comp[MAX_COMPONENTS], dc[MAX_COMPONENTS], ac[MAX_COMPONENTS];
    unsigned first, last; /* zigzag indices: Ss and Se */
    unsigned high, low;   /* bits: Ah and Al */
} scan_header;

/* --- memory ----------------------------------------------------------------------------------- */

static size_t plane_blocks(const coefficient_plane *c) { return c->stride * c->n_rows; }

size_t progressive_nbytes(const progressive *p, unsigned n_components)
{
    size_t n = 0;
    for (unsigned i = 0; i < n_components; i++) n += plane_blocks(&p->planes[i]);
    return n * (64 * sizeof(int16_t) + sizeof(uint64_t));
}

bool progressive_begin(progressive *p, unsigned n_components)
{
    size_t nbytes = progressive_nbytes(p, n_components);
    if (p->nbytes < nbytes) {
        free(p->memory);
        p->memory = malloc(nbytes);
        p->nbytes = p->memory ? nbytes : 0;
        if (!p->memory) return false;
    }
    memset(p->memory, 0, nbytes);
    uint64_t *at = p->memory;
    for (unsigned i = 0; i < n_components; i++) {
        coefficient_plane *c = &p->planes[i];
        c->nonzero = at;
        at += plane_blocks(c);
        c->coefficients = (int16_t *)at;
        at += plane_blocks(c) * (64 * sizeof(int16_t) / sizeof(uint64_t));
        memset(c->exact_to, NOT_KNOWN, sizeof c->exact_to);
    }
    return true;
}

void progressive_free(progressive *p) { free(p->memory); }

/* --- blocks ----------------------------------------------------------------------------------- */

INLINE void refill_for(bit_reader *r, unsigned n)
{
    if (!LIKELY(r->count >= n)) refill(r);
}

INLINE unsigned take_bits(bit_reader *r, unsigned n)
{
    refill_for(r, n);
    unsigned bits = (unsigned)(r->acc >> 1 >> (63 - n));
    consume(r, n);
    return bits;
}

/* The next AC symbol and the bits behind it, of which there are as many as its lower four bits say;
 * false for a code that the table has not. */
INLINE bool read_symbol(bit_reader *r, const huff_table *t, unsigned *symbol, uint64_t *behind)
{
    refill(r);
    unsigned entry = t->level[r->acc >> (64 - DC_BITS)], used = entry & LENGTH_MASK;
    *symbol = entry >> STEP_SHIFT;
    if (!LIKELY(entry)) {
        unsigned length = 0;
        int found = huff_slow_symbol(t, r->acc, &length);
        if (found < 0) return false;
        *symbol = (unsigned)found;
        used = length + (*symbol & 15);
    }
    *behind = r->acc << (used - (*symbol & 15));
    consume(r, used);
    return true;
}

/* The number of blocks, this one among them, that have no more coefficients. */
INLINE size_t read_end_run(bit_reader *r, unsigned run)
{
    return ((size_t)1 << run) + (run ? take_bits(r, run) : 0);
}

/* First bits of a block's AC coefficients; `end_run` must be 0. G.1.2.2 */
INLINE bool read_first(bit_reader *r, const huff_table *t, const scan_header *h, int16_t *out,
                       uint64_t *nonzero, size_t *end_run)
{
    unsigned k = h->first, symbol;
    uint64_t behind, found = 0;
    for (; k <= h->last; k++) {
        if (!read_symbol(r, t, &symbol, &behind)) return false;
        unsigned run = symbol >> 4, size = symbol & 15;
        if (size == 0 && run < 15) {
            *end_run = read_end_run(r, run);
            break;
        }
        k += run;
        if (k > h->last) return false;
        if (size == 0) continue;
        if (size + h->low > 14) return false;
        out[block_place[k]] = (int16_t)(extend(behind, size) << h->low);
        found |= (uint64_t)1 << k;
    }
    *nonzero |= found;
    return true;
}

/* One more bit of the coefficients in `which`, which are not 0. Without a branch on what it is: it is
 * not to be guessed. */
INLINE void correct(bit_reader *r, uint64_t which, int low, int16_t *out)
{
    for (; which; which &= which - 1) {
        int16_t *at = &out[block_place[lowest_bit(which)]];
        int sign = *at < 0 ? -1 : 0, bit = (int)take_bits(r, 1);
        *at = (int16_t)(*at + (((1 << low) ^ sign) - sign) * bit);
    }
}

/* Zigzag indices from `first` to `last`. */
INLINE uint64_t between(unsigned first, unsigned last)
{
    return ~(uint64_t)0 >> (63 - last) & ~(uint64_t)0 << first;
}

/* One more bit of a block's AC coefficients; `end_run` must be 0. G.1.2.3 */
INLINE bool read_more(bit_reader *r, const huff_table *t, const scan_header *h, int16_t *out,
                      uint64_t *nonzero, size_t *end_run)
{
    const uint64_t before = *nonzero;
    unsigned k = h->first, symbol;
    uint64_t behind;
    while (k <= h->last) {
        if (!read_symbol(r, t, &symbol, &behind)) return false;
        unsigned run = symbol >> 4, size = symbol & 15;
        if (size == 0 && run < 15) {
            *end_run = read_end_run(r, run);
            correct(r, before & between(k, h->last), (int)h->low, out);
            return true;
        }
        if (size > 1) return false;
        uint64_t zeros = ~before & between(k, h->last); /* the new one follows `run` of them */
        for (; run && zeros; run--) zeros &= zeros - 1;
        if (!zeros) return false;
        unsigned at = lowest_bit(zeros);
        correct(r, before & between(k, at), (int)h->low, out);
        if (size) {
            out[block_place[at]] = (int16_t)(((int)(behind >> 63) * 2 - 1) * (1 << h->low));
            *nonzero |= (uint64_t)1 << at;
        }
        k = at + 1;
    }
    return true;
}

/* --- scans ------------------------------------------------------------------------------------ */

/* `n` blocks in a row, which must not span a restart, from `block` on. */
static bool read_ac(scan *s, const huff_table *t, const scan_header *h, coefficient_plane *c,
                    size_t block, size_t n, size_t *end_run)
{
    bit_reader r = s->reader;
    const uint64_t band = between(h->first, h->last);
    for (size_t end = block + n; block < end; block++) {
        int16_t *out = c->coefficients + block * 64;
        uint64_t *nonzero = &c->nonzero[block], known = *nonzero & band;
        if (*end_run && !known) {
            --*end_run;
            continue;
        }
        if (!LIKELY(r.next <= s->watch)) {
            bit_reader now = r; /* a copy, so that `r` itself can stay in registers */
            if (!scan_top_up(s, &now)) return false;
        }
        if (*end_run)
            correct(&r, known, (int)h->low, out);
        else if (!(h->high ? read_more(&r, t, h, out, nonzero, end_run)
                           : read_first(&r, t, h, out, nonzero, end_run)))
            return false;
        if (*end_run) --*end_run;
    }
    s->reader = r;
    return scan_position(s) <= s->filled * 8;
}

/* A block's DC value, or one more bit of it. */
static bool read_dc_of(scan *s, const huff_table *t, const scan_header *h, unsigned comp, int16_t *out)
{
    if (h->high) {
        *out = (int16_t)(*out | (int)take_bits(&s->reader, 1) << h->low);
        return true;
    }
    uint32_t *value = &s->dc_value[comp];
    if (!read_dc(&s->reader, t, value)) return false;
    s->wild |= out_of_range(*value) || out_of_range(*value << h->low);
    *out = (int16_t)(*value << h->low);
    return true;
}

/* A row of MCUs of several components, or of blocks of one. */
static bool read_dc_row(progressive *p, scan *s, const scan_header *h, size_t row, size_t n)
{
    bool lone = h->n == 1;
    for (size_t column = 0; column < n; column++) {
        if (s->until_restart == 0 && !scan_restart(s)) return false;
        if (s->reader.next > s->watch && !scan_top_up(s, &s->reader)) return false;
        for (unsigned i = 0; i < h->n; i++) {
            coefficient_plane *c = &p->planes[h->comp[i]];
            size_t across = lone ? 1 : c->h, down = lone ? 1 : c->v;
            for (size_t y = row * down; y < (row + 1) * down; y++)
                for (size_t x = column * across; x < (column + 1) * across; x++) {
                    int16_t *out = c->coefficients + (y * c->stride + x) * 64;
                    if (!read_dc_of(s, &p->dc[h->dc[i]], h, h->comp[i], out)) return false;
                }
        }
        s->until_restart--;
    }
    return scan_position(s) <= s->filled * 8 && !s->wild;
}

static bool read_ac_row(progressive *p, scan *s, const scan_header *h, size_t row, size_t n,
                        size_t *end_run)
{
    coefficient_plane *c = &p->planes[h->comp[0]];
    for (size_t column = 0; column < n;) {
        if (s->until_restart == 0) {
            if (*end_run || !scan_restart(s)) return false;
        }
        size_t run = n - column < s->until_restart ? n - column : s->until_restart;
        if (!read_ac(s, &p->ac[h->ac[0]], h, c, row * c->stride + column, run, end_run)) return false;
        column += run;
        s->until_restart -= run;
    }
    return !s->wild;
}

/* As far as blocks are kept; what comes behind is not looked at. */
static bool read_rows(progressive *p, scan *s, const scan_header *h)
{
    const coefficient_plane *c = &p->planes[h->comp[0]];
    size_t width = c->width, height = c->n_rows < c->height ? c->n_rows : c->height, end_run = 0;
    if (h->n > 1) width = c->stride / c->h, height = c->n_rows / c->v;
    for (size_t row = 0; row < height; row++)
        if (!(h->first ? read_ac_row(p, s, h, row, width, &end_run) : read_dc_row(p, s, h, row, width)))
            return false;
    return true;
}

/* --- what is between scans --------------------------------------------------------------------- */

static bool parse_scan_header(scan_header *h, const frame *f, const uint8_t *body, size_t n)
{
    if (n < 1 || body[0] < 1 || body[0] > f->n_components || n != 4 + 2 * (size_t)body[0])
        return false;
    h->n = body[0];
    unsigned comp = 0;
    for (unsigned i = 0; i < h->n; i++, comp++) {
        while (comp < f->n_components && f->comp[comp].id != body[1 + 2 * i]) comp++;
        if (comp == f->n_components) return false; /* unknown, or in another order */
        h->comp[i] = comp;
        h->dc[i] = body[2 + 2 * i] >> 4;
        h->ac[i] = body[2 + 2 * i] & 15;
        if (h->dc[i] > 3 || h->ac[i] > 3) return false;
    }
    const uint8_t *rest = body + 1 + 2 * h->n;
    h->first = rest[0];
    h->last = rest[1];
    h->high = rest[2] >> 4;
    h->low = rest[2] & 15;
    return h->first ? h->n == 1 && h->first <= h->last && h->last < 64 : h->last == 0;
}

/* Whether the scan brings the next bit of each of its coefficients, of which none is known again;
 * libjpeg warns of others. */
static bool is_next(progressive *p, const scan_header *h)
{
    if (h->low > MAX_AL || (h->high && h->low != h->high - 1)) return false;
    for (unsigned i = 0; i < h->n; i++) {
        int8_t *exact_to = p->planes[h->comp[i]].exact_to;
        if (h->first && exact_to[0] == NOT_KNOWN) return false;
        for (unsigned k = h->first; k <= h->last; k++) {
            if (exact_to[k] != (h->high ? (int)h->high : NOT_KNOWN)) return false;
            exact_to[k] = (int8_t)h->low;
        }
    }
    return true;
}

/* Where coefficients are not all exact, libjpeg smooths what it shows. */
static bool is_complete(const progressive *p, unsigned n_components)
{
    for (unsigned i = 0; i < n_components; i++)
        for (unsigned k = 0; k < 64; k++)
            if (p->planes[i].exact_to[k] != 0) return false;
    return true;
}

static bool load_tables(progressive *p, const frame *f, const scan_header *h)
{
    for (unsigned i = 0; i < h->n; i++) {
        unsigned dc = h->dc[i], ac = h->ac[i];
        if (h->first ? !f->ac[ac] || !huff_load_symbols(&p->ac[ac], f->ac[ac])
                     : !h->high && (!f->dc[dc] || !huff_load_dc(&p->dc[dc], f->dc[dc])))
            return false;
    }
    return true;
}

static const char *read_scan(progressive *p, frame *f, scan *in, const uint8_t *body, size_t n)
{
    scan_header h;
    if (!parse_scan_header(&h, f, body, n)) return "unusual scan header";
    if (!is_next(p, &h)) return "unusual order of scans";
    if (!load_tables(p, f, &h)) return "impossible Huffman table";
    in->restart_interval = f->restart_interval;
    if (!scan_begin(in, body + n, f->end)) return "no memory";
    return read_rows(p, in, &h) ? NULL : "damaged scan";
}

const char *progressive_read(progressive *p, frame *f, scan *in)
{
    const uint8_t *body = f->scan_header;
    size_t nbytes = f->scan_header_nbytes;
    for (unsigned n = 0; n < MAX_SCANS; n++) {
        const char *wrong = read_scan(p, f, in, body, nbytes);
        if (wrong) return wrong;
        const uint8_t *marker;
        if ((wrong = scan_find_marker(in, &marker)) != NULL) return wrong;
        if (!frame_parse_between(f, &marker)) return "unexpected marker between scans";
        if (*marker == MARKER_EOI)
            return is_complete(p, f->n_components) ? NULL : "coefficients are missing";
        body = marker + 3;
        nbytes = load16(marker + 1) - 2u;
    }
    return "too many scans";
}
