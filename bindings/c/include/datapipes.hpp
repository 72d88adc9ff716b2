/* Data Pipes for C++20: what datapipes.h has, with objects that end themselves, spans of bytes, and
 * futures that coroutines await. Header only; link with -ldatapipes. docs/c.md has the first program.
 *
 * Objects are moved, not copied. Functions throw datapipes::error. One object may be used by several
 * threads at once, like its handle in C, but not while it is moved or destroyed.
 *
 * Name the namespace (`namespace dp = datapipes;`). With `using namespace datapipes` the names pipe
 * and log are ambiguous beside those of unistd.h and cmath.
 */
#ifndef DATAPIPES_HPP
#define DATAPIPES_HPP

#if __cplusplus < 202002L || !defined(__cpp_impl_coroutine) || !defined(__cpp_exceptions)
#error "datapipes.hpp needs C++20 with exceptions (-std=c++20); datapipes.h serves all else"
#else

#include <algorithm>
#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "datapipes.h"

/* ThreadSanitizer does not see how a library that was built without it orders what threads do. */
#if defined(__SANITIZE_THREAD__)
#define DATAPIPES_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DATAPIPES_TSAN 1
#endif
#endif
#ifdef DATAPIPES_TSAN
extern "C" void __tsan_acquire(void *);
extern "C" void __tsan_release(void *);
#endif

namespace datapipes {

/* What failed, where, and how far it got. */
class error : public std::runtime_error {
  public:
    /* Takes an error of the C interface. */
    explicit error(dp_error from)
        : std::runtime_error(dp_error_message(from)),
          kind_(static_cast<dp_error_kind>(dp_error_kind_of(from))),
          errno_(dp_error_errno(from)),
          offset_(dp_error_offset(from)),
          bytes_done_(dp_error_bytes_done(from)) {
        dp_error_close(from);
    }

    dp_error_kind kind() const noexcept { return kind_; }
    /* The operating system's number; 0 if there is none. */
    int errno_number() const noexcept { return errno_; }
    /* The offset in bytes at which it happened, if it has one. */
    std::optional<std::uint64_t> offset() const noexcept {
        return offset_ == UINT64_MAX ? std::nullopt : std::optional(offset_);
    }
    /* Bytes moved before the error. */
    std::uint64_t bytes_done() const noexcept { return bytes_done_; }

  private:
    dp_error_kind kind_;
    int errno_;
    std::uint64_t offset_;
    std::uint64_t bytes_done_;
};

/* Throws what a function of the C interface returned. */
inline void check(dp_error result) {
    if (result.id != 0) [[unlikely]] {
        throw error(result);
    }
}

namespace detail {

/* What this thread did is seen by whoever takes `what` over. */
inline void hand_over([[maybe_unused]] void *what) noexcept {
#ifdef DATAPIPES_TSAN
    __tsan_release(what);
#endif
}

inline void take_over([[maybe_unused]] void *what) noexcept {
#ifdef DATAPIPES_TSAN
    __tsan_acquire(what);
#endif
}

/* An error of the C interface with these parts. */
inline dp_error made(
    dp_error_kind kind, const char *what, int errno_number, std::optional<std::uint64_t> offset = {},
    std::uint64_t bytes_done = 0) noexcept {
    dp_error_facts facts{};
    facts.size = sizeof facts;
    facts.errno_number = errno_number;
    facts.has_offset = offset.has_value();
    facts.offset = offset.value_or(0);
    facts.bytes_done = bytes_done;
    return dp_error_new_with(kind, what, &facts);
}

/* A text or a path as C takes it. A NUL within would cut it off, which would be another name. */
inline const char *whole(const std::string &text) {
    if (text.find('\0') != std::string::npos) [[unlikely]] {
        std::string start = text.substr(0, text.find('\0'));
        check(dp_error_new(DP_INVALID_INPUT, ("a NUL within \"" + start + "...\": names end at the first").c_str()));
    }
    return text.c_str();
}

inline const char *whole(const std::filesystem::path &path) { return whole(path.native()); }

/* Calls a function of the program's from the library: what it throws becomes an error, and an
 * error of the library stays what it is. */
template <class Work>
dp_error guarded(Work &&work) noexcept {
    try {
        work();
        return dp_error{0};
    } catch (const error &e) {
        return made(e.kind(), e.what(), e.errno_number(), e.offset(), e.bytes_done());
    } catch (const std::bad_alloc &e) {
        return dp_error_new(DP_OUT_OF_MEMORY, e.what());
    } catch (const std::system_error &e) {
        const auto &of = e.code().category();
        bool is_errno = of == std::system_category() || of == std::generic_category();
        return made(DP_SYSTEM, e.what(), is_errno ? e.code().value() : 0);
    } catch (const std::exception &e) {
        return dp_error_new(DP_PANICKED, e.what());
    } catch (...) {
        return dp_error_new(DP_PANICKED, "an exception that is no std::exception");
    }
}

/* A handle that closes itself. */
template <class Handle, dp_error (*Close)(Handle)>
class owned {
  public:
    owned() noexcept : handle_{0} {}
    explicit owned(Handle handle) noexcept : handle_(handle) {}
    owned(owned &&other) noexcept : handle_(std::exchange(other.handle_, Handle{0})) {}
    owned &operator=(owned &&other) noexcept {
        if (this != &other) {
            reset();
            handle_ = std::exchange(other.handle_, Handle{0});
        }
        return *this;
    }
    owned(const owned &) = delete;
    owned &operator=(const owned &) = delete;
    ~owned() { reset(); }

    /* The handle of the C interface, which stays this object's. */
    Handle handle() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_.id != 0; }

  protected:
    Handle release() noexcept { return std::exchange(handle_, Handle{0}); }
    Handle handle_;

  private:
    void reset() noexcept {
        if (handle_.id != 0) {
            dp_error_close(Close(release()));
        }
    }
};

/* A text of the library, whatever its length. */
template <class Copy>
std::string text_of(Copy &&copy) {
    std::string text(1024, '\0');
    for (;;) {
        std::size_t len = 0;
        check(copy(text.data(), text.size(), &len));
        if (len < text.size()) {
            text.resize(len);
            return text;
        }
        text.resize(len + 1);
    }
}

/* Takes a whole text of the library into the string at `user`. */
inline dp_error take_text(void *user, const char *text, std::size_t len) noexcept {
    return guarded([&] { static_cast<std::string *>(user)->assign(text, len); });
}

}  // namespace detail

/* What a transfer moves, in bytes. */
using span = dp_span;

/* How far a sort is, in bytes. */
struct sort_progress {
    std::uint64_t total, read, spilled, written;
};

class machine;

/* The right to read the bytes of a place in memory, until it is destroyed. */
class read_lease : public detail::owned<dp_lease, dp_lease_close> {
  public:
    explicit read_lease(dp_place place) {
        const void *address = nullptr;
        std::size_t len = 0;
        check(dp_lease_read(place, &handle_, &address, &len));
        bytes_ = {static_cast<const std::byte *>(address), len};
    }
    /* None once the lease was moved away. */
    std::span<const std::byte> bytes() const noexcept { return *this ? bytes_ : std::span<const std::byte>(); }
    /* The bytes as numbers; throws if address or length do not fit. */
    template <class T>
    std::span<const T> as() const {
        static_assert(std::is_arithmetic_v<T>);
        auto held = bytes();
        if (reinterpret_cast<std::uintptr_t>(held.data()) % alignof(T) != 0 || held.size() % sizeof(T) != 0) {
            throw error(dp_error_new(DP_MISALIGNED, "view: the bytes are not a whole number of aligned elements"));
        }
        return {reinterpret_cast<const T *>(held.data()), held.size() / sizeof(T)};
    }

  private:
    std::span<const std::byte> bytes_;
};

/* The right to write the bytes of a place in memory, until it is destroyed. */
class write_lease : public detail::owned<dp_lease, dp_lease_close> {
  public:
    explicit write_lease(dp_place place) {
        void *address = nullptr;
        std::size_t len = 0;
        check(dp_lease_write(place, &handle_, &address, &len));
        bytes_ = {static_cast<std::byte *>(address), len};
    }
    /* None once the lease was moved away. */
    std::span<std::byte> bytes() const noexcept { return *this ? bytes_ : std::span<std::byte>(); }
    /* The bytes as numbers; throws if address or length do not fit. */
    template <class T>
    std::span<T> as() const {
        static_assert(std::is_arithmetic_v<T>);
        auto held = bytes();
        if (reinterpret_cast<std::uintptr_t>(held.data()) % alignof(T) != 0 || held.size() % sizeof(T) != 0) {
            throw error(dp_error_new(DP_MISALIGNED, "view: the bytes are not a whole number of aligned elements"));
        }
        return {reinterpret_cast<T *>(held.data()), held.size() / sizeof(T)};
    }

  private:
    std::span<std::byte> bytes_;
};

/* A place where bytes are. */
class place : public detail::owned<dp_place, dp_place_close> {
  public:
    using owned::owned;

    std::uint64_t length() const {
        std::uint64_t len = 0;
        check(dp_place_length(handle_, &len));
        return len;
    }
    std::string name() const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_place_name(handle_, at, room, len);
        });
    }
};

/* A place in memory. */
class memory : public place {
  public:
    using place::place;

    read_lease lease() const { return read_lease(handle_); }
    write_lease lease_mut() const { return write_lease(handle_); }
    /* Copies bytes at `at`, also where leases are refused because others may change them. */
    void read(std::uint64_t at, std::span<std::byte> into) const {
        check(dp_place_read(handle_, at, into.data(), into.size()));
    }
    void write(std::uint64_t at, std::span<const std::byte> from) const {
        check(dp_place_write(handle_, at, from.data(), from.size()));
    }
    /* The same bytes: `len` of them at `at`. */
    memory range(std::uint64_t at, std::uint64_t len) const {
        dp_place part;
        check(dp_place_range(handle_, at, len, &part));
        return memory(part);
    }
};

/* A file or a block device. */
class ssd : public place {
  public:
    explicit ssd(const std::filesystem::path &path, dp_open_mode mode = DP_READ, dp_access access = DP_AUTO) {
        check(dp_ssd_open(detail::whole(path), mode, access, &handle_));
    }
    /* The descriptor is duplicated. */
    ssd(int descriptor, const std::string &name, dp_access access = DP_AUTO) {
        check(dp_ssd_from_descriptor(descriptor, detail::whole(name), access, &handle_));
    }
    void set_length(std::uint64_t len) { check(dp_ssd_set_length(handle_, len)); }
    void preallocate(std::uint64_t len) { check(dp_ssd_preallocate(handle_, len)); }
    void sync() { check(dp_ssd_sync(handle_)); }
    /* The share of it that the page cache has, from 0 to 1. */
    double cached_share() const {
        double share = 0;
        check(dp_ssd_cached_share(handle_, &share));
        return share;
    }
};

/* Main memory. */
class dram : public memory {
  public:
    /* Zeroed, prefaulted, on huge pages where the kernel has them. */
    explicit dram(std::uint64_t len) { check(dp_dram_allocate(len, nullptr, &handle_)); }

    /* For `len` bytes at `offset` of a file, at an address with which they do not bounce. */
    static memory allocate_for(const ssd &file, std::uint64_t offset, std::uint64_t len) {
        dp_place made;
        check(dp_dram_allocate_for(file.handle(), offset, len, nullptr, &made));
        return memory(made);
    }

    /* The bytes of a file where they are: nothing is read or copied, and what is written to the memory
     * changes no file, which must not be truncated meanwhile. */
    static memory map_file(const ssd &file, std::uint64_t offset, std::uint64_t len) {
        dp_place made;
        check(dp_dram_map_file(file.handle(), offset, len, &made));
        return memory(made);
    }

    /* Memory of the program; `keeper` is destroyed when the library has no more use for it. */
    template <class Keeper>
    static memory over(std::span<std::byte> bytes, Keeper keeper) {
        static_assert(std::is_nothrow_destructible_v<Keeper>, "the library destroys it: that must not throw");
        auto kept = std::make_unique<Keeper>(std::move(keeper));
        dp_place made;
        // The function is called once, also if this fails.
        check(dp_dram_foreign(
            bytes.data(), bytes.size(), [](void *user) { delete static_cast<Keeper *>(user); }, kept.release(), &made));
        return memory(made);
    }
};

/* A file of persistent memory. With `emulated` an ordinary file will do, whose bytes survive a power
 * failure once `sync` has returned. With a length a missing file is made. */
class pmem : public memory {
  public:
    explicit pmem(const std::filesystem::path &path, std::uint64_t len = 0, bool emulated = false) {
        check(dp_pmem_open(detail::whole(path), len, emulated, &handle_));
    }
    void sync() { check(dp_pmem_sync(handle_)); }
};

/* Several places that are used as one. */
class staging : public place {
  public:
    using place::place;
    /* Takes `len` bytes of it; returns their offset. */
    std::uint64_t extent(std::uint64_t len) const {
        std::uint64_t offset = 0;
        check(dp_staging_extent(handle_, len, &offset));
        return offset;
    }
    /* Gives an extent back. */
    void free(std::uint64_t offset, std::uint64_t len) const { check(dp_staging_free(handle_, offset, len)); }
};

/* Memory on a NUMA node. */
class numa_memory : public memory {
  public:
    numa_memory(std::uint32_t node, std::uint64_t len) { check(dp_numa_allocate(node, len, &handle_)); }
};

/* Memory that can be passed to the service. Others may change its bytes, so leases are refused: use
 * `read` and `write`. */
class shared_memory : public memory {
  public:
    explicit shared_memory(std::uint64_t len) { check(dp_shared_memory_create(len, &handle_)); }
    /* A sealed memfd of the program's, whose descriptor is duplicated. */
    static shared_memory from_descriptor(int descriptor) {
        shared_memory made;
        check(dp_shared_memory_from_descriptor(descriptor, &made.handle_));
        return made;
    }
    /* The descriptor, which stays this object's. */
    int descriptor() const {
        std::int32_t number = -1;
        check(dp_shared_memory_descriptor(handle_, &number));
        return number;
    }

  private:
    shared_memory() = default;
};

using constraints = dp_constraints;
using service = dp_service;

/* Demands without any; set what is needed. */
inline constraints no_constraints() noexcept {
    constraints made{};
    made.size = sizeof made;
    return made;
}

/* A transfer that was started. Destroying it forgets its result. */
class transfer : public detail::owned<dp_transfer, dp_transfer_close> {
  public:
    using owned::owned;
    /* Waits until the bytes are there. */
    void wait() { check(dp_transfer_wait(release())); }
    bool is_done() const {
        std::uint32_t done = 0;
        check(dp_transfer_is_done(handle_, &done));
        return done != 0;
    }
};

/* A connection of two places, in the blocking flavor (CIDR'23, figure 6a). */
class pipe : public detail::owned<dp_pipe, dp_pipe_close> {
  public:
    using owned::owned;

    void transfer(span what) const { check(dp_pipe_transfer(handle_, what)); }
    datapipes::transfer start(span what) const {
        dp_transfer started;
        check(dp_pipe_start(handle_, what, &started));
        return datapipes::transfer(started);
    }
    /* Moves many spans, several at once; returns the bytes. The text of an error names the span. */
    std::uint64_t transfer_all(std::span<const span> spans) const {
        std::uint64_t bytes = 0;
        check(dp_pipe_transfer_all(handle_, spans.data(), spans.size(), &bytes));
        return bytes;
    }
    std::string route(dp_format format = DP_TEXT) const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_pipe_route(handle_, format, at, room, len);
        });
    }
    /* Readable when transfers that were started may be done, for `epoll`; the pipe's. Where the route has
     * none, transfers are done when they are started. */
    std::optional<int> event() const {
        std::int32_t descriptor = -1;
        check(dp_pipe_event(handle_, &descriptor));
        return descriptor < 0 ? std::nullopt : std::optional<int>(descriptor);
    }
    std::string report(dp_format format = DP_TEXT) const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_pipe_report(handle_, format, at, room, len);
        });
    }
};

/* A transfer of a runtime: `wait`, `co_await`, or `as_std_future`. Destroying it forgets its result. */
class future : public detail::owned<dp_future, dp_future_close> {
  public:
    using owned::owned;

    /* Waits until the bytes are there. */
    void wait() { check(dp_future_wait(release())); }
    bool is_done() const {
        std::uint32_t done = 0;
        check(dp_future_is_done(handle_, &done));
        return done != 0;
    }
    /* Returns whether it was stopped; false if it was complete. */
    bool cancel() {
        std::uint32_t stopped = 0;
        check(dp_future_cancel(release(), &stopped));
        return stopped != 0;
    }
    /* Calls `told(std::exception_ptr)` once, null for success, on a thread of the runtime or here.
     * What it throws is lost. */
    template <class Told>
    void then(Told told) {
        static_assert(std::is_nothrow_destructible_v<Told>, "the library destroys it: that must not throw");
        auto kept = std::make_unique<Told>(std::move(told));
        auto what = release();
        detail::hand_over(kept.get());
        dp_future_on_done(what, call<Told>, kept.release());
    }
    /* Not for a thread of the runtime: in a function that `then` calls, or in a coroutine after
     * `co_await`, its `get` would wait for the thread that it runs on. `wait` may be called there. */
    std::future<void> as_std_future() {
        std::promise<void> promise;
        auto made = promise.get_future();
        then([promise = std::move(promise)](std::exception_ptr failed) mutable {
            failed ? promise.set_exception(failed) : promise.set_value();
        });
        return made;
    }

    /* A coroutine that awaits it goes on where the result is told: on a thread of the runtime, or
     * at once. It must not be destroyed while it waits. */
    auto operator co_await() && noexcept {
        struct awaiter {
            future what;
            std::exception_ptr failed;
            bool await_ready() const { return what.is_done(); }
            void await_suspend(std::coroutine_handle<> waiting) {
                what.then([this, waiting](std::exception_ptr result) {
                    failed = result;
                    waiting.resume();
                });
            }
            void await_resume() {
                if (what) {
                    what.wait();  // It was done before anybody waited.
                } else if (failed) {
                    std::rethrow_exception(failed);
                }
            }
        };
        return awaiter{std::move(*this), nullptr};
    }

  private:
    template <class Told>
    static void call(void *user, dp_error result) {
        detail::take_over(user);
        std::unique_ptr<Told> told(static_cast<Told *>(user));
        auto failed = result.id == 0 ? std::exception_ptr() : std::make_exception_ptr(error(result));
        dp_error_close(detail::guarded([&] { (*told)(failed); }));
    }
};

/* A pipe of a runtime (CIDR'23, figure 6b). */
class runtime_pipe : public detail::owned<dp_runtime_pipe, dp_runtime_pipe_close> {
  public:
    using owned::owned;

    [[nodiscard]] future transfer(span what) const {
        dp_future started;
        check(dp_runtime_pipe_transfer(handle_, what, &started));
        return future(started);
    }
    void drain() const { check(dp_runtime_pipe_drain(handle_)); }
    std::string route(dp_format format = DP_TEXT) const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_runtime_pipe_route(handle_, format, at, room, len);
        });
    }
    std::string report(dp_format format = DP_TEXT) const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_runtime_pipe_report(handle_, format, at, room, len);
        });
    }
};

/* A transfer of a descriptor pipe that is done. */
struct completion {
    std::uint64_t token;
    std::uint64_t place;
    std::uint64_t bytes;
    /* Null for success. */
    std::exception_ptr failed;

    explicit completion(const dp_completion &from)
        : token(from.token),
          place(from.place),
          bytes(from.bytes),
          failed(from.error.id == 0 ? std::exception_ptr() : std::make_exception_ptr(error(from.error))) {}
};

/* A pipe that is a file descriptor (CIDR'23, figure 6c). */
class pipe_fd : public detail::owned<dp_pipe_fd, dp_pipe_fd_close> {
  public:
    using owned::owned;

    /* For poll and epoll: writable when it can take a transfer, readable when one is done. */
    int descriptor() const {
        std::int32_t number = -1;
        check(dp_pipe_fd_descriptor(handle_, &number));
        return number;
    }
    /* The route of a service's pipe has a text only. */
    std::string route(dp_format format = DP_TEXT) const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_pipe_fd_route(handle_, format, at, room, len);
        });
    }
    std::uint64_t submit(span what) const {
        std::uint64_t token = 0;
        check(dp_pipe_fd_submit(handle_, what, &token));
        return token;
    }
    std::optional<completion> complete() const {
        dp_completion done;
        std::uint32_t is_there = 0;
        check(dp_pipe_fd_complete(handle_, &done, &is_there));
        return is_there != 0 ? std::optional<completion>(completion(done)) : std::nullopt;
    }
    completion complete_wait() const {
        dp_completion done;
        check(dp_pipe_fd_complete_wait(handle_, &done));
        return completion(done);
    }
};

/* The machine as it was discovered. */
class machine : public detail::owned<dp_machine, dp_machine_close> {
  public:
    machine() { check(dp_machine_discover(&handle_)); }

    std::uint32_t cores() const {
        std::uint32_t count = 0;
        check(dp_machine_cores(handle_, &count, nullptr));
        return count;
    }
    /* The smallest core's L2 cache in bytes: figure 6a's `CacheSize`. */
    std::uint64_t l2_bytes() const {
        std::uint64_t bytes = 0;
        check(dp_machine_cores(handle_, nullptr, &bytes));
        return bytes;
    }
    /* The position of the core that runs this thread: figure 6a's `core_idx`. */
    std::uint32_t current_core() const {
        std::uint32_t core = 0;
        check(dp_machine_current_core(handle_, &core));
        return core;
    }
    /* Calls `work(core)` on every core at once, each call on a thread bound to its core. */
    template <class Work>
    void each_core(Work &&work) const {
        auto *held = std::addressof(work);  // Of a function, too, whose address is no void *.
        check(dp_machine_each_core(
            handle_,
            [](std::uint32_t core, void *user) {
                return detail::guarded([&] { (**static_cast<decltype(held) *>(user))(core); });
            },
            &held));
    }
    /* A core's private cache, over memory that backs it. */
    memory core_cache(std::uint32_t core, const memory &backing, std::uint32_t level = 0) const {
        dp_place made;
        check(dp_core_cache(handle_, core, level, backing.handle(), &made));
        return memory(made);
    }
    /* Several places used as one, such as "dram:1G,/fast,/large:100G". */
    datapipes::staging staging(const std::string &places, bool by_cost = false) const {
        dp_place made;
        check(dp_staging_open(handle_, detail::whole(places), by_cost, &made));
        return datapipes::staging(made);
    }
    pipe connect(const place &source, const place &target) const { return connect(source, target, nullptr); }
    pipe connect(const place &source, const place &target, const constraints &demands) const {
        return connect(source, target, &demands);
    }
    pipe_fd connect_fd(const place &source, const place &target) const {
        dp_pipe_fd made;
        check(dp_connect_fd(handle_, source.handle(), target.handle(), &made));
        return pipe_fd(made);
    }
    std::string explain(
        const place &source, const place &target, dp_format format = DP_TEXT, const constraints *demands = nullptr) const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_explain(handle_, source.handle(), target.handle(), demands, format, at, room, len);
        });
    }
    std::string describe(dp_format format = DP_TEXT) const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_machine_describe(handle_, format, at, room, len);
        });
    }
    /* Sorts files into one; returns the report as JSON. */
    std::string sort(
        std::span<const std::filesystem::path> inputs, const std::filesystem::path &output, dp_sort_options options) const {
        std::vector<const char *> names;
        for (const auto &input : inputs) {
            names.push_back(detail::whole(input));
        }
        std::string report;
        options.size = sizeof options;
        options.report = detail::take_text;
        options.report_user = &report;
        check(dp_sort(handle_, names.data(), names.size(), detail::whole(output), &options, nullptr, 0, nullptr));
        return report;
    }

    /* As above, with a function that is told how far it is: `bool(const sort_progress &)`, on this thread,
     * about ten times a second and at the end. The sort stops where it returns false, unless it is done, and what
     * the function throws is thrown here. */
    template <class Told>
        requires std::is_invocable_r_v<bool, Told &, const sort_progress &>
    std::string sort(
        std::span<const std::filesystem::path> inputs, const std::filesystem::path &output, dp_sort_options options,
        Told told) const {
        struct state_of_sort {
            Told &told;
            std::exception_ptr thrown;
        } state{told, nullptr};
        options.user = &state;
        options.progress = [](void *user, std::uint64_t total, std::uint64_t read, std::uint64_t spilled,
                              std::uint64_t written) -> std::int32_t {
            auto &state = *static_cast<state_of_sort *>(user);
            try {
                return state.told(sort_progress{total, read, spilled, written}) ? 0 : 1;
            } catch (...) {
                state.thrown = std::current_exception();
                return 1;
            }
        };
        std::string report;
        try {
            report = sort(inputs, output, options);
        } catch (const error &) {
            if (!state.thrown) {
                throw;
            }
        }
        // Also where the sort was done when it was told.
        if (state.thrown) {
            std::rethrow_exception(state.thrown);
        }
        return report;
    }

    /* Sorts what `read` gives, and hands it to `write` in order; returns the report as JSON. `read` is
     * `std::size_t(std::span<std::byte>)`: how many bytes it gave, 0 at the end. `write` takes a
     * `std::span<const std::byte>`. Each is called by a thread of the library, and what it throws ends
     * the sort and is thrown here. */
    template <class Read, class Write>
        requires std::is_invocable_r_v<std::size_t, Read &, std::span<std::byte>>
    std::string sort_streams(Read read, Write write, dp_sort_options options = {}) const {
        std::string report;
        options.size = sizeof options;
        options.report = detail::take_text;
        options.report_user = &report;
        detail::hand_over(&read);
        detail::hand_over(&write);
        auto outcome = dp_sort_streams(
            handle_,
            [](void *user, void *into, std::size_t capacity, std::size_t *len) {
                detail::take_over(user);
                return detail::guarded([&] {
                    *len = (*static_cast<Read *>(user))(std::span(static_cast<std::byte *>(into), capacity));
                });
            },
            &read,
            [](void *user, const void *bytes, std::size_t len) {
                detail::take_over(user);
                return detail::guarded(
                    [&] { (*static_cast<Write *>(user))(std::span(static_cast<const std::byte *>(bytes), len)); });
            },
            &write, &options);
        check(outcome);
        return report;
    }

  private:
    pipe connect(const place &source, const place &target, const constraints *demands) const {
        dp_pipe made;
        check(dp_connect(handle_, source.handle(), target.handle(), demands, &made));
        return pipe(made);
    }
};

/* One item on its way through a graph. */
class item {
  public:
    explicit item(const dp_item *from) noexcept : from_(from) {}
    std::uint64_t index() const noexcept { return dp_item_index(from_); }
    /* The buffer that it holds of a set. */
    std::size_t buffer(std::uint32_t set) const {
        std::size_t number = 0;
        check(dp_item_buffer(from_, set, &number));
        return number;
    }

  private:
    const dp_item *from_;
};

/* Stages, their dependencies and their buffers (CIDR'23, figure 7). */
class graph : public detail::owned<dp_graph, dp_graph_close> {
  public:
    explicit graph(const std::string &name) { check(dp_graph_new(detail::whole(name), &handle_)); }

    std::uint32_t buffers(std::size_t count) {
        std::uint32_t set = 0;
        check(dp_graph_buffers(handle_, count, &set));
        return set;
    }
    /* A stage that moves what `span_of(item)` gives. */
    std::uint32_t pipe(const std::string &name, const runtime_pipe &pipe, std::function<span(item)> span_of) {
        spans_.push_back(std::make_unique<std::function<span(item)>>(std::move(span_of)));
        std::uint32_t stage = 0;
        check(dp_graph_pipe(
            handle_, detail::whole(name), pipe.handle(),
            [](const dp_item *of, void *user, dp_span *out) {
                return detail::guarded([&] { *out = (*static_cast<std::function<span(item)> *>(user))(item(of)); });
            },
            spans_.back().get(), &stage));
        return stage;
    }
    /* A stage that computes, on several threads at once. */
    std::uint32_t compute(const std::string &name, std::function<void(item)> work) {
        work_.push_back(std::make_unique<std::function<void(item)>>(std::move(work)));
        std::uint32_t stage = 0;
        check(dp_graph_compute(
            handle_, detail::whole(name),
            [](const dp_item *of, void *user) {
                return detail::guarded([&] { (*static_cast<std::function<void(item)> *>(user))(item(of)); });
            },
            work_.back().get(), &stage));
        return stage;
    }
    void after(std::uint32_t stage, std::uint32_t earlier) { check(dp_graph_after(handle_, stage, earlier)); }
    void uses(std::uint32_t stage, std::uint32_t set) { check(dp_graph_uses(handle_, stage, set)); }
    void in_order(std::uint32_t stage) { check(dp_graph_in_order(handle_, stage)); }
    void threads(std::uint32_t count) { check(dp_graph_threads(handle_, count)); }

  private:
    std::vector<std::unique_ptr<std::function<span(item)>>> spans_;
    std::vector<std::unique_ptr<std::function<void(item)>>> work_;
};

/* Carries out the transfers of many pipes. */
class runtime : public detail::owned<dp_runtime, dp_runtime_close> {
  public:
    explicit runtime(const machine &on) { check(dp_runtime_start(on.handle(), nullptr, &handle_)); }
    /* `options.size` is set here. */
    runtime(const machine &on, dp_runtime_options options) {
        options.size = sizeof options;
        check(dp_runtime_start(on.handle(), &options, &handle_));
    }

    runtime_pipe connect(const place &source, const place &target, dp_class priority = DP_NORMAL) const {
        service level{};
        level.size = sizeof level;
        level.priority = priority;
        return connect(source, target, nullptr, &level);
    }
    runtime_pipe connect(
        const place &source, const place &target, const constraints *demands, const service *level) const {
        dp_runtime_pipe made;
        check(dp_runtime_connect(handle_, source.handle(), target.handle(), demands, level, &made));
        return runtime_pipe(made);
    }
    /* `place` comes back with the completions. */
    pipe_fd connect_fd(const place &source, const place &target, std::uint64_t name = 0, std::uint32_t depth = 0) const {
        dp_pipe_fd made;
        check(dp_runtime_connect_fd(handle_, source.handle(), target.handle(), nullptr, nullptr, name, depth, &made));
        return pipe_fd(made);
    }
    /* Runs items through a graph; returns the report. */
    std::string run(const graph &what, std::uint64_t items, dp_format format = DP_TEXT) const {
        std::string report;
        check(dp_graph_run_told(handle_, what.handle(), items, format, detail::take_text, &report));
        return report;
    }
    void drain() const { check(dp_runtime_drain(handle_)); }
    std::string report(dp_format format = DP_TEXT) const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_runtime_report(handle_, format, at, room, len);
        });
    }
};

/* A connection to the service `dpiped`. */
class client : public detail::owned<dp_client, dp_client_close> {
  public:
    /* To the service that runs at one of the default paths. */
    client() { check(dp_client_connect(nullptr, &handle_)); }
    explicit client(const std::filesystem::path &socket) { check(dp_client_connect(detail::whole(socket), &handle_)); }

    /* Files and shared memory are passed; `name` comes back with the completions. */
    pipe_fd connect_fd(
        const place &source, const place &target, std::uint64_t name = 0, const constraints *demands = nullptr,
        const service *level = nullptr, std::uint32_t depth = 0) const {
        dp_pipe_fd made;
        check(dp_client_connect_fd(handle_, source.handle(), target.handle(), demands, level, name, depth, &made));
        return pipe_fd(made);
    }
    /* What the service is doing, as JSON. */
    std::string status() const {
        return detail::text_of(
            [&](char *at, std::size_t room, std::size_t *len) { return dp_client_status(handle_, at, room, len); });
    }
};

/* A cache of bytes in front of a file (Pipette, DAC'22). */
class cache : public detail::owned<dp_cache, dp_cache_close> {
  public:
    cache(const machine &on, const ssd &file, std::uint64_t budget = 0)
        : cache(on, file, dp_cache_options{.size = 0, .depth = 0, .budget = budget, .large = 0, .policy = nullptr}) {}
    /* `options.size` is set here. */
    cache(const machine &on, const ssd &file, dp_cache_options options) {
        options.size = sizeof options;
        check(dp_cache_open(on.handle(), file.handle(), &options, &handle_));
    }
    void read(std::uint64_t offset, std::span<std::byte> into) const {
        check(dp_cache_read(handle_, offset, into.data(), into.size()));
    }
    /* Pieces of one length at these offsets, one after the other. */
    void gather(std::span<const std::uint64_t> offsets, std::size_t len, std::span<std::byte> into) const {
        if (len != 0 && offsets.size() > into.size() / len) {
            throw error(dp_error_new(DP_OUT_OF_RANGE, "gather: the target is shorter than the pieces"));
        }
        check(dp_cache_gather(handle_, offsets.data(), offsets.size(), len, into.data(), nullptr));
    }
    void invalidate(std::uint64_t offset, std::uint64_t len) const {
        check(dp_cache_invalidate(handle_, offset, len));
    }
    /* Keeps what is cached: it is the new bytes when this returns. */
    void write(std::uint64_t offset, std::span<const std::byte> from) const {
        check(dp_cache_write(handle_, offset, from.data(), from.size()));
    }
    /* Drops all that is cached. */
    void clear() const { check(dp_cache_clear(handle_)); }
    /* How it reads its file, and why. */
    std::string explain() const {
        return detail::text_of(
            [&](char *at, std::size_t room, std::size_t *len) { return dp_cache_explain(handle_, at, room, len); });
    }
    std::string report(dp_format format = DP_TEXT) const {
        return detail::text_of(
            [&](char *at, std::size_t room, std::size_t *len) { return dp_cache_report(handle_, format, at, room, len); });
    }
    /* The counters as JSON. */
    std::string metrics() const {
        return detail::text_of(
            [&](char *at, std::size_t room, std::size_t *len) { return dp_cache_metrics(handle_, at, room, len); });
    }
};

/* A log that is open for appending. Destroying it closes it; `close` says whether that succeeded. */
class log : public detail::owned<dp_log, dp_log_close> {
  public:
    log(const machine &on, const std::filesystem::path &folder) {
        check(dp_log_open(on.handle(), detail::whole(folder), nullptr, &handle_));
    }
    /* `options.size` is set here. */
    log(const machine &on, const std::filesystem::path &folder, dp_log_options options) {
        options.size = sizeof options;
        check(dp_log_open(on.handle(), detail::whole(folder), &options, &handle_));
    }
    /* Returns the record's number. It is durable after `sync`. */
    std::uint64_t append(std::span<const std::byte> record) const {
        std::uint64_t number = 0;
        check(dp_log_append(handle_, record.data(), record.size(), &number));
        return number;
    }
    std::uint64_t append_durable(std::span<const std::byte> record) const {
        std::uint64_t number = 0;
        check(dp_log_append_durable(handle_, record.data(), record.size(), &number));
        return number;
    }
    void sync() const { check(dp_log_sync(handle_)); }
    void release_before(std::uint64_t number) const { check(dp_log_release_before(handle_, number)); }
    /* What it did, as JSON. */
    std::string stats() const {
        return detail::text_of(
            [&](char *at, std::size_t room, std::size_t *len) { return dp_log_stats(handle_, at, room, len); });
    }
    /* What is in the log of a folder, and what is damaged, as JSON. */
    static std::string examine(const machine &on, const std::filesystem::path &folder) {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_log_examine(on.handle(), detail::whole(folder), at, room, len);
        });
    }
    void close() {
        check(dp_log_close(handle_));
        release();
    }
};

/* A record of a log. */
struct log_record {
    std::uint64_t number;
    std::vector<std::byte> bytes;
};

/* Reads a log in order. */
class log_reader : public detail::owned<dp_log_reader, dp_log_reader_close> {
  public:
    log_reader(const machine &on, const std::filesystem::path &folder, std::uint64_t from = 0) {
        check(dp_log_read(on.handle(), detail::whole(folder), from, &handle_));
    }
    std::optional<log_record> next() {
        std::uint64_t number = 0;
        const void *record = nullptr;
        std::size_t len = 0;
        check(dp_log_reader_next(handle_, &number, &record, &len));
        if (record == nullptr) {
            return std::nullopt;
        }
        const auto *bytes = static_cast<const std::byte *>(record);
        return log_record{number, std::vector<std::byte>(bytes, bytes + len)};
    }
};

/* A region of a checkpoint: a name and the memory that it is saved from or restored into, which lives
 * as long as the region. */
struct region {
    std::string name;
    const memory &bytes;
};

/* The checkpoints in a folder: state that is saved and restored as a whole. The machine lives as long
 * as this. */
class checkpoints {
  public:
    checkpoints(const machine &on, std::filesystem::path folder) : on_(on), folder_(std::move(folder)) {}

    /* Saves a new one and returns its number. `keep` is how many are kept, 0 for all. */
    std::uint64_t save(std::span<const region> regions, std::size_t keep = 0) const {
        auto named = of_c(regions);
        std::uint64_t number = 0;
        check(dp_checkpoint_save(on_.handle(), detail::whole(folder_), named.data(), named.size(), keep, &number));
        return number;
    }
    /* Restores one, 0 for the newest, and returns its number. After an error the contents of the
     * regions are undefined. */
    std::uint64_t restore(std::span<const region> regions, std::uint64_t number = 0) const {
        auto named = of_c(regions);
        std::uint64_t restored = 0;
        check(dp_checkpoint_restore(
            on_.handle(), detail::whole(folder_), number, named.data(), named.size(), &restored));
        return restored;
    }
    /* The length of a region of one, 0 for the newest, in bytes. */
    std::uint64_t region_length(const std::string &name, std::uint64_t number = 0) const {
        std::uint64_t len = 0;
        check(dp_checkpoint_region_length(on_.handle(), detail::whole(folder_), number, detail::whole(name), &len));
        return len;
    }
    /* All of the folder as JSON, the oldest first; damaged ones with the reason. */
    std::string list() const {
        return detail::text_of([&](char *at, std::size_t room, std::size_t *len) {
            return dp_checkpoint_list(on_.handle(), detail::whole(folder_), at, room, len);
        });
    }

  private:
    static std::vector<dp_region> of_c(std::span<const region> regions) {
        std::vector<dp_region> named;
        for (const auto &one : regions) {
            named.push_back(dp_region{detail::whole(one.name), one.bytes.handle()});
        }
        return named;
    }

    const machine &on_;
    std::filesystem::path folder_;
};

/* The size of a channel: `block_bytes`, `credits`, `checked`. */
using channel_shape = dp_channel_shape;
/* What travels with a block: `words`, `end`. */
using block_head = dp_block_head;
using block_reply = dp_block_reply;
/* The right to use a channel, as a controller knows it. */
using capability = dp_capability;

/* How long calls wait by default. */
inline constexpr std::chrono::milliseconds patience{10000};

namespace detail {

/* Negative is 0; a time beyond all others waits until a channel ends. */
inline std::uint64_t milliseconds_of(std::chrono::milliseconds limit) noexcept {
    return limit == std::chrono::milliseconds::max() ? UINT64_MAX : static_cast<std::uint64_t>(std::max<std::int64_t>(limit.count(), 0));
}

}  // namespace detail

/* A block that arrived. Destroying it without a reply tells its sender that it was dropped. */
class block : public detail::owned<dp_block, dp_block_close> {
  public:
    block(dp_block handle, const block_head &head, std::size_t len) noexcept : owned(handle), head_(head), len_(len) {}

    const block_head &head() const noexcept { return head_; }
    std::size_t size() const noexcept { return len_; }
    /* Valid until it is answered or destroyed. */
    std::span<const std::byte> bytes() const {
        const void *at = nullptr;
        std::size_t len = 0;
        check(dp_block_bytes(handle_, &at, &len));
        return {static_cast<const std::byte *>(at), len};
    }
    /* From memory to memory, to the start of `into`. */
    void copy_to(std::span<std::byte> into) const { check(dp_block_copy(handle_, into.data(), into.size())); }
    /* Replies, which returns its credit. */
    void answer(dp_block_outcome outcome, std::uint64_t word = 0) { check(dp_block_answer(release(), outcome, word)); }
    void done() { answer(DP_BLOCK_DONE); }

  private:
    block_head head_;
    std::size_t len_;
};

/* Memory of one block, to be filled in place. Destroying it gives it back. */
class grant {
  public:
    explicit grant(dp_sender from) : from_(from) {
        void *at = nullptr;
        std::size_t len = 0;
        check(dp_sender_grant(from_, &at, &len));
        bytes_ = {static_cast<std::byte *>(at), len};
    }
    grant(grant &&other) noexcept : from_(std::exchange(other.from_, dp_sender{0})), bytes_(std::exchange(other.bytes_, {})) {}
    grant(const grant &) = delete;
    grant &operator=(const grant &) = delete;
    ~grant() {
        if (from_.id != 0) {
            dp_error_close(dp_sender_give_back(from_));
        }
    }
    /* None once it was sent or moved away. */
    std::span<std::byte> bytes() const noexcept { return bytes_; }
    /* Sends the first `len` bytes. */
    void send(std::size_t len, const block_head &head = {}) {
        bytes_ = {};
        check(dp_sender_send_granted(std::exchange(from_, dp_sender{0}), len, head));
    }

  private:
    dp_sender from_;
    std::span<std::byte> bytes_;
};

/* The sending end of a channel, for one thread at a time. It outlives its grants. */
class sender : public detail::owned<dp_sender, dp_sender_close> {
  public:
    using owned::owned;

    void set_patience(std::chrono::milliseconds limit) {
        check(dp_sender_set_patience(handle_, detail::milliseconds_of(limit)));
    }
    void send(std::span<const std::byte> bytes, const block_head &head = {}) {
        check(dp_sender_send(handle_, bytes.data(), bytes.size(), head));
    }
    datapipes::grant grant() { return datapipes::grant(handle_); }
    /* Sends a block that was received on. */
    void forward(const block &what, const block_head &head) { check(dp_sender_forward(handle_, what.handle(), head)); }
    /* Ends the stream, waits until all of it is done, and returns the word of the reply to the end. */
    std::uint64_t finish(const block_head &head = {}) {
        std::uint64_t word = 0;
        check(dp_sender_finish(handle_, head, &word));
        return word;
    }
    /* Waits until every block was replied to. */
    void drain() { check(dp_sender_drain(handle_)); }
    block_reply reply() {
        block_reply next{};
        check(dp_sender_reply(handle_, &next));
        return next;
    }
    std::uint32_t outstanding() const {
        std::uint32_t blocks = 0;
        check(dp_sender_outstanding(handle_, &blocks));
        return blocks;
    }
};

/* The receiving end of a channel, for one thread at a time. */
class receiver : public detail::owned<dp_receiver, dp_receiver_close> {
  public:
    using owned::owned;

    void set_patience(std::chrono::milliseconds limit) {
        check(dp_receiver_set_patience(handle_, detail::milliseconds_of(limit)));
    }
    block receive() {
        dp_block arrived;
        block_head head{};
        std::size_t len = 0;
        check(dp_receiver_receive(handle_, &arrived, &head, &len));
        return block(arrived, head, len);
    }
    /* The next block, if it has arrived. */
    std::optional<block> poll() {
        dp_block arrived;
        block_head head{};
        std::size_t len = 0;
        check(dp_receiver_poll(handle_, &arrived, &head, &len));
        return arrived.id == 0 ? std::nullopt : std::optional<block>(block(arrived, head, len));
    }
};

/* The next block of any of these receivers, at most 42, and the index of its receiver. Pass the index of
 * the call before as `last`, so that none starves. Where a channel ended, the error of that one is
 * thrown, and `*ended`, if there is one, becomes its index. */
inline std::pair<std::size_t, block> receive_any(
    std::span<receiver *const> receivers, std::size_t last, std::chrono::milliseconds limit, std::size_t *ended = nullptr) {
    std::vector<dp_receiver> handles;
    for (auto *one : receivers) {
        handles.push_back(one->handle());
    }
    dp_block arrived;
    block_head head{};
    std::size_t which = 0, len = 0;
    auto outcome = dp_receiver_receive_any(
        handles.data(), handles.size(), last, detail::milliseconds_of(limit), &which, &arrived, &head, &len);
    if (outcome.id != 0 && ended != nullptr) {
        *ended = which;
    }
    check(outcome);
    return {which, block(arrived, head, len)};
}

/* The two ends of a channel within this process. */
inline std::pair<sender, receiver> channel_pair(const channel_shape &shape, dp_trust trust = DP_TRUST_COPY) {
    dp_sender sends;
    dp_receiver receives;
    check(dp_channel_pair(shape, trust, &sends, &receives));
    return {sender(sends), receiver(receives)};
}

/* One half of a channel between two machines. */
struct link {
    /* DP_RIGHT_SEND or DP_RIGHT_RECEIVE. */
    dp_right side;
    channel_shape shape;
    /* With its port, such as "192.0.2.1:7000". */
    std::string address;
    std::array<std::uint8_t, 32> key;
    bool unencrypted = false;
};

/* A function that devices of this program have: it returns how many bytes it wrote. `arguments` is
 * JSON. */
struct device_function {
    std::string name;
    std::function<std::size_t(std::span<const std::byte> input, std::span<std::byte> output, const char *arguments)> work;
};

/* A body of devices of this program: it works with the ends of its channels until these end. The ends are
 * the device's, which closes them. */
struct device_body {
    std::string name;
    std::function<void(std::vector<receiver> &inlets, std::vector<sender> &outlets, const char *arguments)> run;
};

/* A view of a memory of the controller's. Other parties may change the bytes, so they are copied. */
class endpoint : public detail::owned<dp_endpoint, dp_endpoint_close> {
  public:
    using owned::owned;

    std::uint64_t length() const {
        std::uint64_t len = 0;
        check(dp_endpoint_facts(handle_, &len, nullptr));
        return len;
    }
    bool is_writable() const {
        std::uint32_t writable = 0;
        check(dp_endpoint_facts(handle_, nullptr, &writable));
        return writable != 0;
    }
    void read(std::uint64_t at, std::span<std::byte> into) const {
        check(dp_endpoint_read(handle_, at, into.data(), into.size()));
    }
    void write(std::uint64_t at, std::span<const std::byte> from) const {
        check(dp_endpoint_write(handle_, at, from.data(), from.size()));
    }
};

/* A controller process, which starts devices and connects them. */
class fabric : public detail::owned<dp_fabric, dp_fabric_close> {
  public:
    /* `program` runs as controller and devices; none for this one. */
    explicit fabric(const std::filesystem::path &program = {}) {
        check(dp_fabric_start(program.empty() ? nullptr : detail::whole(program), &handle_));
    }

    /* Call it first in `main`. A value is the exit code of a process that was a controller or a
     * device. */
    static std::optional<int> enter(
        std::span<const device_function> functions = {}, std::span<const device_body> bodies = {}) {
        std::vector<dp_device_function> known;
        for (const auto &function : functions) {
            known.push_back({detail::whole(function.name), work, const_cast<device_function *>(&function)});
        }
        std::vector<dp_device_body> known_bodies;
        for (const auto &body : bodies) {
            known_bodies.push_back({detail::whole(body.name), run, const_cast<device_body *>(&body)});
        }
        std::int32_t code = -1;
        check(dp_fabric_enter_with(known.data(), known.size(), known_bodies.data(), known_bodies.size(), &code));
        return code < 0 ? std::nullopt : std::optional<int>(code);
    }

    capability channel(const channel_shape &shape, dp_carrier carrier = DP_CARRIER_SHARED_MEMORY) const {
        capability made{};
        check(dp_fabric_channel(handle_, shape, carrier, &made));
        return made;
    }
    /* `rights` is a sum of `dp_right`; the program is party 0. */
    capability delegate(capability from, std::uint32_t party, std::uint32_t rights) const {
        capability made{};
        check(dp_fabric_delegate(handle_, from, party, rights, &made));
        return made;
    }
    /* Returns how many capabilities were removed. */
    std::size_t revoke(capability what) const {
        std::size_t removed = 0;
        check(dp_fabric_revoke(handle_, what, &removed));
        return removed;
    }
    /* A memory of `len` zeroed bytes, with all rights to it. */
    capability memory(std::uint64_t len) const {
        capability made{};
        check(dp_fabric_memory(handle_, len, &made));
        return made;
    }
    /* `right` is one of a channel, or a sum of those of a memory. */
    void activate(capability what, const std::string &port, std::uint32_t right, dp_trust trust = DP_TRUST_COPY) const {
        check(dp_fabric_activate(handle_, what, detail::whole(port), right, trust));
    }
    datapipes::endpoint endpoint(const std::string &port, std::chrono::milliseconds limit = patience) const {
        dp_endpoint taken;
        check(dp_fabric_endpoint(handle_, detail::whole(port), detail::milliseconds_of(limit), &taken));
        return datapipes::endpoint(taken);
    }
    datapipes::sender sender(const std::string &port, std::chrono::milliseconds limit = patience) const {
        dp_sender taken;
        check(dp_fabric_sender(handle_, detail::whole(port), detail::milliseconds_of(limit), &taken));
        return datapipes::sender(taken);
    }
    datapipes::receiver receiver(const std::string &port, std::chrono::milliseconds limit = patience) const {
        dp_receiver taken;
        check(dp_fabric_receiver(handle_, detail::whole(port), detail::milliseconds_of(limit), &taken));
        return datapipes::receiver(taken);
    }
    /* Returns the capability, and the address where the controller listens. */
    std::pair<capability, std::string> offer(const link &half) const {
        auto named = of_c(half);
        capability made{};
        char address[128];
        check(dp_fabric_offer(handle_, &named, &made, address, sizeof address, nullptr));
        return {made, address};
    }
    capability join(const link &half) const {
        auto named = of_c(half);
        capability made{};
        check(dp_fabric_join(handle_, &named, &made));
        return made;
    }
    /* Waits until a link is connected. */
    void joined(capability what, std::chrono::milliseconds limit = patience) const {
        check(dp_fabric_joined(handle_, what, detail::milliseconds_of(limit)));
    }
    /* What the controller has, as JSON. */
    std::string status() const {
        return detail::text_of(
            [&](char *at, std::size_t room, std::size_t *len) { return dp_fabric_status(handle_, at, room, len); });
    }

  private:
    static dp_link of_c(const link &half) {
        dp_link named{};
        named.size = sizeof named;
        named.side = half.side;
        named.unencrypted = half.unencrypted;
        named.key_len = static_cast<std::uint32_t>(half.key.size());
        named.shape = half.shape;
        named.address = detail::whole(half.address);
        named.key = half.key.data();
        return named;
    }
    static dp_error work(
        void *user, const char *arguments, const void *input, std::size_t input_len, void *output,
        std::size_t capacity, std::size_t *output_len) {
        return detail::guarded([&] {
            const auto &function = *static_cast<const device_function *>(user);
            std::span<const std::byte> from(static_cast<const std::byte *>(input), input_len);
            *output_len = function.work(from, {static_cast<std::byte *>(output), capacity}, arguments);
        });
    }
    static dp_error run(
        void *user, const char *arguments, const dp_receiver *inlets, std::size_t inlet_count, const dp_sender *outlets,
        std::size_t outlet_count) {
        return detail::guarded([&] {
            // The objects close the ends; the device finds them closed then.
            std::vector<datapipes::receiver> from;
            std::vector<datapipes::sender> to;
            for (std::size_t i = 0; i < inlet_count; i++) {
                from.emplace_back(inlets[i]);
            }
            for (std::size_t i = 0; i < outlet_count; i++) {
                to.emplace_back(outlets[i]);
            }
            static_cast<const device_body *>(user)->run(from, to, arguments);
        });
    }
};

/* Running devices, and the program's ends of their channels. */
class flow : public detail::owned<dp_flow, dp_flow_close> {
  public:
    using owned::owned;

    /* The program's n-th sending end; each is taken once. */
    datapipes::sender sender(std::size_t number = 0) const {
        dp_sender taken;
        check(dp_flow_sender(handle_, number, &taken));
        return datapipes::sender(taken);
    }
    datapipes::receiver receiver(std::size_t number = 0) const {
        dp_receiver taken;
        check(dp_flow_receiver(handle_, number, &taken));
        return datapipes::receiver(taken);
    }
    /* The party of a device. */
    std::uint32_t device(std::uint32_t node) const {
        std::uint32_t party = 0;
        check(dp_flow_device(handle_, node, &party));
        return party;
    }
    /* The capability of a wire. */
    datapipes::capability capability(std::size_t wire) const {
        datapipes::capability cuts{};
        check(dp_flow_capability(handle_, wire, &cuts));
        return cuts;
    }
    /* The placement, why it was chosen, and the wires. */
    std::string describe() const {
        return detail::text_of(
            [&](char *at, std::size_t room, std::size_t *len) { return dp_flow_describe(handle_, at, room, len); });
    }
    /* A device's next report on a stream, as JSON. */
    std::string report(std::uint32_t node, std::chrono::milliseconds limit = patience) const {
        std::string text(16 << 10, '\0');
        std::size_t len = 0;
        check(dp_flow_report(handle_, node, detail::milliseconds_of(limit), text.data(), text.size(), &len));
        text.resize(std::min(len, text.size() - 1));
        return text;
    }
    /* Ends it, and says whether that succeeded. */
    void close() { check(dp_flow_close(release())); }
};

/* Devices and the channels between them, before any of them exists. */
class device_graph : public detail::owned<dp_device_graph, dp_device_graph_close> {
  public:
    /* The program itself, as a node. */
    static constexpr std::uint32_t application = 0;

    explicit device_graph(
        const channel_shape &shape, dp_trust trust = DP_TRUST_COPY, dp_carrier carrier = DP_CARRIER_SHARED_MEMORY) {
        check(dp_device_graph_new(shape, trust, carrier, &handle_));
    }
    /* `role` is JSON; a place in it names a descriptor by its index. */
    std::uint32_t device(const std::string &name, const std::string &role, std::span<const int> descriptors = {}) {
        std::uint32_t node = 0;
        check(dp_device_graph_device(
            handle_, detail::whole(name), detail::whole(role), descriptors.data(), descriptors.size(), &node));
        return node;
    }
    /* The other end of a link, which the flow then owns. */
    std::uint32_t elsewhere(capability link) {
        std::uint32_t node = 0;
        check(dp_device_graph_elsewhere(handle_, link, &node));
        return node;
    }
    void connect(std::uint32_t from, std::uint32_t to) { check(dp_device_graph_connect(handle_, from, to)); }
    void connect(std::uint32_t from, std::uint32_t to, const channel_shape &shape, dp_trust trust) {
        check(dp_device_graph_connect_with(handle_, from, to, shape, trust));
    }
    /* Starts the devices. The graph is used up by this, unless an argument is refused. */
    flow start(const fabric &on, dp_placement placement = DP_PLACEMENT_AUTO) {
        dp_flow started;
        check(dp_device_graph_start(handle_, on.handle(), placement, &started));
        release();
        return flow(started);
    }
};

}  // namespace datapipes

#endif
#endif
