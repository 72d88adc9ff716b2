// Ends a test program where something does not hold, in C++.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(holds)                                                                  \
    do {                                                                              \
        if (!(holds)) {                                                               \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #holds); \
            std::abort();                                                             \
        }                                                                             \
    } while (0)
