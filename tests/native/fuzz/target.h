/*
 * What the fuzz targets share: the choice of a rectangle, and the replay.
 *
 * With clang a target is one of libFuzzer; built with -DREPLAY by any compiler it has a main() that
 * runs the files named on its command line, each also under a fixed number of mutations. A broken
 * claim aborts.
 */
#ifndef SOPHON_LOADER_FUZZ_TARGET_H
#define SOPHON_LOADER_FUZZ_TARGET_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jpegcrop.h"
#include "require.h"

/* 0..255 to a position in [0, n), the borders included. */
static uint32_t scaled(uint8_t fraction, uint32_t n) { return (uint32_t)((uint64_t)(n - 1) * fraction / 255); }

static jpegcrop_rect choose_rect(const uint8_t *choice, uint32_t width, uint32_t height)
{
    jpegcrop_rect r = {.x = scaled(choice[0], width), .y = scaled(choice[1], height)};
    r.width = 1 + scaled(choice[2], width - r.x);
    r.height = 1 + scaled(choice[3], height - r.y);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef REPLAY

#ifndef MUTATIONS
#define MUTATIONS 400
#endif

enum { INPUT_MAX_NBYTES = 1 << 16 };

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
#endif
