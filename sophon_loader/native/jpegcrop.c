/* The crop: which MCUs to keep, and the walk that keeps them. See jpegcrop.h for the contract.
 * A file meets frame.c and metadata.c (header), huffman.c (tables), scan.c (reading) and emit.c
 * (writing). */
#include "jpegcrop.h"

#include <stdlib.h>
#include <string.h>

#include "emit.h"
#include "frame.h"
#include "metadata.h"
#include "scan.h"

struct jpegcrop_ctx {
    huff_table dc[4], ac[4]; /* by table number, as the last file defined them */
    dc_coder coder[4];
    frame f;
    scan in;
    bit_writer out;
    uint32_t sent[MAX_COMPONENTS]; /* last DC value of each component in the output */
};

/* The kept MCUs, and where they lie. */
typedef struct {
    size_t columns;               /* of the source, in MCUs */
    size_t column, row;           /* first kept */
    size_t n_columns, n_rows;     /* kept */
    uint32_t x, y, width, height; /* the same in pixels; ends at the picture's edge, if there */
} window;

/* A window in one direction. */
typedef struct {
    size_t first, n; /* MCUs */
    uint32_t start_px, size_px;
} range;

/* The units of `unit_px` that cover [start, start + n) widened by `margin`. The last unit is cut at
 * the picture's edge, so that a decoder pads what lies beyond it just as before. */
static range cover(uint32_t start, uint32_t n, uint32_t side, uint32_t unit_px, uint32_t margin,
                   uint32_t at_least)
{
    uint32_t from = start > margin ? start - margin : 0;
    uint32_t to = side - (start + n) > margin ? start + n + margin : side;
    uint32_t first = from / unit_px, last = (to - 1) / unit_px;
    uint32_t end = side - last * unit_px > unit_px ? (last + 1) * unit_px : side;
    if (first && end - first * unit_px < at_least) first--;
    return (range){first, last - first + 1, first * unit_px, end - first * unit_px};
}

static window choose_window(const frame *f, jpegcrop_rect rect)
{
    bool lone = f->n_components == 1; /* then the MCU is a single block, A.2.2 */
    uint32_t mcu_w = 8 * (lone ? 1 : f->h_max), mcu_h = 8 * (lone ? 1 : f->v_max);
    uint32_t margin_x = 0, margin_y = 0;
    for (unsigned i = 0; i < f->n_components; i++) {
        /* Up-sampling mixes in the neighbouring chroma sample; one luma pixel reaches it. */
        if (f->comp[i].h < f->h_max) margin_x = 1;
        if (f->comp[i].v < f->v_max) margin_y = 1;
    }
    /* libjpeg up-samples without neighbours where chroma is at most 2 samples wide. */
    uint32_t at_least = margin_x ? 2 * f->h_max + 1 : 0;
    range x = cover(rect.x, rect.width, f->width, mcu_w, margin_x, at_least);
    range y = cover(rect.y, rect.height, f->height, mcu_h, margin_y, 0);
    return (window){(f->width - 1) / mcu_w + 1, x.first,    y.first,   x.n,      y.n,
                    x.start_px,                 y.start_px, x.size_px, y.size_px};
}

static jpegcrop_status damaged_scan(jpegcrop_ctx *ctx)
{
    return frame_refuse(&ctx->f, JPEGCROP_CORRUPT, "damaged scan");
}

/* The DC differences in the first MCU of a run refer to blocks that the output may not have: each
 * component's first one is coded anew. Sets *rest to where the bits to copy on from begin. */
static jpegcrop_status keep_first(jpegcrop_ctx *ctx, size_t *rest)
{
    const frame *f = &ctx->f;
    first_mcu mcu = {0};
    if (!scan_walk_first(&ctx->in, &mcu)) return damaged_scan(ctx);
    for (unsigned i = 0; i < f->n_components; i++) {
        int32_t difference = (int32_t)mcu.value[i] - (int32_t)ctx->sent[i];
        jpegcrop_status status = emit_dc(&ctx->out, &ctx->coder[f->comp[i].dc], difference);
        if (status == JPEGCROP_UNSUPPORTED)
            return frame_refuse(&ctx->f, status, "no room in the DC table");
        if (status != JPEGCROP_OK) return status;
        *rest = mcu.ac_at[i];
        if (i + 1 == f->n_components) break;
        if (!emit_copy(&ctx->out, ctx->in.bits, *rest, mcu.dc_at[i + 1])) return JPEGCROP_NO_MEMORY;
    }
    return JPEGCROP_OK;
}

/* `n` MCUs without a restart between them. */
static jpegcrop_status keep_run(jpegcrop_ctx *ctx, size_t n)
{
    size_t rest = 0;
    jpegcrop_status status = keep_first(ctx, &rest);
    if (status != JPEGCROP_OK) return status;
    if (!scan_walk(&ctx->in, n - 1)) return damaged_scan(ctx);
    if (!emit_copy(&ctx->out, ctx->in.bits, rest, scan_position(&ctx->in)))
        return JPEGCROP_NO_MEMORY;
    memcpy(ctx->sent, ctx->in.dc_value, sizeof ctx->sent);
    return JPEGCROP_OK;
}

static jpegcrop_status drop_run(jpegcrop_ctx *ctx, size_t n)
{
    return scan_walk(&ctx->in, n) ? JPEGCROP_OK : damaged_scan(ctx);
}

static jpegcrop_status walk_span(jpegcrop_ctx *ctx, size_t n, bool keep)
{
    while (n) {
        if (ctx->in.until_restart == 0 && !scan_restart(&ctx->in)) return damaged_scan(ctx);
        size_t run = n < ctx->in.until_restart ? n : ctx->in.until_restart;
        jpegcrop_status status = keep ? keep_run(ctx, run) : drop_run(ctx, run);
        if (status != JPEGCROP_OK) return status;
        n -= run;
        ctx->in.until_restart -= run;
    }
    return JPEGCROP_OK;
}

static jpegcrop_status walk_window(jpegcrop_ctx *ctx, const window *kept)
{
    size_t skip = kept->row * kept->columns + kept->column;
    for (size_t row = 0; row < kept->n_rows; row++) {
        jpegcrop_status status = walk_span(ctx, skip, false);
        if (status == JPEGCROP_OK) status = walk_span(ctx, kept->n_columns, true);
        if (status != JPEGCROP_OK) return status;
        skip = kept->columns - kept->n_columns;
    }
    const char *wrong = scan_check_tail(&ctx->in);
    return wrong ? frame_refuse(&ctx->f, JPEGCROP_CORRUPT, wrong) : JPEGCROP_OK;
}

static jpegcrop_status prepare(jpegcrop_ctx *ctx, bool keep_metadata)
{
    frame *f = &ctx->f;
    scan *in = &ctx->in;
    in->n_blocks = 0;
    in->restart_interval = f->restart_interval;
    for (unsigned i = 0; i < f->n_components; i++) {
        const component *c = &f->comp[i];
        huff_table *dc = &ctx->dc[c->dc], *ac = &ctx->ac[c->ac];
        if (!huff_load_dc(dc, f->dc[c->dc]) || !huff_load_ac(ac, f->ac[c->ac]))
            return frame_refuse(f, JPEGCROP_CORRUPT, "impossible Huffman table");
        emit_load_coder(&ctx->coder[c->dc], dc);
        unsigned n = f->n_components == 1 ? 1 : (unsigned)c->h * c->v;
        while (n--) in->plan[in->n_blocks++] = (block_plan){dc, ac, i};
    }
    memset(ctx->sent, 0, sizeof ctx->sent);
    size_t kept_nbytes = keep_metadata ? f->metadata_nbytes : 0;
    bool ready = scan_begin(in, f->scan, f->end) && emit_begin(&ctx->out, kept_nbytes);
    return ready ? JPEGCROP_OK : JPEGCROP_NO_MEMORY;
}

static bool rect_is_inside(const frame *f, jpegcrop_rect r)
{
    return r.width && r.height && r.x < f->width && r.y < f->height &&
           r.width <= f->width - r.x && r.height <= f->height - r.y;
}

jpegcrop_status jpegcrop_crop(jpegcrop_ctx *ctx, const uint8_t *src, size_t src_nbytes,
                              jpegcrop_rect rect, bool keep_metadata, jpegcrop_result *result)
{
    window kept;
    size_t start = 0;
    *result = (jpegcrop_result){0};
    jpegcrop_status status = frame_parse(&ctx->f, src, src_nbytes, false);
    if (status == JPEGCROP_OK && keep_metadata) status = metadata_check_kept(&ctx->f);
    if (status != JPEGCROP_OK) goto done;
    if (!rect_is_inside(&ctx->f, rect)) {
        status = frame_refuse(&ctx->f, JPEGCROP_BAD_RECT, "rectangle not inside the picture");
        goto done;
    }
    kept = choose_window(&ctx->f, rect);
    if ((status = prepare(ctx, keep_metadata)) != JPEGCROP_OK) goto done;
    if ((status = walk_window(ctx, &kept)) != JPEGCROP_OK) goto done;
    start = emit_finish(&ctx->out, &ctx->f, ctx->coder, kept.width, kept.height);
    status = start ? JPEGCROP_OK : JPEGCROP_NO_MEMORY;
    if (status != JPEGCROP_OK) goto done;
    result->data = ctx->out.data + start;
    result->nbytes = ctx->out.used - start;
    result->dx = rect.x - kept.x;
    result->dy = rect.y - kept.y;
done:
    result->reason = status == JPEGCROP_NO_MEMORY ? "out of memory" : ctx->f.reason;
    return status;
}

jpegcrop_status jpegcrop_size(const uint8_t *src, size_t src_nbytes, jpegcrop_info *info)
{
    frame f;
    jpegcrop_status status = frame_parse(&f, src, src_nbytes, false);
    *info = (jpegcrop_info){f.width, f.height, f.n_components, f.index != NULL, f.reason};
    return status;
}

jpegcrop_ctx *jpegcrop_new(void) { return calloc(1, sizeof(jpegcrop_ctx)); }

void jpegcrop_free(jpegcrop_ctx *ctx)
{
    if (!ctx) return;
    scan_free(&ctx->in);
    emit_free(&ctx->out);
    free(ctx);
}

const char *jpegcrop_status_name(jpegcrop_status status)
{
    static const char *const names[] = {"ok",       "unsupported", "corrupt",
                                        "bad_rect", "no_memory",   "too_large"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown";
}
