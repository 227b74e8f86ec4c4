/* Ends the program where something that must hold does not. */
#ifndef SOPHON_REQUIRE_H
#define SOPHON_REQUIRE_H

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

#endif
