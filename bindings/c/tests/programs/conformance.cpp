// The conformance suite through the C++ header: random spans between every ordered pair of places, in
// the three flavors and by the primitives that serve it, against a copy on a model. SEED repeats a run.
// The demands are those of conformance.c; here errors are exceptions, leases end with their objects,
// and results come by `wait`, by functions, by `co_await` and by std::future.
#include <coroutine>
#include <cstring>
#include <semaphore>
#include <set>

#include "conformance_places.hpp"

// A coroutine that starts at once and is awaited by a semaphore.
struct task {
    struct promise_type {
        task get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

static task await_one(dp::future what, std::exception_ptr &failed, std::binary_semaphore &done) {
    try {
        co_await std::move(what);
    } catch (...) {
        failed = std::current_exception();
    }
    done.release();
}

// One flavor of a pipe between two places: carries out one span, and many at once.
struct flavor {
    std::string name;
    std::function<void(dp::span)> one;
    std::function<void(const std::vector<dp::span> &)> many;
    // Starts one, and loses what would tell its result.
    std::function<void(dp::span)> forget;
};

static void rethrow(const std::exception_ptr &failed) {
    if (failed) {
        std::rethrow_exception(failed);
    }
}

static flavor blocking(const dp::machine &machine, const made &source, const made &target, const dp::constraints &demands) {
    auto pipe = std::make_shared<dp::pipe>(machine.connect(*source.place, *target.place, demands));
    return {"blocking", [pipe](dp::span what) { pipe->transfer(what); },
            [pipe](const std::vector<dp::span> &spans) {
                std::vector<dp::transfer> started;
                auto half = spans.size() / 2;
                for (std::size_t i = 0; i < half; i++) {
                    started.push_back(pipe->start(spans[i]));
                }
                for (auto &transfer : started) {
                    transfer.wait();
                }
                std::span rest(spans.begin() + static_cast<std::ptrdiff_t>(half), spans.end());
                HOLDS(pipe->transfer_all(rest) == rest.size() * PIECE);
            },
            [pipe](dp::span what) { auto forgotten = pipe->start(what); }};
}

static flavor running(const dp::runtime &runtime, const made &source, const made &target, const dp::constraints &demands) {
    auto pipe = std::make_shared<dp::runtime_pipe>(runtime.connect(*source.place, *target.place, &demands, nullptr));
    return {"runtime", [pipe](dp::span what) {
                // By turns: waited for, told to a function, awaited, and as a std::future.
                auto future = pipe->transfer(what);
                std::exception_ptr failed;
                std::binary_semaphore done(0);
                switch (any() % 4) {
                    case 0: return future.wait();
                    case 1: return future.as_std_future().get();
                    case 2:
                        future.then([&](std::exception_ptr result) {
                            failed = result;
                            done.release();
                        });
                        break;
                    default: await_one(std::move(future), failed, done); break;
                }
                done.acquire();
                rethrow(failed);
            },
            [pipe](const std::vector<dp::span> &spans) {
                std::vector<dp::future> futures;
                for (auto what : spans) {
                    futures.push_back(pipe->transfer(what));
                }
                for (auto &future : futures) {
                    future.wait();
                }
                pipe->drain();
            },
            [pipe](dp::span what) { auto forgotten = pipe->transfer(what); }};
}

static flavor descriptor(const dp::runtime &runtime, const made &source, const made &target) {
    auto pipe = std::make_shared<dp::pipe_fd>(runtime.connect_fd(*source.place, *target.place, 42));
    auto take = [pipe] {
        auto done = pipe->complete_wait();
        HOLDS(done.place == 42);
        return done;
    };
    return {"descriptor", [pipe, take](dp::span what) {
                auto token = pipe->submit(what);
                auto done = take();
                HOLDS(done.token == token && (done.failed || done.bytes == what.length));
                rethrow(done.failed);
            },
            [pipe, take](const std::vector<dp::span> &spans) {
                std::size_t waiting = 0;
                for (std::size_t i = 0; i < spans.size();) {
                    auto refused = kind_of([&] { pipe->submit(spans[i]); });
                    HOLDS(refused == DP_OK || refused == DP_BUSY);
                    if (refused == DP_OK) {
                        waiting++, i++;
                    } else {
                        rethrow(take().failed), waiting--;
                    }
                }
                for (; waiting > 0; waiting--) {
                    rethrow(take().failed);
                }
            },
            [pipe](dp::span what) {
                pipe->submit(what);
                rethrow(pipe->complete_wait().failed);
            }};
}

// A pair of places with what their bytes must be.
struct pair {
    made source, target;
    bytes_t source_twin, target_twin;

    void compare() const {
        HOLDS(target.read() == target_twin);
        HOLDS(source.read() == source_twin);
    }
    void model(dp::span what) {
        if (what.target + what.length > target_twin.size()) {
            target_twin.resize(what.target + what.length);
        }
        std::memcpy(target_twin.data() + what.target, source_twin.data() + what.source, what.length);
    }
    void moves(const flavor &by, dp::span what) {
        by.one(what);
        model(what);
        compare();
    }
    void refuses(const flavor &by, dp_error_kind kind, dp::span what) const {
        HOLDS(kind_of([&] { by.one(what); }) == kind);
        compare();
    }
};

static void certify(pair &it, const flavor &by) {
    // None, one, all, whole units, and heads and tails that are no units; then what comes.
    const std::vector<dp::span> fixed = {
        {0, 0, 0}, {LEN, LEN, 0}, {0, 0, 1}, {LEN - 1, LEN - 1, 1}, {1, UNIT - 1, 1},
        {0, 0, LEN}, {UNIT, 2 * UNIT, 3 * UNIT}, {UNIT - 1, UNIT - 1, 2 * UNIT + 2},
        {1, 0, 5 * UNIT}, {0, 1, 5 * UNIT}, {LEN - 4097, LEN - 4097, 4097},
    };
    for (auto what : fixed) {
        it.moves(by, what);
    }
    for (int i = 0; i < 12; i++) {
        auto len = awkward(LEN);
        it.moves(by, {awkward(LEN - len), awkward(LEN - len), len});
    }
    // Neighbors that share blocks, all started before the first is waited for.
    std::vector<dp::span> pieces;
    for (std::uint64_t i = 0; i < PIECES; i++) {
        pieces.push_back({(PIECES - 1 - i) * PIECE, i * PIECE, PIECE});
    }
    by.many(pieces);
    for (auto what : pieces) {
        it.model(what);
    }
    it.compare();
    // Bytes that are leased are refused, and free when the lease's object is gone.
    const dp::span over{100, 200, 5000};
    if (it.source.leased != nullptr) {
        {
            auto held = it.source.leased->range(5000, 10).lease_mut();
            HOLDS(kind_of([&] { by.one(over); }) == DP_BUSY);
        }
        it.compare();
        auto shared = it.source.leased->range(5000, 10).lease();
        it.moves(by, over);
    }
    if (it.target.leased != nullptr) {
        auto held = it.target.leased->range(200, 1).lease();
        it.refuses(by, DP_BUSY, over);
        it.moves(by, {100, 201, 5000});
    }
    it.moves(by, over);
    // Beyond the end of memory nothing is moved; beyond that of a file, what there was.
    if (it.source.leased != nullptr) {
        it.refuses(by, DP_OUT_OF_RANGE, {LEN - 1, 0, 2});
        it.refuses(by, DP_OUT_OF_RANGE, {UINT64_MAX - 1, 0, 2});
    }
    if (it.target.leased != nullptr) {
        it.refuses(by, DP_OUT_OF_RANGE, {0, LEN - 1, 2});
    }
    if (it.source.is_file) {
        try {
            by.one({LEN - 100, 300, 200});
            HOLDS(!"the source ended");
        } catch (const dp::error &e) {
            HOLDS(e.kind() == DP_END_OF_FILE && e.bytes_done() <= 100);
            HOLDS(by.name == "descriptor" || e.offset() == LEN);
            auto found = it.target.read();
            auto done = static_cast<std::ptrdiff_t>(e.bytes_done());
            HOLDS(std::equal(found.begin() + 300, found.begin() + 300 + done, it.source_twin.end() - 100));
            // Nothing is promised of the rest of the span.
            std::copy(found.begin() + 300, found.begin() + 500, it.target_twin.begin() + 300);
            it.compare();
        }
    }
    if (it.target.is_file) {
        // It grows by exactly what is written; what lies between is empty.
        it.moves(by, {7, it.target_twin.size() + 13, 9001});
    }
}

// The primitives of a route: those of its hops, and all that were asked.
struct primitives {
    std::string hops;
    std::vector<std::string> all;
    bool has_several_hops = false;

    explicit primitives(const std::string &route) {
        const std::string name = "\"primitive\":\"";
        const auto rejected = route.find("\"rejected\":");
        HOLDS(rejected != std::string::npos);
        for (auto at = route.find(name); at != std::string::npos; at = route.find(name, at)) {
            const auto begin = at + name.size();
            at = route.find('"', begin);
            const auto found = route.substr(begin, at - begin);
            if (begin < rejected) {
                has_several_hops = !hops.empty();
                hops += (hops.empty() ? "" : ",") + found;
            }
            if (std::ranges::find(all, found) == all.end()) {
                all.push_back(found);
            }
        }
        HOLDS(!hops.empty());
    }
};

static int passed, refused;

// Two kinds of places, and the ways between them.
struct ways {
    const dp::machine &machine;
    const dp::runtime &runtime;
    const kind &from, &to;
    std::set<std::string> seen = {};

    // Certifies one way in one flavor, with fresh places, unless its hops were certified before.
    void certify_one(int which, const std::string *only) {
        pair it{from.make(), to.make(), bytes_t(LEN), bytes_t(LEN)};
        auto demands = dp::no_constraints();
        demands.only = only != nullptr ? only->c_str() : nullptr;
        std::string route;
        try {
            route = machine.explain(*it.source.place, *it.target.place, DP_JSON, &demands);
        } catch (const dp::error &e) {
            HOLDS(only != nullptr && e.kind() == DP_UNSUPPORTED && e.what()[0] != 0);
            HOLDS(kind_of([&] { machine.connect(*it.source.place, *it.target.place, demands); }) == DP_UNSUPPORTED);
            refused++;
            return;
        }
        if (const primitives found(route); !seen.insert(std::to_string(which) + found.hops).second) {
            return;
        } else {
            now = "in the case of " + from.name + " -> " + to.name + " by " + found.hops;
        }
        for (auto *twin : {&it.source_twin, &it.target_twin}) {
            std::generate(twin->begin(), twin->end(), [] { return static_cast<std::byte>(any() >> 56); });
        }
        it.source.write(it.source_twin);
        it.target.write(it.target_twin);
        {
            auto by = which == 0   ? blocking(machine, it.source, it.target, demands)
                      : which == 1 ? running(runtime, it.source, it.target, demands)
                                   : descriptor(runtime, it.source, it.target);
            now += ", " + by.name;
            certify(it, by);
            by.forget({11, 12, LEN - 4096});
        }
        // A transfer that was forgotten is carried out: the end of its pipe waits for it.
        runtime.drain();
        it.model({11, 12, LEN - 4096});
        it.compare();
        for (auto *memory : {it.source.leased, it.target.leased}) {
            if (memory != nullptr) {
                memory->lease_mut();
            }
        }
        passed++;
    }

    void certify_all() {
        now = "in the case of " + from.name + " -> " + to.name;
        std::optional<primitives> found;
        {
            const auto source = from.make(), target = to.make();
            if (to.is_read_only) {
                HOLDS(kind_of([&] { machine.explain(*source.place, *target.place); }) == DP_UNSUPPORTED);
                return;
            }
            found.emplace(machine.explain(*source.place, *target.place, DP_JSON));
        }
        for (int which = 0; which < 3; which++) {
            certify_one(which, nullptr);
        }
        // The primitives are the same in all flavors, so one flavor tries them.
        for (const auto &only : found->all) {
            certify_one(0, &only);
        }
        for (int i = 0; i < 3 && found->has_several_hops; i++) {
            const auto one = found->all[any() % found->all.size()], other = found->all[any() % found->all.size()];
            const auto only = one + "," + other;
            certify_one(0, &only);
        }
    }
};

// A cache over a part of a memory: the bytes stay where they are.
static void in_place(const dp::machine &machine) {
    constexpr std::uint64_t AT = 8192;
    bytes_t bytes(LEN + 2 * AT), after(bytes.size());
    std::generate(bytes.begin(), bytes.end(), [] { return static_cast<std::byte>(any() >> 56); });
    dp::dram memory(bytes.size());
    memory.write(0, bytes);
    const auto cache = machine.core_cache(0, memory.range(AT, LEN));
    const auto up = machine.connect(memory, cache), down = machine.connect(cache, memory);
    for (int i = 0; i < 40; i++) {
        const auto at = awkward(LEN), len = awkward(LEN - at);
        up.transfer({AT + at, at, len});
        down.transfer({at, AT + at, len});
        memory.read(0, after);
        HOLDS(after == bytes);
    }
    const auto held = memory.range(AT + 100, 1).lease_mut();
    HOLDS(kind_of([&] { up.transfer({AT, 0, 4096}); }) == DP_BUSY);
}

int main() {
    const std::string folder = std::getenv("FOLDER");
    const char *seed = std::getenv("SEED");
    state = seed != nullptr ? std::strtoull(seed, nullptr, 0) : 0x5eed;
    std::cout << "seed " << state << std::endl;
    {
        dp::machine machine;
        dp::runtime runtime(machine);
        auto kinds = kinds_of(machine, folder);
        std::erase_if(kinds, [](const kind &of) {
            try {
                of.make();
                return false;
            } catch (const dp::error &e) {
                std::cout << "SKIPPED: conformance in C++ of " << of.name << ": " << e.what() << std::endl;
                return true;
            }
        });
        for (const auto &from : kinds) {
            for (const auto &to : kinds) {
                ways{machine, runtime, from, to}.certify_all();
            }
        }
        in_place(machine);
    }
    CHECK(passed > 100 && refused > 0);
    CHECK(dp_open_handles() == 0);
    std::cout << passed << " ways passed, " << refused << " were refused\neverything holds" << std::endl;
    return 0;
}
