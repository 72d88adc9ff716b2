/* Arguments are checked before anything is done, and each part of an error arrives. */
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { LEN = 1 << 16 };

static dp_machine machine;

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static int64_t length_of(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 ? (int64_t)found.st_size : -1;
}

/* Every argument is checked before a file is touched. */
static void refused_calls_change_nothing(void) {
    const char *path = in_folder("precious"), *fresh = in_folder("fresh"), *input = in_folder("unsorted");
    const char *log = in_folder("no-log-yet");
    dp_place place;
    dp_log_options options;
    dp_log opened;
    dp_sort_options sort;
    dp_machine none = {0};
    write_file(path, "precious");
    FAILS(DP_INVALID_INPUT, dp_ssd_open(path, DP_CREATE, 99, &place));
    FAILS(DP_INVALID_INPUT, dp_ssd_open(path, DP_CREATE, DP_AUTO, NULL));
    FAILS(DP_INVALID_INPUT, dp_ssd_open(path, 99, DP_AUTO, &place));
    CHECK(length_of(path) == 8);
    FAILS(DP_INVALID_INPUT, dp_ssd_open(fresh, DP_CREATE_NEW, 99, &place));
    FAILS(DP_INVALID_INPUT, dp_ssd_open(fresh, DP_CREATE, 99, &place));
    CHECK(length_of(fresh) == -1);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.batch_bytes = 4095;
    FAILS(DP_INVALID_INPUT, dp_log_open(machine, log, &options, &opened));
    FAILS(DP_INVALID_INPUT, dp_log_open(none, log, NULL, &opened));
    FAILS(DP_INVALID_INPUT, dp_log_open(machine, log, NULL, NULL));
    CHECK(length_of(log) == -1);
    write_file(input, "b\na\n");
    memset(&sort, 0, sizeof sort);
    sort.size = sizeof sort;
    sort.spill = "dram:lots";
    FAILS(DP_INVALID_INPUT, dp_sort(machine, &input, 1, path, &sort, NULL, 0, NULL));
    CHECK(length_of(path) == 8);
    /* A reader of a named pipe would see the end of its data, if the sort had opened it. */
    {
        const char *named = in_folder("named-pipe");
        struct pollfd reader = {-1, POLLIN, 0};
        CHECK(mkfifo(named, 0600) == 0);
        reader.fd = open(named, O_RDONLY | O_NONBLOCK);
        CHECK(reader.fd >= 0);
        FAILS(DP_INVALID_INPUT, dp_sort(machine, &input, 1, named, &sort, NULL, 0, NULL));
        CHECK(poll(&reader, 1, 0) == 0);
        close(reader.fd);
    }
}

/* A size that no header has ends within a field; what lies behind it is not followed. */
static void sizes_of_structs(void) {
    dp_place place;
    dp_pipe pipe;
    dp_constraints constraints;
    dp_service service;
    dp_runtime runtime;
    dp_runtime_pipe runtime_pipe;
    dp_memory_options memory;
    char unaligned[sizeof(dp_memory_options) + 8];
    size_t size;
    OK(dp_dram_allocate(LEN, NULL, &place));
    memset(&constraints, 0, sizeof constraints);
    constraints.deny = "memcpy";
    constraints.size = offsetof(dp_constraints, deny) + 4;
    FAILS(DP_INVALID_INPUT, dp_connect(machine, place, place, &constraints, &pipe));
    constraints.size = offsetof(dp_constraints, at_least) + 1;
    FAILS(DP_INVALID_INPUT, dp_connect(machine, place, place, &constraints, &pipe));
    for (size = 0; size < offsetof(dp_constraints, only); size++) {
        /* Whole fields, or none. */
        dp_error error;
        constraints.size = (uint32_t)size;
        error = dp_connect(machine, place, place, &constraints, &pipe);
        if (error.id == 0) {
            CHECK(size % 4 == 0 && size != offsetof(dp_constraints, at_least) + 4);
            OK(dp_pipe_close(pipe));
        } else {
            CHECK(dp_error_kind_of(error) == DP_INVALID_INPUT);
            dp_error_close(error);
        }
    }
    constraints.size = sizeof constraints;
    constraints.deny = NULL;
    constraints.fill_processor_cache = 1;
    constraints.bypass_processor_cache = 1;
    FAILS(DP_INVALID_INPUT, dp_connect(machine, place, place, &constraints, &pipe));
    memset(&service, 0, sizeof service);
    service.size = sizeof service;
    service.reserved = 1;
    OK(dp_runtime_start(machine, NULL, &runtime));
    FAILS(DP_UNSUPPORTED, dp_runtime_connect(runtime, place, place, NULL, &service, &runtime_pipe));
    OK(dp_runtime_close(runtime));
    OK(dp_place_close(place));
    /* An address at which no object of the type can be. */
    memset(&memory, 0, sizeof memory);
    memory.size = sizeof memory;
    memcpy(unaligned + 1, &memory, sizeof memory);
    for (size = 1; (uintptr_t)(unaligned + size) % 4 == 0; size++) {
    }
    FAILS(DP_MISALIGNED, dp_dram_allocate(LEN, (const dp_memory_options *)(const void *)(unaligned + size), &place));
    FAILS(DP_MISALIGNED, dp_dram_allocate(LEN, NULL, (dp_place *)(void *)(unaligned + size)));
}

static void lengths(void) {
    static unsigned char mine[16];
    dp_place place;
    FAILS(DP_INVALID_INPUT, dp_dram_allocate(0, NULL, &place));
    FAILS(DP_OUT_OF_MEMORY, dp_dram_allocate(UINT64_MAX, NULL, &place));
    FAILS(DP_OUT_OF_MEMORY, dp_dram_allocate((uint64_t)INT64_MAX + 1, NULL, &place));
    FAILS(DP_OUT_OF_MEMORY, dp_numa_allocate(0, UINT64_MAX, &place));
    FAILS(DP_OUT_OF_RANGE, dp_dram_foreign(mine, UINT64_MAX, NULL, NULL, &place));
    FAILS(DP_OUT_OF_RANGE, dp_dram_foreign(mine, (uint64_t)INT64_MAX + 1, NULL, NULL, &place));
}

/* An ordinary file stands in for persistent memory only where that is asked for. */
static void persistent_memory(void) {
    const char *path = in_folder("persistent");
    dp_place memory, persistent;
    dp_pipe down, up;
    dp_lease lease;
    void *bytes;
    const void *read;
    size_t len;
    char name[1024];
    dp_error refused;
    FAILS(DP_NOT_FOUND, dp_pmem_open(path, 0, 1, &persistent));
    OK(dp_pmem_open(path, LEN, 1, &persistent));
    CHECK(length_of(path) == LEN);
    OK(dp_place_name(persistent, name, sizeof name, &len));
    CHECK(strstr(name, "emulated") != NULL);
    OK(dp_dram_allocate(LEN, NULL, &memory));
    OK(dp_lease_write(memory, &lease, &bytes, &len));
    memset(bytes, 7, len);
    OK(dp_lease_close(lease));
    OK(dp_connect(machine, memory, persistent, NULL, &down));
    OK(dp_connect(machine, persistent, memory, NULL, &up));
    OK(dp_pipe_transfer(down, span(0, 0, LEN)));
    OK(dp_pmem_sync(persistent));
    OK(dp_lease_write(memory, &lease, &bytes, &len));
    memset(bytes, 0, len);
    OK(dp_lease_close(lease));
    OK(dp_pipe_transfer(up, span(0, 0, LEN)));
    OK(dp_lease_read(memory, &lease, &read, &len));
    CHECK(((const unsigned char *)read)[LEN - 1] == 7);
    OK(dp_lease_close(lease));
    FAILS(DP_INVALID_INPUT, dp_pmem_sync(memory));
    OK(dp_pipe_close(down));
    OK(dp_pipe_close(up));
    OK(dp_place_close(memory));
    OK(dp_place_close(persistent));
    /* Without being asked, the library says what to set, if the file is an ordinary one. */
    refused = dp_pmem_open(path, 0, 0, &persistent);
    if (refused.id == 0) {
        OK(dp_place_close(persistent));
    } else {
        CHECK(dp_error_kind_of(refused) == DP_UNAVAILABLE);
        CHECK(strstr(dp_error_message(refused), "say `emulated`") != NULL);
        dp_error_close(refused);
    }
}

static dp_error fails_with_everything(uint32_t core, void *user) {
    dp_error_facts facts;
    (void)core, (void)user;
    memset(&facts, 0, sizeof facts);
    facts.size = sizeof facts;
    facts.errno_number = 5;
    facts.has_offset = 1;
    facts.offset = 0;
    facts.bytes_done = 512;
    return dp_error_new_with(DP_DEVICE, "caf\xe9", &facts);
}

static void errors(void) {
    dp_error_facts facts;
    dp_error error = dp_machine_each_core(machine, fails_with_everything, NULL);
    CHECK(dp_error_kind_of(error) == DP_DEVICE && dp_error_errno(error) == 5);
    CHECK(dp_error_offset(error) == 0 && dp_error_bytes_done(error) == 512);
    CHECK(strstr(dp_error_message(error), "caf\xef\xbf\xbd") != NULL);
    dp_error_close(error);
    error = dp_error_new_with(DP_BUSY, "no facts", NULL);
    CHECK(dp_error_kind_of(error) == DP_BUSY && dp_error_offset(error) == UINT64_MAX);
    dp_error_close(error);
    memset(&facts, 0, sizeof facts);
    error = dp_error_new_with(DP_BUSY, "no size", &facts);
    CHECK(dp_error_kind_of(error) == DP_BUSY && dp_error_errno(error) == 0);
    dp_error_close(error);
}

/* A report is given as a whole, however long it is. */
static size_t told_bytes;

static dp_error takes_text(void *user, const char *text, size_t len) {
    dp_error none = {0};
    CHECK(user == &told_bytes && strlen(text) == len);
    told_bytes = len;
    return none;
}

static dp_error takes_no_text(void *user, const char *text, size_t len) {
    (void)user, (void)text, (void)len;
    return dp_error_new(DP_NO_SPACE, "no room for the report");
}

static dp_error works(const dp_item *item, void *user) {
    dp_error none = {0};
    (void)item, (void)user;
    return none;
}

static void reports(void) {
    const char *input = in_folder("unsorted"), *output = in_folder("told");
    dp_sort_options options;
    dp_runtime runtime;
    dp_graph graph;
    char name[64], little[16];
    size_t len;
    uint32_t stage;
    int i;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.report = takes_text;
    options.report_user = &told_bytes;
    OK(dp_sort(machine, &input, 1, output, &options, little, sizeof little, &len));
    CHECK(told_bytes == len && len > sizeof little);
    options.report = takes_no_text;
    FAILS(DP_NO_SPACE, dp_sort(machine, &input, 1, output, &options, NULL, 0, NULL));
    CHECK(length_of(output) == 4);
    OK(dp_runtime_start(machine, NULL, &runtime));
    OK(dp_graph_new("many", &graph));
    for (i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "a stage with a long name, number %d", i);
        OK(dp_graph_compute(graph, name, works, NULL, &stage));
    }
    OK(dp_graph_run_told(runtime, graph, 1, DP_TEXT, takes_text, &told_bytes));
    CHECK(told_bytes > 16384);
    FAILS(DP_NO_SPACE, dp_graph_run_told(runtime, graph, 1, DP_JSON, takes_no_text, NULL));
    OK(dp_graph_run_told(runtime, graph, 1, DP_JSON, NULL, NULL));
    OK(dp_graph_close(graph));
    OK(dp_runtime_close(runtime));
}

int main(void) {
    OK(dp_machine_discover(&machine));
    refused_calls_change_nothing();
    sizes_of_structs();
    lengths();
    persistent_memory();
    errors();
    reports();
    OK(dp_machine_close(machine));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
