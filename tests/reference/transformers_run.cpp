#include "tests/reference/transformers_run.h"

#include "engine/backend/backend.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/model/safetensors.h"
#include "engine/policy/lane_spec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

namespace reference {
namespace {

using namespace keyhole;

/// Values computed by transformers.
struct Expected {
    std::vector<int> tokens;
    std::vector<float> logits;     // [row, n_vocab]
    std::vector<float> attention;  // [layer and head, row, position]
    float largest_logit = 0;

    explicit Expected(const std::filesystem::path& path) {
        const SafetensorsFile file(path);
        for (const float id : floats(file, "input_ids")) tokens.push_back(static_cast<int>(id));
        logits = floats(file, "logits");
        attention = floats(file, "attention");
        for (const float logit : logits) largest_logit = std::max(largest_logit, std::abs(logit));
    }
    static std::vector<float> floats(const SafetensorsFile& file, const char* name) {
        const StoredTensor tensor = file.tensor(name);
        std::int64_t n = 1;
        for (const std::int64_t extent : tensor.shape) n *= extent;
        std::vector<float> values(keyhole::to_index(n));
        std::memcpy(values.data(), tensor.data, values.size() * 4);
        return values;
    }
};

void note(double got, double expected, double scale, const std::string& where, OutsideError& worst) {
    const double share = std::isfinite(got) ? std::abs(got - expected) / (3e-5 * scale) : 1e9;
    if (share <= worst.share) return;
    worst = {share, fmt::format("{}: {} for {}", where, got, expected)};
}

void compare_row(const ModelConfig& config, const Expected& expected, int row, const RowOutput& out,
                 OutsideError& worst) {
    const auto n_rows = static_cast<int>(expected.tokens.size());
    ASSERT_EQ(out.next_logits.size(), keyhole::to_index(config.n_vocab));
    for (int v = 0; v < config.n_vocab; ++v)
        note(out.next_logits[keyhole::to_index(v)],
             expected.logits[keyhole::to_index(row * config.n_vocab + v)], expected.largest_logit,
             fmt::format("row {} id {}", row, v), worst);
    for (int head = 0; head < config.n_layers * config.n_heads; ++head) {
        const auto begin = keyhole::to_index(out.values.head_offset[keyhole::to_index(head)]);
        for (int p = 0; p <= row; ++p)
            note(out.values.attention[begin + keyhole::to_index(p)],
                 expected.attention[keyhole::to_index((head * n_rows + row) * n_rows + p)], 1.0,
                 fmt::format("row {} layer {} head {} position {}", row, head / config.n_heads,
                             head % config.n_heads, p),
                 worst);
    }
}

}  // namespace

OutsideError error_to_transformers(const std::filesystem::path& model_path, int n_prompt,
                                   const std::filesystem::path& expected_folder) {
    const auto model = load_model(model_path);
    const std::filesystem::path from = expected_folder.empty() ? model_path : expected_folder;
    const Expected expected(std::filesystem::is_directory(from) ? from / "expected.safetensors" : from);
    const std::span<const int> tokens(expected.tokens);
    const auto n_rows = static_cast<int>(tokens.size());
    if (n_prompt == 0) n_prompt = n_rows;
    const auto backend = make_backend(model, {BackendChoice::cpu, 2, 0}, nullptr);
    const ResolvedPolicy policy =
        resolve(parse_lane_spec("full:kv_dtype=f32").policy, n_prompt, n_rows - n_prompt);
    const auto cache = backend->make_cache(policy);
    const RowRequest requested{true, false, false, false};
    RowOutput out;
    OutsideError worst;
    for (int row = n_prompt - 1; row < n_rows; ++row) {
        if (row == n_prompt - 1) {
            const LanePrefill lane{cache.get(), requested, &out};
            backend->prefill(tokens.first(keyhole::to_index(n_prompt)), {&lane, 1}, nullptr, {});
        } else {
            const LaneStep lane{cache.get(), tokens[keyhole::to_index(row)], row, requested, &out};
            backend->step({&lane, 1});
        }
        compare_row(model->config(), expected, row, out, worst);
        if (::testing::Test::HasFatalFailure()) break;
    }
    return worst;
}

void compare_with_transformers(const std::filesystem::path& model_path, int n_prompt,
                               const std::filesystem::path& expected) {
    const OutsideError worst = error_to_transformers(model_path, n_prompt, expected);
    EXPECT_LT(worst.share, 1.0) << worst.where;
}

}  // namespace reference
