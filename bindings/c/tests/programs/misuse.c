/* What goes wrong in programs: every case ends in an error, none in undefined behaviour. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { LEN = 1 << 16 };

static dp_machine machine;
static int releases;

static void released(void *user) {
    CHECK(user == &releases);
    releases++;
}

static void handles(void) {
    dp_place place, other, zero;
    dp_pipe pipe;
    dp_lease lease;
    void *bytes;
    size_t len;
    zero.id = 0;
    FAILS(DP_INVALID_INPUT, dp_place_close(zero));
    OK(dp_dram_allocate(LEN, NULL, &place));
    OK(dp_dram_allocate(LEN, NULL, &other));
    OK(dp_connect(machine, place, other, NULL, &pipe));
    OK(dp_place_close(place));
    FAILS(DP_INVALID_INPUT, dp_place_close(place));
    FAILS(DP_INVALID_INPUT, dp_lease_write(place, &lease, &bytes, &len));
    FAILS(DP_INVALID_INPUT, dp_connect(machine, place, other, NULL, &pipe));
    /* The pipe keeps what it needs. */
    OK(dp_pipe_transfer(pipe, span(0, 0, LEN)));
    FAILS(DP_OUT_OF_RANGE, dp_pipe_transfer(pipe, span(1, 0, LEN)));
    FAILS(DP_OUT_OF_RANGE, dp_pipe_transfer(pipe, span(UINT64_MAX, UINT64_MAX, UINT64_MAX)));
    OK(dp_lease_write(other, &lease, &bytes, &len));
    FAILS(DP_BUSY, dp_pipe_transfer(pipe, span(0, 0, LEN)));
    OK(dp_lease_close(lease));
    FAILS(DP_INVALID_INPUT, dp_lease_close(lease));
    OK(dp_pipe_close(pipe));
    FAILS(DP_INVALID_INPUT, dp_pipe_transfer(pipe, span(0, 0, 1)));
    FAILS(DP_INVALID_INPUT, dp_pipe_close(pipe));
    OK(dp_place_close(other));
}

static void pointers(void) {
    dp_place place;
    dp_constraints constraints;
    dp_pipe pipe;
    struct {
        dp_constraints known;
        uint64_t newer;
    } later;
    static unsigned char mine[LEN];
    FAILS(DP_INVALID_INPUT, dp_dram_allocate(LEN, NULL, NULL));
    FAILS(DP_INVALID_INPUT, dp_dram_allocate(0, NULL, &place));
    FAILS(DP_OUT_OF_MEMORY, dp_dram_allocate((uint64_t)1 << 60, NULL, &place));
    FAILS(DP_INVALID_INPUT, dp_ssd_open(NULL, DP_READ, DP_AUTO, &place));
    FAILS(DP_NOT_FOUND, dp_ssd_open("/no/such/file", DP_READ, DP_AUTO, &place));
    FAILS(DP_INVALID_INPUT, dp_ssd_open("/", 99, DP_AUTO, &place));
    FAILS(DP_INVALID_INPUT, dp_ssd_open("/", DP_READ, DP_AUTO, &place));
    FAILS(DP_INVALID_INPUT, dp_ssd_from_descriptor(-1, "x", DP_AUTO, &place));
    CHECK(dp_error_kind_of(dp_ssd_from_descriptor(1 << 30, "x", DP_AUTO, &place)) != DP_OK);
    FAILS(DP_INVALID_INPUT, dp_machine_each_core(machine, NULL, NULL));
    /* Memory of the program: given back once, also where it was refused. */
    FAILS(DP_INVALID_INPUT, dp_dram_foreign(NULL, LEN, released, &releases, &place));
    FAILS(DP_INVALID_INPUT, dp_dram_foreign(mine, 0, released, &releases, &place));
    FAILS(DP_INVALID_INPUT, dp_dram_foreign(mine, LEN, released, &releases, NULL));
    CHECK(releases == 3);
    OK(dp_dram_foreign(mine, LEN, released, &releases, &place));
    CHECK(releases == 3);
    memset(&constraints, 0, sizeof constraints);
    FAILS(DP_INVALID_INPUT, dp_connect(machine, place, place, &constraints, &pipe));
    constraints.size = sizeof constraints;
    constraints.only = "no-such-primitive";
    FAILS(DP_INVALID_INPUT, dp_connect(machine, place, place, &constraints, &pipe));
    constraints.only = "\xff";
    FAILS(DP_INVALID_INPUT, dp_connect(machine, place, place, &constraints, &pipe));
    constraints.only = NULL;
    constraints.at_least = -1.0;
    FAILS(DP_INVALID_INPUT, dp_connect(machine, place, place, &constraints, &pipe));
    constraints.at_least = 0;
    constraints.require_offload = 1;
    FAILS(DP_UNSUPPORTED, dp_connect(machine, place, place, &constraints, &pipe));
    /* A program that was compiled with an older header, and one with a newer one. */
    constraints.size = 8;
    constraints.at_least = -1.0;
    FAILS(DP_UNSUPPORTED, dp_connect(machine, place, place, &constraints, &pipe));
    memset(&later, 0, sizeof later);
    later.known.size = sizeof later;
    OK(dp_connect(machine, place, place, &later.known, &pipe));
    OK(dp_pipe_close(pipe));
    later.newer = 1;
    FAILS(DP_UNSUPPORTED, dp_connect(machine, place, place, &later.known, &pipe));
    OK(dp_place_close(place));
    CHECK(releases == 4);
    CHECK(dp_error_kind_of(dp_error_new(999, NULL)) == DP_SYSTEM);
}

/* Threads that use a pipe while it is closed under them. */
static dp_pipe shared;

static void *use(void *user) {
    (void)user;
    for (;;) {
        dp_error error = dp_pipe_transfer(shared, span(0, 0, 64));
        uint32_t kind = dp_error_kind_of(error);
        dp_error_close(error);
        if (kind == DP_INVALID_INPUT) {
            return NULL;
        }
        CHECK(kind == DP_OK || kind == DP_BUSY);
    }
}

static void threads(void) {
    dp_place source, target;
    int round, i;
    OK(dp_dram_allocate(LEN, NULL, &source));
    OK(dp_dram_allocate(LEN, NULL, &target));
    for (round = 0; round < 50; round++) {
        pthread_t threads[3];
        OK(dp_connect(machine, source, target, NULL, &shared));
        for (i = 0; i < 3; i++) {
            CHECK(pthread_create(&threads[i], NULL, use, NULL) == 0);
        }
        OK(dp_pipe_close(shared));
        for (i = 0; i < 3; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
        }
    }
    OK(dp_place_close(source));
    OK(dp_place_close(target));
}

/* A child refuses what its parent made, may close it, and can begin anew. */
static void forked(void) {
    dp_place source, target;
    dp_pipe pipe;
    int status;
    pid_t child;
    OK(dp_dram_allocate(LEN, NULL, &source));
    OK(dp_dram_allocate(LEN, NULL, &target));
    OK(dp_connect(machine, source, target, NULL, &pipe));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dp_machine own;
        FAILS(DP_FORKED, dp_pipe_transfer(pipe, span(0, 0, LEN)));
        OK(dp_pipe_close(pipe));
        OK(dp_machine_discover(&own));
        OK(dp_dram_allocate(LEN, NULL, &source));
        OK(dp_dram_allocate(LEN, NULL, &target));
        OK(dp_connect(own, source, target, NULL, &pipe));
        OK(dp_pipe_transfer(pipe, span(0, 0, LEN)));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(dp_pipe_transfer(pipe, span(0, 0, LEN)));
    OK(dp_pipe_close(pipe));
    OK(dp_place_close(source));
    OK(dp_place_close(target));
}

/* The program ends while transfers are under way: it does not crash. */
static void ends_in_the_middle(void) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dp_machine own;
        dp_runtime runtime;
        dp_place file, memory;
        dp_runtime_pipe pipe;
        dp_future future;
        int i;
        OK(dp_machine_discover(&own));
        OK(dp_runtime_start(own, NULL, &runtime));
        OK(dp_ssd_open(getenv("FOLDER"), DP_UNLINKED, DP_AUTO, &file));
        OK(dp_ssd_preallocate(file, 16 << 20));
        OK(dp_dram_allocate(16 << 20, NULL, &memory));
        OK(dp_runtime_connect(runtime, file, memory, NULL, NULL, &pipe));
        for (i = 0; i < 16; i++) {
            OK(dp_runtime_pipe_transfer(pipe, span((uint64_t)i << 20, (uint64_t)i << 20, 1 << 20), &future));
        }
        exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

/* A pointer that is not aligned for its type is refused before anything is done, also where it is for the
 * length of a text. */
static void misaligned_lengths(void) {
    static char text[256], room[64];
    size_t *len = (size_t *)(void *)(room + 1);
    dp_place memory, other, file;
    dp_cache cache;
    dp_pipe pipe;
    dp_runtime runtime;
    dp_log log;
    const char *input = in_folder("misaligned"), *output = in_folder("never-written");
    FILE *plain = fopen(input, "w");
    fputs("b\na\n", plain);
    fclose(plain);
    OK(dp_dram_allocate(4096, NULL, &memory));
    OK(dp_ssd_open(input, DP_READ, DP_AUTO, &file));
    OK(dp_dram_allocate(4096, NULL, &other));
    OK(dp_connect(machine, memory, other, NULL, &pipe));
    OK(dp_cache_open(machine, file, NULL, &cache));
    OK(dp_runtime_start(machine, NULL, &runtime));
    OK(dp_log_open(machine, in_folder("misaligned-log"), NULL, &log));
    FAILS(DP_MISALIGNED, dp_pipe_route(pipe, DP_TEXT, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_pipe_report(pipe, DP_TEXT, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_machine_describe(machine, DP_TEXT, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_explain(machine, memory, file, NULL, DP_TEXT, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_place_name(memory, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_cache_metrics(cache, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_cache_report(cache, DP_JSON, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_cache_explain(cache, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_runtime_report(runtime, DP_JSON, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_log_stats(log, text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_log_examine(machine, in_folder("misaligned-log"), text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_checkpoint_list(machine, in_folder(""), text, sizeof text, len));
    FAILS(DP_MISALIGNED, dp_pipe_transfer_all(pipe, NULL, 0, (uint64_t *)(void *)len));
    FAILS(DP_MISALIGNED, dp_sort(machine, &input, 1, output, NULL, text, sizeof text, len));
    CHECK(fopen(output, "r") == NULL);
    OK(dp_log_close(log));
    OK(dp_runtime_close(runtime));
    OK(dp_cache_close(cache));
    OK(dp_pipe_close(pipe));
    OK(dp_place_close(file));
    OK(dp_place_close(other));
    OK(dp_place_close(memory));
}

/* The numbers of kinds are promised: programs that were compiled with them go on to work. */
static void numbers_of_kinds(void) {
    CHECK(DP_OK == 0 && DP_INVALID_INPUT == 1 && DP_OUT_OF_RANGE == 2 && DP_MISALIGNED == 3 && DP_BUSY == 4);
    CHECK(DP_UNSUPPORTED == 5 && DP_UNAVAILABLE == 6 && DP_NOT_FOUND == 7 && DP_PERMISSION_DENIED == 8);
    CHECK(DP_NO_SPACE == 9 && DP_OUT_OF_MEMORY == 10 && DP_END_OF_FILE == 11 && DP_DEVICE == 12);
    CHECK(DP_INTERRUPTED == 13 && DP_CORRUPT == 14 && DP_SYSTEM == 15 && DP_FORKED == 16 && DP_PANICKED == 17);
}

/* A handle is a number of its kind: that of another is refused. */
static void other_kinds(void) {
    dp_place place;
    dp_pipe pipe;
    dp_runtime runtime;
    OK(dp_dram_allocate(4096, NULL, &place));
    OK(dp_runtime_start(machine, NULL, &runtime));
    pipe.id = place.id;
    FAILS(DP_INVALID_INPUT, dp_pipe_transfer(pipe, span(0, 0, 1)));
    pipe.id = machine.id;
    FAILS(DP_INVALID_INPUT, dp_pipe_close(pipe));
    pipe.id = runtime.id;
    FAILS(DP_INVALID_INPUT, dp_pipe_close(pipe));
    FAILS(DP_INVALID_INPUT, dp_place_close((dp_place){machine.id}));
    FAILS(DP_INVALID_INPUT, dp_place_close((dp_place){runtime.id}));
    FAILS(DP_INVALID_INPUT, dp_machine_close((dp_machine){place.id}));
    OK(dp_runtime_close(runtime));
    OK(dp_place_close(place));
}

/* An extent is given back once, and a sort's settings are looked at before it begins. */
static void settings_and_extents(void) {
    dp_place staging;
    dp_sort_options options;
    uint64_t at;
    const char *input = in_folder("misaligned");
    OK(dp_staging_open(machine, getenv("FOLDER"), 0, &staging));
    OK(dp_staging_extent(staging, 65536, &at));
    FAILS(DP_INVALID_INPUT, dp_staging_free(staging, at, 65537));
    FAILS(DP_INVALID_INPUT, dp_staging_free(staging, at, 0));
    FAILS(DP_INVALID_INPUT, dp_staging_free(staging, at + (1 << 20), 4096));
    FAILS(DP_INVALID_INPUT, dp_staging_free(staging, UINT64_MAX, 4096));
    OK(dp_staging_free(staging, at, 4096));
    FAILS(DP_INVALID_INPUT, dp_staging_free(staging, at, 65536));
    OK(dp_staging_free(staging, at + 4096, 65536 - 4096));
    FAILS(DP_INVALID_INPUT, dp_staging_free(staging, at, 65536));
    OK(dp_place_close(staging));
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.memory_bytes = 1;
    FAILS(DP_INVALID_INPUT, dp_sort(machine, &input, 1, in_folder("never-written"), &options, NULL, 0, NULL));
    options.memory_bytes = UINT64_MAX;
    FAILS(DP_INVALID_INPUT, dp_sort(machine, &input, 1, in_folder("never-written"), &options, NULL, 0, NULL));
    options.memory_bytes = 0;
    options.spill = "/no/such/folder";
    FAILS(DP_NOT_FOUND, dp_sort(machine, &input, 1, in_folder("never-written"), &options, NULL, 0, NULL));
    CHECK(fopen(in_folder("never-written"), "r") == NULL);
}

int main(void) {
    dp_error none, copy;
    none.id = 0;
    CHECK(dp_error_kind_of(none) == DP_OK && dp_error_errno(none) == 0);
    dp_error_close(none);
    OK(dp_machine_discover(&machine));
    copy = dp_error_new(DP_NO_SPACE, "full");
    CHECK(strcmp(dp_error_message(copy), "full") == 0);
    dp_error_close(copy);
    dp_error_close(copy);
    CHECK(strstr(dp_error_message(copy), "closed") != NULL);
    handles();
    pointers();
    threads();
    forked();
    ends_in_the_middle();
    misaligned_lengths();
    numbers_of_kinds();
    other_kinds();
    settings_and_extents();
    OK(dp_machine_close(machine));
    FAILS(DP_INVALID_INPUT, dp_machine_close(machine));
    puts("everything holds");
    return 0;
}
