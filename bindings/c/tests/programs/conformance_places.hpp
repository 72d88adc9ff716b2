// The places of the conformance suite in C++: how each is made, and how its bytes are read and written
// without the pipe that is tested.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "datapipes.hpp"

namespace dp = datapipes;
using bytes_t = std::vector<std::byte>;

// Neither blocks, pages nor cache lines.
constexpr std::uint64_t LEN = (48 << 10) + 37, UNIT = 4096, PIECE = 3001, PIECES = LEN / PIECE;

static std::uint64_t state;
static std::string now;

// SplitMix64: the same numbers for a seed, everywhere.
static std::uint64_t any() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

// Often whole pages or sectors, often nearly so.
static std::uint64_t awkward(std::uint64_t most) {
    std::uint64_t n = any() % (most + 1), near = any() % 3;
    switch (any() % 4) {
        case 0: return n / 4096 * 4096;
        case 1: return n / 512 * 512;
        case 2: return std::min(most, n / 512 * 512 + near);
        default: return n;
    }
}

#define HOLDS(condition)                                          \
    do {                                                          \
        if (!(condition)) {                                       \
            std::cerr << now << ": " << #condition << std::endl;  \
            CHECK(condition);                                     \
        }                                                         \
    } while (0)

// The kind of the error that work throws; DP_OK for none.
template <class Work>
static dp_error_kind kind_of(Work &&work) {
    try {
        work();
        return DP_OK;
    } catch (const dp::error &e) {
        return e.kind();
    }
}

// A place that was made for one case, how its bytes are read and written without the pipe that is
// tested, and whether it gives leases.
struct made {
    std::unique_ptr<dp::place> place;
    std::function<bytes_t()> read;
    std::function<void(const bytes_t &)> write;
    dp::memory *leased = nullptr;
    bool is_file = false;
};

template <class Memory>
static made of_memory(Memory &&given, bool gives_leases) {
    auto held = std::make_unique<dp::memory>(std::forward<Memory>(given));
    auto *at = held.get();
    made it;
    it.read = [at] {
        bytes_t bytes(at->length());
        at->read(0, bytes);
        return bytes;
    };
    it.write = [at](const bytes_t &bytes) { at->write(0, bytes); };
    it.leased = gives_leases ? at : nullptr;
    it.place = std::move(held);
    return it;
}

static std::string new_path(const std::string &folder) {
    static int number;
    return folder + "/conformance-cpp-" + std::to_string(getpid()) + "-" + std::to_string(number++);
}

static made of_file(
    const std::string &folder, dp_access access, bool by_descriptor, dp_open_mode mode = DP_READ_WRITE) {
    auto path = new_path(folder);
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    HOLDS(fd >= 0 && ftruncate(fd, LEN) == 0);
    std::shared_ptr<int> file(new int(fd), [](int *of) {
        close(*of);
        delete of;
    });
    made it;
    auto forget = [&] { unlink(path.c_str()); };
    try {
        it.place = by_descriptor ? std::make_unique<dp::ssd>(fd, path, access)
                                 : std::make_unique<dp::ssd>(path, mode, access);
    } catch (...) {
        forget();
        throw;
    }
    forget();
    it.is_file = true;
    it.read = [file] {
        bytes_t bytes(LEN + 16384);
        auto len = pread(*file, bytes.data(), bytes.size(), 0);
        HOLDS(len >= 0);
        bytes.resize(static_cast<std::size_t>(len));
        return bytes;
    };
    it.write = [file](const bytes_t &bytes) {
        HOLDS(pwrite(*file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    };
    return it;
}

static made of_staging(const dp::machine &machine, const std::string &folder) {
    auto held = std::make_unique<dp::staging>(machine.staging("dram:16K," + folder));
    HOLDS(held->extent(LEN) == 0);
    auto *at = held.get();
    made it;
    it.read = [&machine, at] {
        dp::dram memory(LEN);
        machine.connect(*at, memory).transfer({0, 0, LEN});
        bytes_t bytes(LEN);
        memory.read(0, bytes);
        return bytes;
    };
    it.write = [&machine, at](const bytes_t &bytes) {
        dp::dram memory(LEN);
        memory.write(0, bytes);
        machine.connect(memory, *at).transfer({0, 0, LEN});
    };
    it.place = std::move(held);
    return it;
}

static made of_pmem(const std::string &folder) {
    auto path = new_path(folder);
    auto it = of_memory(dp::pmem(path, LEN, true), false);
    unlink(path.c_str());
    return it;
}

static made of_mapped_file(const std::string &folder) {
    auto path = new_path(folder);
    dp::ssd file(path, DP_CREATE_NEW);
    file.set_length(LEN + 77);
    auto memory = dp::dram::map_file(file, 77, LEN);
    unlink(path.c_str());
    return of_memory(std::move(memory), false);
}

static made of_the_program() {
    auto bytes = std::make_unique<std::byte[]>(LEN);
    std::span over(bytes.get(), LEN);
    return of_memory(dp::dram::over(over, std::move(bytes)), true);
}

static made of_cache(const dp::machine &machine, std::uint32_t level) {
    dp::dram memory(LEN);
    return of_memory(machine.core_cache(0, memory, level), true);
}

// A kind of place. `make` throws where there is none here.
struct kind {
    std::string name;
    std::function<made()> make;
    bool is_read_only = false;
};

static std::vector<kind> kinds_of(const dp::machine &machine, const std::string &folder) {
    return {
        {"dram", [] { return of_memory(dp::dram(LEN), true); }},
        {"a part of dram", [] { return of_memory(dp::dram(3 << 20).range(4097, LEN), true); }},
        {"memory of the program", of_the_program},
        {"a mapped file", [=] { return of_mapped_file(folder); }},
        {"cache l2", [&machine] { return of_cache(machine, 2); }},
        {"cache l3", [&machine] { return of_cache(machine, 3); }},
        {"numa node 0", [] { return of_memory(dp::numa_memory(0, LEN), true); }},
        {"emulated pmem", [=] { return of_pmem(folder); }},
        {"file, auto", [=] { return of_file(folder, DP_AUTO, false); }},
        {"file, direct", [=] { return of_file(folder, DP_DIRECT, false); }},
        {"file by descriptor, cached", [=] { return of_file(folder, DP_CACHED, true); }},
        {"file of tmpfs", [] { return of_file("/dev/shm", DP_AUTO, false); }},
        {"file that is only read", [=] { return of_file(folder, DP_CACHED, false, DP_READ); }, true},
        {"staging", [&machine, folder] { return of_staging(machine, folder); }},
    };
}
