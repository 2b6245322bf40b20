// Gives libFuzzer the target that the program is named after: fuzz_trace is a link to this program. One
// program is compiled and linked in a fraction of the time that fifteen take.
#include "tests/fuzz/fuzz.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

const keyhole::FuzzTarget* target = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char*** args) {
    const std::string program = std::filesystem::path((*args)[0]).filename();
    for (const keyhole::FuzzTarget* one : keyhole::FuzzTarget::all())
        if (program == "fuzz_" + std::string(one->name)) target = one;
    if (target != nullptr) return 0;
    std::fprintf(stderr, "%s is no fuzzer; start it by one of these names:", program.c_str());
    for (const keyhole::FuzzTarget* one : keyhole::FuzzTarget::all())
        std::fprintf(stderr, " fuzz_%s", std::string(one->name).c_str());
    std::fprintf(stderr, "\n");
    std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return target->run(data, size);
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
    if (target->mutate == nullptr) return LLVMFuzzerMutate(data, size, max_size);
    return target->mutate(data, size, max_size, seed);
}
