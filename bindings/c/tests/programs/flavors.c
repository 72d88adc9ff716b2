/* All three flavors of a pipe (CIDR'23, figures 6a, 6b and 6c), staging and a graph (figure 7). */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20 };

static dp_machine machine;

static void fill(dp_place place, unsigned char value) {
    dp_lease lease;
    void *bytes;
    size_t len;
    OK(dp_lease_write(place, &lease, &bytes, &len));
    memset(bytes, value, len);
    OK(dp_lease_close(lease));
}

static int all_are(dp_place place, unsigned char value) {
    dp_lease lease;
    const void *bytes;
    size_t len, i;
    OK(dp_lease_read(place, &lease, &bytes, &len));
    for (i = 0; i < len && ((const unsigned char *)bytes)[i] == value; i++) {
    }
    OK(dp_lease_close(lease));
    return i == len;
}

/* Figure 6a: each core brings a run of the file into its cache, sorts it there, and hands it back. */
struct runs {
    dp_place ssd, dram;
    uint64_t run;
};

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static dp_error sort_run(uint32_t core, void *user) {
    const struct runs *runs = user;
    dp_place part, cache;
    dp_pipe up, down;
    dp_lease lease;
    void *bytes;
    size_t len;
    uint32_t here;
    OK(dp_machine_current_core(machine, &here));
    CHECK(here == core);
    OK(dp_place_range(runs->dram, core * runs->run, runs->run, &part));
    OK(dp_core_cache(machine, core, 0, part, &cache));
    OK(dp_connect(machine, runs->ssd, cache, NULL, &up));
    OK(dp_connect(machine, cache, runs->dram, NULL, &down));
    OK(dp_pipe_transfer(up, span(core * runs->run, 0, runs->run)));
    OK(dp_lease_write(cache, &lease, &bytes, &len));
    qsort(bytes, len / 8, 8, ascending);
    OK(dp_lease_close(lease));
    OK(dp_pipe_transfer(down, span(0, core * runs->run, runs->run)));
    OK(dp_pipe_close(up));
    OK(dp_pipe_close(down));
    OK(dp_place_close(cache));
    return dp_place_close(part);
}

static void blocking(void) {
    struct runs runs;
    uint32_t cores;
    uint64_t l2, i;
    dp_lease lease;
    const void *bytes;
    size_t len;
    FILE *file = fopen(in_folder("numbers"), "w");
    OK(dp_machine_cores(machine, &cores, &l2));
    CHECK(cores >= 1 && l2 >= 4096);
    runs.run = 64 << 10;
    for (i = cores * runs.run / 8; i-- > 0;) {
        CHECK(fwrite(&i, 8, 1, file) == 1);
    }
    CHECK(fclose(file) == 0);
    OK(dp_ssd_open(in_folder("numbers"), DP_READ, DP_AUTO, &runs.ssd));
    OK(dp_dram_allocate(cores * runs.run, NULL, &runs.dram));
    OK(dp_machine_each_core(machine, sort_run, &runs));
    OK(dp_lease_read(runs.dram, &lease, &bytes, &len));
    for (i = 1; i < len / 8; i++) {
        const uint64_t *numbers = bytes;
        CHECK(i % (runs.run / 8) == 0 || numbers[i - 1] + 1 == numbers[i]);
    }
    OK(dp_lease_close(lease));
    OK(dp_place_close(runs.ssd));
    OK(dp_place_close(runs.dram));
}

static void many_spans(void) {
    dp_place file, memory, back;
    dp_pipe down, up;
    dp_span spans[64];
    uint64_t bytes, i, len;
    dp_error error;
    dp_transfer transfer;
    uint32_t done;
    char text[4096];
    size_t whole;
    OK(dp_ssd_open(getenv("FOLDER"), DP_UNLINKED, DP_AUTO, &file));
    OK(dp_ssd_preallocate(file, MIB));
    OK(dp_dram_allocate(MIB, NULL, &memory));
    OK(dp_dram_allocate(MIB, NULL, &back));
    fill(memory, 7);
    OK(dp_connect(machine, memory, file, NULL, &down));
    OK(dp_connect(machine, file, back, NULL, &up));
    for (i = 0; i < 64; i++) {
        spans[i] = span(i * 16384, i * 16384, 16384);
    }
    OK(dp_pipe_transfer_all(down, spans, 64, &bytes));
    CHECK(bytes == MIB);
    OK(dp_ssd_sync(file));
    OK(dp_place_length(file, &len));
    CHECK(len == MIB);
    OK(dp_pipe_start(up, span(0, 0, MIB / 2), &transfer));
    OK(dp_pipe_transfer(up, span(MIB / 2, MIB / 2, MIB / 2)));
    OK(dp_transfer_is_done(transfer, &done));
    OK(dp_transfer_wait(transfer));
    FAILS(DP_INVALID_INPUT, dp_transfer_wait(transfer));
    CHECK(all_are(back, 7));
    /* A refusal names the span and comes before anything moves. */
    fill(memory, 8);
    bytes = 99;
    spans[5].source = MIB + 4096;
    error = dp_pipe_transfer_all(down, spans, 64, &bytes);
    CHECK(dp_error_kind_of(error) == DP_OUT_OF_RANGE && strstr(dp_error_message(error), "span 5") != NULL);
    CHECK(dp_error_bytes_done(error) == 0 && bytes == 99);
    dp_error_close(error);
    spans[5] = span(0, 6 * 16384 - 1, 2);
    FAILS(DP_INVALID_INPUT, dp_pipe_transfer_all(down, spans, 64, NULL));
    OK(dp_pipe_transfer(up, span(0, 0, MIB)));
    CHECK(all_are(back, 7));
    /* An error in the middle: what was moved before is counted. */
    spans[0] = span(0, 0, 4096);
    spans[1] = span(MIB, 8192, 1);
    error = dp_pipe_transfer_all(up, spans, 2, NULL);
    CHECK(dp_error_kind_of(error) == DP_END_OF_FILE && strstr(dp_error_message(error), "span 1") != NULL);
    CHECK(dp_error_bytes_done(error) == 4096);
    dp_error_close(error);
    OK(dp_pipe_transfer_all(down, NULL, 0, &bytes));
    CHECK(bytes == 0);
    OK(dp_pipe_route(down, DP_TEXT, text, sizeof text, &whole));
    CHECK(whole > 0 && strlen(text) == (whole < sizeof text ? whole : sizeof text - 1));
    OK(dp_pipe_route(down, DP_JSON, text, 8, &whole));
    CHECK(strlen(text) == 7 && text[0] == '{');
    OK(dp_pipe_report(up, DP_TEXT, NULL, 0, &whole));
    CHECK(whole > 0);
    OK(dp_explain(machine, memory, file, NULL, DP_TEXT, text, sizeof text, &whole));
    OK(dp_pipe_close(down));
    OK(dp_pipe_close(up));
    OK(dp_place_close(file));
    OK(dp_place_close(memory));
    OK(dp_place_close(back));
}

/* The sum of a counter over the hops of a report in JSON. */
static uint64_t counted(dp_pipe pipe, const char *counter) {
    char text[16384], name[64];
    const char *at = text;
    size_t len;
    uint64_t sum = 0;
    OK(dp_pipe_report(pipe, DP_JSON, text, sizeof text, &len));
    CHECK(len < sizeof text);
    snprintf(name, sizeof name, "\"%s\":", counter);
    CHECK(strstr(text, name) != NULL);
    while ((at = strstr(at, name)) != NULL) {
        at += strlen(name);
        sum += strtoull(at, NULL, 10);
    }
    return sum;
}

/* Memory for bytes that do not begin at a block: without a bounce but for the edges. */
static void placed_for_a_file(void) {
    const uint64_t offset = 10008, len = 256 << 10;
    dp_place file, cached, memory, placed;
    dp_pipe pipe;
    dp_error error;
    OK(dp_ssd_open(in_folder("placed"), DP_CREATE, DP_CACHED, &cached));
    OK(dp_dram_allocate(MIB, NULL, &memory));
    fill(memory, 6);
    OK(dp_connect(machine, memory, cached, NULL, &pipe));
    OK(dp_pipe_transfer(pipe, span(0, 0, MIB)));
    OK(dp_pipe_close(pipe));
    OK(dp_ssd_sync(cached));
    OK(dp_ssd_open(in_folder("placed"), DP_READ, DP_AUTO, &file));
    FAILS(DP_INVALID_INPUT, dp_dram_allocate_for(memory, offset, len, NULL, &placed));
    FAILS(DP_INVALID_INPUT, dp_dram_allocate_for(file, offset, 0, NULL, &placed));
    FAILS(DP_OUT_OF_MEMORY, dp_dram_allocate_for(file, offset, (uint64_t)1 << 60, NULL, &placed));
    OK(dp_dram_allocate_for(file, offset, len, NULL, &placed));
    OK(dp_place_close(file));
    error = dp_ssd_open(in_folder("placed"), DP_READ, DP_DIRECT, &file);
    if (error.id != 0) {
        printf("SKIPPED: placed_for_a_file: %s\n", dp_error_message(error));
        dp_error_close(error);
    } else {
        OK(dp_connect(machine, file, memory, NULL, &pipe));
        OK(dp_pipe_transfer(pipe, span(offset, 0, len)));
        CHECK(counted(pipe, "bounced_bytes") == len);
        OK(dp_pipe_close(pipe));
        OK(dp_connect(machine, file, placed, NULL, &pipe));
        OK(dp_pipe_transfer(pipe, span(offset, 0, len)));
        CHECK(counted(pipe, "direct_bytes") == len && counted(pipe, "bounced_bytes") <= 8192);
        OK(dp_pipe_close(pipe));
        CHECK(all_are(placed, 6));
        OK(dp_place_close(file));
    }
    OK(dp_place_close(cached));
    OK(dp_place_close(memory));
    OK(dp_place_close(placed));
}

/* Figure 6b: futures and callbacks. */
struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count;
    uint32_t kind;
};

static void told(void *user, dp_error result) {
    struct told *told = user;
    pthread_mutex_lock(&told->lock);
    told->count++;
    told->kind = dp_error_kind_of(result);
    dp_error_close(result);
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->lock);
}

static void asynchronous(dp_runtime runtime) {
    dp_place source, target;
    dp_runtime_pipe pipe;
    dp_future futures[16];
    dp_service service;
    struct told seen = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    uint32_t i, stopped;
    OK(dp_dram_allocate(MIB, NULL, &source));
    OK(dp_dram_allocate(MIB, NULL, &target));
    fill(source, 3);
    memset(&service, 0, sizeof service);
    service.size = sizeof service;
    service.priority = DP_LATENCY;
    OK(dp_runtime_connect(runtime, source, target, NULL, &service, &pipe));
    for (i = 0; i < 16; i++) {
        OK(dp_runtime_pipe_transfer(pipe, span(i * 65536, i * 65536, 65536), &futures[i]));
    }
    for (i = 0; i < 15; i++) {
        OK(dp_future_wait(futures[i]));
    }
    OK(dp_future_cancel(futures[15], &stopped));
    OK(dp_runtime_pipe_transfer(pipe, span(15 * 65536, 15 * 65536, 65536), &futures[15]));
    OK(dp_future_close(futures[15]));
    OK(dp_runtime_pipe_drain(pipe));
    CHECK(all_are(target, 3));
    dp_runtime_pipe_transfer_then(pipe, span(0, 0, MIB), told, &seen);
    pthread_mutex_lock(&seen.lock);
    while (seen.count == 0) {
        pthread_cond_wait(&seen.changed, &seen.lock);
    }
    pthread_mutex_unlock(&seen.lock);
    CHECK(seen.kind == DP_OK);
    /* A transfer that cannot be started calls back once, too. */
    dp_runtime_pipe_transfer_then(pipe, span(MIB, 0, 1), told, &seen);
    CHECK(seen.count == 2 && seen.kind == DP_OUT_OF_RANGE);
    dp_future_on_done(futures[15], told, &seen);
    CHECK(seen.count == 3 && seen.kind == DP_INVALID_INPUT);
    OK(dp_runtime_pipe_close(pipe));
    dp_runtime_pipe_transfer_then(pipe, span(0, 0, 1), told, &seen);
    CHECK(seen.count == 4 && seen.kind == DP_INVALID_INPUT);
    OK(dp_place_close(source));
    OK(dp_place_close(target));
}

/* Figure 6c: a descriptor for poll. A completion says which place it is of. */
static void descriptor(dp_runtime runtime) {
    dp_place source, target;
    dp_pipe_fd pipe, own;
    struct pollfd wait;
    dp_completion done;
    uint64_t token;
    uint32_t is_there;
    dp_request_message request = {77, 0, 0, 4096};
    char message[1024];
    OK(dp_dram_allocate(MIB, NULL, &source));
    OK(dp_dram_allocate(MIB, NULL, &target));
    fill(source, 9);
    OK(dp_runtime_connect_fd(runtime, source, target, NULL, NULL, 42, 0, &pipe));
    OK(dp_pipe_fd_descriptor(pipe, &wait.fd));
    OK(dp_pipe_fd_submit(pipe, span(0, 0, MIB), &token));
    wait.events = POLLIN;
    CHECK(poll(&wait, 1, 60000) == 1 && wait.revents == POLLIN);
    OK(dp_pipe_fd_complete(pipe, &done, &is_there));
    CHECK(is_there && done.token == token && done.place == 42 && done.bytes == MIB && done.error.id == 0);
    OK(dp_pipe_fd_complete(pipe, &done, &is_there));
    CHECK(!is_there);
    CHECK(all_are(target, 9));
    /* Plain packets, without the library. */
    CHECK(write(wait.fd, &request, sizeof request) == sizeof request);
    CHECK(poll(&wait, 1, 60000) == 1);
    CHECK(read(wait.fd, message, sizeof message) == sizeof(dp_completion_message));
    CHECK(((dp_completion_message *)message)->token == 77 && ((dp_completion_message *)message)->kind == DP_OK);
    OK(dp_pipe_fd_submit(pipe, span(MIB, 0, 1), NULL));
    OK(dp_pipe_fd_complete_wait(pipe, &done));
    CHECK(dp_error_kind_of(done.error) == DP_OUT_OF_RANGE);
    dp_error_close(done.error);
    OK(dp_pipe_fd_close(pipe));
    OK(dp_connect_fd(machine, source, target, &own));
    OK(dp_pipe_fd_submit(own, span(0, 0, 64), &token));
    OK(dp_pipe_fd_complete_wait(own, &done));
    CHECK(done.error.id == 0);
    OK(dp_pipe_fd_close(own));
    OK(dp_place_close(source));
    OK(dp_place_close(target));
}

/* Figure 7: a graph over a staging, with two buffers. */
struct sums {
    dp_place memory;
    uint32_t buffers;
    uint64_t sum;
};

static dp_error to_read(const dp_item *item, void *user, dp_span *out) {
    const struct sums *sums = user;
    size_t buffer;
    dp_error error = dp_item_buffer(item, sums->buffers, &buffer);
    *out = span(dp_item_index(item) * 65536, buffer * 65536, 65536);
    return error;
}

static dp_error add_up(const dp_item *item, void *user) {
    struct sums *sums = user;
    dp_place part;
    dp_lease lease;
    const void *bytes;
    size_t len, i, buffer;
    if (dp_item_index(item) == 1000) {
        return dp_error_new(DP_CORRUPT, "the function says so");
    }
    OK(dp_item_buffer(item, sums->buffers, &buffer));
    OK(dp_place_range(sums->memory, buffer * 65536, 65536, &part));
    OK(dp_lease_read(part, &lease, &bytes, &len));
    for (i = 0; i < len; i++) {
        sums->sum += ((const unsigned char *)bytes)[i];
    }
    OK(dp_lease_close(lease));
    return dp_place_close(part);
}

static void graph(dp_runtime runtime) {
    dp_place staging, memory, all;
    dp_pipe fill_it;
    dp_runtime_pipe pipe;
    dp_graph graph;
    struct sums sums;
    uint64_t offset;
    uint32_t read_stage, sum_stage;
    char places[600], report[4096];
    size_t len;
    snprintf(places, sizeof places, "dram:64K,%s", getenv("FOLDER"));
    OK(dp_staging_open(machine, places, 0, &staging));
    OK(dp_staging_extent(staging, 16 * 65536, &offset));
    OK(dp_dram_allocate(16 * 65536, NULL, &all));
    fill(all, 1);
    OK(dp_connect(machine, all, staging, NULL, &fill_it));
    OK(dp_pipe_transfer(fill_it, span(0, offset, 16 * 65536)));
    CHECK(offset == 0);
    OK(dp_dram_allocate(2 * 65536, NULL, &memory));
    OK(dp_runtime_connect(runtime, staging, memory, NULL, NULL, &pipe));
    sums.memory = memory;
    sums.sum = 0;
    OK(dp_graph_new("sums", &graph));
    OK(dp_graph_buffers(graph, 2, &sums.buffers));
    OK(dp_graph_pipe(graph, "read", pipe, to_read, &sums, &read_stage));
    OK(dp_graph_compute(graph, "sum", add_up, &sums, &sum_stage));
    OK(dp_graph_after(graph, sum_stage, read_stage));
    OK(dp_graph_uses(graph, read_stage, sums.buffers));
    OK(dp_graph_uses(graph, sum_stage, sums.buffers));
    OK(dp_graph_in_order(graph, sum_stage));
    OK(dp_graph_threads(graph, 2));
    FAILS(DP_INVALID_INPUT, dp_graph_after(graph, read_stage, sum_stage));
    FAILS(DP_INVALID_INPUT, dp_graph_uses(graph, 99, sums.buffers));
    OK(dp_graph_run(runtime, graph, 16, DP_TEXT, report, sizeof report, &len));
    CHECK(sums.sum == 16 * 65536 && len > 0);
    OK(dp_graph_close(graph));
    OK(dp_staging_free(staging, offset, 16 * 65536));
    OK(dp_pipe_close(fill_it));
    OK(dp_runtime_pipe_close(pipe));
    OK(dp_place_close(staging));
    OK(dp_place_close(memory));
    OK(dp_place_close(all));
}

int main(void) {
    dp_runtime runtime;
    CHECK(dp_abi_version() == DP_ABI_VERSION);
    OK(dp_machine_discover(&machine));
    OK(dp_runtime_start(machine, NULL, &runtime));
    blocking();
    many_spans();
    placed_for_a_file();
    asynchronous(runtime);
    descriptor(runtime);
    graph(runtime);
    OK(dp_runtime_drain(runtime));
    OK(dp_runtime_close(runtime));
    OK(dp_machine_close(machine));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
