/* Sorts between functions of the program: bytes, ends and errors. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { COUNT = 3000000 };

/* A source of numbers from COUNT down to 1, in pieces that are no whole numbers. */
struct source {
    uint64_t next;
    /* Bytes of the next number that were given already. */
    size_t begun;
    /* After so many bytes: 1 gives an error, 2 says that it gave too much. */
    uint64_t fails_after, given;
    int how, calls_after_end, is_over;
    /* A child that lives until the sort is over, with copies of all descriptors: made at the first call. */
    pid_t child;
};

struct sink {
    uint64_t bytes, next, fails_after;
    unsigned char rest[8];
    size_t begun;
    int is_wrong, has_failed, calls_after_failure;
};

static dp_error give(void *user, void *into, size_t capacity, size_t *len) {
    struct source *source = user;
    size_t at = 0;
    source->calls_after_end += source->is_over;
    if (source->how == 3 && source->child == 0) {
        source->child = fork();
        if (source->child == 0) {
            for (;;) {
                pause();
            }
        }
    }
    if (source->how != 0 && source->how != 3 && source->given >= source->fails_after) {
        source->is_over = 1;
        if (source->how == 2) {
            *len = capacity + 1;
            return (dp_error){0};
        }
        return dp_error_new(DP_DEVICE, "the source broke");
    }
    capacity = capacity > 100003 ? 100003 : capacity;
    while (at < capacity && source->next > 0) {
        size_t part = sizeof source->next - source->begun;
        part = part < capacity - at ? part : capacity - at;
        memcpy((char *)into + at, (char *)&source->next + source->begun, part);
        at += part;
        source->begun += part;
        if (source->begun == sizeof source->next) {
            source->begun = 0;
            source->next--;
        }
    }
    source->given += at;
    source->is_over = at == 0;
    *len = at;
    return (dp_error){0};
}

static dp_error take(void *user, const void *bytes, size_t len) {
    struct sink *sink = user;
    const unsigned char *from = bytes;
    size_t i;
    sink->calls_after_failure += sink->has_failed;
    for (i = 0; i < len; i++) {
        sink->rest[sink->begun++] = from[i];
        if (sink->begun == 8) {
            uint64_t number;
            memcpy(&number, sink->rest, 8);
            sink->is_wrong |= number != ++sink->next;
            sink->begun = 0;
        }
    }
    sink->bytes += len;
    if (sink->fails_after != 0 && sink->bytes >= sink->fails_after) {
        sink->has_failed = 1;
        return dp_error_new(DP_NO_SPACE, "the sink is full");
    }
    return (dp_error){0};
}

static dp_machine machine;

static dp_error sort_with(struct source *source, struct sink *sink, uint64_t memory) {
    dp_sort_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.kind = DP_U64;
    options.memory_bytes = memory;
    options.spill = getenv("FOLDER");
    options.compression = DP_COMPRESSION_ON;
    return dp_sort_streams(machine, give, source, take, sink, &options);
}

/* The error of a function is the sort's, with its text; the function is not called again. */
static void fails(uint32_t kind, const char *words, dp_error error) {
    CHECK(dp_error_kind_of(error) == kind);
    CHECK(strstr(dp_error_message(error), words) != NULL);
    dp_error_close(error);
}

int main(void) {
    const uint64_t memories[] = {0, 16 << 20};
    size_t i;
    OK(dp_machine_discover(&machine));
    for (i = 0; i < 2; i++) {
        /* In memory, and by runs on the disk. */
        struct source source = {COUNT, 0, 0, 0, 0, 0, 0, 0};
        struct sink sink = {0};
        OK(sort_with(&source, &sink, memories[i]));
        CHECK(sink.bytes == (uint64_t)COUNT * 8 && sink.next == COUNT && !sink.is_wrong && sink.begun == 0);
        CHECK(source.calls_after_end == 0);
    }
    {
        /* Nothing is sorted to nothing. */
        struct source source = {0, 0, 0, 0, 0, 0, 0, 0};
        struct sink sink = {0};
        OK(sort_with(&source, &sink, 0));
        CHECK(sink.bytes == 0);
    }
    for (i = 0; i < 2; i++) {
        struct source source = {COUNT, 0, 5000000, 0, 1, 0, 0, 0};
        struct sink sink = {0};
        fails(DP_DEVICE, "the source broke", sort_with(&source, &sink, memories[i]));
        CHECK(source.calls_after_end == 0);
        source.how = 2;
        source.is_over = 0;
        fails(DP_INVALID_INPUT, "read says", sort_with(&source, &sink, memories[i]));
        CHECK(source.calls_after_end == 0);
    }
    for (i = 0; i < 2; i++) {
        struct source source = {COUNT, 0, 0, 0, 0, 0, 0, 0};
        struct sink sink = {0};
        sink.fails_after = 3000000;
        fails(DP_NO_SPACE, "the sink is full", sort_with(&source, &sink, memories[i]));
        CHECK(sink.calls_after_failure == 0 && !sink.is_wrong);
    }
    for (i = 0; i < 2; i++) {
        /* A child with copies of the streams keeps neither from ending, also after an error. */
        struct source source = {COUNT, 0, 0, 0, 3, 0, 0, 0};
        struct sink sink = {0};
        sink.fails_after = i == 0 ? 0 : 3000000;
        alarm(300); /* A stream that does not end shall end the program. */
        if (i == 0) {
            OK(sort_with(&source, &sink, 0));
            CHECK(sink.next == COUNT);
        } else {
            fails(DP_NO_SPACE, "the sink is full", sort_with(&source, &sink, 0));
        }
        CHECK(source.child > 0 && kill(source.child, SIGKILL) == 0);
        CHECK(waitpid(source.child, NULL, 0) == source.child);
        alarm(0);
    }
    {
        /* A number that is cut off is an error of the sort, and `read` ends all the same. */
        struct source source = {COUNT, 3, 0, 0, 0, 0, 0, 0};
        struct sink sink = {0};
        dp_error error = sort_with(&source, &sink, 0);
        CHECK(error.id != 0);
        dp_error_close(error);
    }
    {
        dp_sort_options options;
        memset(&options, 0, sizeof options);
        options.size = sizeof options;
        FAILS(DP_INVALID_INPUT, dp_sort_streams(machine, NULL, NULL, take, NULL, &options));
        options.compression = 3;
        FAILS(DP_INVALID_INPUT, dp_sort_streams(machine, give, NULL, take, NULL, &options));
        options.compression = 0;
        options.spill = "/nonexistent";
        FAILS(DP_NOT_FOUND, dp_sort_streams(machine, give, NULL, take, NULL, &options));
    }
    OK(dp_machine_close(machine));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
