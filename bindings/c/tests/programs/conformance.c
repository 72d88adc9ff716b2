/* The conformance suite through the C interface: random spans between every ordered pair of places, in
 * the three flavors and by the primitives that serve it, against memcpy on a model. SEED repeats a run.
 * The demands are those of the suite in Rust (dev/testkit/src/conformance/certify.rs), as far as a
 * program in C can make them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

/* Neither blocks, pages nor cache lines. */
enum { LEN = (48 << 10) + 37, MOST = LEN + 16384, PIECE = 3001, PIECES = LEN / PIECE, UNIT = 4096 };
enum flavor { BLOCKING, RUNTIME, DESCRIPTOR, FLAVORS };
static const char *const FLAVOR_NAMES[] = {"blocking", "runtime", "descriptor"};

static dp_machine machine;
static dp_runtime runtime;
static uint64_t state;
/* What is tested now, for failures. */
static char now[512];

static void say_what_failed(int signal) {
    (void)signal;
    (void)!write(2, now, strlen(now));
}

/* SplitMix64: the same numbers for a seed, everywhere. */
static uint64_t any(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* Often whole pages or sectors, often nearly so. */
static uint64_t awkward(uint64_t most) {
    uint64_t n = any() % (most + 1), near = any() % 3;
    switch (any() % 4) {
        case 0: return n / 4096 * 4096;
        case 1: return n / 512 * 512;
        case 2:
            n = n / 512 * 512 + near;
            return n == 0 ? 0 : n - 1 < most ? n - 1 : most;
        default: return n;
    }
}

/* A place that was made for one case. */
struct made {
    dp_place place;
    /* Where the bytes of a file are read and written without a pipe; -1 for others. */
    int file;
    /* Pipes alone reach the bytes. */
    int is_staging;
    /* Leases on it are given. */
    int is_leased;
};

/* A kind of place. `make` returns an error where there is none here. */
struct kind {
    const char *name;
    dp_error (*make)(const struct kind *kind, struct made *made);
    /* The folder of files, and how they are opened; the level of a cache. */
    const char *folder;
    uint32_t argument;
    int is_read_only;
};

static dp_error make_dram(const struct kind *kind, struct made *made) {
    dp_memory_options options;
    (void)kind;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.small_pages = options.no_prefault = 1;
    made->is_leased = 1;
    return dp_dram_allocate(LEN, &options, &made->place);
}

/* Long enough to be aligned to a huge page; the place is a part of it. */
static dp_error make_part(const struct kind *kind, struct made *made) {
    dp_place whole;
    (void)kind;
    made->is_leased = 1;
    OK(dp_dram_allocate(3 << 20, NULL, &whole));
    OK(dp_place_range(whole, 4097, LEN, &made->place));
    return dp_place_close(whole);
}

static dp_error make_foreign(const struct kind *kind, struct made *made) {
    void *bytes = calloc(LEN, 1);
    (void)kind;
    CHECK(bytes != NULL);
    made->is_leased = 1;
    return dp_dram_foreign(bytes, LEN, free, bytes, &made->place);
}

static dp_error make_cache(const struct kind *kind, struct made *made) {
    dp_place memory;
    dp_error error;
    made->is_leased = 1;
    OK(dp_dram_allocate(LEN, NULL, &memory));
    error = dp_core_cache(machine, 0, kind->argument, memory, &made->place);
    OK(dp_place_close(memory));
    return error;
}

static dp_error make_node(const struct kind *kind, struct made *made) {
    made->is_leased = 1;
    return dp_numa_allocate(kind->argument, LEN, &made->place);
}

/* The path of a new file. */
static const char *new_path(const char *folder) {
    static char path[512];
    static int number;
    snprintf(path, sizeof path, "%s/conformance-%d-%d", folder, (int)getpid(), number++);
    return path;
}

static dp_error make_pmem(const struct kind *kind, struct made *made) {
    const char *path = new_path(kind->folder);
    dp_error error = dp_pmem_open(path, LEN, 1, &made->place);
    unlink(path);
    return error;
}

static dp_error make_file(const struct kind *kind, struct made *made) {
    const char *path = new_path(kind->folder);
    dp_error error;
    made->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(made->file >= 0 && ftruncate(made->file, LEN) == 0);
    error = dp_ssd_open(path, kind->is_read_only ? DP_READ : DP_READ_WRITE, kind->argument, &made->place);
    unlink(path);
    return error;
}

static dp_error make_file_of_descriptor(const struct kind *kind, struct made *made) {
    const char *path = new_path(kind->folder);
    made->file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(made->file >= 0 && ftruncate(made->file, LEN) == 0);
    unlink(path);
    return dp_ssd_from_descriptor(made->file, path, kind->argument, &made->place);
}

static dp_error make_staging(const struct kind *kind, struct made *made) {
    char places[600];
    uint64_t offset;
    snprintf(places, sizeof places, "dram:16K,%s", kind->folder);
    made->is_staging = 1;
    OK(dp_staging_open(machine, places, 0, &made->place));
    OK(dp_staging_extent(made->place, LEN, &offset));
    CHECK(offset == 0);
    return (dp_error){0};
}

static dp_error make(const struct kind *kind, struct made *made) {
    dp_error error;
    memset(made, 0, sizeof *made);
    made->file = -1;
    error = kind->make(kind, made);
    if (error.id != 0 && made->file >= 0) {
        close(made->file);
    }
    return error;
}

static void end(struct made *made) {
    OK(dp_place_close(made->place));
    if (made->file >= 0) {
        CHECK(close(made->file) == 0);
    }
}

/* Moves the bytes of a staging to or from an array. */
static void by_a_pipe(const struct made *made, unsigned char *bytes, int is_write) {
    dp_place memory;
    dp_pipe pipe;
    OK(dp_dram_allocate(LEN, NULL, &memory));
    if (is_write) {
        OK(dp_place_write(memory, 0, bytes, LEN));
        OK(dp_connect(machine, memory, made->place, NULL, &pipe));
    } else {
        OK(dp_connect(machine, made->place, memory, NULL, &pipe));
    }
    OK(dp_pipe_transfer(pipe, span(0, 0, LEN)));
    OK(dp_pipe_close(pipe));
    if (!is_write) {
        OK(dp_place_read(memory, 0, bytes, LEN));
    }
    OK(dp_place_close(memory));
}

/* The bytes of a place, without the pipe that is tested; returns how many there are. */
static uint64_t bytes_of(const struct made *made, unsigned char *bytes) {
    uint64_t len;
    if (made->is_staging) {
        by_a_pipe(made, bytes, 0);
        return LEN;
    }
    OK(dp_place_length(made->place, &len));
    CHECK(len <= MOST);
    if (made->file >= 0) {
        CHECK(pread(made->file, bytes, MOST, 0) == (ssize_t)len);
    } else {
        OK(dp_place_read(made->place, 0, bytes, len));
    }
    return len;
}

static void fill(const struct made *made, unsigned char *bytes) {
    int i;
    for (i = 0; i < LEN; i++) {
        bytes[i] = (unsigned char)(any() >> 56);
    }
    if (made->is_staging) {
        by_a_pipe(made, bytes, 1);
    } else if (made->file >= 0) {
        CHECK(pwrite(made->file, bytes, LEN, 0) == LEN);
    } else {
        OK(dp_place_write(made->place, 0, bytes, LEN));
    }
}

/* A pair of places with a pipe, and what their bytes must be. */
struct pair {
    struct made source, target;
    enum flavor flavor;
    dp_pipe blocking;
    dp_runtime_pipe running;
    dp_pipe_fd descriptor;
    uint64_t source_len, target_len, moved;
    unsigned char source_twin[MOST], target_twin[MOST];
};

static dp_error connect_pair(struct pair *pair, const dp_constraints *constraints) {
    switch (pair->flavor) {
        case BLOCKING:
            return dp_connect(machine, pair->source.place, pair->target.place, constraints, &pair->blocking);
        case RUNTIME:
            return dp_runtime_connect(
                runtime, pair->source.place, pair->target.place, constraints, NULL, &pair->running);
        default:
            return dp_runtime_connect_fd(
                runtime, pair->source.place, pair->target.place, constraints, NULL, 42, 0, &pair->descriptor);
    }
}

static void move_twin(struct pair *pair, dp_span what) {
    memcpy(pair->target_twin + what.target, pair->source_twin + what.source, what.length);
    pair->moved += what.length;
}

static void compare_one(const struct made *made, const unsigned char *twin, uint64_t len, const char *name) {
    static unsigned char bytes[MOST];
    uint64_t i, found = bytes_of(made, bytes);
    if (found != len || memcmp(bytes, twin, len) != 0) {
        for (i = 0; i < len && i < found && bytes[i] == twin[i]; i++) {
        }
        fprintf(stderr, "the %s has %llu bytes of %llu, byte %llu differs\n", name, (unsigned long long)found,
                (unsigned long long)len, (unsigned long long)i);
        abort();
    }
}

static void compare(const struct pair *pair) {
    compare_one(&pair->target, pair->target_twin, pair->target_len, "target");
    compare_one(&pair->source, pair->source_twin, pair->source_len, "source");
}

/* Takes a completion, whose transfer must have succeeded. */
static void complete_one(const struct pair *pair) {
    dp_completion done;
    OK(dp_pipe_fd_complete_wait(pair->descriptor, &done));
    OK(done.error);
    CHECK(done.place == 42);
}

/* Carries out one transfer, whatever the flavor. */
static dp_error carry_out(struct pair *pair, dp_span what) {
    dp_future future;
    dp_completion done;
    dp_error error;
    uint64_t token;
    switch (pair->flavor) {
        case BLOCKING: return dp_pipe_transfer(pair->blocking, what);
        case RUNTIME:
            error = dp_runtime_pipe_transfer(pair->running, what, &future);
            return error.id != 0 ? error : dp_future_wait(future);
        default:
            OK(dp_pipe_fd_submit(pair->descriptor, what, &token));
            OK(dp_pipe_fd_complete_wait(pair->descriptor, &done));
            CHECK(done.token == token && done.place == 42);
            CHECK(done.error.id != 0 || done.bytes == what.length);
            return done.error;
    }
}

static void transfer(struct pair *pair, dp_span what) {
    OK(carry_out(pair, what));
    move_twin(pair, what);
    compare(pair);
}

static void refuse(struct pair *pair, uint32_t kind, dp_span what) {
    FAILS(kind, carry_out(pair, what));
    compare(pair);
}

/* None, one, all, whole units, and heads and tails that are no units. */
static void spans(struct pair *pair) {
    const uint64_t source = pair->source_len, target = pair->target_len;
    const uint64_t most = source < target ? source : target;
    const dp_span fixed[] = {
        {0, 0, 0},
        {source, target, 0},
        {0, 0, 1},
        {source - 1, target - 1, 1},
        {1, UNIT - 1, 1},
        {0, 0, most},
        {UNIT, 2 * UNIT, 3 * UNIT},
        {UNIT - 1, UNIT - 1, 2},
        {UNIT - 1, UNIT - 1, 2 * UNIT + 2},
        {1, 0, 5 * UNIT},
        {0, 1, 5 * UNIT},
        {source - 4097, target - 4097, 4097},
    };
    size_t i;
    for (i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        transfer(pair, fixed[i]);
    }
    for (i = 0; i < 12; i++) {
        uint64_t len = awkward(most);
        transfer(pair, span(awkward(source - len), awkward(target - len), len));
    }
}

struct told {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count;
};

static void tell(void *user, dp_error result) {
    struct told *told = user;
    OK(result);
    pthread_mutex_lock(&told->lock);
    told->count++;
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->lock);
}

/* Neighbors that share blocks, all started before the first is waited for. */
static void many_at_once(struct pair *pair) {
    dp_span pieces[PIECES];
    dp_transfer started[PIECES];
    dp_future futures[PIECES];
    struct told told = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    uint64_t bytes;
    int i, waiting = 0;
    for (i = 0; i < PIECES; i++) {
        pieces[i] = span((uint64_t)(PIECES - 1 - i) * PIECE, (uint64_t)i * PIECE, PIECE);
    }
    switch (pair->flavor) {
        case BLOCKING:
            for (i = 0; i < PIECES; i++) {
                OK(dp_pipe_start(pair->blocking, pieces[i], &started[i]));
            }
            for (i = PIECES; i-- > 0;) {
                OK(dp_transfer_wait(started[i]));
            }
            break;
        case RUNTIME:
            for (i = 0; i < PIECES; i++) {
                if (i % 2 == 0) {
                    OK(dp_runtime_pipe_transfer(pair->running, pieces[i], &futures[i]));
                } else {
                    dp_runtime_pipe_transfer_then(pair->running, pieces[i], tell, &told);
                }
            }
            for (i = 0; i < PIECES; i += 2) {
                OK(dp_future_wait(futures[i]));
            }
            pthread_mutex_lock(&told.lock);
            while (told.count < PIECES / 2) {
                pthread_cond_wait(&told.changed, &told.lock);
            }
            pthread_mutex_unlock(&told.lock);
            break;
        default:
            for (i = 0; i < PIECES; i++) {
                dp_error error = dp_pipe_fd_submit(pair->descriptor, pieces[i], NULL);
                waiting++;
                if (dp_error_kind_of(error) == DP_BUSY) {
                    dp_error_close(error);
                    i--;
                    waiting--;
                    complete_one(pair);
                    waiting--;
                } else {
                    OK(error);
                }
            }
            while (waiting-- > 0) {
                complete_one(pair);
            }
            break;
    }
    for (i = 0; i < PIECES; i++) {
        move_twin(pair, pieces[i]);
    }
    compare(pair);
    if (pair->flavor == BLOCKING) {
        for (i = 0; i < PIECES; i++) {
            pieces[i] = span((uint64_t)i * PIECE, (uint64_t)i * PIECE, PIECE - 2);
            move_twin(pair, pieces[i]);
        }
        OK(dp_pipe_transfer_all(pair->blocking, pieces, PIECES, &bytes));
        CHECK(bytes == (uint64_t)PIECES * (PIECE - 2));
        compare(pair);
    }
}

static dp_lease lease(dp_place place, uint64_t at, uint64_t len, int is_write) {
    dp_place part;
    dp_lease held;
    const void *reads;
    void *writes;
    OK(dp_place_range(place, at, len, &part));
    if (is_write) {
        OK(dp_lease_write(part, &held, &writes, NULL));
    } else {
        OK(dp_lease_read(part, &held, &reads, NULL));
    }
    OK(dp_place_close(part));
    return held;
}

static void busy(struct pair *pair) {
    const dp_span over = {100, 200, 5000};
    dp_lease held;
    if (pair->source.is_leased) {
        held = lease(pair->source.place, 5000, 10, 1);
        FAILS(DP_BUSY, carry_out(pair, over));
        OK(dp_lease_close(held));
        compare(pair);
        held = lease(pair->source.place, 5000, 10, 0);
        transfer(pair, over);
        OK(dp_lease_close(held));
    }
    if (pair->target.is_leased) {
        held = lease(pair->target.place, 200, 1, 0);
        FAILS(DP_BUSY, carry_out(pair, over));
        transfer(pair, span(100, 201, 5000));
        OK(dp_lease_close(held));
    }
    /* No lease is left over. */
    transfer(pair, over);
}

/* Every hop counts the bytes that were moved. The hops of a staging share them. */
static void counters(const struct pair *pair) {
    static const char HOP[] = "\"counters\":", NAME[] = "\"bytes\":";
    char text[32768];
    const char *at = text;
    size_t len, hops = 0;
    if (pair->flavor != BLOCKING || pair->source.is_staging || pair->target.is_staging) {
        return;
    }
    OK(dp_pipe_report(pair->blocking, DP_JSON, text, sizeof text, &len));
    CHECK(len < sizeof text);
    for (; (at = strstr(at, HOP)) != NULL; hops++) {
        at = strstr(at, NAME);
        CHECK(at != NULL && strtoull(at + strlen(NAME), NULL, 10) == pair->moved);
    }
    CHECK(hops > 0);
}

static void out_of_range(struct pair *pair) {
    const uint64_t source = pair->source_len, target = pair->target_len;
    if (pair->source.file < 0 && !pair->source.is_staging) {
        refuse(pair, DP_OUT_OF_RANGE, span(source - 1, 0, 2));
        refuse(pair, DP_OUT_OF_RANGE, span(source + 1, 0, 2));
        refuse(pair, DP_OUT_OF_RANGE, span(UINT64_MAX - 1, 0, 2));
        refuse(pair, DP_OUT_OF_RANGE, span(0, 0, source + 1));
    }
    if (pair->target.file < 0 && !pair->target.is_staging) {
        refuse(pair, DP_OUT_OF_RANGE, span(0, target - 1, 2));
        refuse(pair, DP_OUT_OF_RANGE, span(0, UINT64_MAX - 1, 2));
        refuse(pair, DP_OUT_OF_RANGE, span(0, 0, target + 1));
    }
}

/* Reading on after the last byte names the offset at which there was none. */
static void beyond_the_end(struct pair *pair) {
    static const uint64_t cases[][2] = {{0, 1}, {100, 200}, {4096, 8192}, {5000, 9000}};
    static unsigned char bytes[MOST];
    size_t i;
    if (pair->source.file < 0) {
        return;
    }
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint64_t have = cases[i][0], len = cases[i][1], from = pair->source_len - have;
        dp_error error = carry_out(pair, span(from, 300, len));
        uint64_t done = dp_error_bytes_done(error);
        CHECK(dp_error_kind_of(error) == DP_END_OF_FILE && done <= have);
        /* A completion of a descriptor has no offset. */
        CHECK(pair->flavor == DESCRIPTOR || dp_error_offset(error) == pair->source_len);
        dp_error_close(error);
        /* What the error says was done is there; nothing is promised of the rest of the span. */
        CHECK(bytes_of(&pair->target, bytes) == pair->target_len);
        CHECK(memcmp(bytes + 300, pair->source_twin + from, done) == 0);
        memcpy(pair->target_twin + 300, bytes + 300, len);
        compare(pair);
    }
}

/* A file grows by exactly what is written. */
static void grows(struct pair *pair) {
    static const uint64_t cases[][2] = {{0, 1000}, {13, 9001}};
    size_t i;
    if (pair->target.file < 0) {
        return;
    }
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t at = pair->target_len + cases[i][0];
        memset(pair->target_twin + pair->target_len, 0, cases[i][0]);
        pair->target_len = at + cases[i][1];
        transfer(pair, span(7, at, cases[i][1]));
    }
}

/* A transfer that was forgotten is carried out; the end of its pipe waits for it. */
static void forgotten(struct pair *pair) {
    const dp_span what = {11, 12, LEN - 4096};
    dp_transfer started;
    dp_future future;
    dp_lease held;
    switch (pair->flavor) {
        case BLOCKING:
            OK(dp_pipe_start(pair->blocking, what, &started));
            OK(dp_transfer_close(started));
            OK(dp_pipe_close(pair->blocking));
            break;
        case RUNTIME:
            OK(dp_runtime_pipe_transfer(pair->running, what, &future));
            OK(dp_future_close(future));
            OK(dp_runtime_pipe_close(pair->running));
            OK(dp_runtime_drain(runtime));
            break;
        default:
            OK(dp_pipe_fd_submit(pair->descriptor, what, NULL));
            complete_one(pair);
            OK(dp_pipe_fd_close(pair->descriptor));
            break;
    }
    move_twin(pair, what);
    compare(pair);
    if (pair->source.is_leased) {
        held = lease(pair->source.place, 0, LEN, 1);
        OK(dp_lease_close(held));
    }
    if (pair->target.is_leased) {
        held = lease(pair->target.place, 0, LEN, 1);
        OK(dp_lease_close(held));
    }
}

/* The primitives of a route in JSON: those of its hops, and all that were asked. */
struct primitives {
    char hops[128];
    char all[32][48];
    int hop_count, count;
};

static void read_route(const char *route, struct primitives *found) {
    static const char NAME[] = "\"primitive\":\"";
    const char *rejected = strstr(route, "\"rejected\":"), *at = route;
    CHECK(rejected != NULL);
    memset(found, 0, sizeof *found);
    while ((at = strstr(at, NAME)) != NULL) {
        char name[sizeof found->all[0]];
        int i;
        at += strlen(NAME);
        CHECK(snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "\""), at) < (int)sizeof name);
        if (at < rejected) {
            strcat(strcat(found->hops, found->hop_count++ > 0 ? "," : ""), name);
        }
        for (i = 0; i < found->count && strcmp(found->all[i], name) != 0; i++) {
        }
        if (i == found->count) {
            CHECK(found->count < 32);
            strcpy(found->all[found->count++], name);
        }
    }
    CHECK(found->hop_count > 0);
}

static int passed, refused;

/* Certifies one way in one flavor, with fresh places. Returns 0 where it was certified before. */
static void certify(const struct kind *source, const struct kind *target, enum flavor flavor, const char *only,
                    char seen[][128], int *seen_count) {
    static struct pair pair;
    static char route[65536];
    struct primitives found;
    dp_constraints constraints;
    dp_error error;
    size_t len;
    int i;
    memset(&constraints, 0, sizeof constraints);
    constraints.size = sizeof constraints;
    constraints.only = only;
    memset(&pair, 0, sizeof pair);
    OK(make(source, &pair.source));
    OK(make(target, &pair.target));
    pair.flavor = flavor;
    error = dp_explain(machine, pair.source.place, pair.target.place, &constraints, DP_JSON, route, sizeof route, &len);
    if (error.id != 0 && only != NULL) {
        CHECK(dp_error_kind_of(error) == DP_UNSUPPORTED && strlen(dp_error_message(error)) > 0);
        dp_error_close(error);
        FAILS(DP_UNSUPPORTED, connect_pair(&pair, &constraints));
        refused++;
    } else {
        OK(error);
        CHECK(len < sizeof route);
        read_route(route, &found);
        for (i = 0; i < *seen_count && strcmp(seen[i], found.hops) != 0; i++) {
        }
        if (i == *seen_count) {
            CHECK(i < 64);
            strcpy(seen[(*seen_count)++], found.hops);
            snprintf(now, sizeof now, "in the case of %s -> %s by %s, %s\n", source->name, target->name, found.hops,
                     FLAVOR_NAMES[flavor]);
            fill(&pair.source, pair.source_twin);
            fill(&pair.target, pair.target_twin);
            pair.source_len = pair.target_len = LEN;
            OK(connect_pair(&pair, &constraints));
            spans(&pair);
            many_at_once(&pair);
            busy(&pair);
            counters(&pair);
            out_of_range(&pair);
            beyond_the_end(&pair);
            grows(&pair);
            forgotten(&pair);
            passed++;
        }
    }
    end(&pair.source);
    end(&pair.target);
}

/* Ways between two kinds: the best in every flavor, those by one primitive, and some by two where two
 * hops are needed. */
static void certify_pair(const struct kind *source, const struct kind *target) {
    static char route[65536];
    char seen[64][128], only[128];
    struct made from, to;
    struct primitives found;
    size_t len;
    int flavor, i, seen_count;
    OK(make(source, &from));
    OK(make(target, &to));
    snprintf(now, sizeof now, "in the case of %s -> %s\n", source->name, target->name);
    if (target->is_read_only) {
        FAILS(DP_UNSUPPORTED, dp_explain(machine, from.place, to.place, NULL, DP_JSON, NULL, 0, NULL));
        end(&from);
        end(&to);
        return;
    }
    OK(dp_explain(machine, from.place, to.place, NULL, DP_JSON, route, sizeof route, &len));
    CHECK(len < sizeof route);
    read_route(route, &found);
    end(&from);
    end(&to);
    for (flavor = 0; flavor < FLAVORS; flavor++) {
        seen_count = 0;
        certify(source, target, flavor, NULL, seen, &seen_count);
        /* The primitives are the same in all flavors, so one flavor tries them. */
        for (i = 0; i < found.count && flavor == BLOCKING; i++) {
            certify(source, target, flavor, found.all[i], seen, &seen_count);
        }
        for (i = 0; i < 3 && flavor == BLOCKING && found.hop_count > 1; i++) {
            const char *first = found.all[any() % (uint64_t)found.count];
            snprintf(only, sizeof only, "%s,%s", first, found.all[any() % (uint64_t)found.count]);
            certify(source, target, flavor, only, seen, &seen_count);
        }
    }
}

/* A cache over a part of a memory: the bytes stay where they are. */
static void in_place(void) {
    enum { AT = 8192 };
    static unsigned char bytes[LEN + 2 * AT], after[sizeof bytes];
    dp_place memory, part, cache;
    dp_pipe up, down;
    dp_lease held;
    uint64_t i;
    for (i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)any();
    }
    OK(dp_dram_allocate(sizeof bytes, NULL, &memory));
    OK(dp_place_write(memory, 0, bytes, sizeof bytes));
    OK(dp_place_range(memory, AT, LEN, &part));
    OK(dp_core_cache(machine, 0, 0, part, &cache));
    OK(dp_connect(machine, memory, cache, NULL, &up));
    OK(dp_connect(machine, cache, memory, NULL, &down));
    for (i = 0; i < 40; i++) {
        uint64_t at = awkward(LEN), len = awkward(LEN - at);
        OK(dp_pipe_transfer(up, span(AT + at, at, len)));
        OK(dp_pipe_transfer(down, span(at, AT + at, len)));
        OK(dp_place_read(memory, 0, after, sizeof after));
        CHECK(memcmp(bytes, after, sizeof bytes) == 0);
    }
    held = lease(memory, AT + 100, 1, 1);
    FAILS(DP_BUSY, dp_pipe_transfer(up, span(AT, 0, 4096)));
    OK(dp_lease_close(held));
    FAILS(DP_OUT_OF_RANGE, dp_pipe_transfer(up, span(0, 0, UINT64_MAX / 2)));
    OK(dp_pipe_close(up));
    OK(dp_pipe_close(down));
    OK(dp_place_close(cache));
    OK(dp_place_close(part));
    OK(dp_place_close(memory));
}

int main(void) {
    const char *disk = getenv("FOLDER"), *seed = getenv("SEED");
    const struct kind kinds[] = {
        {"dram", make_dram, NULL, 0, 0},
        {"part of dram", make_part, NULL, 0, 0},
        {"memory of the program", make_foreign, NULL, 0, 0},
        {"cache l2", make_cache, NULL, 2, 0},
        {"cache l3", make_cache, NULL, 3, 0},
        {"numa node 0", make_node, NULL, 0, 0},
        {"emulated pmem", make_pmem, disk, 0, 0},
        {"file, auto", make_file, disk, DP_AUTO, 0},
        {"file, direct", make_file, disk, DP_DIRECT, 0},
        {"file by descriptor, cached", make_file_of_descriptor, disk, DP_CACHED, 0},
        {"file of tmpfs", make_file, "/dev/shm", DP_AUTO, 0},
        {"file that is only read", make_file, disk, DP_CACHED, 1},
        {"staging", make_staging, disk, 0, 0},
    };
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    int is_there[KINDS], i, j;
    state = seed != NULL ? strtoull(seed, NULL, 0) : 0x5eed;
    signal(SIGABRT, say_what_failed);
    printf("seed %llu\n", (unsigned long long)state);
    OK(dp_machine_discover(&machine));
    OK(dp_runtime_start(machine, NULL, &runtime));
    for (i = 0; i < KINDS; i++) {
        struct made made;
        dp_error error = make(&kinds[i], &made);
        is_there[i] = error.id == 0;
        if (is_there[i]) {
            end(&made);
        } else {
            printf("SKIPPED: conformance of %s: %s\n", kinds[i].name, dp_error_message(error));
            dp_error_close(error);
        }
    }
    for (i = 0; i < KINDS; i++) {
        for (j = 0; j < KINDS; j++) {
            if (is_there[i] && is_there[j]) {
                certify_pair(&kinds[i], &kinds[j]);
            }
        }
    }
    in_place();
    CHECK(passed > 100 && refused > 0);
    OK(dp_runtime_close(runtime));
    OK(dp_machine_close(machine));
    CHECK(dp_open_handles() == 0);
    printf("%d ways passed, %d were refused\neverything holds\n", passed, refused);
    return 0;
}
