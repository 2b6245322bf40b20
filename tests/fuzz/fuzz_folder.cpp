// Fuzzes a whole model folder: the loader checks each file against the others.
#include "engine/base/index.h"
#include "engine/model/model.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/json_mutator.h"

namespace keyhole::fuzz_folder {

namespace {

bool is_weights(const std::string& name) {
    return name.ends_with(".safetensors");
}

}  // namespace

static int run(const std::uint8_t* data, std::size_t size) {
    static const FuzzFolder folder("folder");
    folder.fill(members_of(text_of(data, size)));
    expect_error_or_none([&] {
        const auto model = load_model(folder.path());
        // Users of a model rely on these.
        const ModelConfig& config = model->config();
        if (static_cast<int>(model->weights().layers.size()) != config.n_layers) std::abort();
        if (model->tokenizer().n_vocab() > config.n_vocab || config.bos >= config.n_vocab) std::abort();
        for (const int id : model->tokenizer().encode("abc <s>"))
            if (id < 0 || id >= config.n_vocab) std::abort();
        double sum = 0;
        visit_weights(model->weights(), [&](const Weight& weight) {
            const auto n = to_index(stored_bytes(weight));
            for (std::size_t i = 0; i < n; ++i)
                sum += std::to_integer<int>(static_cast<const std::byte*>(weight.data)[i]);
        });
        if (sum < 0) std::abort();  // uses the sum, so that the reads are not optimised away
    });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    return mutate_members(data, size, most, seed,
                          [](const std::string& name, std::string& bytes, JsonMutator& mutator) {
                              return is_weights(name) && mutate_safetensors(bytes, mutator);
                          });
}

static const FuzzTarget target("folder", run, mutate);

}  // namespace keyhole::fuzz_folder
