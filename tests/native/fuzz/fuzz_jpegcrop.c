/*
 * A fuzz target for jpegcrop.h. An input is four bytes that choose the rectangle, then a file.
 *
 * With clang it is a libFuzzer target; built with -DREPLAY by any compiler it has a main() that
 * runs the files named on its command line, each also under a fixed number of mutations. Every
 * claim of the contract that can be checked without a decoder is checked; a broken one aborts.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jpegcrop.h"

#define REQUIRE(condition)                                                 \
    do {                                                                   \
        if (!(condition)) {                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                       \
        }                                                                  \
    } while (0)

/* 0..255 to a position in [0, n), the borders included. */
static uint32_t scaled(uint8_t fraction, uint32_t n) { return (uint32_t)((uint64_t)(n - 1) * fraction / 255); }

static jpegcrop_rect choose_rect(const uint8_t *choice, uint32_t width, uint32_t height)
{
    jpegcrop_rect r = {.x = scaled(choice[0], width), .y = scaled(choice[1], height)};
    r.width = 1 + scaled(choice[2], width - r.x);
    r.height = 1 + scaled(choice[3], height - r.y);
    return r;
}

static void check_refused(jpegcrop_status status, bool keep, const jpegcrop_result *result)
{
    REQUIRE(status == JPEGCROP_UNSUPPORTED || status == JPEGCROP_CORRUPT ||
            (keep && status == JPEGCROP_TOO_LARGE));
    REQUIRE(result->data == NULL && result->nbytes == 0 && result->reason[0] != 0);
}

/* A result is a file that can be cropped to the same rectangle again, with the same outcome. */
static void check_cropped(const jpegcrop_result *result, jpegcrop_rect rect, bool keep)
{
    static jpegcrop_ctx *second;
    jpegcrop_info info;
    jpegcrop_result again;
    if (!second) second = jpegcrop_new();
    REQUIRE(second);
    REQUIRE(result->reason[0] == 0);
    REQUIRE(jpegcrop_size(result->data, result->nbytes, &info) == JPEGCROP_OK);
    REQUIRE(!info.several);
    REQUIRE(result->dx <= rect.x && result->dy <= rect.y);
    REQUIRE(result->dx + rect.width <= info.width && result->dy + rect.height <= info.height);
    jpegcrop_rect inner = {result->dx, result->dy, rect.width, rect.height};
    REQUIRE(jpegcrop_crop(second, result->data, result->nbytes, inner, keep, &again) == JPEGCROP_OK);
    REQUIRE(again.dx == result->dx && again.dy == result->dy);
    REQUIRE(again.nbytes == result->nbytes);
    REQUIRE(memcmp(again.data, result->data, again.nbytes) == 0);
}

/* Nothing that an earlier file left in a context may change an outcome. */
static void check_with_fresh_context(const uint8_t *file, size_t n, jpegcrop_rect rect, bool keep,
                                     jpegcrop_status status, const jpegcrop_result *result)
{
    jpegcrop_ctx *fresh = jpegcrop_new();
    jpegcrop_result other;
    REQUIRE(fresh);
    REQUIRE(jpegcrop_crop(fresh, file, n, rect, keep, &other) == status);
    REQUIRE(other.nbytes == result->nbytes && other.reason == result->reason);
    REQUIRE(!other.data || memcmp(other.data, result->data, other.nbytes) == 0);
    jpegcrop_free(fresh);
}

/* Without the metadata that was kept, a result is what it is without. */
static void check_kept(const jpegcrop_result *kept, jpegcrop_rect rect, const jpegcrop_result *bare)
{
    static jpegcrop_ctx *third;
    jpegcrop_result stripped;
    if (!third) third = jpegcrop_new();
    REQUIRE(third);
    REQUIRE(kept->dx == bare->dx && kept->dy == bare->dy);
    jpegcrop_rect inner = {kept->dx, kept->dy, rect.width, rect.height};
    REQUIRE(jpegcrop_crop(third, kept->data, kept->nbytes, inner, false, &stripped) == JPEGCROP_OK);
    REQUIRE(stripped.nbytes == bare->nbytes);
    REQUIRE(memcmp(stripped.data, bare->data, bare->nbytes) == 0);
}

static jpegcrop_status check_crop(jpegcrop_ctx *ctx, const uint8_t *file, size_t n,
                                  jpegcrop_rect rect, bool keep, jpegcrop_result *result)
{
    jpegcrop_status status = jpegcrop_crop(ctx, file, n, rect, keep, result);
    check_with_fresh_context(file, n, rect, keep, status, result);
    if (status == JPEGCROP_OK)
        check_cropped(result, rect, keep);
    else
        check_refused(status, keep, result);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static jpegcrop_ctx *ctx, *keeping;
    jpegcrop_info info;
    jpegcrop_result result, kept;
    if (size < 4) return 0;
    if (!ctx) ctx = jpegcrop_new();
    if (!keeping) keeping = jpegcrop_new();
    REQUIRE(ctx && keeping);
    const uint8_t *file = data + 4;
    size_t n = size - 4;
    jpegcrop_status status = jpegcrop_size(file, n, &info);
    REQUIRE((status == JPEGCROP_OK) == (info.reason[0] == 0));
    if (status != JPEGCROP_OK) {
        REQUIRE(jpegcrop_crop(ctx, file, n, (jpegcrop_rect){0, 0, 1, 1}, false, &result) == status);
        return 0;
    }
    jpegcrop_rect outside = {info.width - 1, 0, 2, 1};
    REQUIRE(jpegcrop_crop(ctx, file, n, outside, false, &result) == JPEGCROP_BAD_RECT);
    jpegcrop_rect rect = choose_rect(data, info.width, info.height);
    status = check_crop(ctx, file, n, rect, false, &result);
    if (check_crop(keeping, file, n, rect, true, &kept) == JPEGCROP_OK) {
        REQUIRE(status == JPEGCROP_OK);
        check_kept(&kept, rect, &result);
    }
    return 0;
}

#ifdef REPLAY

enum { MUTATIONS = 400, INPUT_MAX_NBYTES = 1 << 16 };

static uint32_t draw(uint32_t below)
{
    static uint32_t state = 1; /* xorshift32: the same mutations in every run */
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % below;
}

static size_t mutate(uint8_t *data, size_t n)
{
    for (uint32_t changes = 1 + draw(3); changes; changes--) {
        size_t at = draw((uint32_t)n);
        uint32_t kind = draw(6);
        if (kind < 3) data[at] ^= (uint8_t)(1u << draw(8));
        if (kind == 3) data[at] = (uint8_t)draw(256);
        if (kind == 4) data[at] = 0xFF;
        if (kind == 5) n = at + 1;
    }
    return n;
}

/* From a block of just its size, so that the sanitizer sees a read behind it. */
static void run(const uint8_t *data, size_t n)
{
    uint8_t *block = malloc(n);
    REQUIRE(block);
    memcpy(block, data, n);
    LLVMFuzzerTestOneInput(block, n);
    free(block);
}

int main(int argc, char **argv)
{
    static uint8_t data[INPUT_MAX_NBYTES], changed[INPUT_MAX_NBYTES];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        REQUIRE(file);
        size_t n = fread(data, 1, sizeof data, file);
        REQUIRE(n > 4 && fclose(file) == 0);
        run(data, n);
        for (int j = 0; j < MUTATIONS; j++) {
            memcpy(changed, data, n);
            run(changed, mutate(changed, n));
        }
    }
    printf("%d files, %d inputs\n", argc - 1, (argc - 1) * (MUTATIONS + 1));
    return 0;
}

#endif
