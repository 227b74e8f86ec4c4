/*
 * A fuzz target for decode.h. An input is four bytes that choose the rectangle, then a file.
 *
 * Plain C and vector code must agree, on pixels and on what is given up; a context that has seen
 * other files must agree with a fresh one; and a rectangle must be that of the whole picture, where
 * that decodes. What pixels Pillow gives is for tests/native/fuzz/against_pillow.py to compare.
 */
#include "target.h"

#include "decode.h"

enum { MAX_PX = 1 << 18 }; /* a larger picture, by a changed header, takes as long as thousands */

typedef struct {
    decode_status status;
    jpegcrop_rect rect;
    unsigned n_channels;
    uint8_t *pixels; /* of just the size that the contract says; NULL unless DECODE_OK */
} decoded;

static decoded decode(decode_ctx *ctx, const pixel_ops *ops, const uint8_t *file, size_t n,
                      jpegcrop_rect rect)
{
    decoded made = {.rect = rect};
    made.status = decode_begin(ctx, file, n, &made.rect, &made.n_channels);
    REQUIRE(made.status != DECODE_NO_MEMORY);
    if (made.status == DECODE_OK) {
        REQUIRE(made.n_channels == 1 || made.n_channels == 3);
        made.pixels = malloc((size_t)made.rect.width * made.rect.height * made.n_channels);
        REQUIRE(made.pixels);
        made.status = decode_run(ctx, ops, made.pixels);
        REQUIRE(made.status != DECODE_NO_MEMORY);
    }
    REQUIRE(made.status == DECODE_OK || decode_reason(ctx)[0] != 0);
    if (made.status != DECODE_OK) free(made.pixels), made.pixels = NULL;
    return made;
}

static void check_same(const decoded *one, const decoded *other)
{
    REQUIRE(one->status == other->status);
    if (one->status != DECODE_OK) return;
    REQUIRE(one->n_channels == other->n_channels);
    REQUIRE(one->rect.width == other->rect.width && one->rect.height == other->rect.height);
    const size_t nbytes = (size_t)one->rect.width * one->rect.height * one->n_channels;
    REQUIRE(memcmp(one->pixels, other->pixels, nbytes) == 0);
}

/* A picture that decodes as a whole decodes in part, to the same. */
static void check_part(const decoded *whole, const decoded *part)
{
    if (whole->status != DECODE_OK) return;
    REQUIRE(part->status == DECODE_OK && part->n_channels == whole->n_channels);
    const size_t px = part->n_channels, row = part->rect.width * px;
    for (size_t y = 0; y < part->rect.height; y++) {
        const size_t at = (part->rect.y + y) * whole->rect.width + part->rect.x;
        REQUIRE(memcmp(part->pixels + y * row, whole->pixels + at * px, row) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static decode_ctx *ctx;
    jpegcrop_info info;
    if (size < 4) return 0;
    if (!ctx) ctx = decode_new();
    decode_ctx *fresh = decode_new();
    REQUIRE(ctx && fresh);
    const uint8_t *file = data + 4;
    const size_t n = size - 4;
    const pixel_ops *fast = pixels_fast() ? pixels_fast() : &pixels_plain;
    const bool read = jpegcrop_size(file, n, &info) == JPEGCROP_OK;
    const bool sized = info.width && info.height; /* it may be progressive, which no crop reads */
    if (sized && (uint64_t)info.width * info.height <= MAX_PX) {
        const jpegcrop_rect rect = choose_rect(data, info.width, info.height);
        decoded part = decode(ctx, fast, file, n, rect);
        decoded plain = decode(ctx, &pixels_plain, file, n, rect);
        decoded again = decode(fresh, fast, file, n, rect);
        decoded whole = decode(ctx, fast, file, n, (jpegcrop_rect){0});
        check_same(&part, &plain), check_same(&part, &again), check_part(&whole, &part);
        free(part.pixels), free(plain.pixels), free(again.pixels), free(whole.pixels);
        const jpegcrop_rect outside = {info.width - 1, 0, 2, 1};
        REQUIRE(decode(ctx, fast, file, n, outside).status == DECODE_GIVEN_UP);
    } else if (!read && !sized) {
        REQUIRE(decode(ctx, fast, file, n, (jpegcrop_rect){0}).status == DECODE_GIVEN_UP);
    }
    decode_free(fresh);
    return 0;
}
