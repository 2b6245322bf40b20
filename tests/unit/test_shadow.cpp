// A lane's shadow, against the double-precision reference fed with the lane's own attended sets, and its
// properties.
#include "engine/backend/cpu/cache.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/policy/lane_spec.h"
#include "engine/trace/record.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace reference::test_shadow {
namespace {

using keyhole::RowOutput;
using keyhole::RowRequest;

/// One lane on forced tokens. Keeps every output row; a one-shot prompt gives only its last.
struct Driver {
    std::shared_ptr<const keyhole::Model> model;
    std::unique_ptr<keyhole::Backend> backend;
    std::unique_ptr<keyhole::KvCache> cache;
    keyhole::ResolvedPolicy policy;
    std::map<int, RowOutput> rows;

    Driver(std::shared_ptr<const keyhole::Model> of, const std::string& spec, int n_prompt, int n_decode,
           int n_threads = 1)
        : model(std::move(of)) {
        std::string notice;
        backend = keyhole::make_backend(model, {keyhole::BackendChoice::cpu, n_threads, 0}, &notice);
        policy = keyhole::resolve(keyhole::parse_lane_spec(spec).policy, n_prompt, n_decode,
                                  keyhole::head_grid(model->layout()));
        cache = backend->make_cache(policy);
    }

    void run(std::span<const int> tokens, int n_prompt) {
        const RowRequest all{true, true, true, true, true};
        int row = 0;
        if (policy.prefill == keyhole::PrefillMode::oneshot) {
            const keyhole::LanePrefill lane{cache.get(), all, &rows[n_prompt - 1]};
            backend->prefill(tokens.first(keyhole::to_index(n_prompt)), {&lane, 1}, nullptr, {});
            row = n_prompt;
        }
        for (; row < static_cast<int>(tokens.size()); ++row) step(tokens[keyhole::to_index(row)], row);
    }

    void step(int token, int row) {
        const keyhole::LaneStep lane{cache.get(), token, row, {true, true, true, true, true}, &rows[row]};
        backend->step({&lane, 1});
    }
};

std::string shadowed(const std::string& spec) {
    return spec + (spec.find(':') == std::string::npos ? ":" : ",") + "shadow=on";
}

/// Returns the positions that a row attended to in a KV head.
std::set<int> seen_positions(const RowOutput& out, int g) {
    std::set<int> seen;
    for (int i = out.values.offset[keyhole::to_index(g)]; i < out.values.offset[keyhole::to_index(g) + 1];
         ++i)
        if (out.values.hidden.empty() || out.values.hidden[keyhole::to_index(i)] == 0)
            seen.insert(out.values.positions[keyhole::to_index(i)]);
    return seen;
}

/// Measures of one head, from their definitions.
struct Expected {
    double retained = 0, ideal_mass = 0, cosine_ideal = 0, cosine_full = 0;
};

Expected expected_of(const Vector& full, const Vector& row, const std::set<int>& seen, int k) {
    const int t = static_cast<int>(full.size()) - 1;
    std::vector<int> older(keyhole::to_index(t));
    std::iota(older.begin(), older.end(), 0);
    std::sort(older.begin(), older.end(),
              [&](int a, int b) { return full[keyhole::to_index(a)] > full[keyhole::to_index(b)]; });
    older.resize(keyhole::to_index(std::min(k, t)));
    std::set<int> ideal(older.begin(), older.end());
    ideal.insert(t);
    Expected e;
    double af = 0, ar = 0, aa = 0, ff = 0, rr = 0;
    for (int p = 0; p <= t; ++p) {
        const double a = row[keyhole::to_index(p)], f = full[keyhole::to_index(p)];
        const double r = ideal.contains(p) ? f : 0;
        if (seen.contains(p)) e.retained += f;
        e.ideal_mass += r;
        af += a * f, ar += a * r, aa += a * a, ff += f * f, rr += r * r;
    }
    e.cosine_ideal = ar / std::sqrt(aa * rr);
    e.cosine_full = af / std::sqrt(aa * ff);
    return e;
}

struct ShadowParam {
    std::string spec;
    int n_kv_heads = 2;
    Places places = Places::original;
};

class EngineShadow : public ::testing::TestWithParam<ShadowParam> {
  protected:
    static constexpr int kPrompt = 24, kDecode = 16;
};

TEST_P(EngineShadow, AgreesWithFullRowsOfTheReference) {
    TinyShape shape;
    shape.n_kv_heads = GetParam().n_kv_heads;
    const TinyModel folder(shape);
    const Weights weights = load_weights(folder.folder());
    const std::vector<int> tokens = random_tokens(kPrompt + kDecode, 5);
    Driver lane(keyhole::load_model(folder.folder()), shadowed(GetParam().spec), kPrompt, kDecode);
    lane.run(tokens, kPrompt);
    const keyhole::KvLayout& layout = lane.model->layout();

    Sequence sequence(weights);
    for (int row = 0; row < kPrompt + kDecode; ++row) {
        const auto found = lane.rows.find(row);
        PositionSets visible = empty_sets(weights);
        for (int l = 0; l < weights.n_layers; ++l)
            for (int g = 0; g < weights.n_kv_heads; ++g) {
                std::set<int>& set = visible[keyhole::to_index(l)][keyhole::to_index(g)];
                if (found != lane.rows.end())
                    set = seen_positions(found->second, layout.first_of_layer(l) + g);
                else
                    for (int p = 0; p < row; ++p) set.insert(p);  // one-shot prompt rows see all
            }
        for (auto& layer : visible)
            for (std::set<int>& set : layer) set.erase(row);  // always visible
        const Row truth =
            sequence.feed(tokens[keyhole::to_index(row)], visible,
                          row < kPrompt && found == lane.rows.end() ? Places::original : GetParam().places);
        if (found == lane.rows.end()) continue;
        const RowOutput& out = found->second;
        if (row < kPrompt && lane.policy.prefill == keyhole::PrefillMode::oneshot) {
            EXPECT_TRUE(out.shadow.retained_mass.empty() && out.values.shadow.empty());
            continue;
        }
        const auto n_heads = keyhole::to_index(weights.n_layers * weights.n_heads);
        ASSERT_EQ(out.shadow.retained_mass.size(), n_heads);
        ASSERT_EQ(out.values.shadow.size(), n_heads * keyhole::to_index(row + 1));
        for (int l = 0; l < weights.n_layers; ++l)
            for (int h = 0; h < weights.n_heads; ++h) {
                SCOPED_TRACE(fmt::format("row {} layer {} head {}", row, l, h));
                const auto layer = keyhole::to_index(l), head = keyhole::to_index(h);
                const auto at = keyhole::to_index(l * weights.n_heads + h);
                const int g = layout.kv_head_from_head(l, h), k = lane.policy.at(l, h).budget;
                const Vector& full = truth.full[layer][head];
                const std::set<int> seen = seen_positions(out, g);
                const Expected e = expected_of(full, truth.attention[layer][head], seen, k);
                EXPECT_NEAR(out.shadow.retained_mass[at], e.retained, 1e-4);
                EXPECT_NEAR(out.shadow.cosine_ideal[at], e.cosine_ideal, 1e-4);
                EXPECT_NEAR(out.shadow.cosine_full[at], e.cosine_full, 1e-4);
                EXPECT_NEAR(out.shadow.output_similarity[at], truth.output_similarity[layer][head], 1e-4);
                double lost = 0;
                for (int p = 0; p <= row; ++p) {
                    const float f = out.values.shadow[at * keyhole::to_index(row + 1) + keyhole::to_index(p)];
                    EXPECT_NEAR(f, full[keyhole::to_index(p)], 1e-5);
                    if (!seen.contains(p)) lost += f;
                }
                EXPECT_NEAR(1.0 - out.shadow.retained_mass[at], lost, 1e-6);
                if (static_cast<int>(seen.size()) - 1 <= k) {
                    EXPECT_LE(out.shadow.retained_mass[at], e.ideal_mass + 1e-5);
                }
            }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Lanes, EngineShadow,
    ::testing::Values(ShadowParam{"full"}, ShadowParam{"window:budget=6"}, ShadowParam{"sink:budget=7"},
                      ShadowParam{"key:budget=6", 4}, ShadowParam{"h2o:budget=8"},
                      ShadowParam{"h2o:budget=8,prefill=stepwise", 1}, ShadowParam{"tova:budget=6", 4},
                      ShadowParam{"tova:budget=6,prefill=stepwise"}, ShadowParam{"keyformer:budget=10"},
                      ShadowParam{"a2sf:budget=5", 1}, ShadowParam{"h2o:budget=8,scope=shared"},
                      ShadowParam{"h2o:budget=6,every=5"}, ShadowParam{"h2o:budget=8,budget@L1.H0-1=3"},
                      ShadowParam{"h2o:budget=8,recent=4,dialect=released"},
                      ShadowParam{"keyformer:budget=8,dialect=released"},
                      ShadowParam{"dilated:budget=6,dilation=1"},
                      ShadowParam{"sink:budget=7,positions=cache", 2, Places::cache},
                      ShadowParam{"tova:budget=6,positions=compressed", 1, Places::compressed}),
    [](const auto& test) {
        std::string name = test.param.spec;
        for (char& c : name)
            if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
        return name;
    });

TEST(EngineShadowProperties, ChangesNoBitOfTheLane) {
    const TinyModel folder{TinyShape{}};
    const auto model = keyhole::load_model(folder.folder());
    const std::vector<int> tokens = random_tokens(40, 9);
    for (const char* spec : {"full", "h2o:budget=8", "tova:budget=6,prefill=stepwise", "sink:budget=7",
                             "h2o:budget=8,dialect=released", "dilated:budget=6,dilation=1"}) {
        Driver plain(model, spec, 20, 20), other(model, shadowed(spec), 20, 20, 2);
        plain.run(tokens, 20);
        other.run(tokens, 20);
        ASSERT_EQ(plain.rows.size(), other.rows.size());
        for (const auto& [row, out] : plain.rows) {
            EXPECT_EQ(difference(out, other.rows.at(row)), "") << spec << " row " << row;
            EXPECT_TRUE(out.shadow.retained_mass.empty() && out.values.shadow.empty());
        }
        EXPECT_EQ(plain.cache->use().stored_bytes, other.cache->use().stored_bytes);
        EXPECT_EQ(plain.cache->use().allocated_bytes, other.cache->use().allocated_bytes);
        EXPECT_EQ(plain.cache->use().shadow_bytes, 0);
        const keyhole::ModelConfig& c = model->config();
        EXPECT_GE(other.cache->use().shadow_bytes, 40 * 2 * 4 * c.n_layers * c.n_kv_heads * c.head_dim);
    }
}

TEST(EngineShadowProperties, WithoutEvictionNothingIsLost) {
    const TinyModel folder{TinyShape{}};
    Driver lane(keyhole::load_model(folder.folder()), "full:shadow=on", 12, 12);
    lane.run(random_tokens(24, 3), 12);
    lane.rows.erase(11);
    ASSERT_EQ(lane.rows.size(), 12u);
    for (const auto& [row, out] : lane.rows)
        for (const auto* values : {&out.shadow.retained_mass, &out.shadow.cosine_ideal,
                                   &out.shadow.cosine_full, &out.shadow.output_similarity})
            for (float value : *values) EXPECT_NEAR(value, 1.0f, 1e-6f) << row;
}

TEST(EngineShadowProperties, ACloneGoesOnAlikeAndApart) {
    const TinyModel folder{TinyShape{}};
    const std::vector<int> tokens = random_tokens(30, 3);
    const std::span<const int> all(tokens);
    Driver lane(keyhole::load_model(folder.folder()), "h2o:budget=6,shadow=on", 12, 18);
    lane.run(all.first(20), 12);
    std::unique_ptr<keyhole::KvCache> copy = lane.cache->clone();
    EXPECT_GT(copy->use().shadow_bytes, 0);
    for (int row = 20; row < 30; ++row) lane.step(tokens[keyhole::to_index(row)], row);
    const std::map<int, RowOutput> first = lane.rows;
    lane.cache = std::move(copy);
    for (int row = 20; row < 30; ++row) {
        lane.step(tokens[keyhole::to_index(row)], row);
        EXPECT_EQ(lane.rows.at(row).shadow.retained_mass, first.at(row).shadow.retained_mass);
        EXPECT_EQ(lane.rows.at(row).values.shadow, first.at(row).values.shadow);
    }
}

TEST(EngineShadowProperties, BeginsWithTheTextAndEndsWhenSwitchedOff) {
    const TinyModel folder{TinyShape{}};
    const std::vector<int> tokens = random_tokens(16, 3);
    const auto model = keyhole::load_model(folder.folder());
    Driver late(model, "h2o:budget=6", 12, 4);
    late.run(std::span(tokens).first(13), 12);
    late.policy.shadow = true;
    late.backend->apply_policy(*late.cache, late.policy, 12);
    late.step(tokens[13], 13);
    EXPECT_TRUE(late.rows.at(13).shadow.retained_mass.empty()) << "what was evicted is gone";

    Driver early(model, "h2o:budget=6,shadow=on", 12, 4);
    early.run(std::span(tokens).first(13), 12);
    EXPECT_FALSE(early.rows.at(12).shadow.retained_mass.empty());
    early.policy.shadow = false;
    early.backend->apply_policy(*early.cache, early.policy, 12);
    early.step(tokens[13], 13);
    EXPECT_TRUE(early.rows.at(13).shadow.retained_mass.empty());
    EXPECT_EQ(early.cache->use().shadow_bytes, 0);
}

}  // namespace
}  // namespace reference::test_shadow
