/* Data Pipes: declare where data is, connect two places, transfer. The library picks the way and
 * says why. docs/c.md has the first program.
 *
 * Handles (dp_place, dp_pipe, ...) are numbers in structs: pass them by value. A handle that was
 * closed is refused with DP_INVALID_INPUT, also if it is closed twice or while another thread uses
 * it. A function that fails returns a dp_error whose id is not 0; close it with dp_error_close. What
 * it would have given through pointers is then not written, unless its comment says so.
 *
 * Texts end with NUL and are UTF-8; paths may be any bytes. Functions that copy texts cut them to
 * the capacity, as snprintf does, and give the whole length without the NUL.
 *
 * Callbacks must neither throw nor jump out (longjmp, pthread_exit): the process would end. So it
 * does if a thread is cancelled (pthread_cancel) within a function here: a thread that others may
 * cancel disables that around its calls (pthread_setcancelstate). In a child made by fork, objects
 * of the parent are refused with DP_FORKED; closing them is allowed.
 *
 * Where it is not said otherwise, a pointer that is NULL or is not aligned for its type is refused
 * (DP_INVALID_INPUT, DP_MISALIGNED), and every argument is checked before anything is done.
 *
 * This file is generated from the Rust sources: `UPDATE_HEADER=1 cargo test -p datapipes-c --test header`.
 */


#ifndef DATAPIPES_H
#define DATAPIPES_H

#include <stddef.h>
#include <stdint.h>

// The version of the interface: it grows when functions are added, and the first part changes
// when programs must be compiled anew. Struct arguments begin with their size, so that they can
// grow without that.
#define DP_ABI_VERSION 1

// What can be done about an error. The numbers are stable; new ones are added at the end. A
// completion that is read from a descriptor has the same numbers.
typedef enum {
  // No error.
  DP_OK = 0,
  // The arguments make no sense: change them. Also a handle that was closed.
  DP_INVALID_INPUT = 1,
  // The span lies outside the place.
  DP_OUT_OF_RANGE = 2,
  // Offset, length or address do not meet an alignment that was required.
  DP_MISALIGNED = 3,
  // The bytes are leased to another operation, or a queue is full: wait and try again.
  DP_BUSY = 4,
  // No route serves the pair under the constraints.
  DP_UNSUPPORTED = 5,
  // The machine lacks something or refused it.
  DP_UNAVAILABLE = 6,
  // The named file or device does not exist.
  DP_NOT_FOUND = 7,
  // The process lacks the permission.
  DP_PERMISSION_DENIED = 8,
  // The place is full.
  DP_NO_SPACE = 9,
  // Memory could not be allocated, or a budget does not suffice.
  DP_OUT_OF_MEMORY = 10,
  // The source ended before the span did.
  DP_END_OF_FILE = 11,
  // The device failed.
  DP_DEVICE = 12,
  // A signal or the caller stopped the operation.
  DP_INTERRUPTED = 13,
  // Bytes are wrong: a checksum or an order does not match.
  DP_CORRUPT = 14,
  // Any other refusal by the operating system.
  DP_SYSTEM = 15,
  // The object was made by the parent of this forked process.
  DP_FORKED = 16,
  // Code that the library called panicked, or the library did.
  DP_PANICKED = 17,
} dp_error_kind;

// How a text about something is written.
typedef enum {
  // For people.
  DP_TEXT = 0,
  // For programs.
  DP_JSON = 1,
  // Measurements for Prometheus, of reports only: what `/metrics` of a program shows. They name no
  // paths.
  DP_PROMETHEUS = 2,
} dp_format;

// How a file is opened.
typedef enum {
  // An existing file, for reading.
  DP_READ = 0,
  // An existing file, for reading and writing.
  DP_READ_WRITE = 1,
  // A new file or an existing one, which is emptied, for reading and writing.
  DP_CREATE = 2,
  // A file that must not exist yet, for reading and writing.
  DP_CREATE_NEW = 3,
  // A file without a name in this folder, which the kernel frees with its last user.
  DP_UNLINKED = 4,
} dp_open_mode;

// Whether transfers go past the page cache.
typedef enum {
  // Decided at connect, by residency and size.
  DP_AUTO = 0,
  // Past the page cache; opening fails where the file system cannot.
  DP_DIRECT = 1,
  // Through the page cache.
  DP_CACHED = 2,
} dp_access;

// The class of a pipe, which decides the order of transfers.
typedef enum {
  // Between the two others.
  DP_NORMAL = 0,
  // Short transfers that somebody waits for.
  DP_LATENCY = 1,
  // What nobody waits for.
  DP_BULK = 2,
} dp_class;

// The kind of records that are sorted.
typedef enum {
  // Lines in the order of GNU sort's options, in the C locale.
  DP_LINES = 0,
  // Binary records of one length, in the order of their keys' bytes.
  DP_RECORDS = 1,
  // Little-endian unsigned numbers of 32 bits.
  DP_U32 = 2,
  // Little-endian unsigned numbers of 64 bits.
  DP_U64 = 3,
  // Little-endian numbers of 64 bits in two's complement.
  DP_I64 = 4,
  // IEEE 754 doubles, in their total order.
  DP_F64 = 5,
} dp_record_kind;

// Whether runs that do not fit the memory are compressed.
typedef enum {
  // If that makes the sort faster, as measured while it runs.
  DP_COMPRESSION_AUTO = 0,
  // Always.
  DP_COMPRESSION_ON = 1,
  // Never.
  DP_COMPRESSION_OFF = 2,
} dp_spill_compression;

// How much a receiver trusts the sender of a channel.
typedef enum {
  // The receiver sees a private copy of a block.
  DP_TRUST_COPY = 0,
  // It sees the block in place. Who chooses this promises that the sender does not write a block
  // between sending it and its reply. All senders of this library keep that.
  DP_TRUST_IN_PLACE = 1,
  // As before, and the bytes are checked when a block is done. The shape must be `checked`.
  DP_TRUST_IN_PLACE_CHECKED = 2,
} dp_trust;

// What became of a block.
typedef enum {
  // It was processed. From a relay: it was sent on.
  DP_BLOCK_DONE = 0,
  // It was dropped.
  DP_BLOCK_DROPPED = 1,
  // Its bytes are not those that were sent.
  DP_BLOCK_DAMAGED = 2,
  // The receiver could not process it.
  DP_BLOCK_FAILED = 3,
  // The place behind the receiver is full.
  DP_BLOCK_NO_SPACE = 4,
} dp_block_outcome;

// What a capability allows. Sums of them are possible.
typedef enum {
  // To be the sender of a channel.
  DP_RIGHT_SEND = 1,
  // To be its receiver.
  DP_RIGHT_RECEIVE = 2,
  // To read a memory.
  DP_RIGHT_READ = 4,
  // To write a memory.
  DP_RIGHT_WRITE = 8,
  // To delegate.
  DP_RIGHT_DELEGATE = 16,
} dp_right;

// The technology of a channel within one machine.
typedef enum {
  // Memory that both ends map.
  DP_CARRIER_SHARED_MEMORY = 0,
  // A Unix socket.
  DP_CARRIER_UNIX_SOCKET = 1,
  // A TCP connection over the loopback interface.
  DP_CARRIER_TCP = 2,
  // UCX over shared memory, between two processes beside the ends; DP_UNAVAILABLE where UCX is
  // not installed.
  DP_CARRIER_UCX = 3,
} dp_carrier;

// Who moves blocks from device to device.
typedef enum {
  // The one of the three that is estimated to be the best here.
  DP_PLACEMENT_AUTO = 0,
  // The program, which talks to each device.
  DP_PLACEMENT_APPLICATION_SIDE = 1,
  // A process beside the devices, which alone talks to them.
  DP_PLACEMENT_CENTRAL = 2,
  // The devices themselves.
  DP_PLACEMENT_DISTRIBUTED = 3,
} dp_placement;

// One item on its way through a graph, while a function of the caller's is called for it.
typedef struct dp_item dp_item;

// An error; `id` is 0 for success. An error that is not 0 belongs to the caller, who closes it
// with `dp_error_close`. Any thread may use it. One that is not closed keeps about 450 bytes for as
// long as the process lives; a process whose memory is used up by them ends.
typedef struct {
  // The handle, 0 for success.
  uint64_t id;
} dp_error;

// The machine as it was discovered. It belongs to the caller, who closes it with
// `dp_machine_close`. Any thread may use it.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_machine;

// A place where bytes are. It belongs to the caller, who closes it with `dp_place_close`; pipes
// keep what they need. Any thread may use it.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_place;

// The settings of a cache. Set `size` to `sizeof(dp_cache_options)` and the rest to zero, or pass
// NULL, for the defaults.
typedef struct {
  // `sizeof(dp_cache_options)`.
  uint32_t size;
  // Requests that one thread has outstanding at the device; 0 for the default.
  uint32_t depth;
  // The memory budget in bytes, for everything; 0 for 64 MiB; at least 2 MiB.
  uint64_t budget;
  // Reads of more bytes than this from one page use the block path; 0 for the default.
  uint64_t large;
  // The policy by name ("adaptive", ...), or NULL for the default.
  const char *policy;
} dp_cache_options;

// A cache of bytes in front of a file. It belongs to the caller, who closes it with
// `dp_cache_close`. Any number of threads may use it at once.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_cache;

// The size of a channel.
typedef struct {
  // The bytes of the longest block, 1 to 2^30. The channel has `credits` times as much memory.
  uint64_t block_bytes;
  // The number of blocks that may be under way, 1 to 256.
  uint32_t credits;
  // Not 0: blocks carry a CRC-32.
  uint32_t checked;
} dp_channel_shape;

// The sending end of a channel. It belongs to the caller, who closes it with `dp_sender_close`. One
// thread at a time uses it: another is refused with DP_BUSY.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_sender;

// The receiving end of a channel. It belongs to the caller, who closes it with `dp_receiver_close`.
// One thread at a time uses it: another is refused with DP_BUSY.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_receiver;

// What travels with a block.
typedef struct {
  // Words of the program's. Devices pass them on.
  uint64_t words[4];
  // Not 0: the last block of its stream. It may be empty.
  uint64_t end;
} dp_block_head;

// A block that arrived. It belongs to the caller, who replies to it with `dp_block_answer`, or
// closes it with `dp_block_close`. Until then it holds a credit of its channel.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_block;

// The reply to a block.
typedef struct {
  // The number of the block, from 0.
  uint64_t sequence;
  // A word of the receiver's.
  uint64_t word;
  // A `dp_block_outcome`.
  uint32_t outcome;
  // Not 0: the block was the last of its stream.
  uint32_t end;
} dp_block_reply;

// A region of a checkpoint: a name and the memory that it is saved from or restored into.
typedef struct {
  // Its name.
  const char *name;
  // Its bytes.
  dp_place memory;
} dp_region;

// A pipe that is a file descriptor. It belongs to the caller, who closes it with
// `dp_pipe_fd_close`. Any number of threads may use it at once.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_pipe_fd;

// A runtime: it carries out the transfers of many pipes. It belongs to the caller, who closes it
// with `dp_runtime_close`. Any thread may use it.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_runtime;

// What a route must meet. Set `size` to `sizeof(dp_constraints)` and the rest to zero, or pass
// NULL, for no demands.
typedef struct {
  // `sizeof(dp_constraints)`.
  uint32_t size;
  // Not 0: the bytes are moved without loads and stores of a core.
  uint32_t require_offload;
  // Not 0: the bytes do not go through the page cache.
  uint32_t bypass_page_cache;
  // Not 0: the bytes do not displace what is in the processor's caches.
  uint32_t bypass_processor_cache;
  // The least estimated rate in bytes per second; 0 for none.
  double at_least;
  // The length of a typical transfer in bytes; 0 for the default, 1 MiB.
  uint64_t typical_length;
  // Requests kept outstanding on a device; 0 for what the device allows.
  uint32_t queue_depth;
  // Bytes of one request; 0 for what the device allows.
  uint32_t request_bytes;
  // Not 0: the pipe's requests go before those of others at the device, where the kernel allows.
  uint32_t urgent;
  // Not 0: the bytes are in the processor's caches afterwards, as far as they fit.
  uint32_t fill_processor_cache;
  // The primitives that are allowed, separated by commas; NULL for all.
  const char *only;
  // The primitives that are not allowed, separated by commas; NULL for none.
  const char *deny;
} dp_constraints;

// What a pipe asks of its runtime. Set `size` to `sizeof(dp_service)` and the rest to zero, or pass
// NULL, for the class DP_NORMAL without rates.
typedef struct {
  // `sizeof(dp_service)`.
  uint32_t size;
  // A `dp_class`.
  uint32_t priority;
  // The rate that is promised while there is work, in bytes per second; 0 for none.
  double at_least;
  // The rate that is not exceeded, in bytes per second; 0 for none.
  double at_most;
  // Transfers under way, at most; 0 for the runtime's option.
  uint32_t queue;
  // Not used; 0.
  uint32_t reserved;
} dp_service;

// What a transfer moves: `length` bytes from offset `source` of the source to offset `target` of
// the target, in bytes.
typedef struct {
  // Offset in the source, in bytes.
  uint64_t source;
  // Offset in the target, in bytes.
  uint64_t target;
  // Bytes to move.
  uint64_t length;
} dp_span;

// A transfer that is done.
typedef struct {
  // The number that `dp_pipe_fd_submit` gave.
  uint64_t token;
  // What the pipe's place was called when it was connected.
  uint64_t place;
  // Bytes moved.
  uint64_t bytes;
  // 0, or the error, which belongs to the caller.
  dp_error error;
} dp_completion;

// Devices, and the channels between them, before any of them exists. It belongs to the caller, who
// starts it with `dp_device_graph_start`, or closes it with `dp_device_graph_close`. One thread at a
// time uses it.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_device_graph;

// The right to use a channel, as the controller knows it. It is a name, not a handle: it ends by
// `dp_fabric_revoke`, or with its fabric.
typedef struct {
  // The controller's number of it.
  uint64_t number;
} dp_capability;

// A controller process, which starts devices and connects them. It belongs to the caller, who closes
// it with `dp_fabric_close`. Any number of threads may use it at once; their requests take turns.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_fabric;

// Running devices, and the program's ends of their channels. It belongs to the caller, who closes it
// with `dp_flow_close`. Any number of threads may use it at once.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_flow;

// A view of a memory of the controller's. It belongs to the caller, who closes it with
// `dp_endpoint_close`. Any number of threads may use it at once. Other parties may change the bytes at
// any time, so they are copied.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_endpoint;

// What an error has beside its kind and text. Set `size` to `sizeof(dp_error_facts)` and what is
// not known to zero.
typedef struct {
  // `sizeof(dp_error_facts)`.
  uint32_t size;
  // The operating system's number; 0 if there is none.
  int32_t errno_number;
  // Not 0: `offset` is known.
  uint32_t has_offset;
  // Not used; 0.
  uint32_t reserved;
  // The offset in bytes at which it happened.
  uint64_t offset;
  // Bytes that were moved before it.
  uint64_t bytes_done;
} dp_error_facts;

// Makes one block from another, in a device: reads `input_len` bytes at `input`, writes up to
// `capacity` bytes at `output`, and says in `*output_len` how many. `arguments` is what the device was
// given, as JSON. It is called by one thread, and can open nothing.
typedef dp_error (*dp_device_work)(void *user,
                                   const char *arguments,
                                   const void *input,
                                   size_t input_len,
                                   void *output,
                                   size_t capacity,
                                   size_t *output_len);

// A function that devices of this program have, beside those of the library.
typedef struct {
  // The name by which a device's role calls it.
  const char *name;
  // What it does with a block.
  dp_device_work work;
  // What it is called with.
  void *user;
} dp_device_function;

// What a device does: it receives from its inlets and sends to its outlets, in the order in which
// they were connected, until they end, and returns. `arguments` are those of its role, as JSON. The
// calls for these ends wait until their channels end, unless it sets another patience. They are
// closed when it has returned, where it has not closed them. It runs in a process of the device,
// which can open nothing. An error is told to the application, but for DP_END_OF_FILE, which is the
// orderly end.
typedef dp_error (*dp_device_run)(void *user,
                                  const char *arguments,
                                  const dp_receiver *inlets,
                                  size_t inlet_count,
                                  const dp_sender *outlets,
                                  size_t outlet_count);

// A body that devices of this program can have.
typedef struct {
  // The name by which a device's role calls it: `{"custom": {"name": NAME, "arguments": VALUE}}`.
  const char *name;
  // What it does.
  dp_device_run run;
  // What it is called with.
  void *user;
} dp_device_body;

// One half of a channel between two machines. Set `size` to `sizeof(dp_link)`.
typedef struct {
  // `sizeof(dp_link)`.
  uint32_t size;
  // `DP_RIGHT_SEND` or `DP_RIGHT_RECEIVE`; the other half has the other one.
  uint32_t side;
  // Not 0: the bytes are neither encrypted nor protected against change, here and there.
  uint32_t unencrypted;
  // Bytes of the key: 32.
  uint32_t key_len;
  // The shape of the channel, here and there.
  dp_channel_shape shape;
  // The address with its port, such as "192.0.2.1:7000".
  const char *address;
  // The secret that both controllers have, which nobody can guess.
  const uint8_t *key;
} dp_link;

// A graph of stages. It belongs to the caller, who closes it with `dp_graph_close`. One thread at a
// time declares it; it may be run many times.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_graph;

// A pipe of a runtime. It belongs to the caller, who closes it with `dp_runtime_pipe_close`. Any
// number of threads may use it at once.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_runtime_pipe;

// Gives the span that a stage moves for an item. It may be called by any thread.
typedef dp_error (*dp_span_of)(const dp_item *item, void *user, dp_span *span);

// Computes for an item. It may be called by several threads at once.
typedef dp_error (*dp_work)(const dp_item *item, void *user);

// Is given a whole text, `len` bytes and a NUL, which is valid until it returns. What it returns is
// the result of the call that made the text; what was done then stays done.
typedef dp_error (*dp_text_told)(void *user, const char *text, size_t len);

// The settings of a log. Set `size` to `sizeof(dp_log_options)` and the rest to zero, or pass NULL,
// for the defaults.
typedef struct {
  // `sizeof(dp_log_options)`.
  uint32_t size;
  // Bytes of a batch, a multiple of 4096; 0 for 1 MiB. A record is at most 40 bytes shorter.
  uint32_t batch_bytes;
  // Bytes of a new segment, a multiple of 4096; 0 for 32 MiB.
  uint64_t segment_bytes;
} dp_log_options;

// A log that is open for appending. It belongs to the caller, who closes it with `dp_log_close`.
// Any number of threads may append at once.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_log;

// A reader of a log. It belongs to the caller, who closes it with `dp_log_reader_close`. One thread
// at a time uses it.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_log_reader;

// A connection of two places. It belongs to the caller, who closes it with `dp_pipe_close`. Any
// number of threads may use it at once.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_pipe;

// A transfer that was started. `dp_transfer_wait` ends it; `dp_transfer_close` forgets it.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_transfer;

// How memory is allocated. Set `size` to `sizeof(dp_memory_options)` and the rest to zero, or pass
// NULL, for the defaults.
typedef struct {
  // `sizeof(dp_memory_options)`.
  uint32_t size;
  // Not 0: ordinary pages instead of huge ones.
  uint32_t small_pages;
  // Not 0: pages are not touched now, but by the first transfer.
  uint32_t no_prefault;
} dp_memory_options;

// The right to read or write the bytes of a place in memory. It belongs to the caller, who ends it
// with `dp_lease_close`; the address is valid until then. Any thread may use it.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_lease;

// How a runtime works. Set `size` to `sizeof(dp_runtime_options)` and the rest to zero, or pass
// NULL, for the defaults.
typedef struct {
  // `sizeof(dp_runtime_options)`.
  uint32_t size;
  // Threads that copy between memories, at most.
  uint32_t copiers;
  // Threads for routes of two hops and primitives that block, at most.
  uint32_t blocking;
  // Transfers that one pipe has under way, at most.
  uint32_t queue;
} dp_runtime_options;

// A transfer that a runtime carries out. `dp_future_wait`, `dp_future_cancel` and `dp_future_on_done`
// end it; `dp_future_close` forgets it.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_future;

// A function that is told the result of a transfer: 0 or an error, which belongs to the function.
// It is called once, by a thread of the runtime or by the thread that asked. It may call the
// library, and must neither throw nor jump out.
typedef void (*dp_callback)(void *user, dp_error result);

// A connection to the service `dpiped`, which moves bytes for all programs of a machine. It belongs
// to the caller, who closes it with `dp_client_close`. Any number of threads may use it at once;
// their requests take turns.
typedef struct {
  // The number; 0 for none.
  uint64_t id;
} dp_client;

// Is told how far a sort is, about ten times a second and at the end, by the thread that called
// `dp_sort`. The sort stops with DP_INTERRUPTED if it returns anything but 0. In a child that it
// makes by `fork`, `dp_sort` returns DP_FORKED.
typedef int32_t (*dp_sort_progress)(void *user,
                                    uint64_t total,
                                    uint64_t read,
                                    uint64_t spilled,
                                    uint64_t written);

// A sort. Set `size` to `sizeof(dp_sort_options)` and what is not needed to zero.
typedef struct {
  // `sizeof(dp_sort_options)`.
  uint32_t size;
  // A `dp_record_kind`.
  uint32_t kind;
  // Not 0: the order is descending (lines: the letter r).
  uint32_t reverse;
  // Not 0: only the first of records with the same key is kept.
  uint32_t unique;
  // Records: their length in bytes.
  uint64_t record_length;
  // Records: the offset of the key in the record, in bytes.
  uint64_t key_at;
  // Records: the length of the key in bytes.
  uint64_t key_length;
  // Lines: GNU sort's ordering letters outside of keys ("bdfghiMnRrV"), or NULL.
  const char *letters;
  // Lines: keys as GNU sort's -k takes them, separated by blanks ("2,2n 1"), or NULL.
  const char *keys;
  // Lines: the byte that separates fields, as -t; 0 for blanks.
  uint32_t separator;
  // Lines: not 0 to keep the order of lines with equal keys (-s).
  uint32_t stable;
  // Lines: not 0 if lines end with NUL (-z).
  uint32_t zero_terminated;
  // Threads; 0 for one a core.
  uint32_t threads;
  // All the memory that the sort may use, in bytes, at least 16 MiB; 0 for half of what is
  // available.
  uint64_t memory_bytes;
  // Places for what does not fit the memory, such as "/fast,/large:100G"; NULL for the output's
  // folder.
  const char *spill;
  // Is told how far the sort is, or NULL.
  dp_sort_progress progress;
  // What `progress` is called with.
  void *user;
  // Is given the whole report as JSON when the output is complete, or NULL.
  dp_text_told report;
  // What `report` is called with.
  void *report_user;
  // A `dp_spill_compression`: whether what does not fit the memory is compressed.
  uint32_t compression;
  // Not 0: do not wait until the output is durable. It still appears as a whole, but a power
  // failure soon afterwards may take bytes of it, as with programs that never sync.
  uint32_t no_sync;
} dp_sort_options;

// Gives the next bytes of what is sorted: at most `capacity` of them, into `into`, and their number
// into `*len`; 0 at the end. It is called by one thread of the library, and no more when it has
// given 0 or an error, which ends the sort.
typedef dp_error (*dp_sort_read)(void *user, void *into, size_t capacity, size_t *len);

// Takes the next bytes of what was sorted. It is called by one thread of the library, another one
// than `dp_sort_read`, and no more when it has given an error, which ends the sort.
typedef dp_error (*dp_sort_write)(void *user, const void *bytes, size_t len);

// A request as `write(2)` on the descriptor takes it, one a packet. Its answer is a
// `dp_completion_message`. The answer to a packet of another length is DP_INVALID_INPUT with the
// token `UINT64_MAX`, except that one byte has no answer: the library wakes itself with it.
typedef struct {
  // Comes back with the completion. `dp_pipe_fd_submit` counts its tokens from 0: a program that
  // also writes requests itself gives those others, such as numbers from 2^63 on.
  uint64_t token;
  // Offset in the source, in bytes.
  uint64_t source;
  // Offset in the target, in bytes.
  uint64_t target;
  // Bytes to move.
  uint64_t length;
} dp_request_message;

// A completion as `read(2)` on the descriptor gives it, one a packet. The text of the error follows
// it, up to 1024 bytes in all.
typedef struct {
  // The request's.
  uint64_t token;
  // Bytes moved.
  uint64_t bytes;
  // What the pipe's place was called when it was connected.
  uint64_t place;
  // The operating system's number, or 0.
  uint32_t errno_number;
  // A `dp_error_kind`.
  uint32_t kind;
} dp_completion_message;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns `DP_ABI_VERSION` of the library that is loaded, for comparing it with the header's.
uint32_t dp_abi_version(void);

// Returns how many handles are open in this process, for tests that search for leaks.
uint64_t dp_open_handles(void);

// Opens a cache in front of a file.
//
// Errors: DP_INVALID_INPUT for a place that is no file, and for settings that make no sense;
// DP_OUT_OF_MEMORY.
dp_error dp_cache_open(dp_machine machine,
                       dp_place file,
                       const dp_cache_options *options,
                       dp_cache *cache);

// Reads `len` bytes at `offset` of the file.
//
// Errors: DP_END_OF_FILE, DP_DEVICE; DP_BUSY where a write to the same bytes takes too long.
dp_error dp_cache_read(dp_cache cache, uint64_t offset, void *into, size_t len);

// Reads `count` pieces of `len` bytes at `offsets` of the file, one after the other into `into`,
// which has `count * len` bytes. `*failed`, if it is not NULL, becomes the index of the piece whose
// error is returned; the others were read nonetheless.
//
// Errors: as `dp_cache_read`, of the first piece that failed.
dp_error dp_cache_gather(dp_cache cache,
                         const uint64_t *offsets,
                         size_t count,
                         size_t len,
                         void *into,
                         size_t *failed);

// Writes `len` bytes at `offset` of the file, through the cache: what it has of them is the new bytes
// when this returns. They are durable after `dp_ssd_sync` of the file.
//
// Errors: DP_UNSUPPORTED for a file that is open for reading only; DP_NO_SPACE, DP_DEVICE.
dp_error dp_cache_write(dp_cache cache,
                        uint64_t offset,
                        const void *from,
                        size_t len);

// Drops all that is cached.
dp_error dp_cache_clear(dp_cache cache);

// Copies how a cache reads its file, and why, as `snprintf` does; `*len` becomes the whole length.
dp_error dp_cache_explain(dp_cache cache, char *text, size_t capacity, size_t *len);

// Copies what a cache did, as `snprintf` does; `*len` becomes the whole length. `format` is a
// `dp_format`.
dp_error dp_cache_report(dp_cache cache, uint32_t format, char *text, size_t capacity, size_t *len);

// Drops what is cached of `len` bytes at `offset`, because they were changed by others.
dp_error dp_cache_invalidate(dp_cache cache, uint64_t offset, uint64_t len);

// Copies the counters of a cache as JSON, as `snprintf` does; `*len` becomes the whole length.
dp_error dp_cache_metrics(dp_cache cache, char *text, size_t capacity, size_t *len);

// Ends a cache.
//
// Errors: DP_INVALID_INPUT for a cache that was closed.
dp_error dp_cache_close(dp_cache cache);

// Makes the two ends of a channel in this process, for programs whose stages are threads. `trust`
// is a `dp_trust`.
//
// Errors: DP_INVALID_INPUT for a shape that is out of bounds; DP_OUT_OF_MEMORY.
dp_error dp_channel_pair(dp_channel_shape shape,
                         uint32_t trust,
                         dp_sender *sender,
                         dp_receiver *receiver);

// Sets how long calls for a sender wait, in milliseconds: 0 not at all, `UINT64_MAX` until the
// channel ends. Without this it is ten seconds. A call whose time is over fails with DP_BUSY, and
// the channel can be used further.
dp_error dp_sender_set_patience(dp_sender sender, uint64_t milliseconds);

// Sends a copy of `len` bytes. They may be changed when this returns.
//
// Errors: DP_OUT_OF_RANGE for more bytes than a block holds; DP_BUSY where no credit came in time,
// and while memory is granted; the failure that a reply reported, once; DP_PERMISSION_DENIED after a
// revocation; DP_DEVICE where the other side died; DP_UNAVAILABLE where the controller ended.
dp_error dp_sender_send(dp_sender sender,
                        const void *bytes,
                        size_t len,
                        dp_block_head head);

// Waits for a credit, and gives the memory of one block, to be filled in place: `*len` bytes at
// `*bytes`, which hold older data. The address is valid until `dp_sender_send_granted`,
// `dp_sender_give_back` or `dp_sender_close`. Until then other calls that send are refused.
//
// Errors: as `dp_sender_send`.
dp_error dp_sender_grant(dp_sender sender, void **bytes, size_t *len);

// Sends the first `len` bytes of the memory that was granted.
//
// Errors: DP_INVALID_INPUT where none is; DP_OUT_OF_RANGE for more than a block holds: the memory
// is given back then; what ended the channel.
dp_error dp_sender_send_granted(dp_sender sender, size_t len, dp_block_head head);

// Gives the memory that was granted back, without sending it.
//
// Errors: DP_INVALID_INPUT where none is.
dp_error dp_sender_give_back(dp_sender sender);

// Sends a block that was received on. Its bytes are copied from memory to memory. The block stays
// the caller's.
//
// Errors: as `dp_sender_send`.
dp_error dp_sender_forward(dp_sender sender, dp_block block, dp_block_head head);

// Ends the stream with an empty block, and waits until every block was replied to: over a chain of
// devices, until all of it is done. `*word`, if it is not NULL, becomes the word of the reply to the
// end. The channel can carry another stream afterwards. `head.end` needs not be set.
//
// Errors: as `dp_sender_send`.
dp_error dp_sender_finish(dp_sender sender,
                          dp_block_head head,
                          uint64_t *word);

// Waits until every block was replied to.
//
// Errors: as `dp_sender_send`.
dp_error dp_sender_drain(dp_sender sender);

// Gives the next reply that was not taken yet, in the order in which they came; waits where there
// is none. The last replies are kept for this, as many as the channel has credits.
//
// Errors: DP_INVALID_INPUT where no block is under way; as `dp_sender_send`.
dp_error dp_sender_reply(dp_sender sender, dp_block_reply *reply);

// Gives how many blocks were sent and not replied to.
dp_error dp_sender_outstanding(dp_sender sender, uint32_t *blocks);

// Ends a sender: nothing will follow, and its receiver is told so.
//
// Errors: DP_INVALID_INPUT for a sender that was closed.
dp_error dp_sender_close(dp_sender sender);

// Sets how long calls for a receiver wait, as `dp_sender_set_patience` does.
dp_error dp_receiver_set_patience(dp_receiver receiver, uint64_t milliseconds);

// Waits for the next block. `*head` and `*len`, if they are not NULL, become what travels with it
// and the number of its bytes.
//
// Errors: DP_BUSY where none came in time; DP_END_OF_FILE where the sender closed; DP_CORRUPT where
// it broke the protocol; DP_DEVICE where it died; DP_PERMISSION_DENIED after a revocation;
// DP_UNAVAILABLE where the controller ended.
dp_error dp_receiver_receive(dp_receiver receiver,
                             dp_block *block,
                             dp_block_head *head,
                             size_t *len);

// As `dp_receiver_receive`, without waiting: `*block` becomes 0 where none has arrived.
//
// Errors: as `dp_receiver_receive`, without DP_BUSY for a block that did not come.
dp_error dp_receiver_poll(dp_receiver receiver, dp_block *block, dp_block_head *head, size_t *len);

// Waits, up to `milliseconds` (`UINT64_MAX`: until it is ended), for the next block of any of `count`
// receivers, at most 42. It looks first at the one after `last`: pass `*which` of the call before, so
// that none starves. `*which` becomes the index of the receiver whose block this is, or whose error is
// returned: that of a channel which ended (DP_END_OF_FILE) concerns no other. `*which` becomes
// `SIZE_MAX` where the error is none of a channel.
//
// Errors: as `dp_receiver_receive`; DP_BUSY where none came in time, and where a receiver is named
// twice or another thread uses one; DP_INVALID_INPUT for 0 or too many receivers; DP_UNSUPPORTED for a
// mixture of shared memory and sockets.
dp_error dp_receiver_receive_any(const dp_receiver *receivers,
                                 size_t count,
                                 size_t last,
                                 uint64_t milliseconds,
                                 size_t *which,
                                 dp_block *block,
                                 dp_block_head *head,
                                 size_t *len);

// Ends a receiver: its sender is told that no more blocks are taken.
//
// Errors: DP_INVALID_INPUT for a receiver that was closed.
dp_error dp_receiver_close(dp_receiver receiver);

// Gives the bytes of a block: `*len` of them at `*bytes`, until it is answered or closed. The first
// call makes the copy of `DP_TRUST_COPY`.
dp_error dp_block_bytes(dp_block block, const void **bytes, size_t *len);

// Copies the bytes of a block to the start of `capacity` bytes at `into`, from memory to memory.
//
// Errors: DP_OUT_OF_RANGE where the block is longer.
dp_error dp_block_copy(dp_block block, void *into, size_t capacity);

// Replies to a block, which returns its credit, and ends it. `outcome` is a `dp_block_outcome`.
//
// Errors: DP_INVALID_INPUT for a number that is none, or a block that was answered or closed;
// DP_CORRUPT where the bytes of a checked channel are not those that were sent.
dp_error dp_block_answer(dp_block block, uint32_t outcome, uint64_t word);

// Ends a block. The sender of one that was not answered is told `DP_BLOCK_DROPPED`.
//
// Errors: DP_INVALID_INPUT for a block that was answered or closed.
dp_error dp_block_close(dp_block block);

// Saves regions as a new checkpoint in a folder. It becomes visible only when all of it is durable.
// `keep` is how many checkpoints are kept, the new one included; 0 for all. `*number`, if it is not
// NULL, becomes its number.
//
// Errors: DP_BUSY while a region is written to; DP_NO_SPACE. After an error nothing of it is left.
dp_error dp_checkpoint_save(dp_machine machine,
                            const char *folder,
                            const dp_region *regions,
                            size_t count,
                            size_t keep,
                            uint64_t *number);

// Restores regions from a checkpoint; `number` 0 means the newest. `*restored`, if it is not NULL,
// becomes its number. After an error the contents of the regions are undefined.
//
// Errors: DP_NOT_FOUND; DP_INVALID_INPUT for a region of another length; DP_CORRUPT with the region
// and the offset in it.
dp_error dp_checkpoint_restore(dp_machine machine,
                               const char *folder,
                               uint64_t number,
                               const dp_region *regions,
                               size_t count,
                               uint64_t *restored);

// Copies the checkpoints of a folder as JSON, the oldest first, as `snprintf` does; `*len` becomes the
// whole length. Each has its number, its path, and its contents or why it is damaged. Only the end of
// each file is looked at.
//
// Errors: DP_NOT_FOUND where the folder is missing.
dp_error dp_checkpoint_list(dp_machine machine,
                            const char *folder,
                            char *text,
                            size_t capacity,
                            size_t *len);

// Gives the length of a region of a checkpoint in bytes; `number` 0 means the newest.
//
// Errors: DP_NOT_FOUND.
dp_error dp_checkpoint_region_length(dp_machine machine,
                                     const char *folder,
                                     uint64_t number,
                                     const char *name,
                                     uint64_t *len);

// Connects two places by a pipe that is a descriptor, with a runtime of its own.
//
// Errors: DP_UNSUPPORTED where there is no route; DP_SYSTEM where there are no descriptors left.
dp_error dp_connect_fd(dp_machine machine, dp_place source, dp_place target, dp_pipe_fd *pipe);

// Connects two places by a pipe of a runtime that is a descriptor. `place` comes back with its
// completions; `depth` is how many transfers it takes before it stops being writable, 0 for 64.
//
// Errors: as `dp_connect_fd`.
dp_error dp_runtime_connect_fd(dp_runtime runtime,
                               dp_place source,
                               dp_place target,
                               const dp_constraints *constraints,
                               const dp_service *service,
                               uint64_t place,
                               uint32_t depth,
                               dp_pipe_fd *pipe);

// Gives the descriptor, for poll, select and epoll: writable when it can take a transfer, readable
// when one is done. It belongs to the pipe: do not close it.
dp_error dp_pipe_fd_descriptor(dp_pipe_fd pipe, int32_t *descriptor);

// Starts a transfer; `*token`, if it is not NULL, becomes the number that comes back with its
// completion.
//
// Errors: DP_BUSY while the descriptor is not writable. What starting the transfer meets comes as
// its completion. A service's pipe also refuses spans beyond its memory (DP_OUT_OF_RANGE) and bytes
// that are leased in this process (DP_BUSY) at once.
dp_error dp_pipe_fd_submit(dp_pipe_fd pipe, dp_span span, uint64_t *token);

// Takes a transfer that is done, if there is one; it does not block. `*is_there` becomes 0 or 1.
//
// Errors: DP_UNAVAILABLE where the runtime or the service is gone.
dp_error dp_pipe_fd_complete(dp_pipe_fd pipe, dp_completion *completion, uint32_t *is_there);

// Sleeps until a transfer is done, and takes it.
//
// Errors: DP_UNAVAILABLE where the runtime or the service is gone.
dp_error dp_pipe_fd_complete_wait(dp_pipe_fd pipe, dp_completion *completion);

// Copies the route of a pipe, with reasons, as `snprintf` does; `*len` becomes its whole length.
// `format` is a `dp_format`. The route of a service's pipe is text only, as the service describes
// it.
//
// Errors: DP_UNSUPPORTED for the JSON of a service's pipe.
dp_error dp_pipe_fd_route(dp_pipe_fd pipe,
                          uint32_t format,
                          char *text,
                          size_t capacity,
                          size_t *len);

// Ends a pipe and closes its descriptor. It waits for the transfers of a service's pipe. A thread
// that waits in `dp_pipe_fd_complete_wait` for a pipe of a runtime gets DP_UNAVAILABLE.
//
// Errors: DP_INVALID_INPUT for a pipe that was closed.
dp_error dp_pipe_fd_close(dp_pipe_fd pipe);

// Makes a graph without devices. The shape, the trust of receivers in senders (a `dp_trust`) and the
// carrier (a `dp_carrier`) are those of its channels.
//
// Errors: DP_INVALID_INPUT for a shape that is out of bounds.
dp_error dp_device_graph_new(dp_channel_shape shape,
                             uint32_t trust,
                             uint32_t carrier,
                             dp_device_graph *graph);

// Adds a device; `*node` becomes its number. Node 0 is the program itself. `role` is JSON, such as
// `{"transform": {"function": "crc32"}}` (docs/c.md lists the roles). A place in it names one of the
// `count` descriptors by its index. They are duplicated, and stay the caller's.
//
// Errors: DP_INVALID_INPUT for a role that is none, or a descriptor that is not open.
dp_error dp_device_graph_device(dp_device_graph graph,
                                const char *name,
                                const char *role,
                                const int32_t *descriptors,
                                size_t count,
                                uint32_t *node);

// Adds the other end of a link: a part of a graph on another machine; `*node` becomes its number. It
// takes one edge. The flow owns the link, and revokes it at its end.
dp_error dp_device_graph_elsewhere(dp_device_graph graph,
                                   dp_capability link,
                                   uint32_t *node);

// Lets blocks flow from one node to another. Several edges from a node are a fan-out, several edges
// to a node a fan-in.
//
// Errors: DP_INVALID_INPUT for an edge from a node to itself, and for a node of another graph.
dp_error dp_device_graph_connect(dp_device_graph graph, uint32_t from, uint32_t to);

// As `dp_device_graph_connect`, with another shape and another trust.
//
// Errors: as `dp_device_graph_connect`; DP_INVALID_INPUT for a trust that needs checks over a shape
// without.
dp_error dp_device_graph_connect_with(dp_device_graph graph,
                                      uint32_t from,
                                      uint32_t to,
                                      dp_channel_shape shape,
                                      uint32_t trust);

// Starts the devices of a graph, and connects them by a `dp_placement`. The graph is closed by this,
// also where it fails; only where an argument is refused it stays as it was.
//
// Errors: DP_INVALID_INPUT for a graph without edges; DP_DEVICE for a device that does not start;
// DP_OUT_OF_MEMORY.
dp_error dp_device_graph_start(dp_device_graph graph,
                               dp_fabric fabric,
                               uint32_t placement,
                               dp_flow *flow);

// Ends a graph that was not started.
//
// Errors: DP_INVALID_INPUT for a graph that was started or closed.
dp_error dp_device_graph_close(dp_device_graph graph);

// Takes the program's sending end with this number, in the order of the edges that begin at it.
//
// Errors: DP_INVALID_INPUT where it was taken already, or there is none.
dp_error dp_flow_sender(dp_flow flow, size_t number, dp_sender *sender);

// Takes the program's receiving end with this number, in the order of the edges that end at it.
//
// Errors: DP_INVALID_INPUT where it was taken already, or there is none.
dp_error dp_flow_receiver(dp_flow flow, size_t number, dp_receiver *receiver);

// Gives the party of a device, to which capabilities can be delegated.
//
// Errors: DP_INVALID_INPUT for a node that is no device of this flow.
dp_error dp_flow_device(dp_flow flow, uint32_t node, uint32_t *party);

// Gives the capability of a wire, which `dp_fabric_revoke` cuts. `dp_flow_describe` lists the wires.
//
// Errors: DP_OUT_OF_RANGE for a wire that is none.
dp_error dp_flow_capability(dp_flow flow,
                            size_t wire,
                            dp_capability *capability);

// Copies the placement of a flow, why it was chosen, and its wires, one a line, as `snprintf` does.
dp_error dp_flow_describe(dp_flow flow, char *text, size_t capacity, size_t *len);

// Waits for a device's next report on a stream, up to `milliseconds`, and copies it as JSON, as
// `snprintf` does. A report is given once, also where the text was cut.
//
// Errors: DP_BUSY where none came in time; DP_DEVICE where the device ended, or its stream failed.
dp_error dp_flow_report(dp_flow flow,
                        uint32_t node,
                        uint64_t milliseconds,
                        char *text,
                        size_t capacity,
                        size_t *len);

// Ends a flow: revokes its channels and stops its devices. Ends that were taken fail from then on.
//
// Errors: DP_INVALID_INPUT for a flow that was closed; DP_UNAVAILABLE where the controller ended, and
// with it the devices. The flow is closed nonetheless.
dp_error dp_flow_close(dp_flow flow);

// Creates a memory of `len` zeroed bytes. The capability has all rights to it: `dp_fabric_delegate` gives
// others the right to read or write, `dp_fabric_activate` makes a view of it, and `dp_fabric_revoke`
// takes both away.
//
// Errors: DP_INVALID_INPUT for 0 bytes; DP_OUT_OF_MEMORY.
dp_error dp_fabric_memory(dp_fabric fabric,
                          uint64_t len,
                          dp_capability *capability);

// Takes the program's view of a memory at a port. It waits for that, up to `milliseconds`.
//
// Errors: DP_BUSY where it was not there in time; DP_NOT_FOUND for the port of a channel;
// DP_UNAVAILABLE where the controller ended.
dp_error dp_fabric_endpoint(dp_fabric fabric,
                            const char *port,
                            uint64_t milliseconds,
                            dp_endpoint *endpoint);

// Gives the length of a memory in bytes, and whether this view may write it. Either pointer may be
// NULL.
dp_error dp_endpoint_facts(dp_endpoint endpoint, uint64_t *len, uint32_t *writable);

// Copies `len` bytes at `at` out of a memory.
//
// Errors: DP_OUT_OF_RANGE; DP_PERMISSION_DENIED after a revocation; DP_FORKED.
dp_error dp_endpoint_read(dp_endpoint endpoint, uint64_t at, void *into, size_t len);

// Copies `len` bytes into a memory at `at`.
//
// Errors: as `dp_endpoint_read`; DP_PERMISSION_DENIED for a view that may only be read.
dp_error dp_endpoint_write(dp_endpoint endpoint, uint64_t at, const void *from, size_t len);

// Ends a view of a memory.
//
// Errors: DP_INVALID_INPUT for one that was closed.
dp_error dp_endpoint_close(dp_endpoint endpoint);

// Returns what can be done about an error, a `dp_error_kind`.
uint32_t dp_error_kind_of(dp_error error);

// Returns the operating system's number; 0 if there is none.
int32_t dp_error_errno(dp_error error);

// Returns the offset in bytes at which it happened; `UINT64_MAX` if it has none.
uint64_t dp_error_offset(dp_error error);

// Returns how many bytes were moved before the error.
uint64_t dp_error_bytes_done(dp_error error);

// Returns the whole text of an error, in UTF-8. It is valid until the error is closed.
const char *dp_error_message(dp_error error);

// Makes an error, for a callback to return. `kind` is a `dp_error_kind`; one that is not is
// DP_SYSTEM. In `message`, what is not UTF-8 is replaced.
dp_error dp_error_new(uint32_t kind, const char *message);

// As `dp_error_new`, with what else the error has: for passing on an error with all of its parts.
// Facts that make no sense are ignored; NULL for none.
dp_error dp_error_new_with(uint32_t kind, const char *message, const dp_error_facts *facts);

// Ends an error. Success (0) is no error and is ignored, and so is an error that was closed.
void dp_error_close(dp_error error);

// If this process was started as a controller or a device, runs as that, and sets `*code` to the
// exit code for `main`; in all other processes sets it to -1. Call it first in `main`, before there
// are threads, with the functions that devices may be told to run (NULL and 0 for none): devices are
// processes of the same program.
//
// Errors: DP_INVALID_INPUT for a function without a name or without work.
dp_error dp_fabric_enter(const dp_device_function *functions,
                         size_t count,
                         int32_t *code);

// As `dp_fabric_enter`, with bodies that devices may be told to have.
//
// Errors: as `dp_fabric_enter`.
dp_error dp_fabric_enter_with(const dp_device_function *functions,
                              size_t count,
                              const dp_device_body *bodies,
                              size_t body_count,
                              int32_t *code);

// Starts a controller. `program` is the program that runs as controller and devices, whose `main`
// begins with `dp_fabric_enter`; NULL for this one.
//
// Errors: DP_NOT_FOUND where the program does not exist; DP_UNAVAILABLE where it cannot act as a
// controller.
dp_error dp_fabric_start(const char *program, dp_fabric *fabric);

// Copies what the controller has as JSON, as `snprintf` does: devices, channels, capabilities.
//
// Errors: DP_UNAVAILABLE where the controller ended.
dp_error dp_fabric_status(dp_fabric fabric, char *text, size_t capacity, size_t *len);

// Creates a channel. The capability has all rights to it. `carrier` is a `dp_carrier`.
//
// Errors: DP_INVALID_INPUT for a shape that is out of bounds; DP_OUT_OF_MEMORY.
dp_error dp_fabric_channel(dp_fabric fabric,
                           dp_channel_shape shape,
                           uint32_t carrier,
                           dp_capability *capability);

// Gives a party a capability with the same rights or fewer. The application is party 0; that of a
// device is given by `dp_flow_device`. `rights` is a sum of `dp_right`.
//
// Errors: DP_PERMISSION_DENIED for more rights, or without the right to delegate; DP_NOT_FOUND for a
// capability that was revoked, or a party that ended.
dp_error dp_fabric_delegate(dp_fabric fabric,
                            dp_capability from,
                            uint32_t party,
                            uint32_t rights,
                            dp_capability *capability);

// Removes a capability and all that was delegated from it, also while blocks are under way: when
// this returns, both ends of the channel are cut off. `*removed`, if it is not NULL, becomes how
// many were removed.
//
// Errors: DP_NOT_FOUND for one that was revoked; DP_PERMISSION_DENIED for that of another party.
dp_error dp_fabric_revoke(dp_fabric fabric, dp_capability capability, size_t *removed);

// Makes an end of a channel, or a view of a memory, at the holder of a capability, which knows it by
// the name `port`. A channel works when both ends exist. `right` is `DP_RIGHT_SEND` or
// `DP_RIGHT_RECEIVE`, or a sum of `DP_RIGHT_READ` and `DP_RIGHT_WRITE`; `trust`, a `dp_trust`, matters
// for a receiver.
//
// Errors: DP_PERMISSION_DENIED where the capability lacks the right; DP_BUSY where that end exists.
dp_error dp_fabric_activate(dp_fabric fabric,
                            dp_capability capability,
                            const char *port,
                            uint32_t right,
                            uint32_t trust);

// Takes the program's sending end at a port, once the channel works (over a socket, once this end
// exists). It waits for that, up to `milliseconds`.
//
// Errors: DP_BUSY where it did not work in time; DP_NOT_FOUND for a receiving port; DP_UNAVAILABLE
// where the controller ended.
dp_error dp_fabric_sender(dp_fabric fabric,
                          const char *port,
                          uint64_t milliseconds,
                          dp_sender *sender);

// Takes the program's receiving end at a port, as `dp_fabric_sender` does.
//
// Errors: as `dp_fabric_sender`.
dp_error dp_fabric_receiver(dp_fabric fabric,
                            const char *port,
                            uint64_t milliseconds,
                            dp_receiver *receiver);

// Offers one half of a channel to another machine, whose controller joins it. The controller listens
// at the address; with port 0 it takes any. The address is copied as `snprintf` does.
//
// Errors: DP_INVALID_INPUT for an address, a key, a side or a shape that is none; those of listening.
dp_error dp_fabric_offer(dp_fabric fabric,
                         const dp_link *link,
                         dp_capability *capability,
                         char *address,
                         size_t capacity,
                         size_t *len);

// Joins the half of a channel that another controller offers at the address.
//
// Errors: DP_INVALID_INPUT for an address, a key, a side or a shape that is none. `dp_fabric_joined`
// tells whether the other controller is there.
dp_error dp_fabric_join(dp_fabric fabric,
                        const dp_link *link,
                        dp_capability *capability);

// Waits until a link that was offered or joined is connected, up to `milliseconds`. It is told once.
//
// Errors: DP_BUSY where it was not in time; DP_DEVICE where it cannot be connected.
dp_error dp_fabric_joined(dp_fabric fabric,
                          dp_capability link,
                          uint64_t milliseconds);

// Ends a fabric: its controller, its devices and its channels. It lives on until its last flow is
// closed.
//
// Errors: DP_INVALID_INPUT for a fabric that was closed.
dp_error dp_fabric_close(dp_fabric fabric);

// Makes a graph without stages. `name` is for messages.
dp_error dp_graph_new(const char *name, dp_graph *graph);

// Declares `count` buffers of which an item holds one, numbered from 0; `*set` becomes the number
// of the set.
dp_error dp_graph_buffers(dp_graph graph, size_t count, uint32_t *set);

// Declares a stage that moves the span which `span_of(item, user, &span)` gives; `*stage` becomes
// its number.
dp_error dp_graph_pipe(dp_graph graph,
                       const char *name,
                       dp_runtime_pipe pipe,
                       dp_span_of span_of,
                       void *user,
                       uint32_t *stage);

// Declares a stage that computes by `work(item, user)`; `*stage` becomes its number.
dp_error dp_graph_compute(dp_graph graph,
                          const char *name,
                          dp_work work,
                          void *user,
                          uint32_t *stage);

// The stage begins with an item when an earlier stage is done with it.
//
// Errors: DP_INVALID_INPUT for a stage that was declared later.
dp_error dp_graph_after(dp_graph graph, uint32_t stage, uint32_t earlier);

// The stage works with a buffer of a set. The item holds it from its first stage that does to its
// last.
dp_error dp_graph_uses(dp_graph graph, uint32_t stage, uint32_t set);

// The stage takes items one at a time, in their order.
dp_error dp_graph_in_order(dp_graph graph, uint32_t stage);

// Sets how many threads compute, at most; as many as cores are usable if it is not called.
dp_error dp_graph_threads(dp_graph graph, uint32_t threads);

// Runs `items` items through a graph, on this thread and those of the runtime; returns when all are
// done, or after the first error. A report is copied as `snprintf` does, if `text` is not NULL;
// `*len`, if it is not NULL, becomes its whole length. `format` is a `dp_format`.
//
// Errors: the first of a transfer or of a function of the caller's.
dp_error dp_graph_run(dp_runtime runtime,
                      dp_graph graph,
                      uint64_t items,
                      uint32_t format,
                      char *text,
                      size_t capacity,
                      size_t *len);

// As `dp_graph_run`; `told(user, text, len)` is given the whole report, however long it is.
//
// Errors: as `dp_graph_run`; what `told` returned.
dp_error dp_graph_run_told(dp_runtime runtime,
                           dp_graph graph,
                           uint64_t items,
                           uint32_t format,
                           dp_text_told told,
                           void *user);

// Gives the number of an item, from 0.
uint64_t dp_item_index(const dp_item *item);

// Gives the number of the buffer that an item holds of a set.
//
// Errors: DP_INVALID_INPUT where the stage does not use the set.
dp_error dp_item_buffer(const dp_item *item, uint32_t set, size_t *buffer);

// Ends a graph.
//
// Errors: DP_INVALID_INPUT for a graph that was closed.
dp_error dp_graph_close(dp_graph graph);

// Opens the log in a folder for appending, and makes it if there is none.
//
// Errors: DP_BUSY where another writer has it; DP_CORRUPT.
dp_error dp_log_open(dp_machine machine,
                     const char *folder,
                     const dp_log_options *options,
                     dp_log *log);

// Appends a record. It is durable when a later `dp_log_sync` or `dp_log_append_durable` has returned.
// `*number`, if it is not NULL, becomes its number.
//
// Errors: DP_INVALID_INPUT for a record that is too long; DP_NO_SPACE, DP_DEVICE.
dp_error dp_log_append(dp_log log,
                       const void *record,
                       size_t len,
                       uint64_t *number);

// Appends a record and returns when it is durable. Records of several threads share a write.
//
// Errors: as `dp_log_append`.
dp_error dp_log_append_durable(dp_log log, const void *record, size_t len, uint64_t *number);

// Returns when all records that were appended before are durable.
dp_error dp_log_sync(dp_log log);

// Gives up the records before `number`, as far as whole segments hold nothing else.
dp_error dp_log_release_before(dp_log log, uint64_t number);

// Copies what a log did as JSON, as `snprintf` does; `*len` becomes its whole length.
dp_error dp_log_stats(dp_log log, char *text, size_t capacity, size_t *len);

// Reads the whole log in a folder, and copies what is in it as JSON, as `snprintf` does: its records,
// whether its end is torn off, and what is damaged. `*len` becomes the whole length.
//
// Errors: DP_NOT_FOUND where there is no log. Damage is no error: it is told.
dp_error dp_log_examine(dp_machine machine,
                        const char *folder,
                        char *text,
                        size_t capacity,
                        size_t *len);

// Makes what was appended durable, and ends the log.
//
// Errors: DP_BUSY while another thread appends: the log stays open; those of writing.
dp_error dp_log_close(dp_log log);

// Opens a reader of the log in a folder, from record `from` on; 0 for the first that there is.
//
// Errors: DP_NOT_FOUND where there is no log; DP_OUT_OF_RANGE for a record that was released.
dp_error dp_log_read(dp_machine machine, const char *folder, uint64_t from, dp_log_reader *reader);

// Reads the next record: `*len` bytes at `*record`, which are valid until the next call for this
// reader. At the end of the log `*record` becomes NULL.
//
// Errors: DP_CORRUPT, DP_DEVICE.
dp_error dp_log_reader_next(dp_log_reader reader,
                            uint64_t *number,
                            const void **record,
                            size_t *len);

// Ends a reader.
//
// Errors: DP_INVALID_INPUT for a reader that was closed.
dp_error dp_log_reader_close(dp_log_reader reader);

// Discovers the machine: its cores, caches, memories, and the primitives that it has.
dp_error dp_machine_discover(dp_machine *machine);

// Ends a machine. Pipes and runtimes that were made from it live on.
//
// Errors: DP_INVALID_INPUT for a machine that was closed.
dp_error dp_machine_close(dp_machine machine);

// Gives the number of usable cores and the size of the smallest one's L2 cache in bytes (figure
// 6a's `CacheSize`). Either pointer may be NULL.
dp_error dp_machine_cores(dp_machine machine, uint32_t *cores, uint64_t *l2_bytes);

// Gives the position among the usable cores of the core that runs this thread now (figure 6a's
// `core_idx`).
//
// Errors: DP_UNAVAILABLE if it is not among the usable ones.
dp_error dp_machine_current_core(dp_machine machine, uint32_t *core);

// Calls `work(core, user)` on every usable core at once, each call on a thread bound to its core;
// `core` is its position. Returns the first error that `work` returned, or what starting the
// threads met. `work` must be safe to call from several threads.
dp_error dp_machine_each_core(dp_machine machine,
                              dp_error (*work)(uint32_t core, void *user),
                              void *user);

// Copies the route that connecting two places would take, with the reasons, as `snprintf` does;
// `*len` becomes its whole length. `format` is a `dp_format`.
//
// Errors: DP_UNSUPPORTED where there is no route.
dp_error dp_explain(dp_machine machine,
                    dp_place source,
                    dp_place target,
                    const dp_constraints *constraints,
                    uint32_t format,
                    char *text,
                    size_t capacity,
                    size_t *len);

// Copies what was discovered, as `snprintf` does; `*len` becomes its whole length. `format` is a
// `dp_format`.
dp_error dp_machine_describe(dp_machine machine,
                             uint32_t format,
                             char *text,
                             size_t capacity,
                             size_t *len);

// Connects two places by the best route that this machine has and that meets the constraints.
//
// Errors: DP_UNSUPPORTED where there is no route, with what each primitive lacks.
dp_error dp_connect(dp_machine machine,
                    dp_place source,
                    dp_place target,
                    const dp_constraints *constraints,
                    dp_pipe *pipe);

// Moves a span; returns when the bytes are there.
//
// Errors: DP_OUT_OF_RANGE, DP_BUSY, DP_END_OF_FILE, DP_NO_SPACE, DP_DEVICE; those of I/O have errno,
// offset and the bytes done.
dp_error dp_pipe_transfer(dp_pipe pipe,
                          dp_span span);

// Moves many spans; returns when all are there. Where the route has a queue, many are under way at
// once, in no particular order; neighbors that continue each other at both ends are moved as one.
// `*bytes`, if it is not NULL, becomes the number of their bytes.
//
// Errors: before anything moves, DP_OUT_OF_RANGE for a span beyond an end, DP_INVALID_INPUT for spans
// that write the same bytes; later, the error of the failed span that comes first, after everything
// that was started has ended. The text names the span's number, from 0, and `dp_error_bytes_done`
// counts the bytes of all spans that were moved.
dp_error dp_pipe_transfer_all(dp_pipe pipe,
                              const dp_span *spans,
                              size_t count,
                              uint64_t *bytes);

// Starts a transfer. Where the route has no queue, it is complete on return.
//
// Errors: DP_OUT_OF_RANGE, DP_BUSY: nothing was started.
dp_error dp_pipe_start(dp_pipe pipe, dp_span span, dp_transfer *transfer);

// Waits until the bytes are there, and ends the handle, also where it returns an error.
//
// Errors: the transfer's own; DP_INVALID_INPUT for a transfer that was waited for or closed.
dp_error dp_transfer_wait(dp_transfer transfer);

// Tells whether `dp_transfer_wait` would return at once: `*done` becomes 0 or 1.
dp_error dp_transfer_is_done(dp_transfer transfer, uint32_t *done);

// Forgets a transfer: it is carried out, and its result is lost.
//
// Errors: DP_INVALID_INPUT for a transfer that was waited for or closed.
dp_error dp_transfer_close(dp_transfer transfer);

// Copies the route of a pipe, with reasons, as `snprintf` does; `*len` becomes its whole length.
// `format` is a `dp_format`.
dp_error dp_pipe_route(dp_pipe pipe, uint32_t format, char *text, size_t capacity, size_t *len);

// Copies what really happened on a pipe so far, as `snprintf` does; `*len` becomes its whole
// length. `format` is a `dp_format`.
dp_error dp_pipe_report(dp_pipe pipe, uint32_t format, char *text, size_t capacity, size_t *len);

// Gives a descriptor that is readable (`poll`, `epoll`) when transfers that were started on the pipe
// may be done: then ask `dp_transfer_is_done` of each. It is the pipe's, and must neither be read nor
// closed; it ends with the pipe. Where the route has none, as copies between memories, which are
// complete when they are started, it becomes -1.
//
// Errors: DP_FORKED in a child of the process that connected the pipe.
dp_error dp_pipe_event(dp_pipe pipe,
                       int32_t *descriptor);

// Ends a pipe; waits for what it started.
//
// Errors: DP_INVALID_INPUT for a pipe that was closed.
dp_error dp_pipe_close(dp_pipe pipe);

// Allocates main memory: zeroed, prefaulted, on huge pages where the kernel has them.
//
// Errors: DP_INVALID_INPUT for 0 bytes; DP_OUT_OF_MEMORY for more bytes than there are.
dp_error dp_dram_allocate(uint64_t len, const dp_memory_options *options, dp_place *place);

// Allocates main memory for `len` bytes at `offset` of a file, at an address that agrees with the
// offset modulo a page. So direct transfers from there, and of parts at the same distance, bounce at
// their two edges only.
//
// Errors: as `dp_dram_allocate`; DP_INVALID_INPUT for a place that is no file.
dp_error dp_dram_allocate_for(dp_place file,
                              uint64_t offset,
                              uint64_t len,
                              const dp_memory_options *options,
                              dp_place *place);

// Makes memory of the `len` bytes at `offset` of a file without reading them: what the page cache has
// is used where it is. What is written to the memory stays there, and changes no file. If the file is
// truncated, its pages are gone: transfers, `dp_place_read` and `dp_place_write` return DP_DEVICE.
// The bytes are not leased, because others may change the file.
//
// Errors: DP_INVALID_INPUT for a place that is no file, or 0 bytes; DP_OUT_OF_RANGE where the file ends
// before; DP_PERMISSION_DENIED for a file that is open for writing only.
dp_error dp_dram_map_file(dp_place file,
                          uint64_t offset,
                          uint64_t len,
                          dp_place *place);

// Gives the share of a file that the page cache has, from 0 to 1.
//
// Errors: DP_INVALID_INPUT for a place that is no file; DP_UNAVAILABLE where the kernel does not tell.
dp_error dp_ssd_cached_share(dp_place file,
                             double *share);

// Takes `len` bytes of the caller's at `address` as a place. `release(user)`, if it is not NULL, is
// called once: when nothing of the library refers to the bytes any more, by whatever thread that
// is; or before this function returns, if it fails. Until then the bytes must stay valid, and
// nobody may access them while a lease or a transfer holds them. They must not be those of a mapped
// file that may be cut off: the library does not know the file, and a copy from a page that is gone
// ends the process (SIGBUS). `dp_dram_map_file` and `dp_pmem_open` map files.
//
// Errors: DP_INVALID_INPUT for 0 bytes and NULL; DP_OUT_OF_RANGE for bytes beyond the addresses of
// a process.
dp_error dp_dram_foreign(void *address,
                         uint64_t len,
                         void (*release)(void *user),
                         void *user,
                         dp_place *place);

// Allocates memory on a NUMA node.
//
// Errors: DP_NOT_FOUND for a node that does not exist; DP_OUT_OF_MEMORY.
dp_error dp_numa_allocate(uint32_t node, uint64_t len, dp_place *place);

// Makes the cache of a core a place, over memory that backs it. `core` is a position among the
// usable cores, from 0; `level` is 1 to 3, or 0 for the private cache (L2).
//
// Errors: DP_INVALID_INPUT for a place that is not memory; DP_OUT_OF_RANGE for memory larger than
// the cache.
dp_error dp_core_cache(dp_machine machine,
                       uint32_t core,
                       uint32_t level,
                       dp_place backing,
                       dp_place *place);

// Opens a file or a block device. `mode` is a `dp_open_mode`, `access` a `dp_access`.
//
// Errors: DP_NOT_FOUND, DP_PERMISSION_DENIED; DP_INVALID_INPUT for what is not a file;
// DP_UNAVAILABLE for DP_DIRECT where the file system cannot: this is seen only when the file is
// open, so that a mode that creates or empties has done so.
dp_error dp_ssd_open(const char *path, uint32_t mode, uint32_t access, dp_place *place);

// Makes an open file a place. The descriptor is duplicated and stays the caller's. `name` is for
// messages.
//
// Errors: DP_INVALID_INPUT for what is not a file.
dp_error dp_ssd_from_descriptor(int32_t descriptor,
                                const char *name,
                                uint32_t access,
                                dp_place *place);

// Sets the length of a file.
//
// Errors: DP_INVALID_INPUT for a place that is no file; those of ftruncate(2).
dp_error dp_ssd_set_length(dp_place place, uint64_t len);

// Makes room for `len` bytes of a file, so that writes to them do not run out of space.
//
// Errors: DP_NO_SPACE; DP_INVALID_INPUT for a place that is no file.
dp_error dp_ssd_preallocate(dp_place place, uint64_t len);

// Waits until what was written to a file is durable.
//
// Errors: DP_DEVICE; DP_INVALID_INPUT for a place that is no file.
dp_error dp_ssd_sync(dp_place place);

// Opens a file of persistent memory, or a device such as `/dev/dax0.0`, as a place. It has the first
// `len` bytes, and the file is made or made longer if need be; 0 for all that there are. With
// `emulated` not 0 it may be any file, whose bytes survive a crash only once `dp_pmem_sync` has
// returned.
//
// Errors: DP_UNAVAILABLE where stores would not be persistent; DP_NOT_FOUND, DP_PERMISSION_DENIED;
// those of mmap(2).
dp_error dp_pmem_open(const char *path,
                      uint64_t len,
                      uint32_t emulated,
                      dp_place *place);

// Waits until what was written to persistent memory survives a power failure. It is needed where
// an ordinary file stands in for it, and for bytes that were not written by a transfer.
//
// Errors: DP_DEVICE; DP_INVALID_INPUT for a place that is no persistent memory.
dp_error dp_pmem_sync(dp_place place);

// Opens several places that are used as one, such as `"dram:1G,/fast,/large:100G"`: the library
// chooses where bytes go. With `by_cost` not 0 the places are ordered by the cost of this machine's
// routes, otherwise as they are listed.
//
// Errors: DP_INVALID_INPUT for a list that makes no sense; those of opening the places.
dp_error dp_staging_open(dp_machine machine, const char *places, uint32_t by_cost, dp_place *place);

// Takes an extent of a staging: `len` bytes at `*offset` of it.
//
// Errors: DP_NO_SPACE; DP_INVALID_INPUT for a place that is no staging.
dp_error dp_staging_extent(dp_place place, uint64_t len, uint64_t *offset);

// Gives an extent of a staging back, or a part of one.
//
// Errors: DP_INVALID_INPUT for a place that is no staging, and for bytes of which some were given back
// already or never taken: then none are given back. DP_FORKED.
dp_error dp_staging_free(dp_place place,
                         uint64_t offset,
                         uint64_t len);

// Makes a place of `len` bytes at `at` of a place in memory: the same bytes.
//
// Errors: DP_OUT_OF_RANGE; DP_INVALID_INPUT for a place that is not in memory.
dp_error dp_place_range(dp_place place, uint64_t at, uint64_t len, dp_place *part);

// Gives the length of a place in bytes. That of a file is its length now.
//
// Errors: DP_UNSUPPORTED for a place without a length.
dp_error dp_place_length(dp_place place, uint64_t *len);

// Copies the name of a place, as in routes and messages, as `snprintf` does; `*len` becomes its
// whole length.
dp_error dp_place_name(dp_place place, char *text, size_t capacity, size_t *len);

// Ends a place. Its bytes live on as long as pipes and leases refer to them.
//
// Errors: DP_INVALID_INPUT for a place that was closed.
dp_error dp_place_close(dp_place place);

// Copies `len` bytes at `at` of a place in memory to `into`, also where leases are refused because
// others may change the bytes (persistent memory, shared memory). The copy may mix old and new
// bytes if they do meanwhile.
//
// Errors: DP_OUT_OF_RANGE; DP_BUSY while a lease or transfer may write them; DP_INVALID_INPUT for a
// place that is not in memory.
dp_error dp_place_read(dp_place place, uint64_t at, void *into, size_t len);

// Copies `len` bytes at `from` to `at` of a place in memory, also where leases are refused.
//
// Errors: DP_OUT_OF_RANGE; DP_BUSY while a lease or transfer holds them; DP_INVALID_INPUT for a place
// that is not in memory.
dp_error dp_place_write(dp_place place,
                        uint64_t at,
                        const void *from,
                        size_t len);

// Leases the bytes of a place in memory for reading: `*len` bytes at `*address`.
//
// Errors: DP_BUSY while another lease or transfer may write them; DP_UNSUPPORTED for bytes that
// others may change (persistent memory, shared memory).
dp_error dp_lease_read(dp_place place, dp_lease *lease, const void **address, size_t *len);

// Leases the bytes of a place in memory for writing: `*len` bytes at `*address`.
//
// Errors: DP_BUSY while another lease or transfer holds them; DP_UNSUPPORTED for bytes that others
// may change (persistent memory, shared memory).
dp_error dp_lease_write(dp_place place, dp_lease *lease, void **address, size_t *len);

// Ends a lease. Its address must not be used any more.
//
// Errors: DP_INVALID_INPUT for a lease that was closed.
dp_error dp_lease_close(dp_lease lease);

// Starts a runtime.
//
// Errors: DP_INVALID_INPUT for options that make no sense; DP_SYSTEM where threads are refused.
dp_error dp_runtime_start(dp_machine machine,
                          const dp_runtime_options *options,
                          dp_runtime *runtime);

// Connects two places by a pipe of the runtime.
//
// Errors: DP_UNSUPPORTED where there is no route, or where the rate cannot be promised.
dp_error dp_runtime_connect(dp_runtime runtime,
                            dp_place source,
                            dp_place target,
                            const dp_constraints *constraints,
                            const dp_service *service,
                            dp_runtime_pipe *pipe);

// Starts a transfer; waits for room where the pipe's queue is full.
//
// Errors: DP_OUT_OF_RANGE, DP_BUSY: nothing was started.
dp_error dp_runtime_pipe_transfer(dp_runtime_pipe pipe, dp_span span, dp_future *future);

// Starts a transfer and has `callback(user, result)` called once when it is done. If it cannot be
// started, the callback is called with the reason before this function returns.
void dp_runtime_pipe_transfer_then(dp_runtime_pipe pipe,
                                   dp_span span,
                                   dp_callback callback,
                                   void *user);

// Waits until the bytes are there, and ends the handle, also where it returns an error.
//
// Errors: the transfer's own; DP_INVALID_INPUT for a future that was waited for or closed.
dp_error dp_future_wait(dp_future future);

// Tells whether `dp_future_wait` would return at once: `*done` becomes 0 or 1.
dp_error dp_future_is_done(dp_future future, uint32_t *done);

// Has `callback(user, result)` called once when the transfer is done, and ends the handle. For a
// future that was waited for or closed, the callback is called with DP_INVALID_INPUT before this
// function returns.
void dp_future_on_done(dp_future future, dp_callback callback, void *user);

// Stops a transfer as far as it was not begun, returns when nothing touches its bytes any more,
// and ends the handle. `*stopped`, if it is not NULL, becomes 1 if it was stopped and 0 if it was
// complete before.
//
// Errors: the transfer's own, if it failed by itself.
dp_error dp_future_cancel(dp_future future, uint32_t *stopped);

// Forgets a transfer: it is carried out, and its result is lost.
//
// Errors: DP_INVALID_INPUT for a future that was waited for or closed.
dp_error dp_future_close(dp_future future);

// Waits until all transfers of a pipe so far are done.
dp_error dp_runtime_pipe_drain(dp_runtime_pipe pipe);

// Copies the route of a pipe, with reasons, as `snprintf` does; `*len` becomes its whole length.
// `format` is a `dp_format`.
dp_error dp_runtime_pipe_route(dp_runtime_pipe pipe,
                               uint32_t format,
                               char *text,
                               size_t capacity,
                               size_t *len);

// Copies what really happened on a pipe so far, as `snprintf` does; `*len` becomes its whole
// length. `format` is a `dp_format`.
dp_error dp_runtime_pipe_report(dp_runtime_pipe pipe,
                                uint32_t format,
                                char *text,
                                size_t capacity,
                                size_t *len);

// Ends a pipe of a runtime. Transfers that were started are carried out.
//
// Errors: DP_INVALID_INPUT for a pipe that was closed.
dp_error dp_runtime_pipe_close(dp_runtime_pipe pipe);

// Copies what a runtime did and is doing, as `snprintf` does; `*len` becomes the whole length.
// `format` is a `dp_format`; its text is the JSON in lines.
dp_error dp_runtime_report(dp_runtime runtime,
                           uint32_t format,
                           char *text,
                           size_t capacity,
                           size_t *len);

// Waits until all transfers of a runtime so far are done.
dp_error dp_runtime_drain(dp_runtime runtime);

// Ends a runtime: waits for its transfers and stops its threads. Its pipes refuse transfers then.
//
// Errors: DP_INVALID_INPUT for a runtime that was closed.
dp_error dp_runtime_close(dp_runtime runtime);

// Allocates memory that can be passed to the service: zeroed, on ordinary pages. In this process it
// is a place like any other, but other processes may change its bytes, so leases on it are refused:
// use `dp_place_read` and `dp_place_write`.
//
// Errors: DP_INVALID_INPUT for 0 bytes; DP_OUT_OF_MEMORY.
dp_error dp_shared_memory_create(uint64_t len, dp_place *place);

// Makes the whole of a memfd of the caller's a place that can be passed to the service. It must be
// sealed against shrinking (`F_SEAL_SHRINK`). The descriptor is duplicated and stays the caller's.
//
// Errors: DP_INVALID_INPUT for another descriptor.
dp_error dp_shared_memory_from_descriptor(int32_t descriptor, dp_place *place);

// Gives the descriptor of memory that was made by the two functions before, for passing it to other
// processes. It belongs to the place: do not close it.
//
// Errors: DP_INVALID_INPUT for another place.
dp_error dp_shared_memory_descriptor(dp_place place, int32_t *descriptor);

// Connects to the service whose socket is at `path`, or, with NULL, to the first that runs at
// `$XDG_RUNTIME_DIR/dpiped.sock` and `/run/dpiped.sock`.
//
// Errors: DP_UNAVAILABLE where no service runs; DP_PERMISSION_DENIED; DP_BUSY where it has too many
// clients; DP_UNSUPPORTED where it speaks another version.
dp_error dp_client_connect(const char *path, dp_client *client);

// Connects two places by a pipe that the service carries out: files, with the rights of their
// descriptors, and shared memory. The other arguments are those of `dp_runtime_connect_fd`; the
// `queue` of the service level must be 0. The pipe keeps the connection open. While a transfer is
// under way, its bytes are leased in this process until its completion is taken.
//
// Errors: DP_INVALID_INPUT for a place that cannot be passed; DP_PERMISSION_DENIED for a descriptor
// without the right; DP_BUSY where a limit is reached; DP_UNSUPPORTED; DP_UNAVAILABLE where the
// service is gone.
dp_error dp_client_connect_fd(dp_client client,
                              dp_place source,
                              dp_place target,
                              const dp_constraints *constraints,
                              const dp_service *service,
                              uint64_t place,
                              uint32_t depth,
                              dp_pipe_fd *pipe);

// Copies what the service is doing as JSON, as `snprintf` does; `*len` becomes the whole length.
//
// Errors: DP_UNAVAILABLE where the service is gone.
dp_error dp_client_status(dp_client client, char *text, size_t capacity, size_t *len);

// Ends a connection to the service, which stays open until its last pipe is closed.
//
// Errors: DP_INVALID_INPUT for a client that was closed.
dp_error dp_client_close(dp_client client);

// Sorts `count` files into one, which appears under its name when it is complete. `output` may be
// one of the inputs. The report is copied as JSON, as `snprintf` does, if `report` is not NULL;
// `*len`, if it is not NULL, becomes its whole length.
//
// Errors: DP_NOT_FOUND, DP_NO_SPACE, DP_OUT_OF_MEMORY, DP_INTERRUPTED by `progress`, DP_DEVICE. After
// an error nothing is left of the output.
dp_error dp_sort(dp_machine machine,
                 const char *const *inputs,
                 size_t count,
                 const char *output,
                 const dp_sort_options *options,
                 char *report,
                 size_t capacity,
                 size_t *len);

// Sorts what `read` gives, and hands it to `write` in order. Both are over, and called no more, when
// it returns. A `read` that waits for ever keeps it from returning, also when the sort has failed.
// `options` are those of `dp_sort`; what does not fit the memory goes to `spill`, or to the folder for
// temporary files.
//
// Errors: what `read` and `write` give; DP_INVALID_INPUT where `read` says that it gave more than it
// was asked for; as `dp_sort`. After an error, what `write` took is not all.
dp_error dp_sort_streams(dp_machine machine,
                         dp_sort_read read,
                         void *read_user,
                         dp_sort_write write,
                         void *write_user,
                         const dp_sort_options *options);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DATAPIPES_H */
