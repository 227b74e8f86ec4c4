/* See blocks.h. */
#include "blocks.h"

#include <string.h>

#include "bits.h"

enum { NOWHERE = 64 };
#define NOWHERE_16                                                                                 \
    NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE,      \
        NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE, NOWHERE
#define NOWHERE_64 NOWHERE_16, NOWHERE_16, NOWHERE_16, NOWHERE_16
#define ZIGZAG                                                                                     \
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27,    \
        20, 13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,  \
        58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63
const uint8_t block_place[256] = {ZIGZAG, NOWHERE_64, ZIGZAG, NOWHERE_64};

/* Masks of the value bits that a look-up which uses so many bits has not seen. */
static const uint16_t unseen[64] = {[12] = 1, [13] = 3, [14] = 7, [15] = 15, [16] = 31, [17] = 63,
                                    [18] = 127};
_Static_assert(VALUE_BITS == 11 && VALUE_MAX_USED == 18, "`unseen` is made for these");

/* Stores what a look-up resolves and returns the index it leads to. Where that shows that the
 * look-up must not be taken, what was stored does no harm: those symbols are read again. */
INLINE unsigned take_values(uint64_t acc, uint32_t entry, unsigned k, int16_t *out)
{
    unsigned used = entry & 63, first = k + 1 + (entry >> VALUE_RUN_SHIFT & 15);
    unsigned last = k + (entry >> VALUE_MOVE_SHIFT & 255);
    uint32_t rest = (uint32_t)(acc >> (-used & 63)) & unseen[used];
    out[block_place[first]] = (int16_t)((int32_t)(entry << 9) >> 27);
    out[block_place[last]] = (int16_t)(((int32_t)entry >> VALUE_LAST_SHIFT) + (int32_t)rest);
    return last;
}

/* One AC symbol, bit by bit. */
static bool read_slow(bit_reader *r, const huff_table *codes, unsigned *k, int16_t *out, bool *ends)
{
    unsigned length = 0;
    refill(r);
    int symbol = huff_slow_symbol(codes, r->acc, &length);
    if (symbol < 0) return false;
    unsigned run = (unsigned)symbol >> 4, size = (unsigned)symbol & 15;
    *ends = size == 0 && run != 15;
    if (!*ends) {
        *k += run + 1;
        if (*k > 63) return false;
        out[block_place[*k]] = (int16_t)extend(r->acc << length, size);
        *ends = *k == 63;
    }
    consume(r, length + size);
    return true;
}

/* Whether a look-up that led to `last` is the block's last, and right. */
INLINE bool is_end(unsigned last, uint32_t entry)
{
    if (last == 63) return true;
    unsigned behind = last - VALUE_ENDS; /* a full block has no end-of-block code */
    return last >= VALUE_ENDS && (behind < 63 || (behind == 63 && !(entry >> VALUE_LAST_SHIFT)));
}

/* The AC coefficients of a block. `out` must be zero. */
INLINE bool read_ac(bit_reader *r, const block_target *block, int16_t *out)
{
    const uint32_t *entries = block->values->entry;
    unsigned k = 0, last = 0; /* k: index of the last coefficient */
    uint32_t entry = 0;
    for (;;) {
        refill(r);
        for (int i = 0; i < 3; i++) {
            entry = entries[r->acc >> (64 - VALUE_BITS)];
            last = take_values(r->acc, entry, k, out);
            if (!LIKELY(last < 63)) break;
            consume(r, entry & 63);
            k = last;
        }
        if (LIKELY(last < 63)) continue;
        if (LIKELY(is_end(last, entry))) {
            consume(r, entry & 63);
            return true;
        }
        bit_reader now = *r; /* a copy, so that `r` itself can stay in registers */
        unsigned at = k;
        bool ends = false;
        if (!read_slow(&now, block->codes, &at, out, &ends)) return false;
        *r = now;
        k = at;
        if (ends) return true;
    }
}

bool blocks_flush(block_batch *batch, const pixel_ops *ops)
{
    unsigned n = batch->n;
    batch->n = 0;
    return n == 0 || ops->idct(batch->job, n);
}

bool blocks_decode(scan *s, const block_target *targets, block_batch *batch, const pixel_ops *ops,
                   size_t column, size_t n)
{
    bit_reader r = s->reader;
    bool wild = false;
    for (size_t end = column + n; column < end; column++) {
        if (!LIKELY(r.next <= s->watch)) {
            bit_reader now = r; /* a copy, so that `r` itself can stay in registers */
            if (!scan_top_up(s, &now)) return false;
        }
        for (unsigned i = 0; i < s->n_blocks; i++) {
            const block_target *block = &targets[i];
            uint32_t *value = &s->dc_value[s->plan[i].comp];
            int16_t *out = batch->coefficients[batch->n];
            memset(out, 0, 64 * sizeof *out);
            if (!read_dc(&r, block->dc, value)) return false;
            wild |= out_of_range(*value);
            out[0] = (int16_t)*value;
            if (!read_ac(&r, block, out)) return false;
            batch->job[batch->n++] = (idct_job){out, block->quant,
                                                block->out + column * block->step, block->stride};
            if (batch->n == BATCH_BLOCKS && !blocks_flush(batch, ops)) return false;
        }
    }
    s->reader = r;
    s->wild |= wild;
    return scan_position(s) <= s->filled * 8 && !s->wild;
}
