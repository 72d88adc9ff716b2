/* What the test programs share: every check that fails says where, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datapipes.h"

#define CHECK(holds)                                                              \
    do {                                                                          \
        if (!(holds)) {                                                           \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #holds); \
            abort();                                                              \
        }                                                                         \
    } while (0)

/* The call succeeds. */
#define OK(call)                                                                                \
    do {                                                                                        \
        dp_error ok_error = (call);                                                             \
        if (ok_error.id != 0) {                                                                 \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, dp_error_message(ok_error)); \
            abort();                                                                            \
        }                                                                                       \
    } while (0)

/* The call fails with an error of this kind. */
#define FAILS(wanted, call)                                                                     \
    do {                                                                                        \
        dp_error failed_error = (call);                                                         \
        if (dp_error_kind_of(failed_error) != (uint32_t)(wanted)) {                             \
            fprintf(stderr, "%s:%d: %s: kind %u: %s\n", __FILE__, __LINE__, #call,              \
                    dp_error_kind_of(failed_error), dp_error_message(failed_error));            \
            abort();                                                                            \
        }                                                                                       \
        CHECK(strlen(dp_error_message(failed_error)) > 0);                                      \
        dp_error_close(failed_error);                                                           \
    } while (0)

static inline dp_span span(uint64_t source, uint64_t target, uint64_t length) {
    dp_span made;
    made.source = source;
    made.target = target;
    made.length = length;
    return made;
}

/* A path in the folder that the test gives. */
static inline const char *in_folder(const char *name) {
    static char paths[64][512];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", getenv("FOLDER"), name);
    return path;
}

#endif
