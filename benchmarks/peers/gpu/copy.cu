// The same copies as crates/backends/gpu/examples/bandwidth.rs by CUDA itself, for `bench`:
// pinned memory (cudaMallocHost), cudaMemcpyAsync on a stream, and an event that is waited for.
//   nvcc -O2 -o copy copy.cu
//   copy copies        medians by length, both directions
//   copy two           1 GiB up by two streams
//   copy file PATH LEN a file to the device: pread into two pinned buffers in turns
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#define CHECK(call) do { cudaError_t failed = (call); if (failed) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(failed)); exit(1); } } while (0)

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double cpu() {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void copies() {
    const struct { size_t len; int copies; } cases[] = {
        {64, 20000}, {4 << 10, 20000}, {64 << 10, 10000}, {1 << 20, 4000}, {16 << 20, 400}, {1 << 30, 12}};
    for (auto c : cases) {
        void *host, *device;
        CHECK(cudaMallocHost(&host, c.len));
        CHECK(cudaMalloc(&device, c.len));
        memset(host, 1, c.len);
        cudaStream_t stream;
        cudaEvent_t event;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        for (int down = 0; down < 2; down++) {
            auto copy = [&] {
                CHECK(cudaMemcpyAsync(down ? host : device, down ? device : host, c.len,
                                      down ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream));
                CHECK(cudaEventRecord(event, stream));
                CHECK(cudaEventSynchronize(event));
            };
            for (int i = 0; i < c.copies / 10 + 3; i++) copy();
            std::vector<double> times;
            double before = cpu();
            for (int i = 0; i < c.copies; i++) {
                double begun = now();
                copy();
                times.push_back(now() - begun);
            }
            double used = (cpu() - before) / c.copies;
            std::sort(times.begin(), times.end());
            double median = times[c.copies / 2];
            printf("%s %zu %.2f us %.3f GB/s %.2f us of a core\n", down ? "down" : "up", c.len, median * 1e6,
                   c.len / median / 1e9, used * 1e6);
        }
        CHECK(cudaFree(device));
        CHECK(cudaFreeHost(host));
    }
}

// A long copy by two streams, half each.
static void two_streams() {
    const size_t len = 1 << 30;
    char *host, *device;
    CHECK(cudaMallocHost((void **)&host, len));
    CHECK(cudaMalloc((void **)&device, len));
    cudaStream_t streams[2];
    for (int i = 0; i < 2; i++) CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    std::vector<double> times;
    for (int i = 0; i < 15; i++) {
        double begun = now();
        for (int half = 0; half < 2; half++)
            CHECK(cudaMemcpyAsync(device + half * len / 2, host + half * len / 2, len / 2, cudaMemcpyHostToDevice, streams[half]));
        for (int half = 0; half < 2; half++) CHECK(cudaStreamSynchronize(streams[half]));
        times.push_back(now() - begun);
    }
    std::sort(times.begin(), times.end());
    printf("up by two streams %zu %.2f us %.3f GB/s\n", len, times[7] * 1e6, len / times[7] / 1e9);
}

static void file(const char *path, size_t len) {
    const size_t piece = 4 << 20;
    char *host, *device;
    CHECK(cudaMallocHost((void **)&host, 2 * piece));
    CHECK(cudaMalloc((void **)&device, len));
    cudaStream_t stream;
    cudaEvent_t events[2];
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) CHECK(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    int fd = open(path, O_RDONLY);
    if (fd < 0) { perror(path); exit(1); }
    double begun = now(), used = cpu();
    int turn = 0;
    for (size_t at = 0; at < len; turn ^= 1) {
        CHECK(cudaEventSynchronize(events[turn]));
        size_t want = std::min(piece, len - at), have = 0;
        while (have < want) {
            ssize_t n = pread(fd, host + turn * piece + have, want - have, at + have);
            if (n <= 0) { perror("pread"); exit(1); }
            have += n;
        }
        CHECK(cudaMemcpyAsync(device + at, host + turn * piece, want, cudaMemcpyHostToDevice, stream));
        CHECK(cudaEventRecord(events[turn], stream));
        at += want;
    }
    CHECK(cudaStreamSynchronize(stream));
    double took = now() - begun;
    printf("file to device %zu by pread and cudaMemcpyAsync: %.3f s, %.2f GB/s, %.3f core seconds\n", len, took,
           len / took / 1e9, cpu() - used);
}

int main(int count, char **arguments) {
    if (count == 4 && !strcmp(arguments[1], "file")) file(arguments[2], strtoull(arguments[3], 0, 10));
    else if (count == 2 && !strcmp(arguments[1], "two")) two_streams();
    else copies();
}
