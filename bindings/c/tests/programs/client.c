/* Pipes of a service: SOCKET is where it serves. The test ends the service when this program says so. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20 };

static dp_client client;

static void fill(dp_place place, unsigned char value) {
    unsigned char bytes[4096];
    uint64_t len, at;
    memset(bytes, value, sizeof bytes);
    OK(dp_place_length(place, &len));
    for (at = 0; at < len; at += sizeof bytes) {
        OK(dp_place_write(place, at, bytes, sizeof bytes));
    }
}

static int all_are(dp_place place, unsigned char value) {
    unsigned char bytes[4096];
    uint64_t len, at;
    size_t i;
    OK(dp_place_length(place, &len));
    for (at = 0; at < len; at += sizeof bytes) {
        OK(dp_place_read(place, at, bytes, sizeof bytes));
        for (i = 0; i < sizeof bytes; i++) {
            if (bytes[i] != value) {
                return 0;
            }
        }
    }
    return 1;
}

/* One transfer, carried out; returns its error. */
static dp_error transfer(dp_pipe_fd pipe, dp_span what) {
    struct pollfd wait;
    dp_completion done;
    uint64_t token;
    uint32_t is_there;
    dp_error error = dp_pipe_fd_submit(pipe, what, &token);
    if (error.id != 0) {
        return error;
    }
    OK(dp_pipe_fd_descriptor(pipe, &wait.fd));
    wait.events = POLLIN;
    CHECK(poll(&wait, 1, 60000) == 1);
    OK(dp_pipe_fd_complete(pipe, &done, &is_there));
    CHECK(is_there && done.token == token && done.place == 42);
    CHECK(done.error.id != 0 || done.bytes == what.length);
    return done.error;
}

static dp_pipe_fd connected(dp_place source, dp_place target) {
    dp_pipe_fd pipe;
    OK(dp_client_connect_fd(client, source, target, NULL, NULL, 42, 0, &pipe));
    return pipe;
}

/* Memory to memory, memory to file, file to memory, file to file. */
static void every_pair(void) {
    dp_place places[4], file, copy;
    dp_pipe_fd pipe;
    char text[4096];
    size_t len;
    int i;
    OK(dp_shared_memory_create(MIB, &places[0]));
    OK(dp_shared_memory_create(MIB, &places[1]));
    OK(dp_shared_memory_create(MIB, &places[2]));
    OK(dp_ssd_open(getenv("FOLDER"), DP_UNLINKED, DP_AUTO, &file));
    OK(dp_ssd_open(getenv("FOLDER"), DP_UNLINKED, DP_AUTO, &copy));
    fill(places[0], 7);
    for (i = 0; i < 4; i++) {
        const dp_place from[] = {places[0], places[1], file, copy};
        const dp_place to[] = {places[1], file, copy, places[2]};
        pipe = connected(from[i], to[i]);
        /* The pieces begin anywhere, and the last one comes first. */
        OK(transfer(pipe, span(MIB / 2 + 4097, MIB / 2 + 4097, MIB / 2 - 4097)));
        OK(transfer(pipe, span(1234, 1234, MIB / 2 + 4097 - 1234)));
        OK(transfer(pipe, span(0, 0, 1234)));
        OK(dp_pipe_fd_route(pipe, DP_TEXT, text, sizeof text, &len));
        CHECK(len > 0 && strstr(text, "->") != NULL);
        FAILS(DP_UNSUPPORTED, dp_pipe_fd_route(pipe, DP_JSON, text, sizeof text, &len));
        OK(dp_pipe_fd_close(pipe));
        FAILS(DP_INVALID_INPUT, dp_pipe_fd_submit(pipe, span(0, 0, 1), NULL));
    }
    CHECK(all_are(places[1], 7) && all_are(places[2], 7));
    for (i = 0; i < 3; i++) {
        OK(dp_place_close(places[i]));
    }
    OK(dp_place_close(file));
    OK(dp_place_close(copy));
}

static void refusals(void) {
    dp_place shared, part, own, own_memfd, other, file;
    dp_client absent;
    dp_pipe_fd pipe;
    dp_service service;
    dp_lease lease;
    const void *bytes;
    int memfd, descriptor;
    char name[512];
    FAILS(DP_UNAVAILABLE, dp_client_connect("/no/such/socket", &absent));
    FAILS(DP_INVALID_INPUT, dp_client_connect(getenv("SOCKET"), NULL));
    FAILS(DP_INVALID_INPUT, dp_shared_memory_create(0, &shared));
    FAILS(DP_INVALID_INPUT, dp_shared_memory_from_descriptor(-1, &shared));
    OK(dp_shared_memory_create(MIB, &shared));
    OK(dp_dram_allocate(MIB, NULL, &own));
    FAILS(DP_INVALID_INPUT, dp_client_connect_fd(client, own, shared, NULL, NULL, 0, 0, &pipe));
    FAILS(DP_INVALID_INPUT, dp_client_connect_fd(client, shared, own, NULL, NULL, 0, 0, &pipe));
    FAILS(DP_INVALID_INPUT, dp_shared_memory_descriptor(own, &descriptor));
    /* Others may change the bytes: no lease, but copies. */
    FAILS(DP_UNSUPPORTED, dp_lease_read(shared, &lease, &bytes, NULL));
    FAILS(DP_OUT_OF_RANGE, dp_place_read(shared, MIB - 1, name, 2));
    FAILS(DP_OUT_OF_RANGE, dp_place_write(shared, UINT64_MAX, name, 2));
    /* A file that is only read, as a target. */
    snprintf(name, sizeof name, "%s", in_folder("input"));
    OK(dp_ssd_open(name, DP_CREATE, DP_AUTO, &file));
    OK(dp_ssd_set_length(file, MIB));
    OK(dp_place_close(file));
    OK(dp_ssd_open(name, DP_READ, DP_AUTO, &file));
    FAILS(DP_PERMISSION_DENIED, dp_client_connect_fd(client, shared, file, NULL, NULL, 0, 0, &pipe));
    memset(&service, 0, sizeof service);
    service.size = sizeof service;
    service.queue = 4;
    FAILS(DP_INVALID_INPUT, dp_client_connect_fd(client, file, shared, NULL, &service, 0, 0, &pipe));
    /* A part of a memory, and a memfd of the program's. */
    memfd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(memfd >= 0 && ftruncate(memfd, MIB) == 0);
    FAILS(DP_INVALID_INPUT, dp_shared_memory_from_descriptor(memfd, &own_memfd));
    CHECK(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    OK(dp_shared_memory_from_descriptor(memfd, &own_memfd));
    fill(own_memfd, 5);
    CHECK(pread(memfd, name, 1, MIB - 1) == 1 && name[0] == 5);
    CHECK(close(memfd) == 0);
    OK(dp_shared_memory_descriptor(own_memfd, &descriptor));
    CHECK(fcntl(descriptor, F_GETFD) >= 0);
    /* The pages of a client are its own: they must be there before they are passed. */
    memfd = memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(memfd >= 0 && ftruncate(memfd, MIB) == 0 && fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    OK(dp_shared_memory_from_descriptor(memfd, &other));
    CHECK(close(memfd) == 0);
    FAILS(DP_INVALID_INPUT, dp_client_connect_fd(client, other, shared, NULL, NULL, 0, 0, &pipe));
    OK(dp_place_close(other));
    OK(dp_place_range(shared, 4096, 8192, &part));
    pipe = connected(own_memfd, part);
    OK(transfer(pipe, span(0, 0, 8192)));
    CHECK(all_are(part, 5) && !all_are(shared, 5));
    FAILS(DP_OUT_OF_RANGE, transfer(pipe, span(0, 1, 8192)));
    /* The bytes are leased in this process while a transfer is under way, and free after that. */
    OK(dp_place_range(shared, 0, 4096, &other));
    CHECK(all_are(other, 0));
    OK(dp_pipe_fd_close(pipe));
    /* What the transfer itself meets comes as its completion. */
    pipe = connected(file, shared);
    FAILS(DP_END_OF_FILE, transfer(pipe, span(MIB - 1, 0, 2)));
    OK(dp_pipe_fd_close(pipe));
    OK(dp_place_close(other));
    OK(dp_place_close(part));
    OK(dp_place_close(own_memfd));
    OK(dp_place_close(own));
    OK(dp_place_close(file));
    OK(dp_place_close(shared));
}

/* What a pipe needs lives as long as it: the connection, and the places. */
static void closed_early(void) {
    dp_client own;
    dp_place source, target, part;
    dp_pipe_fd pipe;
    dp_completion done;
    OK(dp_client_connect(getenv("SOCKET"), &own));
    OK(dp_shared_memory_create(MIB, &source));
    OK(dp_shared_memory_create(MIB, &target));
    OK(dp_place_range(target, MIB - 4096, 4096, &part));
    fill(source, 9);
    OK(dp_client_connect_fd(own, source, target, NULL, NULL, 42, 0, &pipe));
    OK(dp_client_close(own));
    OK(dp_place_close(source));
    OK(dp_place_close(target));
    OK(transfer(pipe, span(0, 0, MIB)));
    CHECK(all_are(part, 9));
    /* Closing waits for what was submitted. */
    fill(part, 1);
    OK(dp_pipe_fd_submit(pipe, span(0, 0, MIB), NULL));
    OK(dp_pipe_fd_close(pipe));
    CHECK(all_are(part, 9));
    FAILS(DP_INVALID_INPUT, dp_pipe_fd_complete_wait(pipe, &done));
    OK(dp_place_close(part));
}

/* Bytes are leased in this process while their transfer is under way. */
static void leased(void) {
    unsigned char byte = 0;
    dp_place source, target;
    dp_pipe_fd pipe;
    dp_completion done;
    dp_error error;
    OK(dp_shared_memory_create(64 * MIB, &source));
    OK(dp_shared_memory_create(64 * MIB, &target));
    pipe = connected(source, target);
    OK(dp_pipe_fd_submit(pipe, span(0, 0, 64 * MIB), NULL));
    /* Until its completion is taken, whether it is done or not. */
    FAILS(DP_BUSY, dp_place_write(target, 5, &byte, 1));
    FAILS(DP_BUSY, dp_place_read(target, 5, &byte, 1));
    FAILS(DP_BUSY, dp_place_write(source, 5, &byte, 1));
    OK(dp_place_read(source, 5, &byte, 1));
    error = dp_pipe_fd_submit(pipe, span(0, 0, 1), NULL);
    CHECK(dp_error_kind_of(error) == DP_BUSY);
    dp_error_close(error);
    OK(dp_pipe_fd_complete_wait(pipe, &done));
    OK(done.error);
    OK(dp_place_write(target, 5, &byte, 1));
    OK(dp_pipe_fd_close(pipe));
    OK(dp_place_close(source));
    OK(dp_place_close(target));
}

/* Four threads move parts by one client, each with its own pipe. */
static dp_place shared_source, shared_target;

static void *move_quarter(void *user) {
    const uint64_t at = *(const uint64_t *)user;
    dp_pipe_fd pipe = connected(shared_source, shared_target);
    uint64_t i;
    for (i = 0; i < MIB / 4; i += 4096) {
        OK(transfer(pipe, span(at + i, at + i, 4096)));
    }
    OK(dp_pipe_fd_close(pipe));
    return NULL;
}

static void threads(void) {
    uint64_t starts[4];
    pthread_t threads[4];
    int i;
    OK(dp_shared_memory_create(MIB, &shared_source));
    OK(dp_shared_memory_create(MIB, &shared_target));
    fill(shared_source, 3);
    for (i = 0; i < 4; i++) {
        starts[i] = (uint64_t)i * (MIB / 4);
        CHECK(pthread_create(&threads[i], NULL, move_quarter, &starts[i]) == 0);
    }
    for (i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(all_are(shared_target, 3));
    OK(dp_place_close(shared_source));
    OK(dp_place_close(shared_target));
}

/* A child refuses its parent's connection, and opens its own. */
static void forked(void) {
    dp_place source, target;
    dp_pipe_fd pipe;
    pid_t child;
    int status;
    OK(dp_shared_memory_create(MIB, &source));
    OK(dp_shared_memory_create(MIB, &target));
    pipe = connected(source, target);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        size_t len;
        FAILS(DP_FORKED, dp_client_status(client, NULL, 0, &len));
        FAILS(DP_FORKED, dp_pipe_fd_submit(pipe, span(0, 0, 1), NULL));
        OK(dp_pipe_fd_close(pipe));
        OK(dp_client_close(client));
        OK(dp_client_connect(getenv("SOCKET"), &client));
        OK(dp_client_status(client, NULL, 0, &len));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(transfer(pipe, span(0, 0, MIB)));
    OK(dp_pipe_fd_close(pipe));
    OK(dp_place_close(source));
    OK(dp_place_close(target));
}

/* The service ends while there are pipes. */
static void the_service_ends(void) {
    dp_place source, target;
    dp_pipe_fd pipe;
    dp_completion done;
    size_t len;
    OK(dp_shared_memory_create(MIB, &source));
    OK(dp_shared_memory_create(MIB, &target));
    pipe = connected(source, target);
    puts("end it");
    CHECK(fflush(stdout) == 0 && getchar() == 'x');
    FAILS(DP_UNAVAILABLE, dp_client_status(client, NULL, 0, &len));
    FAILS(DP_UNAVAILABLE, dp_pipe_fd_complete_wait(pipe, &done));
    FAILS(DP_UNAVAILABLE, dp_pipe_fd_submit(pipe, span(0, 0, 1), NULL));
    OK(dp_pipe_fd_close(pipe));
    OK(dp_place_close(source));
    OK(dp_place_close(target));
}

int main(void) {
    char status[16384];
    size_t len;
    OK(dp_client_connect(getenv("SOCKET"), &client));
    OK(dp_client_status(client, status, sizeof status, &len));
    CHECK(status[0] == '{' && strstr(status, "\"clients\":") != NULL);
    every_pair();
    refusals();
    closed_early();
    leased();
    threads();
    forked();
    the_service_ends();
    OK(dp_client_close(client));
    FAILS(DP_INVALID_INPUT, dp_client_close(client));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
