// What C++ adds: exceptions with all of their parts, whole reports, functions, and leases that were
// moved. The header stands alone: it includes what it uses.
#include "datapipes.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "check.hpp"

namespace dp = datapipes;

static const std::filesystem::path folder = std::getenv("FOLDER");

template <class Work>
static dp::error error_of(Work &&work) {
    try {
        work();
    } catch (const dp::error &e) {
        return e;
    }
    std::fprintf(stderr, "nothing was thrown\n");
    std::abort();
}

static bool same(const dp::error &one, const dp::error &other) {
    return one.kind() == other.kind() && one.errno_number() == other.errno_number() &&
           one.offset() == other.offset() && one.bytes_done() == other.bytes_done();
}

// An error that passes through a function of the program keeps its parts.
static void errors_in_callbacks(const dp::machine &machine, const dp::runtime &runtime) {
    std::ofstream(folder / "short") << std::string(5000, 'x');
    dp::ssd file(folder / "short");
    dp::dram memory(1 << 20);
    auto pipe = machine.connect(file, memory);
    auto ends = error_of([&] { pipe.transfer({.source = 4096, .target = 0, .length = 4096}); });
    CHECK(ends.kind() == DP_END_OF_FILE && ends.offset());
    auto relayed = error_of([&] { machine.each_core([&](std::uint32_t) { throw ends; }); });
    CHECK(same(ends, relayed) && std::string(relayed.what()).find(ends.what()) != std::string::npos);

    auto absent = error_of([] { dp::ssd("/no/such/file"); });
    CHECK(absent.errno_number() == 2);
    dp::graph graph("throws");
    graph.compute("open", [](dp::item) { dp::ssd("/no/such/file"); });
    CHECK(same(absent, error_of([&] { runtime.run(graph, 1); })));

    auto kind = [&](auto thrown) { return error_of([&] { machine.each_core([&](std::uint32_t) { throw thrown; }); }); };
    CHECK(kind(std::bad_alloc()).kind() == DP_OUT_OF_MEMORY);
    auto system = kind(std::system_error(28, std::generic_category(), "write"));
    CHECK(system.kind() == DP_SYSTEM && system.errno_number() == 28);
    CHECK(kind(std::system_error(std::make_error_code(std::future_errc::no_state))).errno_number() == 0);
    CHECK(kind(std::logic_error("wrong")).kind() == DP_PANICKED && kind(5).kind() == DP_PANICKED);
    CHECK(std::string(kind(std::runtime_error("caf\xe9")).what()).find("caf\xef\xbf\xbd") != std::string::npos);
}

static void plain(std::uint32_t) {}

static void functions(const dp::machine &machine) {
    machine.each_core(plain);
    machine.each_core(&plain);
    const auto constant = [](std::uint32_t) {};
    machine.each_core(constant);
    machine.each_core(std::function<void(std::uint32_t)>(plain));
}

// Reports are whole, whatever their length, and end with no NUL.
static void reports(const dp::machine &machine, const dp::runtime &runtime) {
    dp::graph graph("many stages");
    for (int i = 0; i < 500; i++) {
        graph.compute("stage \xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac " + std::to_string(i), [](dp::item) {});
    }
    auto report = runtime.run(graph, 1);
    CHECK(report.size() > (16 << 10) && report.find('\0') == std::string::npos);
    CHECK(report.find("stage \xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac 499") != std::string::npos);
    std::vector<std::filesystem::path> inputs;
    for (int i = 0; i < 300; i++) {
        inputs.push_back(folder / ("input " + std::string(200, 'n') + std::to_string(i)));
        std::ofstream(inputs.back()) << i << '\n';
    }
    auto sorted = machine.sort(inputs, folder / "sorted", dp_sort_options{});
    CHECK(sorted.front() == '{' && sorted.back() == '}');
    std::printf("the reports have %zu and %zu bytes\n", report.size(), sorted.size());
}

static void moved_leases() {
    dp::dram memory(4096);
    {
        auto lease = memory.lease();
        auto other = std::move(lease);
        CHECK(lease.bytes().empty() && lease.as<int>().empty() && other.bytes().size() == 4096);
    }
    auto lease = memory.lease_mut();
    auto other = std::move(lease);
    CHECK(lease.bytes().empty() && lease.as<int>().empty() && other.as<std::uint64_t>().size() == 512);
}

static void persistent_memory(const dp::machine &machine) {
    dp::pmem persistent(folder / "persistent", 4096, true);
    dp::dram memory(4096);
    machine.connect(memory, persistent).transfer({0, 0, 4096});
    persistent.sync();
    CHECK(dp::pmem(folder / "persistent", 0, true).length() == 4096);
}

// All else that the interface of C has.
static void options_and_products(const dp::machine &machine) {
    dp::runtime small(machine, {.size = 0, .copiers = 1, .blocking = 1, .queue = 2});
    dp::dram one(65536), two(65536);
    small.connect(one, two).transfer({0, 0, 65536}).wait();
    dp::graph graph("one stage");
    graph.compute("work", [](dp::item) {});
    CHECK(small.run(graph, 1, DP_JSON).front() == '{');
    auto demands = dp::no_constraints();
    demands.deny = "no such primitive";
    CHECK(error_of([&] { machine.explain(one, two, DP_TEXT, &demands); }).kind() == DP_INVALID_INPUT);

    auto staging = machine.staging("dram:1M");
    auto at = staging.extent(65536);
    machine.connect(one, staging).transfer({0, at, 65536});
    staging.free(at, 65536);
    CHECK(error_of([&] { staging.extent(std::uint64_t{1} << 40); }).kind() == DP_NO_SPACE);

    CHECK(error_of([&] { dp::log(machine, folder / "log", {.size = 0, .batch_bytes = 1, .segment_bytes = 0}); }).kind() ==
          DP_INVALID_INPUT);
    dp::log(machine, folder / "log", {.size = 0, .batch_bytes = 4096, .segment_bytes = 0}).append({});
    dp::ssd file(folder / "short");
    dp_cache_options wrong{};
    wrong.policy = "no such policy";
    CHECK(error_of([&] { dp::cache(machine, file, wrong); }).kind() == DP_INVALID_INPUT);

    dp::checkpoints states(machine, folder / "states");
    one.lease_mut().bytes()[7] = std::byte{9};
    std::vector<dp::region> saved, restored;
    saved.push_back({"weights", one});
    restored.push_back({"weights", two});
    auto number = states.save(saved, 2);
    CHECK(states.restore(restored) == number && two.lease().bytes()[7] == std::byte{9});
    CHECK(states.restore(restored, number) == number && states.region_length("weights") == 65536);
    CHECK(error_of([&] { states.region_length("none"); }).kind() == DP_NOT_FOUND);
}

// What files, pipes, caches, logs and checkpoints tell of themselves; files that are mapped.
static void what_is_told(const dp::machine &machine, const dp::runtime &runtime) {
    auto path = folder / "told";
    {
        dp::ssd file(path, DP_CREATE);
        file.set_length(65536);
    }
    dp::ssd file(path, DP_READ_WRITE);
    CHECK(file.cached_share() >= 0 && file.cached_share() <= 1);
    auto mapped = dp::dram::map_file(file, 4, 65532);
    CHECK(error_of([&] { dp::dram::map_file(file, 4, 65533); }).kind() == DP_OUT_OF_RANGE);
    dp::dram memory(65536);
    machine.connect(mapped, memory).transfer({0, 0, 65532});
    auto pipe = machine.connect(file, memory);
    auto started = pipe.start({0, 0, 65536});
    if (auto event = pipe.event()) {
        CHECK(*event >= 0);
    }
    started.wait();
    CHECK(!machine.connect(mapped, memory).event());
    CHECK(pipe.report(DP_PROMETHEUS).find("# TYPE datapipes_") != std::string::npos);
    CHECK(runtime.report(DP_PROMETHEUS).find("# TYPE datapipes_") != std::string::npos);
    CHECK(runtime.report().find("completed") != std::string::npos);
    dp::cache cache(machine, file);
    std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}}, read{};
    cache.write(100, bytes);
    cache.clear();
    cache.read(100, read);
    CHECK(read == bytes && !cache.explain().empty());
    CHECK(cache.report(DP_PROMETHEUS).find("# TYPE datapipes_") != std::string::npos);
    {
        dp::log log(machine, folder / "told-log");
        log.append_durable(bytes);
        CHECK(log.stats().find("\"records\":1") != std::string::npos);
    }
    CHECK(dp::log::examine(machine, folder / "told-log").starts_with("{"));
    dp::checkpoints states(machine, folder / "told-states");
    std::vector<dp::region> saved;
    saved.push_back({"told", memory});
    states.save(saved, 0);
    CHECK(states.list().find("\"told\"") != std::string::npos);
}

// A sort stops where the function that is told of it says so, and with what it throws.
static void sorts_that_are_told(const dp::machine &machine) {
    {
        std::ofstream unsorted(folder / "unsorted", std::ios::binary);
        for (std::uint64_t i = 0; i < 100000; i++) {
            std::uint64_t number = i * 7919 % 100003;
            unsorted.write(reinterpret_cast<const char *>(&number), sizeof number);
        }
    }
    const std::filesystem::path inputs[] = {folder / "unsorted"};
    dp_sort_options options{};
    options.kind = DP_U64;
    options.memory_bytes = 64 << 20;
    int calls = 0;
    machine.sort(inputs, folder / "sorted", options, [&](const dp::sort_progress &far) {
        CHECK(far.total == 0 || far.total == 800000);
        return ++calls > 0;
    });
    CHECK(calls > 0);
    try {
        machine.sort(inputs, folder / "stopped", options, [](const dp::sort_progress &) { return false; });
        CHECK(std::filesystem::exists(folder / "stopped")); // It may be done before it is asked.
    } catch (const dp::error &e) {
        CHECK(e.kind() == DP_INTERRUPTED && !std::filesystem::exists(folder / "stopped"));
    }
    try {
        machine.sort(inputs, folder / "thrown", options, [](const dp::sort_progress &) -> bool {
            throw std::runtime_error("as it was told to");
        });
        CHECK(false);
    } catch (const std::runtime_error &e) {
        CHECK(std::string(e.what()) == "as it was told to");
    }
}

// A function that is told a result may wait for another transfer.
static void waits_where_results_are_told(const dp::runtime &runtime) {
    dp::dram one(65536), two(65536);
    auto pipe = runtime.connect(one, two);
    std::promise<void> done;
    pipe.transfer({0, 0, 4096}).then([&](std::exception_ptr) {
        pipe.transfer({4096, 4096, 4096}).wait();
        done.set_value();
    });
    done.get_future().get();
}

// A name with a NUL in it was taken for the part before it, which is another file.
static void names_with_a_nul(const dp::machine &machine) {
    const std::string name("surface\0.bin", 12);
    auto is_refused = [](auto &&call) {
        try {
            call();
            CHECK(false);
        } catch (const dp::error &e) {
            CHECK(e.kind() == DP_INVALID_INPUT && std::string(e.what()).find("NUL") != std::string::npos);
        }
    };
    is_refused([&] { dp::ssd made(name, DP_CREATE); });
    is_refused([&] { dp::checkpoints(machine, name).list(); });
    is_refused([&] { dp::graph named(name); });
    CHECK(!std::filesystem::exists("surface"));
}

int main() {
    {
        dp::machine machine;
        dp::runtime runtime(machine);
        errors_in_callbacks(machine, runtime);
        functions(machine);
        reports(machine, runtime);
        moved_leases();
        persistent_memory(machine);
        options_and_products(machine);
        what_is_told(machine, runtime);
        sorts_that_are_told(machine);
        names_with_a_nul(machine);
        waits_where_results_are_told(runtime);
    }
    CHECK(dp_open_handles() == 0);
    std::puts("everything holds");
}
