/* See scan.h. */
#include "scan.h"

#include <stdlib.h>
#include <string.h>

#include "bits.h"

enum {
    /* A block is at most one DC and 63 AC symbols of 16 bits code and 15 bits value: 248 bytes.
     * The reader looks up to 16 bytes further. */
    WORST_MCU_NBYTES = MAX_BLOCKS * 248 + 32,
    CHUNK_NBYTES = 8192
};

static void close_segment(scan *s, uint8_t marker)
{
    s->closed = true;
    s->marker = marker;
    /* A damaged MCU may run past the end before it is noticed; it then reads these. */
    memset(s->bits + s->filled, 0, WORST_MCU_NBYTES);
}

/* At an FF byte: a stuffed FF, or a marker after any number of fill bytes. With fill bytes before a
 * stuffed zero, libjpeg-turbo's pixels depend on which of its two loops was at work: the fast one
 * takes them for a marker, and what it has decoded by then is still there when the slow one, which
 * skips them, decodes that MCU again. */
static void take_ff(scan *s)
{
    const uint8_t *at = s->raw, *first = at;
    while (at < s->end && *at == 0xFF) at++;
    s->raw = at < s->end ? at + 1 : at;
    if (at == s->end) {
        close_segment(s, 0);
    } else if (*at == 0) {
        s->bits[s->filled++] = 0xFF;
        s->wild |= at - first > 1;
    } else {
        close_segment(s, *at);
    }
}

/* Lazily, because what lies behind the last kept MCU is never looked at. */
static void unstuff(scan *s, size_t want)
{
    while (!s->closed && s->filled < want) {
        size_t left = (size_t)(s->end - s->raw);
        size_t n = left < CHUNK_NBYTES ? left : CHUNK_NBYTES;
        const uint8_t *ff = n ? memchr(s->raw, 0xFF, n) : NULL;
        size_t plain = ff ? (size_t)(ff - s->raw) : n;
        if (plain) memcpy(s->bits + s->filled, s->raw, plain);
        s->filled += plain;
        s->raw += plain;
        if (ff)
            take_ff(s);
        else if (plain == left)
            close_segment(s, 0);
    }
}

static size_t position_of(const scan *s, const bit_reader *r)
{
    return (size_t)(r->next - s->bits) * 8 - r->count;
}

size_t scan_position(const scan *s) { return position_of(s, &s->reader); }

bool scan_top_up(scan *s, const bit_reader *r)
{
    unstuff(s, (size_t)(r->next - s->bits) + CHUNK_NBYTES + WORST_MCU_NBYTES);
    s->watch = s->bits + s->filled - (s->closed ? 0 : WORST_MCU_NBYTES);
    return position_of(s, r) <= s->filled * 8;
}

static void begin_segment(scan *s)
{
    s->filled = 0;
    s->closed = false;
    s->reader = (bit_reader){0, 0, s->bits};
    memset(s->dc_value, 0, sizeof s->dc_value);
    s->until_restart = s->restart_interval ? s->restart_interval : SIZE_MAX;
    (void)scan_top_up(s, &s->reader); /* at its start a segment cannot be overrun */
}

bool scan_begin(scan *s, const uint8_t *raw, const uint8_t *end)
{
    size_t need = (size_t)(end - raw) + WORST_MCU_NBYTES;
    if (s->capacity < need) {
        scan_free(s);
        s->bits = malloc(need);
        if (!s->bits) return false;
        s->capacity = need;
    }
    s->raw = raw;
    s->end = end;
    s->next_restart = 0;
    s->wild = false;
    begin_segment(s);
    return true;
}

void scan_free(scan *s)
{
    free(s->bits);
    s->bits = NULL;
    s->capacity = 0;
}

bool scan_restart(scan *s)
{
    if (!scan_top_up(s, &s->reader) || !s->closed || s->marker != MARKER_RST0 + s->next_restart)
        return false;
    if (s->filled * 8 - scan_position(s) >= 8) return false;
    s->next_restart = (s->next_restart + 1) & 7;
    begin_segment(s);
    return true;
}

enum { AC_BAD, AC_MORE, AC_DONE };

/* One AC symbol, for what the table cannot do: long codes, and look-ups that ran past the block. */
static int walk_ac_symbol(bit_reader *r, const huff_table *t, unsigned *k)
{
    unsigned length = 0;
    int symbol = huff_slow_symbol(t, r->acc, &length);
    if (symbol < 0) return AC_BAD;
    unsigned run = (unsigned)symbol >> 4, size = (unsigned)symbol & 15;
    consume(r, length + size);
    if (size == 0 && run != 15) return AC_DONE;
    *k += run + 1;
    return *k < 64 ? AC_MORE : *k == 64 ? AC_DONE : AC_BAD;
}

/* Takes the look-up if it leaves the block open; sets the index it leads to in any case. */
INLINE bool try_step(bit_reader *r, const uint16_t *fast, unsigned *k, unsigned *step,
                     unsigned *length)
{
    unsigned entry = fast[r->acc >> (64 - AC_BITS)];
    *step = *k + (entry >> STEP_SHIFT);
    *length = entry & LENGTH_MASK;
    if (!LIKELY(*step < 64)) return false;
    consume(r, *length);
    *k = *step;
    return true;
}

INLINE bool walk_ac(bit_reader *r, const huff_table *t)
{
    const uint16_t *fast = t->level + ((size_t)1 << AC_BITS);
    unsigned k = 1, step, length; /* k: index of the next coefficient */
    for (;;) {
        refill(r); /* 56 bits serve two look-ups of at most 12 + 15 */
        if (try_step(r, fast, &k, &step, &length) && try_step(r, fast, &k, &step, &length))
            continue;
        /* An EOB counts only if the run in front of it left room: otherwise the block was full
         * and what looked like an EOB belongs to the next one. */
        if (LIKELY(step == 64 || step - STEP_EOB < 64)) {
            consume(r, length);
            return true;
        }
        refill(r);
        int outcome = walk_ac_symbol(r, t, &k);
        if (outcome != AC_MORE) return outcome == AC_DONE;
    }
}

bool scan_walk(scan *s, size_t n)
{
    bit_reader r = s->reader;
    bool good = true, wild = false;
    for (; n && good; n--) {
        if (!LIKELY(r.next <= s->watch)) {
            bit_reader now = r; /* a copy, so that `r` itself can stay in registers */
            good = scan_top_up(s, &now);
        }
        const block_plan *block = s->plan, *last = block + s->n_blocks;
        for (; good && block < last; block++) {
            uint32_t *value = &s->dc_value[block->comp];
            good = read_dc(&r, block->dc, value) && walk_ac(&r, block->ac);
            wild |= out_of_range(*value);
        }
    }
    s->reader = r;
    s->wild |= wild;
    return good && scan_position(s) <= s->filled * 8 && !s->wild;
}

bool scan_walk_first(scan *s, first_mcu *mcu)
{
    bool good = scan_top_up(s, &s->reader);
    for (unsigned i = 0; good && i < s->n_blocks; i++) {
        const block_plan *block = &s->plan[i];
        unsigned comp = block->comp;
        size_t dc_at = scan_position(s);
        good = read_dc(&s->reader, block->dc, &s->dc_value[comp]);
        s->wild |= out_of_range(s->dc_value[comp]);
        if (i == 0 || s->plan[i - 1].comp != comp) {
            mcu->dc_at[comp] = dc_at;
            mcu->ac_at[comp] = scan_position(s);
            mcu->value[comp] = s->dc_value[comp];
        }
        good = good && walk_ac(&s->reader, block->ac);
    }
    return good && scan_position(s) <= s->filled * 8 && !s->wild;
}

/* Not walking over the tail hides no failure: libjpeg fills in for damaged entropy-coded bytes and
 * fails only where the end is missing or something else than a restart comes before it. Fill bytes
 * before a stuffed zero could change no kept pixel; they are refused so that the rectangle does not
 * decide whether a file is. */
const char *scan_find_marker(const scan *s, const uint8_t **found)
{
    const uint8_t *at = s->raw;
    unsigned marker = s->closed ? s->marker : 0;
    while (marker == 0 || (s->restart_interval && (marker & 0xF8) == MARKER_RST0)) {
        at = at < s->end ? memchr(at, 0xFF, (size_t)(s->end - at)) : NULL;
        const uint8_t *first = at;
        while (at && at < s->end && *at == 0xFF) at++;
        if (!at || at == s->end) return "no end-of-image marker";
        marker = *at++;
        if (marker == 0 && at - first > 2) return "damaged scan";
    }
    *found = at - 1;
    return NULL;
}

const char *scan_check_tail(const scan *s)
{
    const uint8_t *marker;
    const char *wrong = scan_find_marker(s, &marker);
    if (wrong) return wrong;
    return *marker == MARKER_EOI ? NULL : "unexpected marker in the scan";
}
