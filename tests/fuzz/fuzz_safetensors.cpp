// Fuzzes a safetensors file: opens it, lists its tensors, and reads each tensor.
#include "engine/base/index.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_check.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

namespace keyhole::fuzz_safetensors {

static int run(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(text_of(data, size));
    expect_error_or_none([&] {
        const SafetensorsFile opened(file.path());
        for (const std::string& name : opened.names()) {
            expect_error_or_none([&] {
                const StoredTensor tensor = opened.tensor(name);
                std::size_t n = 1;
                for (const std::int64_t extent : tensor.shape) n *= to_index(extent);
                // reads the tensor from end to end
                find_non_finite(tensor.dtype, tensor.data, n, n % 2 == 0);
            });
        }
    });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    JsonMutator mutator(seed);
    std::string bytes(text_of(data, size));
    if (mutator.below(8) == 0 || !mutate_safetensors(bytes, mutator))
        return LLVMFuzzerMutate(data, size, most);
    return replace_input(data, size, most, bytes);
}

static const FuzzTarget target("safetensors", run, mutate);

}  // namespace keyhole::fuzz_safetensors
