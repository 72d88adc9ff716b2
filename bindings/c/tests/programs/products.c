/* The sort, the cache of bytes, the log and the checkpoints. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static dp_machine machine;

static int count_calls(void *user, uint64_t total, uint64_t done, uint64_t spilled, uint64_t written) {
    (void)done, (void)spilled, (void)written;
    CHECK(total == 0 || total == 800000);
    return ++*(int *)user < 0;
}

static int refuse(void *user, uint64_t total, uint64_t done, uint64_t spilled, uint64_t written) {
    (void)user, (void)total, (void)done, (void)spilled, (void)written;
    return 1;
}

static void sort_lines(void) {
    const char *inputs[2];
    dp_sort_options options;
    char report[8192], line[16];
    size_t len;
    FILE *file = fopen(in_folder("a"), "w");
    fputs("b 2\nc 1\n", file);
    fclose(file);
    file = fopen(in_folder("b"), "w");
    fputs("a 10\n", file);
    fclose(file);
    inputs[0] = in_folder("a");
    inputs[1] = in_folder("b");
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.keys = "2,2n";
    OK(dp_sort(machine, inputs, 2, in_folder("sorted"), &options, report, sizeof report, &len));
    CHECK(strstr(report, "\"records\":3") != NULL);
    file = fopen(in_folder("sorted"), "r");
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "c 1\n") == 0);
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "b 2\n") == 0);
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "a 10\n") == 0);
    fclose(file);
    /* A power failure may take what was not synced, and the report says so. */
    CHECK(strstr(report, "\"synced\":true") != NULL);
    options.no_sync = 1;
    OK(dp_sort(machine, inputs, 2, in_folder("sorted"), &options, report, sizeof report, &len));
    CHECK(strstr(report, "\"records\":3") != NULL && strstr(report, "\"synced\":false") != NULL);
    options.no_sync = 0;
    options.keys = "0";
    FAILS(DP_INVALID_INPUT, dp_sort(machine, inputs, 2, in_folder("never"), &options, NULL, 0, NULL));
    options.keys = NULL;
    options.letters = "n?";
    FAILS(DP_INVALID_INPUT, dp_sort(machine, inputs, 2, in_folder("never"), &options, NULL, 0, NULL));
    options.letters = NULL;
    options.separator = 999;
    FAILS(DP_INVALID_INPUT, dp_sort(machine, inputs, 2, in_folder("never"), &options, NULL, 0, NULL));
    options.separator = 0;
    options.kind = 77;
    FAILS(DP_INVALID_INPUT, dp_sort(machine, inputs, 2, in_folder("never"), &options, NULL, 0, NULL));
    FAILS(DP_INVALID_INPUT, dp_sort(machine, inputs, 0, in_folder("never"), NULL, NULL, 0, NULL));
    inputs[1] = in_folder("absent");
    FAILS(DP_NOT_FOUND, dp_sort(machine, inputs, 2, in_folder("never"), NULL, NULL, 0, NULL));
    inputs[1] = NULL;
    FAILS(DP_INVALID_INPUT, dp_sort(machine, inputs, 2, in_folder("never"), NULL, NULL, 0, NULL));
    CHECK(access(in_folder("never"), F_OK) != 0);
}

struct forked {
    pid_t child;
};

static int forks_once(void *user, uint64_t total, uint64_t read, uint64_t spilled, uint64_t written) {
    struct forked *forked = user;
    (void)total, (void)read, (void)spilled, (void)written;
    if (forked->child < 0) {
        forked->child = fork();
        CHECK(forked->child >= 0);
        alarm(forked->child == 0 ? 60 : 0);
    }
    return 0;
}

/* A child that is made within the function that is told returns into a sort that is not its own. */
static void sort_and_fork(const char *input, dp_sort_options options) {
    struct forked forked = {-1};
    dp_error error;
    int status;
    options.progress = forks_once;
    options.user = &forked;
    error = dp_sort(machine, &input, 1, in_folder("forked"), &options, NULL, 0, NULL);
    if (forked.child == 0) {
        _exit(dp_error_kind_of(error) == DP_FORKED ? 0 : 1);
    }
    CHECK(error.id == 0 && access(in_folder("forked"), F_OK) == 0);
    CHECK(waitpid(forked.child, &status, 0) == forked.child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void sort_numbers(void) {
    const char *input = in_folder("numbers");
    dp_sort_options options;
    uint64_t i, number;
    int calls = 0;
    FILE *file = fopen(input, "w");
    for (i = 0; i < 100000; i++) {
        number = i * 7919 % 100003;
        CHECK(fwrite(&number, 8, 1, file) == 1);
    }
    fclose(file);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.kind = DP_U64;
    options.progress = count_calls;
    options.user = &calls;
    options.memory_bytes = 64 << 20;
    options.spill = getenv("FOLDER");
    OK(dp_sort(machine, &input, 1, in_folder("in-order"), &options, NULL, 0, NULL));
    file = fopen(in_folder("in-order"), "r");
    for (i = 0; fread(&number, 8, 1, file) == 1; i = number) {
        CHECK(number >= i);
    }
    fclose(file);
    options.progress = refuse;
    {
        dp_error error = dp_sort(machine, &input, 1, in_folder("stopped"), &options, NULL, 0, NULL);
        /* It may be done before it is asked. */
        CHECK(error.id == 0 || dp_error_kind_of(error) == DP_INTERRUPTED);
        CHECK((access(in_folder("stopped"), F_OK) == 0) == (error.id == 0));
        dp_error_close(error);
    }
    sort_and_fork(input, options);
}

static void cached(void) {
    dp_place file;
    dp_cache cache;
    dp_cache_options options;
    uint64_t offsets[3] = {8, 80000, 16}, number, three[3];
    char text[8192];
    size_t failed, len;
    OK(dp_ssd_open(in_folder("in-order"), DP_READ, DP_AUTO, &file));
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.budget = 4 << 20;
    OK(dp_cache_open(machine, file, &options, &cache));
    OK(dp_cache_read(cache, 8, &number, 8));
    OK(dp_cache_gather(cache, offsets, 3, 8, three, NULL));
    CHECK(three[0] == number);
    offsets[1] = 1 << 30;
    FAILS(DP_END_OF_FILE, dp_cache_gather(cache, offsets, 3, 8, three, &failed));
    CHECK(failed == 1);
    FAILS(DP_INVALID_INPUT, dp_cache_gather(cache, offsets, (size_t)-1, 16, three, NULL));
    FAILS(DP_INVALID_INPUT, dp_cache_read(cache, 0, NULL, 8));
    OK(dp_cache_read(cache, 0, NULL, 0));
    OK(dp_cache_invalidate(cache, 0, UINT64_MAX));
    OK(dp_cache_metrics(cache, text, sizeof text, &len));
    CHECK(strstr(text, "\"hits\":") != NULL);
    options.policy = "no such policy";
    FAILS(DP_INVALID_INPUT, dp_cache_open(machine, file, &options, &cache));
    OK(dp_cache_close(cache));
    FAILS(DP_INVALID_INPUT, dp_cache_read(cache, 8, &number, 8));
    OK(dp_place_close(file));
}

static void logged(void) {
    dp_log log;
    dp_log_reader reader;
    uint64_t number;
    const void *record;
    size_t len;
    OK(dp_log_open(machine, in_folder("log"), NULL, &log));
    OK(dp_log_append(log, "one", 3, &number));
    CHECK(number == 1);
    OK(dp_log_append(log, "", 0, NULL));
    OK(dp_log_append_durable(log, "three", 5, &number));
    CHECK(number == 3);
    OK(dp_log_sync(log));
    FAILS(DP_BUSY, dp_log_open(machine, in_folder("log"), NULL, &log));
    OK(dp_log_release_before(log, 1));
    OK(dp_log_close(log));
    FAILS(DP_INVALID_INPUT, dp_log_append(log, "x", 1, NULL));
    FAILS(DP_INVALID_INPUT, dp_log_close(log));
    OK(dp_log_read(machine, in_folder("log"), 0, &reader));
    OK(dp_log_reader_next(reader, &number, &record, &len));
    CHECK(number == 1 && len == 3 && memcmp(record, "one", 3) == 0);
    OK(dp_log_reader_next(reader, &number, &record, &len));
    CHECK(number == 2 && len == 0 && record != NULL);
    OK(dp_log_reader_next(reader, &number, &record, &len));
    CHECK(number == 3 && len == 5 && memcmp(record, "three", 5) == 0);
    OK(dp_log_reader_next(reader, &number, &record, &len));
    CHECK(record == NULL);
    OK(dp_log_reader_close(reader));
    FAILS(DP_NOT_FOUND, dp_log_read(machine, in_folder("no-log"), 0, &reader));
}

static void saved(void) {
    dp_place memory;
    dp_region region;
    dp_lease lease;
    void *bytes;
    size_t len;
    uint64_t number, restored, length;
    OK(dp_dram_allocate(100000, NULL, &memory));
    OK(dp_lease_write(memory, &lease, &bytes, &len));
    memset(bytes, 5, len);
    region.name = "weights";
    region.memory = memory;
    FAILS(DP_BUSY, dp_checkpoint_save(machine, in_folder("state"), &region, 1, 2, &number));
    OK(dp_lease_close(lease));
    OK(dp_checkpoint_save(machine, in_folder("state"), &region, 1, 2, &number));
    OK(dp_lease_write(memory, &lease, &bytes, &len));
    memset(bytes, 6, len);
    OK(dp_lease_close(lease));
    OK(dp_checkpoint_region_length(machine, in_folder("state"), 0, "weights", &length));
    CHECK(length == 100000);
    OK(dp_checkpoint_restore(machine, in_folder("state"), 0, &region, 1, &restored));
    CHECK(restored == number);
    OK(dp_lease_write(memory, &lease, &bytes, &len));
    CHECK(((unsigned char *)bytes)[99999] == 5);
    OK(dp_lease_close(lease));
    region.name = "absent";
    FAILS(DP_NOT_FOUND, dp_checkpoint_restore(machine, in_folder("state"), 0, &region, 1, NULL));
    FAILS(DP_INVALID_INPUT, dp_checkpoint_save(machine, in_folder("state"), NULL, 0, 0, NULL));
    OK(dp_place_close(memory));
}

int main(void) {
    OK(dp_machine_discover(&machine));
    sort_lines();
    sort_numbers();
    cached();
    logged();
    saved();
    OK(dp_machine_close(machine));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
