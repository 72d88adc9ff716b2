// The first program of docs/c.md in C++.
#include <datapipes.hpp>
#include <iostream>

int main(int count, char **arguments) {
    if (count != 2) {
        return 2;
    }
    datapipes::machine machine;
    datapipes::ssd file(arguments[1]);                 // where the bytes are
    datapipes::dram memory(4096);                      // where they go
    auto pipe = machine.connect(file, memory);         // the route is chosen here, or refused
    std::cerr << pipe.route();                         // which primitive, why, and why not the others
    pipe.transfer({.source = 0, .target = 0, .length = 4096});
    auto lease = memory.lease();                       // bytes are reached through leases only
    std::cout.write(reinterpret_cast<const char *>(lease.bytes().data()), 17);
}
