/*
 * Drawn blocks and rows of samples: plain C gives what the processor's vector code gives.
 *
 *     random_pixels SEED COUNT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pixels.h"
#include "require.h"

enum { MOST = 200, GUARD = 0xA5 };

static uint32_t state;
static const pixel_ops *fast;

static unsigned below(unsigned n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

typedef struct {
    int16_t coefficients[BLOCK_LEN];
    uint16_t quant[64];
    uint8_t out[8][24];
} block;

/* Few and small coefficients, or some so large that sums or products leave 16 bits. */
static void draw_block(block *made)
{
    static const unsigned densities[] = {1, 2, 8, 64}, sizes[] = {4, 40, 400, 2950, 32767};
    const unsigned density = densities[below(4)], size = sizes[below(5)];
    const unsigned step = below(8) ? 1 + below(20) : 1 + below(32767);
    memset(made, 0, sizeof *made);
    for (int i = 0; i < 64; i++) {
        made->quant[i] = (uint16_t)(1 + below(step));
        if (below(density) == 0)
            made->coefficients[i] = (int16_t)((int)below(2 * size + 1) - (int)size) / made->quant[i];
    }
    if (below(16) == 0) made->coefficients[below(64)] = below(2) ? INT16_MIN : INT16_MAX;
}

static bool transformed(const pixel_ops *ops, block *blocks, unsigned n)
{
    idct_job jobs[BATCH_BLOCKS + 1];
    for (unsigned i = 0; i < n; i++)
        jobs[i] = (idct_job){blocks[i].coefficients, blocks[i].quant, blocks[i].out[0],
                             sizeof blocks[i].out[0]};
    return ops->idct(jobs, n);
}

/* Returns whether the blocks were within the limit. */
static bool check_blocks(void)
{
    block some[BATCH_BLOCKS], same[BATCH_BLOCKS];
    const unsigned n = 1 + below(below(2) ? 1 : BATCH_BLOCKS);
    for (unsigned i = 0; i < n; i++) draw_block(&some[i]);
    memcpy(same, some, sizeof some[0] * n);
    const bool good = transformed(&pixels_plain, some, n);
    REQUIRE(transformed(fast, same, n) == good);
    REQUIRE(!good || memcmp(some, same, sizeof some[0] * n) == 0);
    return good;
}

static void check_rows(void)
{
    static uint8_t in[3][ROW_PADDING + MOST + ROW_PADDING], out[2][3 * MOST + ROW_PADDING];
    const unsigned flat = below(3);
    for (int r = 0; r < 3; r++)
        for (size_t i = 0; i < sizeof in[r]; i++)
            in[r][i] = (uint8_t)(flat ? below(256) : 255 * below(2));
    const size_t n = 1 + below(MOST);
    const uint8_t *a = in[0] + ROW_PADDING, *b = in[1] + ROW_PADDING, *c = in[2] + ROW_PADDING;
    pixels_plain.widen(a, n, out[0]), fast->widen(a, n, out[1]);
    REQUIRE(memcmp(out[0], out[1], 2 * n) == 0);
    for (unsigned bias = 1; bias <= 2; bias++) {
        pixels_plain.between(a, b, bias, n, out[0]), fast->between(a, b, bias, n, out[1]);
        REQUIRE(memcmp(out[0], out[1], n) == 0);
    }
    pixels_plain.widen_between(a, b, n, out[0]), fast->widen_between(a, b, n, out[1]);
    REQUIRE(memcmp(out[0], out[1], 2 * n) == 0);
    memset(out, GUARD, sizeof out);
    pixels_plain.colour(a, b, c, n, out[0]), fast->colour(a, b, c, n, out[1]);
    REQUIRE(memcmp(out, out[1], sizeof out[0]) == 0); /* nothing behind 3 n bytes either */
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 3);
    state = (uint32_t)atoi(argv[1]);
    fast = pixels_fast();
    if (!fast) {
        puts("no vector code");
        return 0;
    }
    const long count = atol(argv[2]);
    long good = 0;
    for (long i = 0; i < count; i++) good += check_blocks(), check_rows();
    REQUIRE(good > count / 5 && good < count);
    printf("%ld cases\n", count);
    return 0;
}
