/* A model of NVIDIA's driver for tests without a GPU: two devices whose memory is memory of this
 * process, streams that are threads, and faults that a test asks for. It is stricter than the
 * driver where that shows mistakes: device addresses are not addresses of the process, a copy must
 * lie within one allocation, and registered memory is used within one registration. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>

typedef int status;
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_CURRENT = 201, ALREADY = 712, NOT_REGISTERED = 713, NOT_READY = 600 };
#define DEVICES 2
#define OFFSET (1ull << 60)
#define RANGES 4096

struct range { uint64_t start; size_t len; int device; int alive; long users; };
static struct range memory[RANGES], pinned[RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* What tests set, and what they ask. */
static long lost, refuse_register, refuse_copy, refuse_host_call, delay_us, held, capturing, copies_until_lost = -1;
static long streams, events, copies, host_calls, registrations, contexts[DEVICES];
static _Thread_local long depth;
static _Thread_local void *stack[64];

struct event { uint64_t recorded, done; };
struct op { int kind; void *to; const void *from; size_t len; struct event *event; uint64_t number; void (*call)(void *); void *value; void *owned; struct range *pinned; struct op *next; };
struct stream { pthread_t thread; struct op *first, **last; int busy, closing; };

long model_set(const char *key, long value) {
    pthread_mutex_lock(&lock);
    if (!strcmp(key, "lost")) lost = value;
    else if (!strcmp(key, "refuse_register")) refuse_register = value;
    else if (!strcmp(key, "refuse_copy")) refuse_copy = value;
    else if (!strcmp(key, "refuse_host_call")) refuse_host_call = value;
    else if (!strcmp(key, "delay_us")) delay_us = value;
    else if (!strcmp(key, "held")) held = value;
    else if (!strcmp(key, "capturing")) capturing = value;
    else if (!strcmp(key, "copies_until_lost")) copies_until_lost = value;
    else value = -1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return value;
}

long model_get(const char *key) {
    long value = -1;
    pthread_mutex_lock(&lock);
    if (!strcmp(key, "streams")) value = streams;
    else if (!strcmp(key, "events")) value = events;
    else if (!strcmp(key, "copies")) value = copies;
    else if (!strcmp(key, "host_calls")) value = host_calls;
    else if (!strcmp(key, "registrations")) value = registrations;
    else if (!strcmp(key, "depth")) value = depth;
    else if (!strcmp(key, "allocations")) { value = 0; for (int i = 0; i < RANGES; i++) value += memory[i].alive; }
    else if (!strcmp(key, "registered")) { value = 0; for (int i = 0; i < RANGES; i++) value += pinned[i].alive == 1; }
    else if (!strcmp(key, "pinned")) { value = 0; for (int i = 0; i < RANGES; i++) value += pinned[i].alive == 2; }
    pthread_mutex_unlock(&lock);
    return value;
}

static void *run(void *value) {
    struct stream *stream = value;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first && !stream->closing) pthread_cond_wait(&changed, &lock);
        if (!stream->first) break;
        struct op *op = stream->first;
        stream->busy = 1;
        /* 1 holds every copy, 2 those of the program alone. */
        while (((held == 1 && op->kind == 'c') || (held && op->kind == 'f')) && !lost) pthread_cond_wait(&changed, &lock);
        if (op->kind == 'w') while (op->event->done < op->number && !lost) pthread_cond_wait(&changed, &lock);
        int gone = lost != 0;
        long delay = delay_us;
        if ((op->kind == 'c' || op->kind == 'f') && !gone) {
            pthread_mutex_unlock(&lock);
            if (delay) usleep(delay);
            memcpy(op->to, op->from, op->len);
            pthread_mutex_lock(&lock);
            if (copies_until_lost > 0 && --copies_until_lost == 0) lost = 719;
        }
        if (op->kind == 'h' && !gone) {
            host_calls++;
            pthread_mutex_unlock(&lock);
            op->call(op->value);
            pthread_mutex_lock(&lock);
        }
        if (op->kind == 'e' && !gone && op->event->done < op->number) op->event->done = op->number;
        stream->first = op->next;
        if (!stream->first) stream->last = &stream->first;
        stream->busy = 0;
        if (op->pinned) op->pinned->users--;
        free(op->owned);
        free(op);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    free(stream);
    return 0;
}

static void push(struct stream *stream, struct op op) {
    struct op *kept = malloc(sizeof op);
    *kept = op;
    kept->next = 0;
    *stream->last = kept;
    stream->last = &kept->next;
    pthread_cond_broadcast(&changed);
}

static status ready(void) { return lost ? (status)lost : depth ? OK : NOT_CURRENT; }

static struct range *find(struct range *ranges, uint64_t start, size_t len) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].alive && ranges[i].start <= start && start + len <= ranges[i].start + ranges[i].len) return &ranges[i];
    return 0;
}

static struct range *overlap(uint64_t start, size_t len) {
    for (int i = 0; i < RANGES; i++)
        if (pinned[i].alive && pinned[i].start < start + len && start < pinned[i].start + pinned[i].len) return &pinned[i];
    return 0;
}

static status add(struct range *ranges, uint64_t start, size_t len, int device, int alive) {
    for (int i = 0; i < RANGES; i++)
        if (!ranges[i].alive) { ranges[i] = (struct range){ start, len, device, alive }; return OK; }
    return OUT_OF_MEMORY;
}

static void *real(uint64_t address) { return (void *)(uintptr_t)(address - OFFSET); }
static int current(void) { return (int)(uintptr_t)stack[depth - 1] - 1; }

status cuInit(unsigned flags) { return flags ? INVALID : OK; }
status cuDriverGetVersion(int *version) { *version = 13000; return OK; }
status cuDeviceGetCount(int *count) { *count = DEVICES; return OK; }
status cuDeviceGet(int *device, int number) { *device = number; return OK; }
status cuDeviceGetName(char *name, int len, int device) { snprintf(name, len, "a model of a driver, device %d", device); return OK; }
status cuDeviceGetPCIBusId(char *name, int len, int device) { snprintf(name, len, "ffff:%02x:00.0", device); return OK; }
status cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 36 ? 2619000 : attribute == 37 ? 5120 : attribute == 40 ? 3 : 0;
    return OK;
}
status cuGetErrorName(status error, const char **name) {
    *name = error == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : error == 1 ? "CUDA_ERROR_INVALID_VALUE" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : 0;
    return *name ? OK : INVALID;
}
status cuGetErrorString(status error, const char **text) {
    *text = error == 719 ? "unspecified launch failure" : error == 2 ? "out of memory" : 0;
    return *text ? OK : INVALID;
}
status cuDevicePrimaryCtxRetain(void **context, int device) {
    contexts[device]++;
    *context = (void *)(uintptr_t)(device + 1);
    return lost ? (status)lost : OK;
}
status cuCtxPushCurrent_v2(void *context) { if (depth == 64) return INVALID; stack[depth++] = context; return OK; }
status cuCtxPopCurrent_v2(void **context) { if (!depth) return NOT_CURRENT; *context = stack[--depth]; return OK; }
status cuCtxSetCurrent(void *context) { if (!depth) depth = 1; stack[depth - 1] = context; return OK; }
status cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : 0; return OK; }
status cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { *free_bytes = 1ull << 30; *total = 1ull << 31; return ready(); }

status cuMemAlloc_v2(uint64_t *address, size_t len) {
    if (ready()) return ready();
    if (len > (1ull << 31)) return OUT_OF_MEMORY;
    void *bytes = malloc(len);
    if (!bytes) return OUT_OF_MEMORY;
    memset(bytes, 0xa5, len);
    *address = OFFSET + (uintptr_t)bytes;
    pthread_mutex_lock(&lock);
    status added = add(memory, *address, len, current(), 1);
    pthread_mutex_unlock(&lock);
    return added;
}
status cuMemFree_v2(uint64_t address) {
    if (ready()) return ready();
    pthread_mutex_lock(&lock);
    struct range *found = find(memory, address, 1);
    int known = found && found->start == address;
    if (known) { found->alive = 0; free(real(address)); }
    pthread_mutex_unlock(&lock);
    return known ? OK : INVALID;
}
status cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    pthread_mutex_lock(&lock);
    struct range *device = find(memory, address, 1), *host = find(pinned, address, 1);
    pthread_mutex_unlock(&lock);
    if (!device && !host) return INVALID;
    unsigned *number = value;
    *number = attribute == 2 ? (device ? 2 : 1) : attribute == 9 ? (unsigned)(device ? device->device : 0) : 0;
    return OK;
}
status cuMemHostAlloc(void **address, size_t len, unsigned flags) {
    (void)flags;
    if (ready()) return ready();
    *address = malloc(len);
    pthread_mutex_lock(&lock);
    status added = add(pinned, (uintptr_t)*address, len, 0, 2);
    pthread_mutex_unlock(&lock);
    return added;
}
status cuMemFreeHost(void *address) {
    if (ready()) return ready();
    pthread_mutex_lock(&lock);
    struct range *found = find(pinned, (uintptr_t)address, 1);
    if (found) found->alive = 0;
    pthread_mutex_unlock(&lock);
    free(address);
    return found ? OK : INVALID;
}
status cuMemHostRegister_v2(void *address, size_t len, unsigned flags) {
    (void)flags;
    if (ready()) return ready();
    if (refuse_register) return (status)refuse_register;
    pthread_mutex_lock(&lock);
    status added = overlap((uintptr_t)address, len) ? ALREADY : add(pinned, (uintptr_t)address, len, 0, 1);
    if (!added) registrations++;
    pthread_mutex_unlock(&lock);
    return added;
}
status cuMemHostUnregister(void *address) {
    if (ready()) return ready();
    pthread_mutex_lock(&lock);
    struct range *found = find(pinned, (uintptr_t)address, 1);
    int known = found && found->start == (uintptr_t)address && found->alive == 1;
    if (known && found->users > 0 && !lost) {
        fprintf(stderr, "pages are taken back under a copy\n");
        abort();
    }
    if (known) found->alive = 0;
    pthread_mutex_unlock(&lock);
    return known ? OK : NOT_REGISTERED;
}

/* A stream that the program made, and work of the program in it. */
static void start(struct stream **made) {
    struct stream *stream = calloc(1, sizeof *stream);
    stream->last = &stream->first;
    *made = pthread_create(&stream->thread, 0, run, stream) ? 0 : stream;
    if (*made) pthread_detach(stream->thread);
}
void *model_stream(void) {
    struct stream *made;
    start(&made);
    return made;
}
void model_fill(void *stream, uint64_t address, int byte, size_t len) {
    struct op op = { .kind = 'f', .to = real(address), .len = len, .owned = malloc(len) };
    memset(op.owned, byte, len);
    op.from = op.owned;
    pthread_mutex_lock(&lock);
    push(stream, op);
    pthread_mutex_unlock(&lock);
}

static int drained(struct stream *stream) { return !stream->first && !stream->busy; }

/* Starts a copy; `host` is the side in memory of the process, or 0. */
static status copy(struct stream *stream, void *to, const void *from, size_t len, const void *host, uint64_t device, uint64_t other) {
    if (ready()) return ready();
    pthread_mutex_lock(&lock);
    status outcome = OK;
    struct range *registered = host ? overlap((uintptr_t)host, len) : 0;
    if (refuse_copy > 0 && --refuse_copy == 0) outcome = INVALID;
    else if (!find(memory, device, len) || (other && !find(memory, other, len))) outcome = INVALID;
    else if (registered && !find(pinned, (uintptr_t)host, len)) outcome = INVALID;
    if (!outcome) {
        copies++;
        struct op op = { .kind = 'c', .to = to, .from = from, .len = len, .pinned = registered };
        if (registered) registered->users++;
        if (host == from && host && !registered) {
            /* Pageable: the driver has its copy when it returns. */
            op.owned = malloc(len);
            memcpy(op.owned, from, len);
            op.from = op.owned;
        }
        push(stream, op);
        /* Pageable, the other way: all is done when it returns. */
        if (host == to && host && !registered) while (!drained(stream) && !lost) pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}
status cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t len, void *stream) { return copy(stream, real(to), from, len, from, to, 0); }
status cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t len, void *stream) { return copy(stream, to, real(from), len, to, from, 0); }
status cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t len, void *stream) { return copy(stream, real(to), real(from), len, 0, to, from); }
status cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t len, void *stream) {
    struct range *a = find(memory, to, len), *b = find(memory, from, len);
    if (!a || !b || a->device + 1 != (int)(uintptr_t)to_context || b->device + 1 != (int)(uintptr_t)from_context) return INVALID;
    return copy(stream, real(to), real(from), len, 0, to, from);
}

status cuStreamCreateWithPriority(void **made, unsigned flags, int priority) {
    (void)flags, (void)priority;
    if (ready()) return ready();
    struct stream *stream;
    start(&stream);
    if (!stream) return OUT_OF_MEMORY;
    *made = stream;
    __sync_fetch_and_add(&streams, 1);
    return OK;
}
status cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return OK; }
status cuStreamDestroy_v2(void *value) {
    if (ready()) return ready();
    struct stream *stream = value;
    pthread_mutex_lock(&lock);
    stream->closing = 1;
    streams--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return OK;
}
status cuStreamSynchronize(void *value) {
    if (ready()) return ready();
    struct stream *stream = value;
    pthread_mutex_lock(&lock);
    while (!drained(stream) && !lost) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return lost ? (status)lost : OK;
}
/* A graph is captured by some thread: then the driver answers no questions. */
status cuStreamIsCapturing(void *stream, int *value) { (void)stream; *value = capturing ? 1 : 0; return OK; }
status cuThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int kept;
    int before = kept;
    kept = *mode;
    *mode = before;
    return OK;
}
/* The default streams, by their numbers. Nothing is ever given to them here. */
static int is_default(void *stream) { return (uintptr_t)stream <= 2; }
status cuStreamWaitEvent(void *stream, void *value, unsigned flags) {
    (void)flags;
    if (ready()) return ready();
    if (is_default(stream)) return OK;
    struct event *event = value;
    pthread_mutex_lock(&lock);
    push(stream, (struct op){ .kind = 'w', .event = event, .number = event->recorded });
    pthread_mutex_unlock(&lock);
    return OK;
}
status cuEventCreate(void **made, unsigned flags) {
    (void)flags;
    if (ready()) return ready();
    *made = calloc(1, sizeof(struct event));
    __sync_fetch_and_add(&events, 1);
    return OK;
}
status cuEventRecord(void *value, void *stream) {
    if (ready()) return ready();
    struct event *event = value;
    pthread_mutex_lock(&lock);
    event->recorded++;
    if (is_default(stream)) event->done = event->recorded;
    else push(stream, (struct op){ .kind = 'e', .event = event, .number = event->recorded });
    pthread_mutex_unlock(&lock);
    return OK;
}
status cuEventQuery(void *value) {
    if (ready()) return ready();
    if (capturing) return 900;
    struct event *event = value;
    pthread_mutex_lock(&lock);
    status outcome = event->done >= event->recorded ? OK : NOT_READY;
    pthread_mutex_unlock(&lock);
    return outcome;
}
/* What waits for an event may outlive it, so its bytes stay. */
status cuEventDestroy_v2(void *value) { (void)value; __sync_fetch_and_sub(&events, 1); return ready(); }
status cuLaunchHostFunc(void *stream, void (*call)(void *), void *value) {
    if (ready()) return ready();
    if (refuse_host_call) return (status)refuse_host_call;
    pthread_mutex_lock(&lock);
    push(stream, (struct op){ .kind = 'h', .call = call, .value = value });
    pthread_mutex_unlock(&lock);
    return OK;
}
