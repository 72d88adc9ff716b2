/* Files that are mapped, pipes that a loop watches, writes through the cache, and what all of them
 * report. */
#define _DEFAULT_SOURCE
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { PAGE = 4096, LEN = 256 << 10 };

static dp_machine machine;
static char text[64 << 10];

static const char *make_file(const char *name) {
    const char *path = in_folder(name);
    FILE *file = fopen(path, "w");
    int i;
    for (i = 0; i < LEN; i++) {
        fputc(i / PAGE + i % 251, file);
    }
    fclose(file);
    return path;
}

static unsigned char byte_at(int i) {
    return (unsigned char)(i / PAGE + i % 251);
}

static void mapped_files(void) {
    const char *path = make_file("mapped");
    unsigned char bytes[100], other = 0;
    dp_place file, memory, target;
    dp_pipe pipe;
    dp_lease lease;
    const void *address;
    size_t len;
    uint64_t length;
    double share = -1;
    FILE *plain;
    int i;
    OK(dp_ssd_open(path, DP_READ, DP_AUTO, &file));
    OK(dp_ssd_cached_share(file, &share));
    CHECK(share >= 0 && share <= 1);
    FAILS(DP_INVALID_INPUT, dp_ssd_cached_share(file, NULL));
    FAILS(DP_INVALID_INPUT, dp_dram_map_file(file, 0, 0, &memory));
    FAILS(DP_OUT_OF_RANGE, dp_dram_map_file(file, 1, LEN, &memory));
    FAILS(DP_OUT_OF_RANGE, dp_dram_map_file(file, UINT64_MAX, 1, &memory));
    FAILS(DP_INVALID_INPUT, dp_dram_map_file(file, 0, 1, NULL));
    OK(dp_dram_map_file(file, 10007, LEN - 10007, &memory));
    OK(dp_place_length(memory, &length));
    CHECK(length == LEN - 10007);
    OK(dp_place_read(memory, 5, bytes, sizeof bytes));
    for (i = 0; i < (int)sizeof bytes; i++) {
        CHECK(bytes[i] == byte_at(10012 + i));
    }
    FAILS(DP_UNSUPPORTED, dp_lease_read(memory, &lease, &address, &len));
    /* What is written stays in the memory. */
    OK(dp_place_write(memory, 5, "X", 1));
    OK(dp_place_read(memory, 5, bytes, 2));
    CHECK(bytes[0] == 'X' && bytes[1] == byte_at(10013));
    plain = fopen(path, "r");
    CHECK(fseek(plain, 10012, SEEK_SET) == 0 && fread(&other, 1, 1, plain) == 1 && other == byte_at(10012));
    fclose(plain);
    OK(dp_dram_allocate(PAGE, NULL, &target));
    OK(dp_connect(machine, memory, target, NULL, &pipe));
    OK(dp_pipe_transfer(pipe, span(0, 0, PAGE)));
    OK(dp_place_read(target, 5, bytes, 1));
    CHECK(bytes[0] == 'X');
    /* Pages that the file loses are an error, and no signal. */
    CHECK(truncate(path, 8 * PAGE) == 0);
#ifdef __x86_64__
    FAILS(DP_DEVICE, dp_place_read(memory, 20 * PAGE, bytes, 1));
    FAILS(DP_DEVICE, dp_pipe_transfer(pipe, span(20 * PAGE, 0, PAGE)));
#endif
    OK(dp_place_read(memory, 0, bytes, 1));
    OK(dp_pipe_close(pipe));
    FAILS(DP_INVALID_INPUT, dp_dram_map_file(target, 0, 1, &memory));
    FAILS(DP_INVALID_INPUT, dp_ssd_cached_share(target, &share));
    OK(dp_place_close(target));
    OK(dp_place_close(memory));
    OK(dp_place_close(file));
}

/* Transfers of a pipe are waited for by `poll`, without a thread of the library. */
static void watched_pipes(void) {
    const char *path = make_file("watched");
    dp_place file, memory, other;
    dp_pipe pipe, copies;
    dp_transfer transfers[4];
    int32_t descriptor = 7;
    int i, left = 4, status;
    pid_t child;
    OK(dp_ssd_open(path, DP_READ, DP_AUTO, &file));
    OK(dp_dram_allocate(LEN, NULL, &memory));
    OK(dp_dram_allocate(LEN, NULL, &other));
    OK(dp_connect(machine, memory, other, NULL, &copies));
    FAILS(DP_INVALID_INPUT, dp_pipe_event(copies, NULL));
    OK(dp_pipe_event(copies, &descriptor));
    CHECK(descriptor == -1);
    OK(dp_connect(machine, file, memory, NULL, &pipe));
    OK(dp_pipe_event(pipe, &descriptor));
    for (i = 0; i < 4; i++) {
        OK(dp_pipe_start(pipe, span((uint64_t)i * 16 * PAGE, (uint64_t)i * 16 * PAGE, 16 * PAGE), &transfers[i]));
    }
    while (left > 0) {
        struct pollfd watched = {descriptor, POLLIN, 0};
        CHECK(descriptor == -1 || poll(&watched, 1, 60000) == 1);
        for (i = 0; i < 4; i++) {
            uint32_t done = 0;
            if (transfers[i].id == 0) {
                continue;
            }
            OK(dp_transfer_is_done(transfers[i], &done));
            if (done) {
                OK(dp_transfer_wait(transfers[i]));
                transfers[i].id = 0;
                left--;
            }
        }
    }
    {
        unsigned char bytes[LEN];
        OK(dp_place_read(memory, 0, bytes, LEN));
        for (i = 0; i < LEN; i++) {
            CHECK(bytes[i] == byte_at(i));
        }
    }
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        FAILS(DP_FORKED, dp_pipe_event(pipe, &descriptor));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(dp_pipe_report(pipe, DP_PROMETHEUS, text, sizeof text, NULL));
    CHECK(strstr(text, "# TYPE datapipes_") != NULL && strstr(text, "watched") == NULL);
    FAILS(DP_INVALID_INPUT, dp_pipe_route(pipe, DP_PROMETHEUS, text, sizeof text, NULL));
    FAILS(DP_INVALID_INPUT, dp_pipe_report(pipe, 3, text, sizeof text, NULL));
    OK(dp_pipe_close(pipe));
    OK(dp_pipe_close(copies));
    FAILS(DP_INVALID_INPUT, dp_pipe_event(pipe, &descriptor));
    OK(dp_place_close(other));
    OK(dp_place_close(memory));
    OK(dp_place_close(file));
}

static void runtimes(void) {
    dp_runtime runtime;
    dp_place one, two;
    dp_runtime_pipe pipe;
    dp_future future;
    OK(dp_runtime_start(machine, NULL, &runtime));
    OK(dp_dram_allocate(LEN, NULL, &one));
    OK(dp_dram_allocate(LEN, NULL, &two));
    OK(dp_runtime_connect(runtime, one, two, NULL, NULL, &pipe));
    OK(dp_runtime_pipe_transfer(pipe, span(0, 0, LEN), &future));
    OK(dp_future_wait(future));
    OK(dp_runtime_drain(runtime));
    OK(dp_runtime_report(runtime, DP_JSON, text, sizeof text, NULL));
    CHECK(strstr(text, "\"completed\":1") != NULL);
    OK(dp_runtime_report(runtime, DP_TEXT, text, sizeof text, NULL));
    CHECK(strstr(text, "\"completed\": 1") != NULL);
    OK(dp_runtime_report(runtime, DP_PROMETHEUS, text, sizeof text, NULL));
    CHECK(strstr(text, "# HELP datapipes_") != NULL);
    OK(dp_runtime_pipe_report(pipe, DP_PROMETHEUS, text, sizeof text, NULL));
    OK(dp_runtime_pipe_close(pipe));
    OK(dp_runtime_close(runtime));
    FAILS(DP_INVALID_INPUT, dp_runtime_report(runtime, DP_JSON, text, sizeof text, NULL));
    OK(dp_place_close(one));
    OK(dp_place_close(two));
}

static void writes_through_a_cache(void) {
    const char *path = make_file("cached");
    unsigned char bytes[8];
    dp_place file, readable;
    dp_cache cache, only_reads;
    int i;
    OK(dp_ssd_open(path, DP_READ_WRITE, DP_AUTO, &file));
    OK(dp_cache_open(machine, file, NULL, &cache));
    for (i = 0; i < 3; i++) {
        OK(dp_cache_read(cache, 1000, bytes, sizeof bytes));
    }
    OK(dp_cache_write(cache, 1002, "new", 3));
    OK(dp_cache_read(cache, 1000, bytes, sizeof bytes));
    CHECK(memcmp(bytes + 2, "new", 3) == 0 && bytes[0] == byte_at(1000) && bytes[5] == byte_at(1005));
    OK(dp_cache_clear(cache));
    OK(dp_cache_read(cache, 1000, bytes, sizeof bytes));
    CHECK(memcmp(bytes + 2, "new", 3) == 0);
    OK(dp_cache_write(cache, 0, NULL, 0));
    FAILS(DP_INVALID_INPUT, dp_cache_write(cache, 0, NULL, 1));
    FAILS(DP_OUT_OF_RANGE, dp_cache_write(cache, UINT64_MAX, "x", 1));
    OK(dp_cache_explain(cache, text, sizeof text, NULL));
    CHECK(strlen(text) > 20);
    OK(dp_cache_report(cache, DP_PROMETHEUS, text, sizeof text, NULL));
    CHECK(strstr(text, "# TYPE datapipes_") != NULL);
    OK(dp_cache_report(cache, DP_JSON, text, sizeof text, NULL));
    CHECK(text[0] == '{');
    OK(dp_cache_report(cache, DP_TEXT, text, sizeof text, NULL));
    OK(dp_ssd_open(path, DP_READ, DP_AUTO, &readable));
    OK(dp_cache_open(machine, readable, NULL, &only_reads));
    FAILS(DP_UNSUPPORTED, dp_cache_write(only_reads, 0, "x", 1));
    OK(dp_cache_close(only_reads));
    OK(dp_cache_close(cache));
    FAILS(DP_INVALID_INPUT, dp_cache_write(cache, 0, "x", 1));
    FAILS(DP_INVALID_INPUT, dp_cache_clear(cache));
    OK(dp_place_close(readable));
    OK(dp_place_close(file));
}

static void logs_and_checkpoints(void) {
    const char *folder = in_folder("log"), *states = in_folder("states");
    dp_log log;
    dp_place memory;
    dp_region region;
    FAILS(DP_NOT_FOUND, dp_log_examine(machine, in_folder("none"), text, sizeof text, NULL));
    OK(dp_log_open(machine, folder, NULL, &log));
    OK(dp_log_append_durable(log, "record", 6, NULL));
    OK(dp_log_stats(log, text, sizeof text, NULL));
    CHECK(strstr(text, "\"records\":1") != NULL);
    OK(dp_log_close(log));
    FAILS(DP_INVALID_INPUT, dp_log_stats(log, text, sizeof text, NULL));
    OK(dp_log_examine(machine, folder, text, sizeof text, NULL));
    CHECK(text[0] == '{');
    FAILS(DP_NOT_FOUND, dp_checkpoint_list(machine, states, text, sizeof text, NULL));
    OK(dp_dram_allocate(PAGE, NULL, &memory));
    region.name = "weights";
    region.memory = memory;
    OK(dp_checkpoint_save(machine, states, &region, 1, 0, NULL));
    OK(dp_checkpoint_list(machine, states, text, sizeof text, NULL));
    CHECK(strstr(text, "\"weights\"") != NULL && strstr(text, "\"number\":1") != NULL);
    OK(dp_place_close(memory));
}

int main(void) {
    OK(dp_machine_discover(&machine));
    FAILS(DP_INVALID_INPUT, dp_machine_describe(machine, DP_PROMETHEUS, text, sizeof text, NULL));
    mapped_files();
    watched_pipes();
    runtimes();
    writes_through_a_cache();
    logs_and_checkpoints();
    OK(dp_machine_close(machine));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
