#include "finish.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    VALUES = 256,
    /* Px of a row that are written before the next row's: where neighbours in a row lie far apart
       in the result, as they do when it is transposed, the lines of the cache that they lie in are
       still there for the next row's. */
    STRETCH = 16,
    /* Px of a row that are streamed at a time. */
    STREAMED = 256,
};

/* `count` px of one row; three channels go side by side (see table.c). */
#define DEFINE_LOOK_UP(name, item) \
    static void name(const uint8_t *pixels, size_t count, size_t channels, const item *table, \
                     item *out, ptrdiff_t plane, ptrdiff_t step) \
    { \
        if (channels == 3) { \
            const item *green = table + VALUES, *blue = table + 2 * VALUES; \
            for (size_t i = 0; i < count; i++, pixels += 3, out += step) { \
                out[0] = table[pixels[0]]; \
                out[plane] = green[pixels[1]]; \
                out[2 * plane] = blue[pixels[2]]; \
            } \
            return; \
        } \
        for (size_t c = 0; c < channels; c++) { \
            const item *values = table + c * VALUES; \
            for (size_t i = 0; i < count; i++) \
                out[(ptrdiff_t)c * plane + (ptrdiff_t)i * step] = \
                    values[pixels[i * channels + c]]; \
        } \
    }

DEFINE_LOOK_UP(look_up_8, uint8_t)
DEFINE_LOOK_UP(look_up_32, uint32_t)

#ifdef __SSE2__

/* Past the cache: a batch is larger than that, and lines that are written whole need not be read
   before. Of 64 slots in turn each is written in 0.4 of the time; of one slot in 1.25. */
static void stream(const uint32_t *items, size_t count, uint32_t *out)
{
    size_t i = 0;
    for (; i < count && (uintptr_t)(out + i) % 16; i++) out[i] = items[i];
    for (; i + 4 <= count; i += 4)
        _mm_stream_si128((__m128i *)(out + i), _mm_loadu_si128((const __m128i *)(items + i)));
    for (; i < count; i++) out[i] = items[i];
}

/* Three channels whose rows lie in one piece each, forwards (step 1) or backwards (-1). */
static void look_up_rows(const uint8_t *pixels, size_t count, const uint32_t *table, uint32_t *out,
                         ptrdiff_t plane, ptrdiff_t step)
{
    uint32_t rows[3][STREAMED];
    while (count) {
        const size_t part = count < STREAMED ? count : STREAMED, last = part - 1;
        look_up_32(pixels, part, 3, table, rows[0] + (step < 0 ? last : 0), STREAMED, step);
        uint32_t *first = step < 0 ? out - last : out;
        for (ptrdiff_t c = 0; c < 3; c++) stream(rows[c], part, first + c * plane);
        pixels += 3 * part, out += step * (ptrdiff_t)part, count -= part;
    }
}

#else
#define look_up_rows(pixels, count, table, out, plane, step) \
    look_up_32(pixels, count, 3, table, out, plane, step)
#endif

/* `count` px of one row as they are. */
static void copy(const uint8_t *pixels, size_t count, size_t channels, uint8_t *out,
                 ptrdiff_t plane, ptrdiff_t step)
{
    if (step == (ptrdiff_t)channels && (plane == 1 || channels == 1)) {
        memcpy(out, pixels, count * channels);
        return;
    }
    for (size_t i = 0; i < count; i++, out += step)
        for (size_t c = 0; c < channels; c++) out[(ptrdiff_t)c * plane] = *pixels++;
}

static void put(const finish_job *job, const uint8_t *pixels, size_t count, char *out,
                ptrdiff_t step)
{
    const ptrdiff_t plane = job->strides[0];
    if (!job->table) copy(pixels, count, job->channels, (uint8_t *)out, plane, step);
    else if (job->item_nbytes == 1)
        look_up_8(pixels, count, job->channels, job->table, (uint8_t *)out, plane, step);
    else if (job->channels == 3 && (step == 1 || step == -1))
        look_up_rows(pixels, count, job->table, (uint32_t *)out, plane, step);
    else look_up_32(pixels, count, job->channels, job->table, (uint32_t *)out, plane, step);
}

/* `count` px of the fill. */
static void put_fill(const finish_job *job, size_t count, char *out, ptrdiff_t step)
{
    for (size_t i = 0; i < count; i++, out += step * (ptrdiff_t)job->item_nbytes)
        put(job, job->fill, 1, out, step);
}

/* How many of `length` positions from `at` on lie before 0, and where those before `side` end. */
static void inside(ptrdiff_t at, size_t length, size_t side, size_t *first, size_t *stop)
{
    const ptrdiff_t from = -at, to = (ptrdiff_t)side - at, most = (ptrdiff_t)length;
    *first = (size_t)(from < 0 ? 0 : from > most ? most : from);
    *stop = (size_t)(to < (ptrdiff_t)*first ? (ptrdiff_t)*first : to > most ? most : to);
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static size_t within(size_t at, size_t low, size_t high)
{
    return at < low ? low : at > high ? high : at;
}

void finish(const finish_job *job, void *out)
{
    /* Strides along the window's own rows and columns. A flip begins at the other end and goes
     * backwards. */
    ptrdiff_t down = job->strides[1], across = job->strides[2];
    const ptrdiff_t rows = (ptrdiff_t)(job->transpose ? job->width : job->height);
    const ptrdiff_t columns = (ptrdiff_t)(job->transpose ? job->height : job->width);
    ptrdiff_t start = 0;
    if (job->flip_vertical) start += (rows - 1) * down, down = -down;
    if (job->flip_horizontal) start += (columns - 1) * across, across = -across;
    const ptrdiff_t by_row = job->transpose ? across : down,
                    by_column = job->transpose ? down : across;

    const ptrdiff_t item = (ptrdiff_t)job->item_nbytes;
    char *first_item = (char *)out + start * item;
    size_t left, right, top, bottom;
    inside(job->left, job->width, job->in_width, &left, &right);
    inside(job->top, job->height, job->in_height, &top, &bottom);

    const bool far = (by_column < 0 ? -by_column : by_column) > (by_row < 0 ? -by_row : by_row);
    const size_t stretch = far ? STRETCH : job->width;
    for (size_t x = 0; x < job->width; x += stretch) {
        const size_t stop = smaller(x + stretch, job->width);
        const size_t from = within(left, x, stop), to = within(right, x, stop);
        for (size_t y = 0; y < job->height; y++) {
            char *row = first_item + (ptrdiff_t)y * by_row * item;
            char *at = row + (ptrdiff_t)x * by_column * item;
            if (y < top || y >= bottom) {
                put_fill(job, stop - x, at, by_column);
                continue;
            }
            put_fill(job, from - x, at, by_column);
            if (to > from) {
                const size_t in_y = (size_t)(job->top + (ptrdiff_t)y),
                             in_x = (size_t)(job->left + (ptrdiff_t)from);
                const uint8_t *pixels = job->pixels + (in_y * job->in_width + in_x) * job->channels;
                put(job, pixels, to - from, row + (ptrdiff_t)from * by_column * item, by_column);
            }
            put_fill(job, stop - to, row + (ptrdiff_t)to * by_column * item, by_column);
        }
    }
#ifdef __SSE2__
    _mm_sfence(); /* whoever is told next that the slot is done must see it */
#endif
}
