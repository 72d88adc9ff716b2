/* The first program of docs/c.md. */
#include <datapipes.h>
#include <stdio.h>
#include <string.h>

/* Says what failed, and returns from main. */
#define TRY(call)                                                   \
    do {                                                            \
        dp_error error = (call);                                    \
        if (error.id != 0) {                                        \
            fprintf(stderr, "%s\n", dp_error_message(error));       \
            dp_error_close(error);                                  \
            return 1;                                               \
        }                                                           \
    } while (0)

int main(int count, char **arguments) {
    dp_machine machine;
    dp_place file, memory;
    dp_pipe pipe;
    dp_lease lease;
    const void *bytes;
    size_t len;
    char route[4096];
    if (count != 2) {
        return 2;
    }
    TRY(dp_machine_discover(&machine));
    TRY(dp_ssd_open(arguments[1], DP_READ, DP_AUTO, &file)); /* where the bytes are */
    TRY(dp_dram_allocate(4096, NULL, &memory));              /* where they go */
    TRY(dp_connect(machine, file, memory, NULL, &pipe));     /* the route is chosen here, or refused */
    TRY(dp_pipe_route(pipe, DP_TEXT, route, sizeof route, NULL));
    fputs(route, stderr); /* which primitive, why, and why not the others */
    TRY(dp_pipe_transfer(pipe, (dp_span){.source = 0, .target = 0, .length = 4096}));
    TRY(dp_lease_read(memory, &lease, &bytes, &len)); /* bytes are reached through leases only */
    fwrite(bytes, 1, strlen("everything holds\n"), stdout);
    TRY(dp_lease_close(lease));
    TRY(dp_pipe_close(pipe));
    TRY(dp_place_close(memory));
    TRY(dp_place_close(file));
    return dp_machine_close(machine).id != 0;
}
