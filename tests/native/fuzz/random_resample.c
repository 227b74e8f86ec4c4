/*
 * Drawn resizes and finishes, for the sanitizers: each reads and writes memory of just the size it
 * says it does, and plain C gives what the fastest instructions give.
 *
 *     random_resample SEED COUNT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "finish.h"
#include "require.h"
#include "resample.h"

static uint32_t state;

static size_t below(size_t n)
{
    state = state * 1664525u + 1013904223u;
    return (size_t)(state >> 8) % n;
}

static size_t side(void)
{
    static const size_t most[] = {6, 12, 40, 300};
    return 1 + below(most[below(4)]);
}

static void *memory(size_t nbytes)
{
    void *made = malloc(nbytes);
    REQUIRE(made);
    return made;
}

static void draw_span(float *low, float *high, size_t length)
{
    const float a = (float)below(1000) / 999 * (float)length,
                b = (float)below(1000) / 999 * (float)length;
    *low = a < b ? a : b, *high = a < b ? b : a;
    if (below(4) == 0) *low = (float)(int)*low;
    if (below(8) == 0) *high = *low;
}

/* Leaves the result, which the caller frees. */
static uint8_t *resized(resample_job *job)
{
    *job = (resample_job){
        .width = side(), .height = side(), .out_width = side(), .out_height = side()};
    if (below(6) == 0) job->out_width = job->width;
    if (below(6) == 0) job->out_height = job->height;
    job->channels = below(2) ? 1 : 3, job->filter = (int)below(6),
    job->order = (resample_order)below(3);
    job->box[2] = (float)job->width, job->box[3] = (float)job->height;
    if (below(2)) {
        draw_span(&job->box[0], &job->box[2], job->width);
        draw_span(&job->box[1], &job->box[3], job->height);
    }
    const size_t in = job->width * job->height * job->channels;
    const size_t out = job->out_width * job->out_height * job->channels;
    uint8_t *pixels = memory(in), *best = memory(out), *plain = memory(out);
    for (size_t i = 0; i < in; i++) pixels[i] = (uint8_t)below(256);
    job->pixels = pixels;
    memset(best, 1, out), memset(plain, 2, out);
    REQUIRE(resample(job, best) == RESAMPLE_DONE);
    job->plain = true;
    REQUIRE(resample(job, plain) == RESAMPLE_DONE);
    REQUIRE(memcmp(best, plain, out) == 0);
    free(pixels), free(plain);
    return best;
}

static void finished(const resample_job *of, const uint8_t *pixels)
{
    static const uint8_t fill[] = {1, 2, 3};
    const size_t channels = of->channels;
    float *table = memory(channels * 256 * sizeof *table);
    for (size_t i = 0; i < channels * 256; i++) table[i] = (float)i;
    finish_job job = {
        .pixels = pixels,
        .in_width = of->out_width,
        .in_height = of->out_height,
        .channels = channels,
        .fill = fill,
        .left = (ptrdiff_t)below(100) - 50,
        .top = (ptrdiff_t)below(100) - 50,
        .width = side(),
        .height = side(),
        .transpose = below(2),
        .flip_horizontal = below(2),
        .flip_vertical = below(2),
    };
    job.table = below(2) ? table : NULL, job.item_nbytes = job.table ? 4 : 1;
    const size_t area = job.width * job.height, row = job.transpose ? job.height : job.width;
    const bool planes = below(2);
    job.strides[0] = (ptrdiff_t)(planes ? area : 1);
    job.strides[1] = (ptrdiff_t)(planes ? row : row * channels);
    job.strides[2] = (ptrdiff_t)(planes ? 1 : channels);
    void *out = memory(area * channels * job.item_nbytes);
    finish(&job, out);
    free(out), free(table);
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3);
    state = (uint32_t)atoi(argv[1]);
    const long count = atol(argv[2]);
    for (long i = 0; i < count; i++) {
        resample_job job;
        uint8_t *made = resized(&job);
        finished(&job, made);
        free(made);
    }
    printf("%ld cases\n", count);
    return 0;
}
