/* A child that is made while other threads are in the library: each of the parent's objects is
 * refused with DP_FORKED and can be closed, and no call waits for a thread that the child lacks. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { LEN = 1 << 16, ROUNDS = 40, THREADS = 2, BOUND_S = 60 };

static dp_machine machine;
static dp_runtime runtime;
static dp_place file, memory;
static atomic_int stops;

/* One object of the parent, which its threads use all the time. */
static struct {
    dp_future future;
    dp_transfer transfer;
    dp_log log;
    dp_graph graph;
} of_parent;

static void *asks_futures(void *user) {
    uint32_t done;
    (void)user;
    while (!atomic_load(&stops)) {
        OK(dp_future_is_done(of_parent.future, &done));
    }
    return NULL;
}

static void *asks_transfers(void *user) {
    uint32_t done;
    (void)user;
    while (!atomic_load(&stops)) {
        OK(dp_transfer_is_done(of_parent.transfer, &done));
    }
    return NULL;
}

static void *appends(void *user) {
    (void)user;
    while (!atomic_load(&stops)) {
        OK(dp_log_append(of_parent.log, "record", 6, NULL));
    }
    return NULL;
}

static atomic_int inside;

static dp_error stays(const dp_item *item, void *user) {
    dp_error none = {0};
    (void)item, (void)user;
    atomic_store(&inside, 1);
    while (!atomic_load(&stops)) {
        poll(NULL, 0, 1);
    }
    return none;
}

static void *runs_a_graph(void *user) {
    (void)user;
    OK(dp_graph_run(runtime, of_parent.graph, 1, DP_TEXT, NULL, 0, NULL));
    return NULL;
}

/* What children do. */
static void waits_for_the_future(void) {
    uint32_t done;
    FAILS(DP_FORKED, dp_future_is_done(of_parent.future, &done));
    FAILS(DP_FORKED, dp_future_wait(of_parent.future));
    FAILS(DP_INVALID_INPUT, dp_future_close(of_parent.future));
}

static void cancels_the_future(void) {
    FAILS(DP_FORKED, dp_future_cancel(of_parent.future, NULL));
}

static void closes_the_future(void) {
    OK(dp_future_close(of_parent.future));
}

static uint32_t told;

static void tells(void *user, dp_error result) {
    (void)user;
    told = dp_error_kind_of(result);
    dp_error_close(result);
}

static void is_told_of_the_future(void) {
    dp_future_on_done(of_parent.future, tells, NULL);
    CHECK(told == DP_FORKED);
}

static void waits_for_the_transfer(void) {
    uint32_t done;
    FAILS(DP_FORKED, dp_transfer_is_done(of_parent.transfer, &done));
    FAILS(DP_FORKED, dp_transfer_wait(of_parent.transfer));
    FAILS(DP_INVALID_INPUT, dp_transfer_close(of_parent.transfer));
}

static void uses_the_log(void) {
    FAILS(DP_FORKED, dp_log_append(of_parent.log, "child", 5, NULL));
    FAILS(DP_FORKED, dp_log_append_durable(of_parent.log, "child", 5, NULL));
    FAILS(DP_FORKED, dp_log_sync(of_parent.log));
    FAILS(DP_FORKED, dp_log_release_before(of_parent.log, 1));
    OK(dp_log_close(of_parent.log));
    FAILS(DP_INVALID_INPUT, dp_log_close(of_parent.log));
}

static void runs_the_graph(void) {
    uint32_t set;
    FAILS(DP_FORKED, dp_graph_buffers(of_parent.graph, 1, &set));
    FAILS(DP_FORKED, dp_graph_run(runtime, of_parent.graph, 1, DP_TEXT, NULL, 0, NULL));
    OK(dp_graph_close(of_parent.graph));
}

/* Makes children while the threads are at it. A child that hangs is ended by its alarm. */
static void children(void *(*busy)(void *), int threads, void (*child)(void)) {
    pthread_t ids[THREADS];
    int i, round, status;
    atomic_store(&stops, 0);
    atomic_store(&inside, busy != runs_a_graph);
    for (i = 0; i < threads; i++) {
        CHECK(pthread_create(&ids[i], NULL, busy, NULL) == 0);
    }
    while (!atomic_load(&inside)) {
        poll(NULL, 0, 1);
    }
    for (round = 0; round < ROUNDS; round++) {
        pid_t made = fork();
        CHECK(made >= 0);
        if (made == 0) {
            alarm(BOUND_S);
            child();
            _exit(0);
        }
        CHECK(waitpid(made, &status, 0) == made);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "round %d: a child ended with status %x\n", round, (unsigned)status);
            abort();
        }
    }
    atomic_store(&stops, 1);
    for (i = 0; i < threads; i++) {
        CHECK(pthread_join(ids[i], NULL) == 0);
    }
}

int main(void) {
    dp_pipe pipe;
    dp_runtime_pipe in;
    dp_log_reader reader;
    const void *record;
    uint64_t number;
    size_t len;
    uint32_t stage;
    OK(dp_machine_discover(&machine));
    OK(dp_runtime_start(machine, NULL, &runtime));
    OK(dp_ssd_open(getenv("FOLDER"), DP_UNLINKED, DP_AUTO, &file));
    OK(dp_ssd_preallocate(file, LEN));
    OK(dp_dram_allocate(LEN, NULL, &memory));
    OK(dp_connect(machine, file, memory, NULL, &pipe));
    OK(dp_runtime_connect(runtime, file, memory, NULL, NULL, &in));

    OK(dp_runtime_pipe_transfer(in, span(0, 0, LEN), &of_parent.future));
    children(asks_futures, THREADS, waits_for_the_future);
    children(asks_futures, THREADS, cancels_the_future);
    children(asks_futures, THREADS, is_told_of_the_future);
    children(asks_futures, THREADS, closes_the_future);
    OK(dp_future_wait(of_parent.future));

    OK(dp_pipe_start(pipe, span(0, 0, LEN), &of_parent.transfer));
    children(asks_transfers, THREADS, waits_for_the_transfer);
    OK(dp_transfer_wait(of_parent.transfer));

    OK(dp_graph_new("held", &of_parent.graph));
    OK(dp_graph_compute(of_parent.graph, "stay", stays, NULL, &stage));
    children(runs_a_graph, 1, runs_the_graph);
    OK(dp_graph_close(of_parent.graph));

    OK(dp_log_open(machine, in_folder("forked-log"), NULL, &of_parent.log));
    children(appends, THREADS, uses_the_log);
    OK(dp_log_close(of_parent.log));
    /* The log is whole, and has no record of a child. */
    OK(dp_log_read(machine, in_folder("forked-log"), 0, &reader));
    for (;;) {
        OK(dp_log_reader_next(reader, &number, &record, &len));
        if (record == NULL) {
            break;
        }
        CHECK(len == 6 && memcmp(record, "record", 6) == 0);
    }
    OK(dp_log_reader_close(reader));

    OK(dp_pipe_close(pipe));
    OK(dp_runtime_pipe_close(in));
    OK(dp_runtime_close(runtime));
    OK(dp_place_close(file));
    OK(dp_place_close(memory));
    OK(dp_machine_close(machine));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
