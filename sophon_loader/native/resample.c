#include "resample.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "resample_rows.h"

/* M_PI is no part of C11. */
#define PI 3.14159265358979323846

/* Bytes that are there behind each row, since instructions that take several px read past its end. */
enum { SLACK = 32 };

/* --- weights ---------------------------------------------------------------------------------- */

/* Each formula is evaluated in Pillow's order: another one rounds differently, and moves pixels. */

static double box_at(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

static double bilinear_at(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double hamming_at(double x)
{
    x = fabs(x);
    if (x == 0.0) return 1.0;
    if (x >= 1.0) return 0.0;
    x *= PI;
    /* The two constants are single-precision ones in Pillow. */
    return sin(x) / x * (0.54f + 0.46f * cos(x));
}

static double bicubic_at(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static double sinc(double x)
{
    if (x == 0.0) return 1.0;
    x *= PI;
    return sin(x) / x;
}

static double lanczos_at(double x) { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }

static const struct {
    double (*at)(double);
    double reach; /* to either side, px of the smaller of the two pictures */
} filters[RESAMPLE_FILTERS] = {
    [RESAMPLE_LANCZOS] = {lanczos_at, 3.0}, [RESAMPLE_BILINEAR] = {bilinear_at, 1.0},
    [RESAMPLE_BICUBIC] = {bicubic_at, 2.0}, [RESAMPLE_BOX] = {box_at, 0.5},
    [RESAMPLE_HAMMING] = {hamming_at, 1.0},
};

static void axis_free(axis_weights *axis)
{
    free(axis->first);
    free(axis->k);
    free(axis->split);
}

/* The weights of one output px: `n` of them, from input px `first` on. False if their sums could
 * overflow. */
static bool weigh(double (*at)(double), double center, double shrink, size_t first, size_t n,
                  double *weights, int32_t *k)
{
    double total = 0.0, sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        weights[i] = at(((double)(int)(i + first) - center + 0.5) * shrink);
        total += weights[i];
    }
    for (size_t i = 0; i < n; i++) {
        const double weight = (total != 0.0 ? weights[i] / total : weights[i]) * (1 << WEIGHT_BITS);
        sum += fabs(weight) + 1;
        if (!(sum * 255 < INT_MAX - (1 << (WEIGHT_BITS - 1)))) return false;
        k[i] = (int32_t)(weight < 0 ? -0.5 + weight : 0.5 + weight);
    }
    return true;
}

/* The weights that make `out` px of those of `in` px that lie from `low` to `high`. */
static resample_status axis_make(axis_weights *axis, int filter, size_t in, float low, float high,
                                 size_t out)
{
    /* The difference is one of floats, as in Pillow. */
    const float length = high - low;
    const double scale = (double)length / (double)out, widen = scale < 1.0 ? 1.0 : scale;
    const double reach = filters[filter].reach * widen, shrink = 1.0 / widen;
    const size_t most = (size_t)ceil(reach) * 2 + 1;
    const size_t groups = (most + TAPS - 1) / TAPS;
    if (groups > RESAMPLE_MAX_WEIGHTS / TAPS / out) return RESAMPLE_REFUSED;

    axis->groups = groups;
    axis->first = malloc(2 * out * sizeof *axis->first);
    axis->k = calloc(out * groups * TAPS, sizeof *axis->k);
    axis->split = malloc(out * groups * TAPS * 2 * sizeof *axis->split);
    double *weights = malloc(most * sizeof *weights);
    resample_status status = RESAMPLE_NO_MEMORY;
    if (!axis->first || !axis->k || !axis->split || !weights) goto end;
    axis->count = axis->first + out;

    status = RESAMPLE_REFUSED;
    for (size_t i = 0; i < out; i++) {
        const double center = (double)low + ((double)(int)i + 0.5) * scale;
        const int from = (int)(center - reach + 0.5), to = (int)(center + reach + 0.5);
        const size_t first = from < 0 ? 0 : (size_t)from;
        const size_t stop = to < 0 ? 0 : (size_t)to > in ? in : (size_t)to;
        /* Pillow's rounding leaves none out of order; what follows relies on it. */
        if (first > stop || stop - first > most) goto end;
        if (i && (first < axis->first[i - 1] || stop < axis->first[i - 1] + axis->count[i - 1]))
            goto end;
        axis->first[i] = (uint32_t)first;
        axis->count[i] = (uint32_t)(stop - first);
        int32_t *k = axis->k + i * groups * TAPS;
        if (!weigh(filters[filter].at, center, shrink, first, stop - first, weights, k)) goto end;
        int16_t *split = axis->split + i * groups * TAPS * 2;
        for (size_t j = 0; j < groups * TAPS; j++) {
            int16_t *pair = split + j / TAPS * TAPS * 2 + j % TAPS;
            pair[0] = (int16_t)(k[j] & ((1 << LOW_BITS) - 1));
            pair[TAPS] = (int16_t)((k[j] - pair[0]) / (1 << LOW_BITS));
        }
    }
    status = RESAMPLE_DONE;
end:
    free(weights);
    return status;
}

/* --- the two passes --------------------------------------------------------------------------- */

/* What both passes need. A row of the result is made of a few rows of the picture, so no picture
 * lies between the two. */
typedef struct {
    const resample_job *job;
    uint8_t *out;
    size_t in_row, out_row; /* bytes */
    axis_weights across, down;
    row_across *row_across;
    row_down *row_down;
    uint8_t *line;        /* a row of the picture, with slack */
    uint8_t *ring;        /* rows that have been made narrower, or wider, with slack */
    size_t held;          /* how many it holds: as many as a row of the result is made of */
    const uint8_t **rows; /* those that make up a row of the result */
} passes;

static const uint8_t *row_of(const passes *p, size_t y) { return p->job->pixels + y * p->in_row; }

/* One row of the picture, narrower or wider. */
static void across(const passes *p, size_t y, uint8_t *out)
{
    const uint8_t *row = row_of(p, y);
    /* At the picture's end, what lies behind the row is not ours. */
    if ((p->job->height - 1 - y) * p->in_row < SLACK) {
        memcpy(p->line, row, p->in_row);
        row = p->line;
    }
    p->row_across(&p->across, row, p->job->channels, p->job->out_width, out);
}

static void only_across(const passes *p)
{
    for (size_t y = 0; y < p->job->out_height; y++) across(p, y, p->out + y * p->out_row);
}

static void only_down(const passes *p)
{
    for (size_t y = 0; y < p->job->out_height; y++) {
        const size_t first = p->down.first[y], n = p->down.count[y];
        for (size_t i = 0; i < n; i++) p->rows[i] = row_of(p, first + i);
        p->row_down(&p->down, y, p->rows, p->out_row, p->out + y * p->out_row);
    }
}

static void across_then_down(const passes *p)
{
    const size_t held = p->held, step = p->out_row + SLACK;
    size_t made = p->down.first[0]; /* rows before it are there, or needed no more */
    for (size_t y = 0; y < p->job->out_height; y++) {
        const size_t first = p->down.first[y], n = p->down.count[y];
        if (made < first) made = first;
        for (; made < first + n; made++) across(p, made, p->ring + made % held * step);
        for (size_t i = 0; i < n; i++) p->rows[i] = p->ring + (first + i) % held * step;
        p->row_down(&p->down, y, p->rows, p->out_row, p->out + y * p->out_row);
    }
}

static void down_then_across(const passes *p)
{
    const size_t channels = p->job->channels, last = p->job->out_width - 1;
    const size_t from = p->across.first[0] * channels;
    const size_t nbytes = (p->across.first[last] + p->across.count[last]) * channels - from;
    for (size_t y = 0; y < p->job->out_height; y++) {
        const size_t first = p->down.first[y], n = p->down.count[y];
        for (size_t i = 0; i < n; i++) p->rows[i] = row_of(p, first + i) + from;
        p->row_down(&p->down, y, p->rows, nbytes, p->line + from);
        p->row_across(&p->across, p->line, channels, p->job->out_width, p->out + y * p->out_row);
    }
}

/* By the sides of the whole picture, not by those of the box. */
static bool goes_down_first(const resample_job *job)
{
    const ptrdiff_t rows = (ptrdiff_t)job->height - (ptrdiff_t)job->out_height;
    const ptrdiff_t columns = (ptrdiff_t)job->width - (ptrdiff_t)job->out_width;
    switch (job->order) {
    case RESAMPLE_DOWN_FIRST_TALL: return rows > 0 && job->height > 100 * job->width;
    case RESAMPLE_DOWN_FIRST_CHEAPER: return rows > 0 && rows > 2 * columns;
    default: return false;
    }
}

static resample_status run(passes *p)
{
    const resample_job *job = p->job;
    const size_t w = job->width, h = job->height, to_w = job->out_width, to_h = job->out_height;
    const float *box = job->box;
    const bool horizontal = to_w != w || box[0] != 0 || box[2] != (float)to_w;
    const bool vertical = to_h != h || box[1] != 0 || box[3] != (float)to_h;
    const bool down_first = goes_down_first(job);

    resample_status status = RESAMPLE_DONE;
    if (horizontal) status = axis_make(&p->across, job->filter, w, box[0], box[2], to_w);
    if (vertical && !status) status = axis_make(&p->down, job->filter, h, box[1], box[3], to_h);
    if (status) return status;

    for (size_t y = 0; vertical && y < to_h; y++)
        p->held = p->down.count[y] > p->held ? p->down.count[y] : p->held;
    const size_t rows = horizontal && vertical && !down_first ? p->held : 0;
    if (rows > RESAMPLE_MAX_ROWS_NBYTES / (p->out_row + SLACK)) return RESAMPLE_REFUSED;
    p->line = calloc(p->in_row + SLACK, 1);
    p->rows = malloc((p->held + 1) * sizeof *p->rows);
    p->ring = calloc(rows + 1, p->out_row + SLACK);
    if (!p->line || !p->rows || !p->ring) return RESAMPLE_NO_MEMORY;

    if (!vertical) only_across(p);
    else if (!horizontal) only_down(p);
    else if (down_first) down_then_across(p);
    else across_then_down(p);
    return RESAMPLE_DONE;
}

/* --- without weights -------------------------------------------------------------------------- */

static void crop(const resample_job *job, uint8_t *out)
{
    const size_t nbytes = job->out_width * job->channels, in_row = job->width * job->channels;
    const uint8_t *from =
        job->pixels + (size_t)job->box[1] * in_row + (size_t)job->box[0] * job->channels;
    for (size_t y = 0; y < job->out_height; y++)
        memcpy(out + y * nbytes, from + y * in_row, nbytes);
}

/* Positions are summed up step by step, with the rounding that this has in Pillow. What lies
 * outside is 0. */
static resample_status nearest(const resample_job *job, uint8_t *out)
{
    const float *box = job->box, wide = box[2] - box[0], high = box[3] - box[1];
    const size_t channels = job->channels, to_w = job->out_width, nbytes = to_w * channels;
    const double step_x = (double)wide / (double)to_w,
                 step_y = (double)high / (double)job->out_height;
    size_t *columns = malloc(to_w * sizeof *columns);
    if (!columns) return RESAMPLE_NO_MEMORY;
    double at = (double)box[0] + step_x * 0.5;
    size_t inside = 0;
    for (size_t x = 0; x < to_w; x++, at += step_x) {
        columns[x] = (size_t)at * channels;
        if ((size_t)at < job->width) inside = x + 1;
    }
    at = (double)box[1] + step_y * 0.5;
    for (size_t y = 0; y < job->out_height; y++, at += step_y, out += nbytes) {
        memset(out, 0, nbytes);
        if ((size_t)at >= job->height) continue;
        const uint8_t *row = job->pixels + (size_t)at * job->width * channels;
        for (size_t x = 0; x < inside; x++)
            for (size_t c = 0; c < channels; c++) out[x * channels + c] = row[columns[x] + c];
    }
    free(columns);
    return RESAMPLE_DONE;
}

/* --- the whole -------------------------------------------------------------------------------- */

static bool is_side(size_t side) { return side >= 1 && side <= RESAMPLE_MAX_SIDE; }

static bool is_whole(float number) { return number == (float)(int)number; }

resample_status resample(const resample_job *job, uint8_t *out)
{
    const float *box = job->box, wide = box[2] - box[0], high = box[3] - box[1];
    if (!job->width || !job->height || !job->out_width || !job->out_height) return RESAMPLE_BAD;
    if ((job->channels != 1 && job->channels != 3) || job->filter < 0 ||
        job->filter >= RESAMPLE_FILTERS)
        return RESAMPLE_BAD;
    if (!is_side(job->width) || !is_side(job->height) || !is_side(job->out_width) ||
        !is_side(job->out_height))
        return RESAMPLE_REFUSED;
    /* So said that a number that is none is bad too. */
    if (!(box[0] >= 0 && box[1] >= 0 && box[2] <= (float)job->width &&
          box[3] <= (float)job->height && wide >= 0 && high >= 0))
        return RESAMPLE_BAD;

    if (is_whole(box[0]) && is_whole(box[1]) && wide == (float)job->out_width &&
        high == (float)job->out_height) {
        crop(job, out);
        return RESAMPLE_DONE;
    }
    if (job->filter == RESAMPLE_NEAREST) return nearest(job, out);

    passes p = {
        .job = job,
        .out = out,
        .in_row = job->width * job->channels,
        .out_row = job->out_width * job->channels,
        .row_across = job->plain ? row_across_plain : row_across_best(),
        .row_down = job->plain ? row_down_plain : row_down_best(),
    };
    const resample_status status = run(&p);
    axis_free(&p.across);
    axis_free(&p.down);
    free(p.line);
    free(p.ring);
    free(p.rows);
    return status;
}

const char *resample_instructions(void)
{
    return row_down_best() == row_down_plain ? "plain" : "avx2";
}
