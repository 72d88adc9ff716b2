// The C++ interface: the paper's figures, coroutines, exceptions, and objects that end themselves.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

#include <poll.h>

#include "datapipes.hpp"

#include "check.hpp"

namespace dp = datapipes;

static const std::filesystem::path folder = std::getenv("FOLDER");

template <class Work>
static dp_error_kind kind_of(Work &&work) {
    try {
        work();
        return DP_OK;
    } catch (const dp::error &e) {
        CHECK(e.what()[0] != '\0');
        return e.kind();
    }
}

static void fill(const dp::memory &memory, std::byte value) {
    auto lease = memory.lease_mut();
    std::ranges::fill(lease.bytes(), value);
}

static bool all_are(const dp::memory &memory, std::byte value) {
    auto lease = memory.lease();
    return std::ranges::all_of(lease.bytes(), [&](std::byte byte) { return byte == value; });
}

// Figure 6a. The paper's lines stand above ours.
static void figure_6a(const dp::machine &machine) {
    const std::uint64_t cache_size = 64 << 10, cores = machine.cores();
    {
        dp::dram all(cores * cache_size);
        auto lease = all.lease_mut();
        auto numbers = lease.as<std::uint64_t>();
        std::iota(numbers.rbegin(), numbers.rend(), 0);
        std::FILE *file = std::fopen((folder / "input").c_str(), "w");
        CHECK(std::fwrite(numbers.data(), 8, numbers.size(), file) == numbers.size());
        CHECK(std::fclose(file) == 0);
    }
    // ssd = SSDResourceLocator("path")
    dp::ssd ssd(folder / "input");
    // dram = DRAMResourceLocator(...)
    dp::dram dram(cores * cache_size);
    machine.each_core([&](std::uint32_t core) {
        CHECK(machine.current_core() == core);
        // cache = CacheResourceLocator(core_idx)
        auto cache = machine.core_cache(core, dram.range(core * cache_size, cache_size));
        // ssd_to_cache = DataPipe(ssd, cache); cache_to_dram = DataPipe(cache, dram)
        auto ssd_to_cache = machine.connect(ssd, cache);
        auto cache_to_dram = machine.connect(cache, dram);
        // ssd_to_cache.transfer(...)
        ssd_to_cache.transfer({core * cache_size, 0, cache_size});
        // sort(cache)
        {
            auto lease = cache.lease_mut();
            std::ranges::sort(lease.as<std::uint64_t>());
        }
        // cache_to_dram.transfer(...)
        cache_to_dram.transfer({0, core * cache_size, cache_size});
    });
    auto lease = dram.lease();
    auto numbers = lease.as<std::uint64_t>();
    for (std::uint64_t core = 0; core < cores; core++) {
        CHECK(std::ranges::is_sorted(numbers.subspan(core * cache_size / 8, cache_size / 8)));
    }
}

// A coroutine that starts at once and tells when it is done.
struct task {
    struct promise_type {
        std::promise<void> done;
        task get_return_object() { return {done.get_future()}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() { done.set_value(); }
        void unhandled_exception() { done.set_exception(std::current_exception()); }
    };
    std::future<void> done;
};

// Figure 6b: the transfers of one function overlap with those of others, in sequential code.
static task move_twice(const dp::runtime_pipe &down, const dp::runtime_pipe &up, std::uint64_t at) {
    co_await down.transfer({at, at, 65536});
    co_await up.transfer({at, at, 65536});
}

// As many as would overflow the stack if each went on within the one before.
static task move_often(const dp::runtime_pipe &pipe) {
    for (int i = 0; i < 200000; i++) {
        co_await pipe.transfer({0, 64, 64});
    }
}

static void figure_6b(const dp::machine &machine, const dp::runtime &runtime) {
    dp::ssd file(folder, DP_UNLINKED);
    file.preallocate(16 * 65536);
    dp::dram source(16 * 65536), target(16 * 65536);
    fill(source, std::byte{5});
    auto down = runtime.connect(source, file, DP_LATENCY);
    auto up = runtime.connect(file, target);
    std::vector<task> tasks;
    for (std::uint64_t i = 0; i < 16; i++) {
        tasks.push_back(move_twice(down, up, i * 65536));
    }
    for (auto &task : tasks) {
        task.done.get();
    }
    CHECK(all_are(target, std::byte{5}));
    move_often(runtime.connect(source, target)).done.get();
    // An error comes out of co_await; a std::future has it, too.
    CHECK(kind_of([&] { move_twice(down, up, 16 * 65536).done.get(); }) == DP_OUT_OF_RANGE);
    down.transfer({0, 0, 65536}).as_std_future().get();
    auto cancelled = up.transfer({0, 0, 65536});
    cancelled.cancel();
    CHECK(!cancelled && kind_of([&] { cancelled.wait(); }) == DP_INVALID_INPUT);
    // What a function throws that is told a result ends there.
    down.transfer({0, 0, 1}).then([](std::exception_ptr) { throw 7; });
    runtime.drain();
    CHECK(machine.explain(source, file).find("->") != std::string::npos);
    CHECK(!down.report().empty() && down.route(DP_JSON).front() == '{');
}

// Figure 6c. The paper's program uses one pipe and one cache for several transfers that are under
// way at once; here each transfer has its own buffer, and the place that is ready is named.
static void figure_6c(const dp::runtime &runtime) {
    dp::dram source(4096), one(4096), two(4096);
    fill(source, std::byte{3});
    auto to_one = runtime.connect_fd(source, one, 1);
    auto to_two = runtime.connect_fd(source, two, 2);
    to_one.submit({0, 0, 4096});
    to_two.submit({0, 0, 4096});
    std::array<pollfd, 2> ready{pollfd{to_one.descriptor(), POLLIN, 0}, pollfd{to_two.descriptor(), POLLIN, 0}};
    std::uint64_t seen = 0;
    while (seen != 3) {
        CHECK(poll(ready.data(), ready.size(), 60000) > 0);
        for (const auto *pipe : {&to_one, &to_two}) {
            while (auto done = pipe->complete()) {
                CHECK(!done->failed && done->bytes == 4096);
                seen |= done->place;
            }
        }
    }
    CHECK(all_are(one, std::byte{3}) && all_are(two, std::byte{3}));
    to_one.submit({4096, 0, 1});
    auto refused = to_one.complete_wait();
    CHECK(kind_of([&] { std::rethrow_exception(refused.failed); }) == DP_OUT_OF_RANGE);
}

// Figure 7: runs are read, summed, and staged wherever there is room.
static void figure_7(const dp::machine &machine, const dp::runtime &runtime) {
    constexpr std::uint64_t len = 65536, items = 16;
    dp::ssd file(folder, DP_UNLINKED);
    file.preallocate(items * len);
    dp::dram buffers(2 * len);
    auto staging = machine.staging("dram:64K," + folder.string());
    auto read = runtime.connect(file, buffers);
    auto stage = runtime.connect(buffers, staging);
    std::atomic<std::uint64_t> sum{0};
    dp::graph graph("runs");
    auto set = graph.buffers(2);
    auto in = graph.pipe("read", read, [&](dp::item item) {
        return dp::span{item.index() * len, item.buffer(set) * len, len};
    });
    auto work = graph.compute("sum", [&](dp::item item) {
        auto part = buffers.range(item.buffer(set) * len, len);
        auto lease = part.lease_mut();
        std::ranges::fill(lease.bytes(), std::byte{1});
        sum += lease.bytes().size();
    });
    auto out = graph.pipe("stage", stage, [&](dp::item item) {
        return dp::span{item.buffer(set) * len, item.index() * len, len};
    });
    graph.after(work, in);
    graph.after(out, work);
    for (auto stage_number : {in, work, out}) {
        graph.uses(stage_number, set);
    }
    CHECK(!runtime.run(graph, items).empty());
    CHECK(sum == items * len);
    dp::dram back(items * len);
    machine.connect(staging, back).transfer({0, 0, items * len});
    CHECK(all_are(back, std::byte{1}));
    // What a function throws is the error of the run.
    dp::graph throws("throws");
    throws.compute("throw", [](dp::item) { throw std::runtime_error("the reason"); });
    try {
        runtime.run(throws, 1);
        CHECK(false);
    } catch (const dp::error &e) {
        CHECK(e.kind() == DP_PANICKED && std::string_view(e.what()).find("the reason") != std::string_view::npos);
    }
}

static void products(const dp::machine &machine) {
    dp::ssd file(folder / "input");
    dp::cache cache(machine, file, 4 << 20);
    std::uint64_t number = 0;
    cache.read(8, std::as_writable_bytes(std::span(&number, 1)));
    std::array<std::uint64_t, 2> offsets{8, 16}, two{};
    cache.gather(offsets, 8, std::as_writable_bytes(std::span(two)));
    CHECK(two[0] == number && cache.metrics().find("hits") != std::string::npos);
    CHECK(kind_of([&] { cache.gather(offsets, 9, std::as_writable_bytes(std::span(two))); }) == DP_OUT_OF_RANGE);

    dp_sort_options options{};
    options.kind = DP_U64;
    std::array inputs{folder / "input"};
    auto report = machine.sort(inputs, folder / "sorted", options);
    CHECK(report.find("\"records\"") != std::string::npos && std::filesystem::file_size(folder / "sorted") > 0);

    {
        dp::log log(machine, folder / "log");
        CHECK(log.append_durable(std::as_bytes(std::span("one", 3))) == 1);
        CHECK(kind_of([&] { dp::log again(machine, folder / "log"); }) == DP_BUSY);
        log.close();
        CHECK(kind_of([&] { log.sync(); }) == DP_INVALID_INPUT);
    }
    dp::log_reader reader(machine, folder / "log");
    auto record = reader.next();
    CHECK(record && record->number == 1 && record->bytes.size() == 3 && !reader.next());
}

static void objects(const dp::machine &machine) {
    dp::dram one(4096);
    dp::memory moved = std::move(one);
    CHECK(!one && moved && kind_of([&] { one.length(); }) == DP_INVALID_INPUT);
    std::vector<std::byte> bytes(4096, std::byte{9});
    auto kept = std::make_shared<int>(1);
    {
        auto mine = dp::dram::over(bytes, kept);
        CHECK(kept.use_count() == 2);
        machine.connect(mine, moved).transfer({0, 0, 4096});
    }
    CHECK(kept.use_count() == 1 && all_are(moved, std::byte{9}));
    dp::ssd input(folder / "input");
    auto placed = dp::dram::allocate_for(input, 8, 4096);
    CHECK(placed.length() == 4096);
    {
        auto lease = placed.lease();
        CHECK(reinterpret_cast<std::uintptr_t>(lease.bytes().data()) % 512 == 8);
    }
    std::array spans{dp::span{8, 0, 1024}, dp::span{4096, 1024, 1024}};
    CHECK(machine.connect(input, placed).transfer_all(spans) == 2048);
    auto lease = moved.lease_mut();
    CHECK(kind_of([&] { moved.lease(); }) == DP_BUSY);
    auto demands = dp::no_constraints();
    demands.require_offload = 1;
    CHECK(kind_of([&] { machine.connect(moved, moved, demands); }) == DP_UNSUPPORTED);
    try {
        dp::ssd absent("/no/such/file");
        CHECK(false);
    } catch (const dp::error &e) {
        CHECK(e.kind() == DP_NOT_FOUND && e.errno_number() == 2 && !e.offset() && e.bytes_done() == 0);
    }
    CHECK(kind_of([&] { machine.each_core([](std::uint32_t) { throw std::runtime_error("no"); }); }) == DP_PANICKED);
    CHECK(!machine.describe().empty());
}

int main() {
    {
        dp::machine machine;
        dp::runtime runtime(machine);
        figure_6a(machine);
        figure_6b(machine, runtime);
        figure_6c(runtime);
        figure_7(machine, runtime);
        products(machine);
        objects(machine);
    }
    CHECK(dp_open_handles() == 0);
    std::puts("everything holds");
}
