/*
 * A fuzz target for jpegcrop.h. An input is four bytes that choose the rectangle, then a file.
 *
 * Every claim of the contract that can be checked without a decoder is checked.
 */
#include "target.h"

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
