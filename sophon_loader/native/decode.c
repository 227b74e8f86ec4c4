/* See decode.h. */
#include "decode.h"

#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "progressive.h"

enum { ROWS_KEPT = 2 /* of MCUs: up-sampling mixes the rows on both sides of their border */ };

typedef enum { AS_IS, REPEAT, WIDEN, BETWEEN, WIDEN_BETWEEN } upsampling;

/* Memory that grows and is kept from file to file. */
typedef struct {
    uint8_t *data;
    size_t nbytes;
} buffer;

/* One component: samples of the last MCU rows, and a row of them up-sampled. */
typedef struct {
    unsigned h, v;          /* blocks of an MCU */
    unsigned across, down;  /* pixels of a sample */
    upsampling way;
    uint32_t width, height; /* samples of the whole picture */
    size_t first;           /* sample column at which the rows of `plane` begin */
    size_t stride;
    buffer plane, line;
    uint16_t quant[64];
} channel;

struct decode_ctx {
    frame f;
    scan in;
    huff_table dc[4], ac[4];
    value_table values[4];
    channel channels[MAX_COMPONENTS];
    progressive coefficients; /* of a file with many scans */
    block_batch batch;
    block_target targets[MAX_BLOCKS];

    jpegcrop_rect rect;
    uint32_t mcu_width, mcu_height; /* px */
    size_t columns;                 /* MCUs of a whole row */
    size_t column, end_column;      /* MCUs to decode */
    size_t row, end_row;
    bool mixes_rows;
    const char *reason;
};

static decode_status give_up(decode_ctx *ctx, const char *reason)
{
    ctx->reason = reason;
    return DECODE_GIVEN_UP;
}

/* jdapimin.c, default_decompress_parms: what libjpeg takes for YCbCr. */
static bool is_ycc(const frame *f)
{
    const component *c = f->comp;
    if (f->jfif) return true;
    if (f->adobe) return f->adobe[11] == 1;
    return !(c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B');
}

/* jdsample.c, jinit_upsampler. Very narrow components are not mixed across. */
static upsampling choose_upsampling(const channel *c)
{
    if (c->across == 1 && c->down == 1) return AS_IS;
    if (c->across == 2 && c->down == 1 && c->width > 2) return WIDEN;
    if (c->across == 1 && c->down == 2) return BETWEEN;
    if (c->across == 2 && c->down == 2 && c->width > 2) return WIDEN_BETWEEN;
    return REPEAT;
}

static bool load_quant(channel *c, const uint8_t *table)
{
    bool wide = quant_nbytes(table) > 65;
    table++;
    for (size_t i = 0; i < 64; i++) {
        unsigned step = wide ? load16(table + 2 * i) : table[i];
        if (step > INT16_MAX) return false;
        c->quant[block_place[i]] = (uint16_t)step;
    }
    return true;
}

/* A lone component is not interleaved: its MCU is one block, whatever its factors, A.2.2. */
static bool begin_channel(decode_ctx *ctx, unsigned i)
{
    const frame *f = &ctx->f;
    const component *component = &f->comp[i];
    channel *c = &ctx->channels[i];
    bool lone = f->n_components == 1;
    c->h = lone ? 1 : component->h;
    c->v = lone ? 1 : component->v;
    c->across = lone ? 1 : f->h_max / component->h;
    c->down = lone ? 1 : f->v_max / component->v;
    c->width = (f->width + c->across - 1) / c->across;
    c->height = (f->height + c->down - 1) / c->down;
    c->way = choose_upsampling(c);
    return load_quant(c, f->quant[component->quant]);
}

/* The MCUs that have the rectangle's pixels, and those whose samples are mixed into them. */
static void choose_mcus(decode_ctx *ctx)
{
    const frame *f = &ctx->f;
    const jpegcrop_rect r = ctx->rect;
    bool mixes_columns = false;
    ctx->mixes_rows = false;
    for (unsigned i = 0; i < f->n_components; i++) {
        upsampling way = ctx->channels[i].way;
        mixes_columns |= way == WIDEN || way == WIDEN_BETWEEN;
        ctx->mixes_rows |= way == BETWEEN || way == WIDEN_BETWEEN;
    }
    ctx->mcu_width = f->n_components == 1 ? 8 : 8 * f->h_max;
    ctx->mcu_height = f->n_components == 1 ? 8 : 8 * f->v_max;
    ctx->columns = (f->width - 1) / ctx->mcu_width + 1;
    size_t rows = (f->height - 1) / ctx->mcu_height + 1;
    ctx->column = (r.x - (mixes_columns && r.x)) / ctx->mcu_width;
    ctx->row = (r.y - (ctx->mixes_rows && r.y)) / ctx->mcu_height;
    ctx->end_column = (r.x + r.width - 1 + mixes_columns) / ctx->mcu_width + 1;
    ctx->end_row = (r.y + r.height - 1 + ctx->mixes_rows) / ctx->mcu_height + 1;
    if (ctx->end_column > ctx->columns) ctx->end_column = ctx->columns;
    if (ctx->end_row > rows) ctx->end_row = rows;
}

static bool skips(const decode_ctx *ctx)
{
    return ctx->row > 0 || ctx->end_column - ctx->column < ctx->columns;
}

static bool load_tables(decode_ctx *ctx)
{
    const frame *f = &ctx->f;
    scan *in = &ctx->in;
    in->n_blocks = 0;
    in->restart_interval = f->restart_interval;
    for (unsigned i = 0; i < f->n_components; i++) {
        const component *c = &f->comp[i];
        channel *to = &ctx->channels[i];
        huff_table *dc = &ctx->dc[c->dc], *ac = &ctx->ac[c->ac];
        bool good = skips(ctx) ? huff_load_ac(ac, f->ac[c->ac]) : huff_load_codes(ac, f->ac[c->ac]);
        if (!good || !huff_load_dc(dc, f->dc[c->dc])) return false;
        value_load(&ctx->values[c->ac], f->ac[c->ac]);
        for (unsigned n = to->h * to->v; n; n--) {
            ctx->targets[in->n_blocks] =
                (block_target){dc, ac, &ctx->values[c->ac], to->quant, NULL, 0, 0};
            in->plan[in->n_blocks++] = (block_plan){dc, ac, i};
        }
    }
    return true;
}

static bool load_planes(decode_ctx *ctx)
{
    for (unsigned i = 0; i < ctx->f.n_components; i++) {
        const channel *c = &ctx->channels[i];
        coefficient_plane *to = &ctx->coefficients.planes[i];
        to->h = c->h;
        to->v = c->v;
        to->width = (c->width - 1) / 8 + 1;
        to->height = (c->height - 1) / 8 + 1;
        to->stride = ctx->columns * c->h;
        to->n_rows = ctx->end_row * c->v;
    }
    return progressive_nbytes(&ctx->coefficients, ctx->f.n_components) <= MAX_COEFFICIENT_NBYTES;
}

/* A block has a DC code of at least a bit; and, unless AC codes of many blocks are one, an AC code
 * of a bit. */
static bool has_enough_bits(const decode_ctx *ctx)
{
    uint64_t mcus = (uint64_t)(ctx->end_row - 1) * ctx->columns + ctx->end_column, bits = 0;
    for (unsigned i = 0; i < ctx->f.n_components; i++)
        bits += ctx->channels[i].h * ctx->channels[i].v * (ctx->f.is_progressive ? 1 : 2);
    return mcus * bits <= (uint64_t)(ctx->f.end - ctx->f.scan) * 8;
}

static bool is_inside(const frame *f, jpegcrop_rect r)
{
    return r.width && r.height && r.x < f->width && r.y < f->height &&
           r.width <= f->width - r.x && r.height <= f->height - r.y;
}

decode_status decode_begin(decode_ctx *ctx, const uint8_t *src, size_t src_nbytes,
                           jpegcrop_rect *rect, unsigned *n_channels)
{
    frame *f = &ctx->f;
    if (frame_parse(f, src, src_nbytes, true) != JPEGCROP_OK) return give_up(ctx, f->reason);
    if (f->n_components == 3 && !is_ycc(f)) return give_up(ctx, "not YCbCr");
    if (!rect->width && !rect->height) *rect = (jpegcrop_rect){0, 0, f->width, f->height};
    if (!is_inside(f, *rect)) return give_up(ctx, "rectangle not inside the picture");
    for (unsigned i = 0; i < f->n_components; i++)
        if (!begin_channel(ctx, i)) return give_up(ctx, "huge quantisation step");
    ctx->rect = *rect;
    choose_mcus(ctx);
    if (f->is_progressive) {
        if (!load_planes(ctx)) return give_up(ctx, "progressive, and very large");
    } else if (!load_tables(ctx)) {
        return give_up(ctx, "impossible Huffman table");
    }
    if (!has_enough_bits(ctx)) return give_up(ctx, "scan cut short");
    *n_channels = f->n_components;
    return DECODE_OK;
}

static bool grow(buffer *b, size_t nbytes)
{
    if (b->nbytes >= nbytes) return true;
    free(b->data);
    *b = (buffer){malloc(nbytes), nbytes};
    if (!b->data) b->nbytes = 0;
    return b->data != NULL;
}

/* Sides of at most 65500 px keep every product here far below SIZE_MAX. */
static bool grow_channel(decode_ctx *ctx, channel *c)
{
    size_t width = (ctx->end_column - ctx->column) * 8 * c->h;
    c->first = ctx->column * 8 * c->h;
    c->stride = width + ROW_PADDING;
    return grow(&c->plane, c->stride * ROWS_KEPT * 8 * c->v + 2 * ROW_PADDING) &&
           grow(&c->line, width * c->across + 2 * ROW_PADDING);
}

/* A row of samples, at column `first`. */
static uint8_t *row_of(const channel *c, size_t row)
{
    return c->plane.data + ROW_PADDING + row % (ROWS_KEPT * 8 * c->v) * c->stride;
}

static void aim(decode_ctx *ctx, size_t mcu_row)
{
    block_target *target = ctx->targets;
    for (unsigned i = 0; i < ctx->f.n_components; i++) {
        const channel *c = &ctx->channels[i];
        for (size_t v = 0; v < c->v; v++)
            for (size_t h = 0; h < c->h; h++, target++) {
                target->out = row_of(c, (mcu_row * c->v + v) * 8) + h * 8;
                target->step = (size_t)c->h * 8;
                target->stride = c->stride;
            }
    }
}

/* Gives the samples at the left and right edge of the picture a neighbour like themselves. */
static void pad_edges(decode_ctx *ctx, size_t mcu_row)
{
    for (unsigned i = 0; i < ctx->f.n_components; i++) {
        const channel *c = &ctx->channels[i];
        size_t n = c->width - c->first, have = (ctx->end_column - ctx->column) * 8 * c->h;
        for (size_t row = mcu_row * c->v * 8; row < (mcu_row + 1) * c->v * 8; row++) {
            uint8_t *samples = row_of(c, row);
            if (c->first == 0) samples[-1] = samples[0];
            if (n <= have) samples[n] = samples[n - 1];
        }
    }
}

/* `n` MCUs: decoded into columns from 0 on, or walked over. */
static bool take_mcus(decode_ctx *ctx, const pixel_ops *ops, size_t n, bool decode)
{
    scan *in = &ctx->in;
    for (size_t column = 0; column < n;) {
        if (in->until_restart == 0 && !scan_restart(in)) return false;
        size_t run = n - column < in->until_restart ? n - column : in->until_restart;
        if (!(decode ? blocks_decode(in, ctx->targets, &ctx->batch, ops, column, run)
                     : scan_walk(in, run)))
            return false;
        column += run;
        in->until_restart -= run;
    }
    return true;
}

static bool read_mcu_row(decode_ctx *ctx, const pixel_ops *ops, size_t mcu_row)
{
    size_t wanted = ctx->end_column - ctx->column;
    size_t skip = mcu_row == ctx->row ? mcu_row * ctx->columns + ctx->column : ctx->columns - wanted;
    aim(ctx, mcu_row);
    return take_mcus(ctx, ops, skip, false) && take_mcus(ctx, ops, wanted, true);
}

/* The same where the coefficients are there. */
static bool transform_mcu_row(decode_ctx *ctx, const pixel_ops *ops, size_t mcu_row)
{
    block_batch *batch = &ctx->batch;
    for (unsigned i = 0; i < ctx->f.n_components; i++) {
        const channel *c = &ctx->channels[i];
        const coefficient_plane *plane = &ctx->coefficients.planes[i];
        for (size_t row = mcu_row * c->v; row < (mcu_row + 1) * c->v; row++) {
            uint8_t *out = row_of(c, row * 8);
            for (size_t x = ctx->column * c->h; x < ctx->end_column * c->h; x++, out += 8) {
                const int16_t *block = plane->coefficients + (row * plane->stride + x) * 64;
                batch->job[batch->n++] = (idct_job){block, c->quant, out, c->stride};
                if (batch->n == BATCH_BLOCKS && !blocks_flush(batch, ops)) return false;
            }
        }
    }
    return true;
}

static bool decode_mcu_row(decode_ctx *ctx, const pixel_ops *ops, size_t mcu_row)
{
    if (!(ctx->f.is_progressive ? transform_mcu_row : read_mcu_row)(ctx, ops, mcu_row)) return false;
    if (!blocks_flush(&ctx->batch, ops)) return false;
    pad_edges(ctx, mcu_row);
    return true;
}

/* The samples of picture row `y`, up-sampled, from the rectangle's first column on. */
static const uint8_t *upsample(const decode_ctx *ctx, const channel *c, const pixel_ops *ops,
                               uint32_t y)
{
    uint32_t x = ctx->rect.x, row = y / c->down, other = row;
    size_t begin = x / c->across, n = (x + ctx->rect.width - 1) / c->across + 1 - begin;
    if (c->down == 2 && y % 2 == 0 && row > 0) other = row - 1;
    if (c->down == 2 && y % 2 == 1 && row + 1 < c->height) other = row + 1;
    const uint8_t *in = row_of(c, row) + (begin - c->first);
    const uint8_t *near = row_of(c, other) + (begin - c->first);
    uint8_t *line = c->line.data;
    switch (c->way) {
    case AS_IS: return in;
    case REPEAT: pixels_repeat(in, n, c->across, line); break;
    case WIDEN: ops->widen(in, n, line); break;
    case BETWEEN: ops->between(in, near, y % 2 ? 2 : 1, n, line); break;
    case WIDEN_BETWEEN: ops->widen_between(in, near, n, line); break;
    }
    return line + x % c->across;
}

static void finish_rows(decode_ctx *ctx, const pixel_ops *ops, uint32_t y, uint32_t end,
                        uint8_t *out)
{
    size_t width = ctx->rect.width, row_nbytes = width * ctx->f.n_components;
    channel *c = ctx->channels;
    for (out += (y - ctx->rect.y) * row_nbytes; y < end; y++, out += row_nbytes) {
        const uint8_t *first = upsample(ctx, &c[0], ops, y);
        if (ctx->f.n_components == 1)
            memcpy(out, first, width);
        else
            ops->colour(first, upsample(ctx, &c[1], ops, y), upsample(ctx, &c[2], ops, y), width,
                        out);
    }
}

static bool decode_rows(decode_ctx *ctx, const pixel_ops *ops, uint8_t *out)
{
    uint32_t y = ctx->rect.y, last = y + ctx->rect.height;
    for (size_t row = ctx->row; row < ctx->end_row; row++) {
        if (!decode_mcu_row(ctx, ops, row)) return false;
        /* The last pixel row of an MCU row may need samples of the next. */
        uint32_t end = (uint32_t)(row + 1) * ctx->mcu_height - ctx->mixes_rows;
        if (end > last || row + 1 == ctx->end_row) end = last;
        if (end <= y) continue;
        finish_rows(ctx, ops, y, end, out);
        y = end;
    }
    return true;
}

static decode_status run_progressive(decode_ctx *ctx, const pixel_ops *ops, uint8_t *out)
{
    if (!progressive_begin(&ctx->coefficients, ctx->f.n_components)) return DECODE_NO_MEMORY;
    const char *wrong = progressive_read(&ctx->coefficients, &ctx->f, &ctx->in);
    if (wrong) return give_up(ctx, wrong);
    return decode_rows(ctx, ops, out) ? DECODE_OK : give_up(ctx, "coefficients out of range");
}

decode_status decode_run(decode_ctx *ctx, const pixel_ops *ops, uint8_t *out)
{
    for (unsigned i = 0; i < ctx->f.n_components; i++)
        if (!grow_channel(ctx, &ctx->channels[i])) return DECODE_NO_MEMORY;
    ctx->batch.n = 0;
    if (ctx->f.is_progressive) return run_progressive(ctx, ops, out);
    if (!scan_begin(&ctx->in, ctx->f.scan, ctx->f.end)) return DECODE_NO_MEMORY;
    if (!decode_rows(ctx, ops, out)) return give_up(ctx, "damaged scan");
    const char *wrong = scan_check_tail(&ctx->in);
    return wrong ? give_up(ctx, wrong) : DECODE_OK;
}

const char *decode_reason(const decode_ctx *ctx) { return ctx->reason; }

size_t decode_nbytes(const decode_ctx *ctx)
{
    size_t nbytes = sizeof *ctx + ctx->in.capacity + ctx->coefficients.nbytes;
    for (const channel *c = ctx->channels; c < ctx->channels + MAX_COMPONENTS; c++)
        nbytes += c->plane.nbytes + c->line.nbytes;
    return nbytes;
}

decode_ctx *decode_new(void) { return calloc(1, sizeof(decode_ctx)); }

void decode_free(decode_ctx *ctx)
{
    if (!ctx) return;
    scan_free(&ctx->in);
    progressive_free(&ctx->coefficients);
    for (channel *c = ctx->channels; c < ctx->channels + MAX_COMPONENTS; c++) {
        free(c->plane.data);
        free(c->line.data);
    }
    free(ctx);
}
